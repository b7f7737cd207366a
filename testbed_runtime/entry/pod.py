"""`python -m testbed_runtime.entry.pod ROLE`: what a pod of a testbed or of a run runs, a supervisor with one child.

The supervisor answers liveness also while its child is paused, holds the faults of this pod, and starts the child's next incarnation. On
SIGTERM the child gets GRACE_S to say its last, all ends inside END_S with 0. The pod ends with 2 when the child can not be started, or
was lost and does not come again: what that means is the pod's restartPolicy's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.ids import RECORDER
from testbed_runtime.entry.lifeline import Lifeline
from testbed_runtime.entry.pod_plan import (
    Document,
    Place,
    child_spec,
    document_of,
    people_of,
    place_of,
    supervisor_config,
)
from testbed_runtime.faults.http import serve
from testbed_runtime.ports.network import Address
from testbed_runtime.process.clock import loop_factory
from testbed_runtime.supervisor.api import application
from testbed_runtime.supervisor.supervisor import ChildSpec, People, Supervisor

EXIT_ERROR = 2
GRACE_S = 3.0
"""For the child to flush what it recorded."""
END_S = 4.5
"""From SIGTERM to our end: a pod's grace period may be as short as 5 s."""


async def run(place: Place) -> int:
    """Until SIGTERM, or until the child is lost for good. The exit code."""
    document = None if place.role == RECORDER else _read(place)
    config, spec = supervisor_config(place, document), child_spec(place, document)
    async with Lifeline(stdin=False) as lifeline:
        supervisor = Supervisor(config, people=_people(place) if document else None)
        supervisor.on_lost = _complain
        await supervisor.start()
        runner, _ = await serve(application(supervisor, config.token(), child=spec.name), config.bind)
        try:
            reason = await _watch(supervisor, spec, lifeline)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await supervisor.stop(spec.name, GRACE_S)
                    await supervisor.close()
            await runner.cleanup()
    if reason:
        _complain(reason)
    return EXIT_ERROR if reason else 0


async def _watch(supervisor: Supervisor, spec: ChildSpec, lifeline: Lifeline) -> str:
    """Start the child, then wait. Why the pod ends; empty: it was told to."""
    loop = asyncio.get_running_loop()
    start = loop.create_task(_start(supervisor, spec), name=f"start-{spec.name}")
    waits = [
        loop.create_task(lifeline.cut.wait(), name="pod:end"),
        loop.create_task(supervisor.given_up.wait(), name="pod:given-up"),
    ]
    try:
        await asyncio.wait([start, *waits], return_when=asyncio.FIRST_COMPLETED)
        if start.done() and (failure := start.result()):
            return failure
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (start, *waits):
            task.cancel()
        await asyncio.gather(start, *waits, return_exceptions=True)
    return "" if lifeline.cut.is_set() else supervisor.reason


async def _start(supervisor: Supervisor, spec: ChildSpec) -> str:
    """Why it could not be started; empty when it is ready."""
    try:
        await supervisor.launch(spec)
    except HeadgateError as error:
        return str(error)
    return ""


def _prepared(place: Place) -> Place:
    Path(place.work_folder).mkdir(parents=True, exist_ok=True)
    return place


def _read(place: Place) -> Document:
    try:
        data = Path(place.config_file).read_bytes()
    except OSError as error:
        raise HeadgateError(f"{place.config_file} cannot be read: {error.strerror}") from None
    return document_of(data, place.config_file)


def _people(place: Place) -> People:
    """As testbed.json says now: a testbed may be scaled while this pod lives."""
    known: dict[str, Address] = {}

    def people() -> Mapping[str, Address]:
        nonlocal known
        with contextlib.suppress(HeadgateError):
            known = people_of(_read(place))
        return known

    return people


def _complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def main() -> int:
    try:
        place = _prepared(place_of(sys.argv[1] if len(sys.argv) > 1 else "", os.environ))
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(run(place))
    except (HeadgateError, OSError) as error:
        _complain(str(error))
        return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
