"""`--on kubernetes` against a model of the API server: it creates exactly one run, and recognizes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from testbed_runtime.api.status import ScenarioRunStatus, read
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.kube.api import WatchEvent
from testbed_runtime.kube.client_run import ClientRun, give_up_at, manifest
from testbed_runtime.runner.progress import Notice
from testbed_runtime.simulation.loop import run_virtual
from tests.api.documents import good
from tests.collecting import Collected
from tests.operator.model import ModelApi

LAB = "lab"


class Forgetful(ModelApi):
    """Loses the first answer to a create, so the client repeats it and finds that the run exists."""

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        await super().create(manifest)
        return await super().create(manifest)


def wanted() -> dict[str, Any]:
    return manifest(good("Scenario"), name="late-1", namespace=LAB)


def client(api: ModelApi) -> ClientRun:
    return ClientRun(api, LAB, Collected())  # type: ignore[arg-type]


async def test_a_run_whose_creation_was_requested_twice_is_recognized() -> None:
    """It is followed like any other, and exists once."""
    api = Forgetful()
    await client(api).start(wanted())
    assert [run["metadata"]["name"] for run in api.select("ScenarioRun", LAB)] == ["late-1"]


async def test_a_run_of_that_name_from_another_client_is_an_error() -> None:
    """Even if it was created a moment ago."""
    api = ModelApi()
    await client(api).start(wanted())
    with pytest.raises(HeadgateError, match="ScenarioRun late-1 exists already"):
        await client(api).start(wanted())


class Watched(ModelApi):
    """Shows the run once, and its end after a time if there is one."""

    def __init__(self, ends_s: float | None) -> None:
        super().__init__()
        self._ends_s = ends_s

    async def watch(self, kind: str, namespace: str, *, fields: str) -> AsyncIterator[WatchEvent]:
        del kind, namespace, fields
        yield WatchEvent("LISTED", {"metadata": {"name": "late-1"}})
        yield WatchEvent("SYNCED", {})
        if self._ends_s is None:
            await asyncio.Event().wait()
        await asyncio.sleep(self._ends_s or 0)
        yield WatchEvent("MODIFIED", {"metadata": {"name": "late-1"}, "status": {"phase": "Complete"}})


@pytest.mark.parametrize(("ends_s", "notices"), [(2, 0), (60, 1), (None, 1)])
def test_a_run_that_no_operator_looks_at_is_reported_soon_and_given_up_later(
    ends_s: float | None, notices: int
) -> None:
    """A notice after 10 s, an error after two minutes that says how to delete the run. An operator that comes meanwhile is in time."""

    async def follow() -> tuple[str, list[Any]]:
        progress, clock = Collected(), asyncio.get_running_loop().time
        begun = clock()
        follower = ClientRun(Watched(ends_s), LAB, progress)  # type: ignore[arg-type]
        try:
            return (await follower.follow("late-1")).phase, progress.events
        except HeadgateError as error:
            assert clock() - begun == pytest.approx(120)
            return str(error), progress.events

    ended, events = run_virtual(follow())
    assert ("Complete" if ends_s else "kubectl -n lab delete scenariorun late-1") in ended
    assert [type(event) for event in events] == [Notice] * notices


class Stalling(ModelApi):
    """Shows a run with these statuses, one each minute."""

    def __init__(self, *statuses: dict[str, Any]) -> None:
        super().__init__()
        self._statuses = statuses

    async def watch(self, kind: str, namespace: str, *, fields: str) -> AsyncIterator[WatchEvent]:
        del kind, namespace, fields
        yield WatchEvent("LISTED", {"metadata": {"name": "late-1"}})
        for status in self._statuses:
            yield WatchEvent("MODIFIED", {"metadata": {"name": "late-1"}, "status": status})
            await asyncio.sleep(60)
        yield WatchEvent("MODIFIED", {"metadata": {"name": "late-1"}, "status": {"phase": "Complete"}})


def stalled(reason: str, phase: str = "Starting") -> dict[str, Any]:
    condition = {
        "type": "Stalled",
        "status": "True",
        "reason": reason,
        "message": "violates PodSecurity; label it",
    }
    return {"phase": phase, "conditions": [condition]}


RUNS = {"phase": "Running"}


@pytest.mark.parametrize(
    ("statuses", "ended_s"),
    [
        ((stalled("NotAdmitted"),) * 4, 120),
        ((RUNS, *(stalled("ReconcileFailed", ""),) * 4), 180),
        ((stalled("NotAdmitted"), RUNS, stalled("NotAdmitted"), RUNS), 0),
        ((stalled("NotAdmitted", "Running"),) * 4, 0),
        ((stalled("QuotaExceeded"),) * 4, 0),
    ],
    ids=["refused", "fails later", "is fixed in time", "the runner drives it", "waits for other runs"],
)
def test_a_run_that_cannot_start_is_given_up_with_the_reason(
    statuses: tuple[dict[str, Any], ...], ended_s: float
) -> None:
    """Two minutes after the operator reported it. Otherwise a pipeline would wait until its own limit, with --quiet without a word."""

    async def follow() -> str:
        clock = asyncio.get_running_loop().time
        begun = clock()
        follower = ClientRun(Stalling(*statuses), LAB, Collected())  # type: ignore[arg-type]
        try:
            return (await follower.follow("late-1")).phase
        except HeadgateError as error:
            assert clock() - begun == pytest.approx(ended_s)
            return str(error)

    ended = run_virtual(follow())
    if not ended_s:
        assert ended == "Complete"
        return
    assert "late-1 cannot start: violates PodSecurity; label it. The run stays" in ended
    assert "kubectl -n lab delete scenariorun late-1" in ended


REFUSED = stalled("NotAdmitted")


@pytest.mark.parametrize(
    ("before", "status", "limit", "given_up_at"),
    [
        ({}, REFUSED, 120.0, 220.0),
        (REFUSED, REFUSED, 120.0, 120.0),
        (RUNS, stalled("ReconcileFailed", ""), None, 220.0),
        (REFUSED, RUNS, 120.0, None),
        ({}, stalled("QuotaExceeded"), 120.0, None),
    ],
    ids=["the first status", "still refused", "fails later", "was fixed", "waits for other runs"],
)
def test_a_run_is_given_up_two_minutes_after_its_obstacle_was_reported(
    before: dict[str, Any], status: dict[str, Any], limit: float | None, given_up_at: float | None
) -> None:
    """Also if the operator reported it as the first status, 100 s after the run was created."""
    statuses = [read(ScenarioRunStatus, found) for found in (before, status)]
    assert give_up_at(statuses[0], statuses[1], limit, 100.0) == given_up_at


async def test_a_status_of_another_version_is_an_error_that_says_what_to_do() -> None:
    """The operator in the cluster may be older or newer than the command."""
    other = {"phase": "Running", "trials": ["main-1"]}
    with pytest.raises(
        HeadgateError, match=r"late-1: its status is of another version .*trials\[0\].*; use the version"
    ):
        await client(Stalling(other)).follow("late-1")
