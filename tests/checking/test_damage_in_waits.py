"""The limits of the rules for waits and faults: the smallest damage is found, and the largest value that is none is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testbed_runtime.history.contradictions.faults import check_faults
from testbed_runtime.history.contradictions.waits import check_waits
from tests.checking.written import (
    JM,
    NS,
    Row,
    Written,
    at,
    checked,
    event,
    job,
    sample,
    state,
    texts,
    wait,
    wrote,
)

MS = NS // 1000
TM = "tm-0-1"


def found(*rows: Written, **configuration: str) -> list[str]:
    prefix = "waits.parquet, column "
    return [
        t.removeprefix(prefix)
        for t in texts(check_waits(checked(wrote(*rows), {"configuration": configuration})))
    ]


def note(t: float, process: str = JM) -> Written:
    return event("note", t=t, process=process)


NEXT = "t_ns, row {}: is {} s after the row that {} wrote next"
BEFORE = "t_ns, row {}: is {} s before the row that {} wrote before it"

SOON = [wait("slot", t=2.02), wait("slot", t=2.011)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([note(1), wait("slot", t=3), note(2)], []),
        ([note(1), wait("slot", t=3.001), note(2)], [NEXT.format(0, "1.00", JM)]),
        ([note(1), wait("slot", t=5), note(2)], [NEXT.format(0, "3.00", JM)]),
        ([note(1), wait("slot", t=5), note(5, TM), note(2)], [NEXT.format(0, "3.00", JM)]),
        ([note(1), wait("slot", t=5), note(2), note(3), note(4)], [NEXT.format(0, "3.00", JM)]),
        ([note(1), wait("slot", t=5), wait("slot", t=5), note(2)], [NEXT.format(0, "3.00", JM)]),
        ([note(1), wait("slot", t=0)], []),
        ([note(1), wait("slot", t=-0.001)], [BEFORE.format(0, "1.00", JM)]),
        ([note(1), wait("slot", t=-2)], [BEFORE.format(0, "3.00", JM)]),
        ([note(1), wait("slot", t=-2), note(2)], [BEFORE.format(0, "3.00", JM)]),
        ([note(1), *(wait(kind, t=-2) for kind in ("partition", "credit", "lease")), note(2)], []),
        ([note(1), wait("credit", t=9), note(2)], [NEXT.format(0, "7.00", JM)]),
        ([note(1), *SOON, note(2)], []),
        ([note(1), *SOON, wait("slot", t=2.011), note(2)], [NEXT.format(0, "0.02", JM)]),
        ([note(1), *SOON, wait("slot", t=2.01), note(2)], []),
        ([wait("slot", t=9)], []),
        ([wait("slot", t=9), note(2)], [NEXT.format(0, "7.00", JM)]),
        ([wait("slot", t=1), wait("slot", t=9), note(2)], [NEXT.format(1, "7.00", JM)]),
        ([wait("slot", t=9), wait("slot", t=1), note(2)], [NEXT.format(0, "7.00", JM)]),
        ([wait("slot", t=9), note(2, TM)], []),
        ([note(9, TM), wait("slot", t=2)], []),
        ([wait("slot", t=9, boot_id="c"), note(2)], []),
        ([note(1, "supervisor"), wait("slot", t=9, process="supervisor"), note(2, "supervisor")], []),
        ([wait("slot", t=9, process="supervisor"), note(2, "supervisor"), wait("slot", t=9), note(2)], [NEXT.format(1, "7.00", JM)]),
        ([sample("a-0", 1), wait("restore", "a-0", t=5, process=TM), sample("a-0", 2)], [NEXT.format(0, "3.00", TM)]),
    ],
)  # fmt: skip
def test_a_wait_ended_between_the_rows_around_it(rows: list[Written], expected: list[str]):
    """To a second, by the clock of its own process, and most to 10 ms. Some waits are recorded long after their end."""
    assert found(*rows) == expected


HEARTBEAT, FIRST = "heartbeat.timeout", "execution.buffer-timeout.interval"
BOTH = "heartbeat.interval × heartbeat.rpc-failure-threshold"
SHORT = "start_ns, row 0: of this {} wait is {:g} s before its end, but {} let it wait for {:g} s ({})"


@pytest.mark.parametrize(
    ("kind", "outcome", "option", "value", "budget", "lasted", "is_damaged"),
    [
        ("heartbeat", "expired", HEARTBEAT, "50 s", 50, 47.49, False),
        ("heartbeat", "expired", HEARTBEAT, "50 s", 50, 47.489, True),
        ("heartbeat", "fired", HEARTBEAT, "50 s", 50, 0, False),
        ("restart-delay", "fired", "restart-strategy.fixed-delay.delay", "1 s", 1, 0.94, False),
        ("restart-delay", "fired", "restart-strategy.fixed-delay.delay", "1 s", 1, 0.939, True),
        ("restart-delay", "cancelled", "restart-strategy.fixed-delay.delay", "1 s", 1, 0.1, False),
        ("replacement", "fired", "replaceLost", "10 s", 10, 9.489, True),
        ("first-record", "fired", FIRST, "100 ms", 0.1, 0.035, False),
        ("first-record", "fired", FIRST, "100 ms", 0.1, 0.0349, True),
        ("slot", "expired", "slot.request.timeout", "5 min", 300, 0, False),
        ("heartbeat", "expired", BOTH, "10 s × 4", 40, 19.99, False),
        ("heartbeat", "expired", BOTH, "10 s × 4", 40, 19.989, True),
        ("heartbeat", "expired", BOTH, "10 s × 2", 20, 0, False),
        ("heartbeat", "expired", BOTH, "10 s × 1", 10, 0, False),
        ("heartbeat", "expired", BOTH, "10 s × -1", 10, 0, True),
    ],
)  # fmt: skip
def test_a_wait_that_its_option_decided_lasted_for_most_of_its_budget(
    kind: str, outcome: str, option: str, value: str, budget: float, lasted: float, is_damaged: bool
):
    """A heartbeat, a restart delay and a replacement to 95 % and 10 ms, a buffer timeout to 45 %."""
    row = wait(
        kind, outcome=outcome, option=option, value=value, budget_ns=round(budget * NS), start=0, t=lasted
    )
    reported = [text for text in found(row) if "let it wait" in text]
    assert reported == ([SHORT.format(kind, lasted, option, budget, outcome)] if is_damaged else [])
    unlimited = ("waits", row[1] | {"budget_ns": -1})
    assert [text for text in found(unlimited) if "let it wait" in text] == []


@pytest.mark.parametrize(
    ("outcome", "is_damaged"),
    [("expired", True), ("fired", True), ("completed", False), ("cancelled", False), ("failed", False), ("open", False)],
)  # fmt: skip
def test_only_an_option_ends_a_wait_before_its_event(outcome: str, is_damaged: bool):
    """Without an option, nothing expires."""
    problem = f"outcome, row 0: is {outcome!r}, but no option limits this slot wait"
    assert found(wait("slot", outcome=outcome)) == ([problem] if is_damaged else [])


VALUE = "value, row 0: is {}, but {} is {} (configuration in the manifest)"
BUDGET = "budget_ns, row 0: is {} s, but {} allows {} s (configuration in the manifest)"
SLOT = "slot.request.timeout"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, []),
        ({"value": "7 s"}, [VALUE.format("'7 s'", SLOT, "'9 s'")]),
        ({"value": "9 s, now 12 s", "budget_ns": 12 * NS}, []),
        ({"value": "8 s, now 12 s", "budget_ns": 12 * NS}, [VALUE.format("'8 s, now 12 s'", SLOT, "'9 s'")]),
        ({"budget_ns": 9 * NS + 1}, [BUDGET.format(9, SLOT, 9)]),
        ({"budget_ns": 8 * NS}, [BUDGET.format(8, SLOT, 9)]),
        ({"budget_ns": -1}, [BUDGET.format("-1e-09", SLOT, 9)]),
        ({"kind": "partition", "budget_ns": 8 * NS}, []),
        ({"kind": "credit", "budget_ns": 8 * NS}, []),
        ({"option": "replaceLost", "value": "x"}, []),
        ({"option": f"{SLOT} × replaceLost", "value": "x"}, []),
        ({"option": "", "value": "", "budget_ns": -1}, []),
        ({"option": BOTH, "value": "2 s × 3", "budget_ns": 6 * NS}, []),
        ({"option": BOTH, "value": "2 s × 3", "budget_ns": 5 * NS}, [BUDGET.format(5, BOTH, 6)]),
        ({"option": BOTH, "value": "2 s × 4", "budget_ns": 8 * NS}, [VALUE.format("'2 s × 4'", BOTH, "'2 s × 3'")]),
        ({"option": "headgate.jobmanager.service-time", "value": "1 s", "budget_ns": 8 * NS}, []),
        ({"option": "task.cancellation.timeout", "value": "0 ms", "budget_ns": 5 * NS}, []),
    ],
)  # fmt: skip
def test_the_option_of_a_wait_has_the_value_of_the_manifest(row: Row, expected: list[str]):
    """And its budget follows from that, unless the delay has grown, or several requests share it."""
    configuration = {
        SLOT: "9 s", "heartbeat.interval": "2 s", "heartbeat.rpc-failure-threshold": "3",
        "headgate.jobmanager.service-time": "1 s", "task.cancellation.timeout": "0 ms",
    }  # fmt: skip
    limited = {"option": SLOT, "value": "9 s", "budget_ns": 9 * NS}
    assert found(("waits", wait("slot")[1] | limited | row), **configuration) == expected


def test_an_earlier_version_wrote_a_bare_number_without_its_unit():
    """Such a value is in milliseconds."""
    for value in ("9000 ms", "9000"):
        row = wait("slot", option=SLOT, value=value, budget_ns=9 * NS)
        assert found(row, **{SLOT: "9000"}) == []
    assert found(row, **{SLOT: "9001"}) != []


# ---- faults


def fault(what: str = "injected", t: float = 5.0, **more: Any) -> Written:
    row = {
        "process": "supervisor",
        "fault": "f",
        "state": what,
        "kind": "process.kill",
        "targets": '["tm-1"]',
        "t": t,
    }
    return "faults", row | more


PHASES = [{"name": n, "start_ns": at(t)} for n, t in (("warmUp", 0), ("fault", 5), ("observation", 8))]
PLANNED = {"name": "f", "kind": "process.kill", "at_s": 0, "targets": ["tm-1"]}
ENTRY: Row = {"drained": True, "phases": PHASES, "faults": [PLANNED]}


def faults(*rows: Written, one_clock: bool = True, **changes: Any) -> list[str]:
    damage = check_faults(checked(wrote(*rows), {**ENTRY, **changes}, one_clock=one_clock))
    return [text.removeprefix("faults.parquet, column ") for text in texts(damage)]


def entered(*moments: float) -> list[Written]:
    names = ("warmUp", "fault", "observation")
    return [event("trial.phase", n, t, process="runner") for n, t in zip(names, moments, strict=True)] + [event("trial.phase", "end", 0)]  # fmt: skip


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ((0, 5, 8), ""),
        ((1, 6, 9), ""),
        ((1.5, 6.5, 9.5), "row 0: of warmUp is 1.5 s after its start in the manifest"),
        ((1, 6.5, 99), ""),
        ((0, 4, 8), ""),
        ((0, 3.5, 8), "row 1: of fault is 1.5 s before its start in the manifest"),
        ((-0.999, 4, 7), ""),
    ],
)
def test_phases_are_entered_when_the_manifest_says(moments: tuple[float, ...], expected: str):
    """To a second. One that is later than that waited for the end of a fault; all of them did not."""
    assert faults(*entered(*moments), fault()) == (
        [f"events.parquet, column t_ns, {expected}"] if expected else []
    )
    assert faults(*entered(*moments), fault(), phases=[]) == []


@pytest.mark.parametrize(
    ("row", "planned", "expected"),
    [
        ({}, {}, ""),
        ({"fault": "main/f"}, {}, ""),
        ({"fault": "g"}, {}, "fault, row 0: is 'g', which the manifest does not have"),
        ({"kind": "process.pause"}, {}, "kind, row 0: is 'process.pause', but f is process.kill (manifest)"),
        ({"targets": '["tm-0", "tm-1"]'}, {}, "targets, row 0: has tm-0, but f is on tm-1 (manifest)"),
        ({"targets": '["tm-8", "tm-9"]'}, {"targets": ["tm-1", "tm-2"]}, "targets, row 0: has tm-8, but f is on tm-1, tm-2 (manifest)"),
        ({"targets": '["tm-0"]'}, {"targets": []}, ""),
        ({"targets": "[]"}, {}, "targets, row 0: is empty, but f is on tm-1 (manifest)"),
        ({"targets": "[]"}, {"targets": []}, ""),
        ({"targets": "[]", "state": "asked"}, {}, ""),
        ({"targets": "{"}, {}, "targets, row 0: is not a list: '{'"),
        ({"targets": "5"}, {}, "targets, row 0: is not a list: '5'"),
        ({"t": 4}, {}, ""),
        ({"t": 3.5}, {}, "t_ns, row 0: says that f was injected 1.5 s before its time"),
        ({"t": 3.999}, {}, "t_ns, row 0: says that f was injected 1.0 s before its time"),
        ({"t": 4}, {"at_s": 2.5}, "t_ns, row 0: says that f was injected 3.5 s before its time"),
        ({"t": 4, "state": "asked"}, {"at_s": 2.5}, ""),
        ({"t": 4}, {"at_s": 0}, ""),
        ({"t": 3}, {"at_s": 0}, "t_ns, row 0: says that f was injected 2.0 s before its time"),
        ({"t": 3.5}, {"before_submit": True}, ""),
    ],
)  # fmt: skip
def test_a_fault_is_the_one_that_was_planned(row: Row, planned: Row, expected: str):
    """It has its kind and its targets, and does not begin before its time. A fault before the job is submitted has no time."""
    reported = [t for t in faults(fault(**row), faults=[PLANNED | planned]) if "lacks" not in t]
    assert reported == ([expected] if expected else [])
    without_time = [
        t for t in faults(fault(**row), faults=[PLANNED | planned], one_clock=False) if "lacks" not in t
    ]
    assert without_time == [t for t in reported if "before its time" not in t]
    unknown_phase = faults(fault(**row), faults=[PLANNED | planned], phases=PHASES[:1])
    assert not any("before its time" in t for t in unknown_phase)


DEPLOYED = state("a-0", "SCHEDULED", "DEPLOYING")


@pytest.mark.parametrize(
    ("rows", "drained", "expected"),
    [
        ([DEPLOYED], True, ["fault: lacks f, which the manifest has"]),
        ([DEPLOYED], False, []),
        ([DEPLOYED], None, []),
        ([], True, []),
        ([DEPLOYED, fault("asked")], True, []),
        ([DEPLOYED, fault("asked", fault="a/f")], True, []),
    ],
)
def test_each_planned_fault_was_asked_for(rows: list[Written], drained: bool | None, expected: list[str]):
    """In a trial that ran to its end."""
    phases = [*PHASES, {"name": "drain", "start_ns": at(12)}]
    assert faults(*rows, drained=drained, phases=phases) == expected
    two = {"faults": [{**PLANNED, "name": "z"}, PLANNED], "drained": drained, "phases": phases}
    assert [t for t in faults(*rows, **two) if "lacks f" in t] == expected


@pytest.mark.parametrize(
    ("planned", "phases", "missing"),
    [
        ({"at_s": 5.999}, 4, True),
        ({"at_s": 6}, 4, False),
        ({"at_s": 0}, 3, False),
        ({"at_s": 0}, 1, False),
        ({"at_s": 0, "before_submit": True}, 1, True),
    ],
    ids=["just due", "due when the job ended", "no drain", "no fault phase", "before the job"],
)
def test_a_fault_that_was_not_due_before_the_job_ended_is_not_missing(
    planned: Row, phases: int, missing: bool
):
    """The fault phase begins at 5 s and the drain at 12 s, a second of tolerance before it."""
    known = [*PHASES, {"name": "drain", "start_ns": at(12)}][:phases]
    found = faults(DEPLOYED, faults=[PLANNED | planned], phases=known)
    assert found == (["fault: lacks f, which the manifest has"] if missing else [])


@pytest.mark.parametrize(("drain", "missing"), [(6.001, True), (6, False)])
def test_a_fault_at_the_beginning_of_its_phase_is_due_then(drain: float, missing: bool):
    """With a second of tolerance, like any other."""
    known = [*PHASES, {"name": "drain", "start_ns": at(drain)}]
    found = faults(DEPLOYED, faults=[PLANNED | {"at_s": 0}], phases=known)
    assert found == (["fault: lacks f, which the manifest has"] if missing else [])


@pytest.mark.parametrize(
    ("t", "submitted", "problem"),
    [(13, None, ""), (13.001, None, "1.0 s after the end of the trial"), (1, 0, ""), (1.001, 0, "1.0 s after the job was submitted (job.state in events)")],
)  # fmt: skip
def test_a_fault_begins_before_what_follows_it(t: float, submitted: float | None, problem: str):
    """The end of the trial at 12 s; a fault from before the submission before that, both to a second."""
    phases = [*PHASES, {"name": "drain", "start_ns": at(10), "end_ns": at(12)}]
    rows = [fault(t=t), *([job("RUNNING", submitted)] if submitted is not None else [])]
    planned = [PLANNED | {"before_submit": submitted is not None}]
    said = faults(*rows, faults=planned, phases=phases, drained=False)
    assert said == ([f"t_ns, row 0: says that f was injected {problem}"] if problem else [])
    assert faults(*rows, faults=planned, phases=phases, drained=False, one_clock=False) == []


def ended(name: str, t: float) -> Written:
    return event("process.exit", name, t, process="runner", **({"incarnation": 1} if name == "tm-1" else {}))


KILLED = "t_ns, row 0: says that f was injected {} s after its targets ended (process.exit in events)"


@pytest.mark.parametrize(
    ("exits", "change", "expected"),
    [
        ([("tm-1", 5)], {}, []),
        ([("tm-1", 4)], {}, []),
        ([("tm-1", 3.999)], {}, [KILLED.format("1.0")]),
        ([("tm-1", 3)], {}, [KILLED.format("2.0")]),
        ([("tm-1", 2), ("tm-1", 5)], {}, []),
        ([("tm-1", 1), ("tm-1", 3)], {}, [KILLED.format("2.0")]),
        ([("tm-1-1", 3)], {}, [KILLED.format("2.0")]),
        ([("tm-1", 3)], {"targets": '["tm-1-1"]'}, [KILLED.format("2.0")]),
        ([("tm-10", 3)], {}, []),
        ([], {}, []),
        ([("tm-1", 3)], {"kind": "process.pause"}, []),
        ([("tm-1", 3)], {"kind": "jobmanager.kill"}, [KILLED.format("2.0")]),
        ([("tm-1", 3)], {"fault": "g/f"}, []),
        ([("tm-1", 3), ("tm-9", 9)], {"targets": '["tm-8", "tm-1"]'}, [KILLED.format("2.0")]),
    ],
)  # fmt: skip
def test_a_kill_that_took_effect_ended_its_target(exits: list[Any], change: Row, expected: list[str]):
    """Not a second before it was injected. One that was not verified may have missed it."""
    kind = change.get("kind", "process.kill")
    rows = [
        fault(**change),
        fault("verified", kind=kind, targets=change.get("targets", '["tm-1"]')),
        *(ended(*e) for e in exits),
    ]
    more = {"faults": [PLANNED | {"kind": kind, "targets": []}]}
    assert faults(*rows, **more) == expected
    assert faults(*rows, **more, one_clock=False) == []
    assert faults(rows[0], *rows[2:], **more) == []
    assert json.loads(rows[0][1]["targets"])
