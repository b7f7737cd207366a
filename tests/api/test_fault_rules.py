"""Faults that need a process which another fault has killed, links that lead nowhere, and targets that a fault cannot hit."""

from __future__ import annotations

import copy

import pytest

from tests.api.test_validate import changed, errors, fault

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


PAUSED = {**KILL, "name": "gc", "duration": "8 s", "process": {"pause": {}}}
JM_PAUSED = {"name": "gc", "at": "0 s", "duration": "8 s", "jobmanager": {"pause": {}}}
MUTE = {"registration": None, "heartbeats": {"mute": {"direction": "request"}}}
DELAY_FRAMES = {"registration": None, "frames": {"delay": {"frameClass": "buffer", "delay": "1 s"}}}


def _without_none(fault):
    return {key: value for key, value in fault.items() if value is not None}


@pytest.mark.parametrize(
    ("faults", "refused"),
    [
        ([PAUSED, late(at="2 s")], True),
        ([PAUSED, late(at="8 s")], False),
        ([PAUSED, late()], True),
        ([late(), PAUSED], False),
        ([{**PAUSED, "jitter": "1 s"}, late(at="2 s")], False),
        ([PAUSED, late(at="deploy")], False),
        ([PAUSED, late(at="2 s", target={"taskManagers": {"running": "sink"}})], False),
        ([PAUSED, late(at="2 s", target={"taskManagers": {"mode": "one"}})], False),
        ([PAUSED, late(at="2 s", **MUTE)], True),
        ([PAUSED, late(at="2 s", **MUTE | {"heartbeats": {"mute": {"direction": "response"}}})], False),
        ([PAUSED, late(at="2 s", **DELAY_FRAMES)], True),
        ([PAUSED, late(at="2 s", direction="to", **DELAY_FRAMES)], False),
        ([PAUSED, late(at="2 s", registration=None, network={"stall": {}})], False),
        ([PAUSED, late(at="2 s", registration=None, process={"kill": {}})], False),
        ([JM_PAUSED, late(at="2 s", registration=None, rpc={"delay": {"method": "SubmitTask", "delay": "1 s"}})], False),
        ([JM_PAUSED, late(at="2 s", target={"jobManager": {}}, registration=None, rpc={"delay": {"method": "OfferSlots", "delay": "1 s"}})], True),
    ],
)  # fmt: skip
def test_a_fault_that_a_paused_process_has_to_carry_out_is_refused(faults, refused):
    """The process does not answer, so the run would be an Error after all processes had started."""
    found = errors(lambda s: s.update(faults=[_without_none(f) for f in faults]))
    text = "'late' needs a process that 'gc' has paused by then"
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


LATENCY = {"network": {"latency": {"delay": "5 ms", "mode": "one-way"}}}
DROP = {"frames": {"drop": {"frameClass": "buffer"}}}
LATE = {"registration": {"delay": {"delay": "1 s"}}}
ONLY_PEER, ALSO_PEER = ({**TM_1, "peers": {"names": n}} for n in (["jobmanager"], ["jobmanager", "tm-2"]))


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({**LATENCY, "target": THE_JOBMANAGER}, "target: the JobManager has no part"),
        ({**LATENCY, "target": ONLY_PEER}, "target.peers: the JobManager has no part"),
        ({**LATENCY, "target": ALSO_PEER}, ""),
        ({**LATENCY, "target": {**TM_1, "peers": {"names": ["jobmanager"], "running": "sink"}}}, ""),
        ({**LATENCY, "target": THE_JOBMANAGER, "plane": "rpc"}, ""),
        ({**LATENCY, "target": ONLY_PEER, "plane": "both"}, ""),
        ({**DROP, "target": THE_JOBMANAGER, "plane": "rpc"}, "target: the JobManager has no part"),
        ({**DROP, "target": ONLY_PEER}, "target.peers: the JobManager has no part"),
        ({**LATE, "target": THE_JOBMANAGER}, "target: the JobManager has no part"),
        ({"heartbeats": {"mute": {"direction": "request"}}, "target": THE_JOBMANAGER}, ""),
        ({"store": {"failing": {}}, "target": THE_JOBMANAGER}, ""),
        ({**DROP}, ""),
    ],
)  # fmt: skip
def test_a_fault_of_the_exchange_is_refused_at_the_jobmanager(fields, refused):
    """No bytes of the exchange start or end there, so the trial would be Inconclusive after all its seconds."""
    found = errors(lambda s: s.update(faults=[{"name": "nothing", "duration": "2 s", **fields}]))
    assert [f"spec.faults[0].{refused}" in e for e in found] == ([True] if refused else []), found


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ({"mode": "fixed"}, "value: mode fixed needs a value (write value: 1 or more)"),
        ({"mode": "fixed", "value": 6}, "value: 6 is too many TaskManagers (there are only 5)"),
        ({"mode": "fixed", "value": 5}, ""),
        ({"mode": "percent", "value": 101}, "value: 101 % is more than 100 % (write 1 to 100)"),
        ({"names": ["tm-5"]}, "names[0]: 'tm-5' does not exist (there are tm-0 to tm-4)"),
    ],
)
def test_a_selection_that_the_testbed_cannot_satisfy_is_refused(chosen, problem):
    """With the number of TaskManagers that there are."""
    pause = {"name": "p", "duration": "2 s", "target": {"taskManagers": chosen}, "process": {"pause": {}}}
    found = errors(lambda s: s.update(faults=[pause]))
    assert found == ([f"spec.faults[0].target.taskManagers.{problem}"] if problem else [])


