"""`python -m testbed_runtime.entry.pod ROLE`: the main process of a pod of a testbed or run, a supervisor with one child.

The supervisor answers liveness probes while its child is paused, carries out the faults of this pod, and starts the child's next
incarnation. On SIGTERM the child gets GRACE_S to flush, and the pod ends within END_S with exit code 0. It ends with 2 when the child
cannot be started, or was lost and is not replaced; the pod's restartPolicy decides what follows.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.ids import RECORDER
from testbed_runtime.entry.harness import Process, Ready, complain, run_process
from testbed_runtime.entry.pod_plan import (
    Document,
    PodIdentity,
    child_spec,
    document_of,
    identity_of,
    peer_addresses,
    supervisor_config,
)
from testbed_runtime.ports.network import Address
from testbed_runtime.supervisor.api import application
from testbed_runtime.supervisor.supervisor import Peers, Supervisor
from testbed_runtime.timeouts import timeout

GRACE_S = 3.0
"""Time for the child to flush its records."""
END_S = 4.5
"""Time limit from SIGTERM to the end of the process. A pod's grace period may be as short as 5 s."""


async def start(pod: PodIdentity, process: Process) -> Ready:
    """Listen first, then start the child: the kubelet probes a pod whose child is still starting."""
    document = None if pod.role == RECORDER else _read(pod)
    config, spec = supervisor_config(pod, document), child_spec(pod, document)
    supervisor = Supervisor(config, peers=_peers(pod) if document else None)
    supervisor.on_lost = complain

    async def close() -> None:
        with contextlib.suppress(TimeoutError):
            async with timeout(END_S):
                await supervisor.stop(spec.name, GRACE_S)
                await supervisor.close()

    async def end_when_given_up() -> None:
        await supervisor.given_up.wait()
        process.end(supervisor.reason)

    await supervisor.start()
    address = await process.listen(application(supervisor, config.token(), child=spec.name), config.bind)
    process.on_close(close)
    process.spawn(end_when_given_up(), "pod:given-up")
    await supervisor.launch(spec)
    return {"control": address}


def _read(pod: PodIdentity) -> Document:
    try:
        data = Path(pod.config_file).read_bytes()
    except OSError as error:
        raise HeadgateError(f"{pod.config_file} cannot be read: {error.strerror}") from None
    return document_of(data, pod.config_file)


def _peers(pod: PodIdentity) -> Peers:
    """Return the addresses in the current testbed.json: a testbed may be scaled while this pod runs."""
    known: dict[str, Address] = {}

    def peers() -> Mapping[str, Address]:
        nonlocal known
        with contextlib.suppress(HeadgateError):
            known = peer_addresses(_read(pod))
        return known

    return peers


def load() -> PodIdentity:
    pod = identity_of(sys.argv[1] if len(sys.argv) > 1 else "", os.environ)
    Path(pod.work_folder).mkdir(parents=True, exist_ok=True)
    return pod


if __name__ == "__main__":
    sys.exit(run_process(start, load, has_parent=lambda _: False))
