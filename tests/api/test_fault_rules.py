"""Faults that need a process which another fault has killed, and links that lead nowhere."""

from __future__ import annotations

import pytest

from tests.api.test_validate import errors

KILL = {
    "name": "kill",
    "duration": "1 s",
    "target": {"taskManagers": {"running": "source"}},
    "process": {"kill": {}},
}


JM_KILL = {"name": "kill", "at": "0 s", "duration": "2 s", "jobmanager": {"kill": {}}}
"""The JobManager restarts when the fault ends."""


def late(**fields):
    return {"name": "late", "at": "0 s", "duration": "2 s", "target": {"taskManagers": {}}, "registration": {"delay": {"delay": "1 s"}}} | fields  # fmt: skip


@pytest.mark.parametrize(
    ("faults", "replace", "refused"),
    [
        ([KILL, late()], "Never", True),
        ([late(), KILL], "Never", False),
        ([KILL, late(at="3 s")], "Never", True),
        ([KILL, late(at="3 s")], "5 s", True),
        ([KILL, late(at="6 s")], "5 s", False),
        ([late(at="3 s"), KILL], "Never", True),
        ([KILL, late(target={"taskManagers": {"running": "source"}})], "Never", True),
        ([KILL, late(target={"taskManagers": {"running": "sink"}})], "Never", False),
        ([KILL, late(target={"taskManagers": {"running": "source"}}, at="3 s")], "Never", False),
        ([KILL, late(target={"taskManagers": {"running": "source", "mode": "one"}})], "Never", False),
        ([{**KILL, "target": {"taskManagers": {"names": ["tm-1"]}}}, late(target={"taskManagers": {"names": ["tm-1", "tm-2"]}})], "Never", True),
        ([{**KILL, "target": {"taskManagers": {"names": ["tm-1"]}}}, late(target={"taskManagers": {"names": ["tm-2"]}})], "Never", False),
        ([KILL, late(at="deploy")], "Never", False),
        ([JM_KILL, {**JM_KILL, "name": "late", "at": "1 s"}], "5 s", True),
        ([JM_KILL, {**JM_KILL, "name": "late", "at": "2 s"}], "5 s", False),
        ([JM_KILL, {"name": "late", "at": "1 s", "duration": "2 s", "jobmanager": {"pause": {}}}], "5 s", True),
        ([JM_KILL, {"name": "late", "at": "1 s", "jitter": "1 s", "duration": "2 s", "jobmanager": {"pause": {}}}], "5 s", False),
        ([{**JM_KILL, "jobmanager": {"pause": {}}}, {**JM_KILL, "name": "late", "at": "1 s"}], "5 s", False),
        ([JM_KILL, late(at="1 s")], "5 s", False),
    ],
)  # fmt: skip
def test_a_fault_on_a_process_that_an_earlier_one_killed_is_refused(faults, replace, refused):
    """It could not be injected, so no trial would be conclusive. Only what is certain is refused."""
    found = errors(
        lambda s: (s.update(faults=faults), s["testbed"]["taskManagers"].update(replaceLost=replace))
    )
    text = "'late' needs a process that 'kill' has killed by then"
    assert any(text in e for e in found) is refused, found


def test_a_jobmanager_that_is_killed_before_the_submission_is_refused():
    """The job could not be submitted, and the run would be an Error after all processes had started."""
    found = errors(lambda s: s.update(faults=[{**JM_KILL, "at": "deploy"}]))
    assert any("faults[0].at: the job cannot be submitted" in e for e in found), found
    paused = {**JM_KILL, "at": "deploy", "jobmanager": {"pause": {}}}
    assert not any("submitted" in e for e in errors(lambda s: s.update(faults=[paused])))


TM_1, THE_JOBMANAGER = {"taskManagers": {"names": ["tm-1"]}}, {"jobManager": {}}


@pytest.mark.parametrize(
    ("target", "peers", "problem"),
    [
        (TM_1, {"names": ["tm-1"]}, "'tm-1' is the target itself, and no link leads from a process to itself"),
        (TM_1, {}, "names no process, so the fault would affect every link of the target"),
        (TM_1, {"names": ["tm-1", "tm-2"]}, ""),
        (TM_1, {"names": ["tm-1"], "running": "sink"}, ""),
        (TM_1, {"names": ["jobmanager"]}, ""),
        (THE_JOBMANAGER, {"names": ["jobmanager"]}, "'jobmanager' is the target itself, and no link leads from a process to itself"),
        (THE_JOBMANAGER, {"names": ["jobmanager", "tm-1"]}, ""),
        (THE_JOBMANAGER, {"names": ["tm-1"]}, ""),
    ],
)  # fmt: skip
def test_peers_that_make_no_link_are_refused(target, peers, problem):
    """The fault would have no effect, or one on links that it does not name."""
    cut = {
        "name": "cut",
        "duration": "2 s",
        "target": {**target, "peers": peers},
        "plane": "rpc",
        "network": {"partition": {}},
    }
    found = [e for e in errors(lambda s: s.update(faults=[cut])) if "target.peers" in e]
    assert bool(found) is bool(problem)
    assert all(problem in e for e in found)