def test_a_testbed_of_one_taskmanager_is_named_in_the_singular():
    """`there are tm-0 to tm-0` reads as a mistake."""

    def change(spec):
        spec["testbed"]["taskManagers"].update(replicas=1, slots=8)
        spec["faults"][0]["target"] = {"taskManagers": {"names": ["tm-1"]}}

    (found,) = errors(change)
    assert found.endswith("names[0]: 'tm-1' does not exist (there is only tm-0)")


@pytest.mark.parametrize(("duration", "cut"), [("6 s", True), ("25 s", False)])
def test_a_registration_that_its_fault_does_not_delay_long_enough_is_a_doubt(duration, cut):
    """The end of the fault registers the partition, so a run with a delay of 25 s would show what 6 s do. Variants inherit the fault:
    it is reported once."""
    faults = fault(at="deploy", duration=duration, registration={"delay": {"delay": "25 s"}})
    warnings = changed(faults).warnings
    text = (
        "spec.faults[0].registration.delay.delay: 25 s is longer than the fault, which lasts 6 s and registers every partition "
        "when it ends (make its duration longer than the delay)"
    )
    assert warnings == ((text,) if cut else ())


@pytest.mark.parametrize(
    ("kind", "delay"),
    [
        ("rpc.delay", {"method": "SubmitTask"}),
        ("frames.delay", {"frameClass": "barrier"}),
        ("store.slow", {}),
        ("network.latency", {"mode": "one-way"}),
    ],
)
@pytest.mark.parametrize(("duration", "cut"), [("6 s", True), ("25 s", False)])
def test_a_delay_that_outlasts_its_fault_is_a_doubt(kind, delay, duration, cut):
    """Nothing is 25 s late if everything passes after 6 s."""
    family, name = kind.split(".")
    target = {"taskManagers": {"names": ["tm-0"]}}
    found = fault(at="0s", duration=duration, target=target, **{family: {name: {"delay": "25 s", **delay}}})
    text = (
        f"spec.faults[0].{kind}.delay: 25 s is longer than the fault, which lasts 6 s and delays nothing any more when it ends "
        "(make its duration longer than the delay)"
    )
    assert changed(found).warnings == ((text,) if cut else ())


def test_a_duration_without_a_unit_is_named_where_it_is_written_also_in_a_variant_of_the_same_fault():
    """The faults of a variant are lines of their own: two places have to be changed."""

    def change(spec):
        fault(duration="800", process={"pause": {}})(spec)
        spec["variants"][0]["faults"] = copy.deepcopy(spec["faults"])

    warnings = changed(change).warnings
    assert [warning.partition(":")[0] for warning in warnings] == [
        "spec.faults[0].duration",
        "spec.variants[0].faults[0].duration",
    ]
