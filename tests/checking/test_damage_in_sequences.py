"""The limits of the rules for what follows what, for the columns of each kind of row, and for the writers of rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from testbed_runtime.history.contradictions.kinds import CAUSED, OF_STATE, WITHOUT_ATTEMPT, check_kinds
from testbed_runtime.history.contradictions.owners import check_owners
from testbed_runtime.history.contradictions.sequences import BEFORE, MAY_REPEAT, check_sequences
from testbed_runtime.history.crosschecks import check_across
from testbed_runtime.history.damage import Damage
from testbed_runtime.history.schema import LATENCY_WINDOW_NS, Trial, arrow_schema
from tests.checking.written import (
    JM,
    NS,
    Row,
    Written,
    checked,
    event,
    job,
    sample,
    state,
    texts,
    wait,
    wrote,
)
from tests.manifests import trial_entry

TM = "tm-0-1"


def sequences(*rows: Written, one_clock: bool = True, **entry: Any) -> list[str]:
    return texts(check_sequences(checked(wrote(*rows), entry, one_clock=one_clock)))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([state("a-0", "CREATED", "SCHEDULED"), state("a-0", "SCHEDULED", "DEPLOYING", 1)], ""),
        ([state("a-0", "CREATED", "SCHEDULED"), state("a-0", "DEPLOYING", "RUNNING", 1)], "row 1: says that a-0 was DEPLOYING, but it was SCHEDULED"),
        ([state("a-0", "SCHEDULED", "DEPLOYING")], "row 0: says that a-0 was SCHEDULED, but it was CREATED"),
        ([state("a-0", "CREATED", "SCHEDULED"), state("a-0", "CREATED", "SCHEDULED", 1)], ""),
        ([state("a-0", "CREATED", "SCHEDULED"), state("a-0", "CREATED", "SCHEDULED", attempt=1)], ""),
        ([state("a-0", "CREATED", "SCHEDULED"), state("a-0", "SCHEDULED", "DEPLOYING", attempt=1)], "row 1: says that a-0 was SCHEDULED, but it was CREATED"),
        ([state("a-0", "CREATED", "SCHEDULED"), state("a-1", "SCHEDULED", "DEPLOYING")], "row 1: says that a-1 was SCHEDULED, but it was CREATED"),
        ([job("RUNNING", **{"from": "CREATED"}), job("FINISHED", 1)], ""),
        ([job("RUNNING", **{"from": "CREATED"}), job("FINISHED", 1, **{"from": "RESTARTING"})], "row 1: says that job was RESTARTING, but it was RUNNING"),
        ([event("job.state", "job", to="RUNNING"), job("FINISHED", 1)], ""),
        ([state("a-0", "CREATED", "RUNNING"), ("events", job("FINISHED")[1] | {"subject": "a-0", "attempt": 0})], "row 1: says that a-0 was RUNNING, but it was CREATED"),
    ],
)  # fmt: skip
def test_a_state_follows_the_one_before(rows: list[Written], expected: str):
    """Each attempt has its own states. A new JobMaster begins with CREATED."""
    assert sequences(*rows) == ([f"events.parquet, column data, {expected}"] if expected else [])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("warmUp baseline end", ""),
        ("warmUp baseline", ""),
        ("", ""),
        ("warmUp end", ", row 1: of trial.phase has warmUp, end, but the phases are warmUp, baseline (manifest)"),
        ("baseline warmUp", ", row 0: of trial.phase has baseline, warmUp, but the phases are warmUp, baseline (manifest)"),
        ("warmUp baseline fault", ": of trial.phase has warmUp, baseline, fault, but the phases are warmUp, baseline (manifest)"),
        ("warmUp baseline end end", ": of trial.phase has warmUp, baseline, end, end, but the phases are warmUp, baseline (manifest)"),
    ],
)  # fmt: skip
def test_phases_are_entered_in_the_order_of_the_manifest(names: str, expected: str):
    """The last ones may be missing."""
    rows = [event("trial.phase", name, t, process="runner") for t, name in enumerate(names.split())]
    planned = [{"name": "warmUp"}, {"name": "baseline"}]
    assert sequences(*rows, phases=planned) == (
        [f"events.parquet, column subject{expected}"] if expected else []
    )


def fault(what: str, t: float = 0.0, **more: Any) -> Written:
    return "faults", {"process": "supervisor", "fault": "f", "targets": "[]", "state": what, "t": t} | more


@pytest.mark.parametrize(("what", "needed"), [(w, n) for w, every in BEFORE.items() for n in every])
def test_a_state_of_a_fault_has_the_one_before(what: str, needed: str):
    """The same process wrote it, for the same targets. Any state may be between."""
    path = [fault(s) for s in ("asked", "injected", "ended", "failed") if s != what]
    upto = path[: next(i for i, (_, r) in enumerate(path) if r["state"] == needed) + 1]
    reported = " or ".join(BEFORE[what])
    without = [(t, r) for t, r in upto if r["state"] not in BEFORE[what]]
    needs = [row for row in without if not set(BEFORE.get(row[1]["state"], ())) & set(BEFORE[what])]
    assert sequences(*upto, fault(what)) == []
    assert f"says that f was {what}, but not {reported} before" in sequences(*needs, fault(what))[0]
    for other in ({"targets": '["a"]'}, {"process": "agent"}, {"fault": "g"}):
        moved = [(t, r | other if r["state"] in BEFORE[what] else r) for t, r in upto]
        assert sequences(*moved, fault(what)) != []


@pytest.mark.parametrize("column", ["backend", "asked"])
def test_a_fault_is_asked_for_once(column: str):
    """Its later rows repeat that."""
    rows = [
        fault("asked", **{column: "x"}),
        fault("injected", **{column: "x"}),
        fault("ended", **{column: "y"}),
    ]
    assert sequences(*rows[:2]) == []
    other = [rows[0], fault("injected", **{column: "y"})]
    assert sequences(*other) == [
        f"faults.parquet, column {column}, row 1: is 'y', but it was 'x' when f was asked"
    ]
    assert sequences(*rows) == [
        f"faults.parquet, column {column}, row 2: is 'y', but it was 'x' when f was asked"
    ]


@pytest.mark.parametrize(("t", "is_damaged"), [(4.95, False), (4.949, True), (2, True)])
def test_a_state_of_a_fault_is_not_earlier_than_the_one_before(t: float, is_damaged: bool):
    """To 50 ms, if all rows are of one clock."""
    rows = [fault("asked", 5), fault("injected", 5), fault("ended", t), fault("clean", 9)]
    problem = f"faults.parquet, column t_ns, row 1: says that f was injected {5 - t:.1f} s after it was ended"
    assert sequences(*rows) == ([problem] if is_damaged else [])
    assert sequences(*rows, one_clock=False) == []


@pytest.mark.parametrize(
    ("row", "changes", "name"),
    [
        (event("rescaled", "x", attempt=1, checkpoint=2), {"process": TM, "kind": "loop.stall", "subject": "y", "attempt": 3, "checkpoint": 3, "text": "z", "data": "{}", "t": 9}, "rescaled"),
        (wait("slot", what="x"), {"process": TM, "kind": "restore", "who": "y", "what": "z", "attempt": 3, "start": -1, "t": 9, "outcome": "open"}, "slot"),
        (fault("asked"), {"process": "agent", "fault": "g", "targets": "[1]", "state": "failed"}, "f"),
    ],
)  # fmt: skip
def test_a_row_is_written_once(row: Written, changes: Row, name: str):
    """A second one differs in some column."""
    first = [(row[0], row[1] | {"t": 5.0} if row[0] == "faults" else row[1])]
    twice = [*first, first[0], first[0]]
    assert sequences(*twice, one_clock=False) == [f"{row[0]}.parquet, column seq, row 2: is of a second row of {name}: another one has the same columns"]  # fmt: skip
    for column, value in changes.items():
        assert sequences(*first, (row[0], first[0][1] | {column: value}), one_clock=False) == []


@pytest.mark.parametrize("kind", MAY_REPEAT)
def test_some_events_may_be_there_twice(kind: str):
    """Several calls can time out at one time."""
    assert sequences(event(kind), event(kind)) == []


def window(start: float, window_ns: int = LATENCY_WINDOW_NS, **more: Any) -> Written:
    return "latency", {"task": "b-0", "window_start": start, "window_ns": window_ns, "t": start} | more


MULTIPLE = "but windows take 0.25 s and begin at a multiple of it"
DEPLOYED = state("b-0", "CREATED", "DEPLOYING")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([window(0), window(0.25)], ""),
        ([DEPLOYED, window(0), window(0.25)], ""),
        ([DEPLOYED, window(0), window(0.5, 500_000_000)], f"window_ns, row 1: is 500000000, {MULTIPLE}"),
        ([DEPLOYED, window(0), window(0.4)], f"window_start_ns, row 1: is 1795670000400000000, {MULTIPLE}"),
        ([window(0), window(0.4), window(0.6)], ""),
        ([window(0, 1_000_000_000), window(0.5, 1_000_000_000)], ""),
        ([window(0, 1_000_000_001), window(0.5)], "window_ns, row 0: is 1 s, but the next window begins after 0.5 s"),
        ([window(0, 4_000_000_000), window(0.5)], "window_ns, row 0: is 4 s, but the next window begins after 0.5 s"),
        ([window(0, 4_000_000_000), window(0.5, attempt=1)], ""),
        ([window(9, task="a-0"), window(0, 4_000_000_000), window(0.5)], "window_ns, row 1: is 4 s, but the next window begins after 0.5 s"),
        ([window(0), window(9, 4_000_000_000)], ""),
    ],
)  # fmt: skip
def test_windows_follow_each_other(rows: list[Written], expected: str):
    """A deployed job has windows of one length. Others are at most twice as long as the time until the next one."""
    assert sequences(*rows) == ([f"latency.parquet, column {expected}"] if expected else [])


# ---- kinds


def kinds(*rows: Written) -> list[str]:
    return texts(check_kinds(checked(wrote(*rows))))


def point(what: str, **more: Any) -> Written:
    return "checkpoints", {"process": JM, "checkpoint": 1, "state": what} | more


VALUES = {
    "task": "a-0",
    "reason": "r",
    "duration_ns": 1,
    "alignment_ns": 1,
    "state_bytes": 1,
    "persisted_bytes": 1,
}


@pytest.mark.parametrize(("what", "column"), [(s, c) for s in OF_STATE for c in VALUES])
def test_a_state_of_a_checkpoint_has_its_columns(what: str, column: str):
    """The others are empty or 0."""
    found = kinds(point("triggered"), point(what, **{column: VALUES[column]}))
    problem = f"checkpoints.parquet, column {column}, row 1: is {VALUES[column]!r}, which a checkpoint that is {what} does not have"
    assert found == ([] if column in OF_STATE[what] else [problem])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (event("note", attempt=0), "events.parquet, column attempt, row 1: is 0, but note is of no attempt"),
        (event("note", checkpoint=0), "events.parquet, column checkpoint, row 1: is 0, but note is of no checkpoint"),
        (event("gate.connected", "a-0", attempt=0), ""),
        (event("task.restored", "a-0", attempt=0, checkpoint=1), ""),
        (event("task.restored", "a-0", attempt=0), "events.parquet, column checkpoint, row 1: is -1, but task.restored is of a checkpoint"),
        (event("job.restored", "job"), "events.parquet, column checkpoint, row 1: is -1, but job.restored is of a checkpoint"),
        *((event(kind, "1"), f"events.parquet, column text, row 1: of {kind} is empty, but every one has a cause") for kind in CAUSED),
        *((("events", event(kind, "1")[1] | {"text": "lost"}), "") for kind in CAUSED),
        (event("network.buffers", TM, process=TM), ""),
        (event("network.buffers", "tm-9-1", process=TM), "events.parquet, column subject, row 1: of network.buffers is 'tm-9-1', but tm-0-1 wrote it"),
        (("events", event("taskmanager.lost", "tm-9-1")[1] | {"text": "lost"}), ""),
        (sample("a-0", role="source", records_in=1), "tasks.parquet, column records_in, row 0: is 1, which no source has"),
        (sample("a-0", role="source", bytes_in=1), "tasks.parquet, column bytes_in, row 0: is 1, which no source has"),
        (sample("a-0", role="sink", records_out=1), "tasks.parquet, column records_out, row 0: is 1, which no sink has"),
        (sample("a-0", role="sink", bytes_out=1), "tasks.parquet, column bytes_out, row 0: is 1, which no sink has"),
        (sample("a-0", role="operator", lag_ns=1), "tasks.parquet, column lag_ns, row 0: is 1, which no operator has"),
        (sample("a-0", role="operator", lag_ns=-1), "tasks.parquet, column lag_ns, row 0: is -1, which no operator has"),
        (sample("a-0", role="sink", lag_ns=1, records_in=1), ""),
        (("frames", {"process": TM, "side": "sent", "link": "tm-0->tm-1"}), ""),
        (("frames", {"process": TM, "side": "sent", "link": "tm-1->tm-0"}), "frames.parquet, column link, row 0: is 'tm-1->tm-0', but tm-0-1 sent the frame"),
        (("frames", {"process": TM, "side": "received", "link": "tm-1->tm-0"}), ""),
        (("frames", {"process": TM, "side": "received", "link": "tm-0->tm-1"}), "frames.parquet, column link, row 0: is 'tm-0->tm-1', but tm-0-1 received the frame"),
    ],
)  # fmt: skip
def test_a_row_has_what_rows_of_its_kind_have(row: Written, expected: str):
    """Other columns do not apply to it."""
    assert kinds(state("a-0", "CREATED", "SCHEDULED"), row) == ([expected] if expected else [])


def test_one_event_with_a_number_that_it_does_not_have_is_named():
    """Others may have one too."""
    assert len(kinds(event("note", attempt=0), event("loop.stall", checkpoint=0))) == 1


def test_the_roles_of_tasks_are_compared_if_a_jobmanager_deployed_them():
    """An exchange without one has sources of its own kind."""
    assert kinds(sample("a-0", role="sink", records_out=1)) == []


def of_wait(column: str, problem: str) -> str:
    return f"waits.parquet, column {column}, row 1: {problem}"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, ""),
        ({"wait": f"{TM}/1"}, of_wait("wait", f"is '{TM}/1', but {JM} wrote it")),
        ({"wait": ""}, of_wait("wait", f"is '', but {JM} wrote it")),
        ({"after": f"{JM}/1 {JM}/2"}, ""),
        ({"after": f"{JM}/1 {TM}/2"}, of_wait("after", f"is '{JM}/1 {TM}/2', but {JM} wrote it")),
        ({"process": "supervisor"}, ""),
        ({"kind": "registration", "who": JM}, ""),
        ({"kind": "registration", "who": TM}, of_wait("who", f"is '{TM}', but {JM} wrote this registration wait")),
        ({"attempt": 0}, ""),
        *(({"kind": kind, "attempt": 0, "who": JM}, of_wait("attempt", f"is 0, but a {kind} wait is of no attempt")) for kind in sorted(WITHOUT_ATTEMPT)),
        ({"option": "o"}, of_wait("option", "is 'o', but value is ''")),
        ({"value": "v"}, of_wait("option", "is '', but value is 'v'")),
        ({"option": "o", "value": "v", "budget_ns": 5}, ""),
        ({"budget_ns": 0}, of_wait("budget_ns", "is 0, but no option limits this slot wait")),
    ],
)  # fmt: skip
def test_a_wait_has_what_waits_of_its_kind_have(row: Row, expected: str):
    """Ids of its process, and a budget only with an option."""
    good = {"wait": f"{JM}/0", "who": "JobMaster"}
    assert kinds(wait("slot", wait=f"{JM}/9"), ("waits", wait("slot")[1] | good | row)) == (
        [expected] if expected else []
    )


# ---- owners


def numbered(*owners: tuple[str, str, int]) -> Trial:
    """Rows of these processes, boots and numbers."""
    return wrote(*(("events", event("note", process=p)[1] | {"boot_id": b, "seq": n}) for p, b, n in owners))


A, B = ("a", "x"), ("b", "x")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(*A, 0), (*A, 1), (*B, 0)], ""),
        ([(*A, 0), (*B, 1), (*A, 2)], "process, row 1: is 'b', but 'a' has no row 1 (seq)"),
        ([(*A, 0), (*B, 2), (*A, 1)], "process, row 1: is 'b', but 'a' has no row 2 (seq)"),
        ([(*A, 0), (*B, 1), (*A, 3)], ""),
        ([(*A, 0), (*B, 1), (*B, 0)], ""),
        ([(*A, 0), ("a", "y", 1), (*A, 2)], "boot_id, row 1: is 'y', but 'x' has no row 1 (seq)"),
        ([(*A, 1), (*A, 2), (*B, 0)], "process, row 2: is 'b', but 'a' has no row 0 (seq)"),
        ([(*A, 1), (*B, 1)], ""),
        (
            [(*A, 0), ("a", "y", 1), ("a", "z", 2), (*A, 3)],
            "boot_id, row 1: is 'y', but 'x' has no row 1 (seq)",
        ),
        ([(*A, 0), (*B, 1), ("c", "y", 2), (*A, 3)], "process, row 1: is 'b', but 'a' has no row 1 (seq)"),
        ([(*A, 0), (*B, 1), ("c", "y", 3), (*A, 4)], ""),
    ],
)
def test_rows_of_a_process_that_never_began_are_those_that_another_one_lacks(rows: list[Any], expected: str):
    """Every process begins with number 0. The smaller part is the one that was changed."""
    assert texts(check_owners(numbered(*rows))) == (
        [f"events.parquet, column {expected}"] if expected else []
    )


def test_rows_are_sought_in_every_table():
    """A table without a number in some row is not compared."""
    rows = [event("note"), event("note"), sample("a-0", process="b", boot_id="b", seq=2)]
    assert texts(check_owners(wrote(*rows))) == [f"tasks.parquet, column process, row 0: is 'b', but '{JM}' has no row 2 (seq)"]  # fmt: skip
    trial = wrote(*rows)
    nulls = trial.table("tasks").set_column(4, "seq", pa.array([None], pa.int64()))
    assert arrow_schema("tasks").names[4] == "seq"
    assert check_owners(Trial("r", "t", {**trial.tables, "tasks": nulls})) == []


# ---- all of them


def test_each_group_of_rules_is_asked():
    """One damage for each, and those of two clocks only if there is one."""
    damaged = {
        "executions": [
            state("a-0", "CREATED", "DEPLOYING"),
            sample("a-0", attempt=7),
            job("FINISHED", 1, **{"from": "CREATED"}),
        ],
        "checkpoints": [point("acknowledged", task="a-0")],
        "counters": [sample("a-0", t, idle_ns=NS) for t in (0, 0, 0, 0, 0, 0)],
        "waits": [wait("slot", outcome="expired")],
        "faults": [fault("asked")],
        "kinds": [event("note", attempt=0)],
        "sequences": [state("a-0", "RUNNING", "FAILED")],
        "balance": [("channels", {"side": "producer", "announced": 1})],
    }
    for name, rows in damaged.items():
        assert check_across(wrote(*rows), trial_entry()), name
    early = [event("process.exit", TM, 1), sample("a-0", 9)]
    assert check_across(wrote(*early), trial_entry()) != []
    assert check_across(wrote(early[0], ("tasks", early[1][1] | {"boot_id": "c"})), trial_entry()) == []


@pytest.mark.parametrize(
    ("seq", "shed", "is_compared"), [(2, False, True), (3, False, False), (2, True, False)]
)
def test_a_trial_that_lacks_rows_is_not_compared(seq: int, shed: bool, is_compared: bool):
    """A number that is missing, or rows that were shed."""
    rows = [
        event("note", attempt=0),
        event("history.shed" if shed else "loop.stall", JM, 1),
        ("events", event("note")[1] | {"seq": seq}),
    ]
    assert bool(check_across(wrote(*rows), trial_entry())) is is_compared
    assert bool(check_across(wrote(*rows, sample("a-0")), trial_entry())) is is_compared


def test_a_finding_names_table_column_and_row():
    """The row only if one is meant."""
    assert str(Damage("tasks", "task", 0, "is x")) == "tasks.parquet, column task, row 0: is x"
    assert str(Damage("tasks", "task", -1, "is x")) == "tasks.parquet, column task: is x"
