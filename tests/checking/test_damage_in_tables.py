"""The limits of the rules for the rows of one table, and for the numbers and times of a trial's processes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from testbed_runtime.core.job.messages import CHUNK_RECORDS
from testbed_runtime.history.damage import Damage
from testbed_runtime.history.schema import (
    LATENCY_BOUNDS_NS,
    TABLES,
    Trial,
    arrow_schema,
)
from testbed_runtime.history.validation import (
    LONGEST_NS,
    DamagedHistory,
    check_causality,
    check_order,
    check_repeated,
    check_rows,
    check_schema,
    check_times,
    check_trial,
)
from tests.checking.written import (
    JM,
    NS,
    Row,
    Written,
    at,
    event,
    sample,
    state,
    texts,
    wait,
    wrote,
)
from tests.manifests import trial_entry

BUCKETS = len(LATENCY_BOUNDS_NS) + 1


def found(*rows: Written) -> list[str]:
    """Return what is wrong with the table of these rows, without its name."""
    (name,) = {table for table, _ in rows}
    damage = check_rows(name, wrote(*rows).table(name), run="r", trial="main-1")
    return [text.removeprefix(f"{name}.parquet, column ") for text in texts(damage)]


def window(counts: dict[int, int], max_ns: int, **more: Any) -> Written:
    buckets = [counts.get(number, 0) for number in range(BUCKETS)]
    row = {"task": "b-0", "count": sum(counts.values()), "buckets": buckets, "max_ns": max_ns, "t": 1.0}
    return "latency", row | {"window_start": 0.5, "window_ns": NS // 4} | more


B = LATENCY_BOUNDS_NS
HIGHEST = "which is not in the highest bucket with records"
GOOD = window({0: 2}, B[0])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (window({3: 1, 5: 2}, B[5]), []),
        (window({3: 1, 5: 2}, B[4] + 1), []),
        (window({3: 1, 5: 2}, B[5] + 1), [f"max_ns, row 1: is {(B[5] + 1) / NS:g} s, {HIGHEST}"]),
        (window({3: 1, 5: 2}, B[4]), [f"max_ns, row 1: is {B[4] / NS:g} s, {HIGHEST}"]),
        (window({BUCKETS - 1: 1}, B[-1] + 1), []),
        (window({0: 1}, 0), []),
        (window({0: 1}, -5), []),
        (window({0: 1}, B[1]), [f"max_ns, row 1: is {B[1] / NS:g} s, {HIGHEST}"]),
        (window({}, 0), []),
        (window({}, B[7]), []),
        (window({3: 2}, B[3], count=3), ["buckets, row 1: adds up to 2, but count is 3"]),
        (window({3: 2, 4: -1}, B[3]), ["buckets, row 1: contains a negative count"]),
        (window({3: 2, 4: -1}, B[3], count=3), ["buckets, row 1: contains a negative count"]),
        (window({}, B[3], count=1, buckets=[0] * BUCKETS + [1]), [f"buckets, row 1: has {BUCKETS + 1} buckets, the schema {BUCKETS}", f"max_ns, row 1: is {B[3] / NS:g} s, {HIGHEST}"]),
        (window({}, 0, buckets=[]), []),
        (window({0: 1}, 0, window_ns=0), ["window_ns, row 1: is 0"]),
        (window({0: 1}, 0, window_ns=1), []),
        (window({0: 1}, 0, window_start=1.0), []),
        (window({0: 1}, 0, window_start=1.25), ["window_start_ns, row 1: is 0.2 s after the row was written"]),
    ],
)  # fmt: skip
def test_a_window_is_consistent(row: Written, expected: list[str]):
    """Its buckets add up, its maximum is in the highest of them, and it began before it was written."""
    assert found(GOOD, row) == expected
    assert found(row) == [text.replace("row 1", "row 0") for text in expected]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (wait("slot", start=1, t=1), []),
        (wait("slot", start=2.5, t=1), ["start_ns, row 1: is 1.5 s after the end of the wait"]),
        (wait("slot", option="slot.request.timeout"), []),
        (wait("deployment", option="akka.ask.timeout"), []),
        (wait("slot", option="heartbeat.timeout"), ["option, row 1: is 'heartbeat.timeout', which limits no slot wait"]),
        (wait("slot", wait="w/0"), ["wait, row 1: is 'w/0', which another wait has too"]),
        (wait("slot", budget_ns=2**63 - 1), []),
        (wait("slot", budget_ns=-2), ["budget_ns, row 1: is -2, which is below -1"]),
        (wait("sloth", option="x"), ["kind, row 1: is 'sloth', which is not in the schema"]),
    ],
)  # fmt: skip
def test_a_wait_is_consistent(row: Written, expected: list[str]):
    """Its end is not before its beginning, its id is its own, and its option limits its kind."""
    first = wait("slot", wait="w/0")
    assert found(first, (row[0], {"wait": "w/1"} | row[1])) == expected
    assert found(row, wait("slot", wait="w/1")) == [
        text.replace("row 1", "row 0") for text in expected if "another" not in text
    ]
    alone = [text.replace("row 1", "row 0") for text in expected if "another wait" not in text]
    assert found((row[0], {"wait": "w/1"} | row[1])) == alone


def point(what: str, t: float, number: int = 1, **more: Any) -> Written:
    return "checkpoints", {"process": JM, "checkpoint": number, "state": what, "t": t} | more


def fault(what: str, t: float, **more: Any) -> Written:
    return "faults", {"fault": "f", "targets": "[]", "state": what, "t": t} | more


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([point("triggered", 1, -1)], []),
        ([point("triggered", 1, -2)], ["checkpoint, row 0: is -2, which is below -1"]),
        ([fault("injected", 2), fault("ended", 1)], []),
        ([fault("injected", 2.2), fault("ended", 1.199)], ["t_ns, row 0: says that f was injected 1.0 s after it was ended"]),
        ([fault("injected", 5), fault("verified", 1)], ["t_ns, row 0: says that f was injected 4.0 s after it was verified"]),
        ([fault("injected", 5), fault("unverified", 1)], ["t_ns, row 0: says that f was injected 4.0 s after it was unverified"]),
        ([fault("injected", 5), fault("asked", 1)], []),
        ([fault("injected", 5), fault("ended", 1, targets='["a"]')], []),
        ([fault("injected", 5), fault("ended", 1, fault="g")], []),
        ([fault("asked", 1), fault("injected", 2), fault("injected", 9), fault("ended", 3)], []),
        ([("delivery", {"bitmap": b"\0" * (CHUNK_RECORDS // 8), "base": CHUNK_RECORDS})], []),
        ([("delivery", {"bitmap": b"\0" * (CHUNK_RECORDS // 8 + 1)})], [f"bitmap, row 0: has {CHUNK_RECORDS // 8 + 1} bytes, at most {CHUNK_RECORDS // 8} are possible"]),
        ([("delivery", {"bitmap": b"\x03", "duplicated": 1, "out_of_order": 3})], []),
        ([("delivery", {"bitmap": b"\x03", "duplicated": 1, "out_of_order": 4})], ["out_of_order, row 0: is 4, more than the 3 records of the row (bitmap, duplicated)"]),
        ([("delivery", {"base": 1})], [f"base, row 0: is 1, which is not a multiple of {CHUNK_RECORDS}"]),
        ([("delivery", {"checkpoint": -2})], ["checkpoint, row 0: is -2, which is below -1"]),
        ([("delivery", {"weight": -1})], ["weight, row 0: is -1, which is below 0"]),
        ([("channels", {"side": "producer", "credit": -9})], []),
    ],
)  # fmt: skip
def test_checkpoints_faults_and_commits_are_consistent(rows: list[Written], expected: list[str]):
    """Rows may be in any order: agents and managers send them at their own time."""
    assert found(*rows) == expected


def to(text: str, kind: str = "task.state") -> Written:
    return "events", event(kind)[1] | {"data": text}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (to('{"to": "RUNNING"}'), []),
        (to('{"to": "RESTARTING"}'), ["data, row 1: of task.state has the state 'RESTARTING' in `to`, which Flink does not have"]),
        (to('{"to": "RESTARTING"}', "job.state"), []),
        (to("{}"), ["data, row 1: of task.state has the state None in `to`, which Flink does not have"]),
        (to(""), ["data, row 1: of task.state has the state None in `to`, which Flink does not have"]),
        (to("", "note"), []),
        (to("[1]", "note"), ["data, row 1: of note is not a JSON object: '[1]'"]),
        (to("[1]"), ["data, row 1: of task.state is not a JSON object: '[1]'"]),
        (to('{"a": Infinity}', "note"), ["data, row 1: contains Infinity"]),
        (to('{"a": -Infinity}', "note"), ["data, row 1: contains -Infinity"]),
        (to('{"a": "NaN"}', "note"), []),
        (to("{x", "note"), ["data, row 1: is not JSON: '{x'"]),
        (to("{x"), ["data, row 1: is not JSON: '{x'"]),
        (to(" 5", "note"), ["data, row 1: of note is not a JSON object: ' 5'"]),
    ],
)  # fmt: skip
def test_the_data_of_an_event_is_an_object_with_a_state_that_flink_has(row: Written, expected: list[str]):
    """An empty text is an empty object."""
    assert found(to("", "note"), row, to('{"to": "CREATED"}')) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"run": "q"}, ["run, row 1: is 'q' instead of 'r'"]),
        ({"trial": "main-2"}, ["trial, row 1: is 'main-2' instead of 'main-1'"]),
        ({"process": ""}, ["process, row 1: is empty"]),
        ({"boot_id": ""}, ["boot_id, row 1: is empty"]),
        ({"role": "x"}, ["role, row 1: is 'x', which is not in the schema"]),
        ({"records_in": -1, "attempt": 1}, ["records_in, row 1: is -1, which is below 0"]),
        ({"attempt": -1}, []),
        ({"attempt": -2}, ["attempt, row 1: is -2, which is below -1"]),
        ({"lag_ns": -9}, ["lag_ns, row 1: is -9, which is below 0"]),
        ({"idle_ns": LONGEST_NS}, []),
        ({"idle_ns": LONGEST_NS + 1}, [f"idle_ns, row 1: is {LONGEST_NS + 1}, longer than any trial"]),
        ({"lag_ns": LONGEST_NS + 1}, [f"lag_ns, row 1: is {LONGEST_NS + 1}, longer than any trial"]),
    ],
)  # fmt: skip
def test_each_row_is_of_this_trial_and_in_range(change: Row, expected: list[str]):
    """Times of a wall clock are in range."""
    assert found(sample("a-0"), sample("a-0", 1, seq=5, **change), sample("b-0", seq=9)) == expected
    assert found(sample("a-0", 1, **change)) == [text.replace("row 1", "row 0") for text in expected]


def test_the_first_text_that_is_no_json_is_named():
    """One is enough."""
    assert found(to("", "note"), to("{x", "note"), to("{y", "note")) == ["data, row 1: is not JSON: '{x'"]


def test_a_null_is_named_before_anything_else():
    """Nothing can be compared with it."""
    table = wrote(sample("a-0"), sample("a-1")).table("tasks")
    values = pa.array([-5, None], pa.int64())
    broken = table.set_column(table.schema.get_field_index("lag_ns"), "lag_ns", values)
    (null,) = check_rows("tasks", broken, run="other", trial="main-1")
    assert str(null) == "tasks.parquet, column lag_ns, row 1: is null"
    assert check_rows("tasks", table.slice(0, 0), run="r", trial="main-1") == []
    nulls = wrote(GOOD, window({}, 0, buckets=[None])).table("latency")
    assert texts(check_rows("latency", nulls, run="r", trial="main-1")) == ["latency.parquet, column buckets: contains a null"]  # fmt: skip


@pytest.mark.parametrize(
    "column", ["records_in", "records_out", "bytes_in", "bytes_out", "busy_ns", "idle_ns", "t_ns"]
)
def test_a_counter_of_an_attempt_never_decreases(column: str):
    """In the order of its numbers. Another attempt begins anew."""
    least, low, high = ({"t": n * 1e-9} if column == "t_ns" else {"t": 1.0, column: n} for n in (5, 6, 7))
    named = (at(7e-9), at(6e-9)) if column == "t_ns" else (7, 6)
    rows = [sample("a-1", **high), sample("a-0", **least), sample("a-0", **high), sample("a-0", **low)]
    assert found(*rows) == [f"{column}, row 3: decreases from {named[0]} to {named[1]} (tm-0-1, a-0, 0)"]
    assert found(*rows[:3], sample("a-0", **low, attempt=1)) == []
    assert found(rows[0], rows[2], sample("a-0", **low, seq=0)) == []


# ---- numbers and times


def test_a_repeated_number_is_named_in_each_table():
    """Tables share the numbers of a process, and each process has its own."""
    rows = [
        sample("a-0"),
        sample("a-0"),
        event("note", process="tm-0-1", t=1),
        event("note"),
        sample("b-0", boot_id="c", seq=0),
    ]
    assert check_repeated(wrote(*rows)) == []
    again = [
        ("tasks", rows[1][1] | {"seq": 0}),
        ("events", rows[2][1] | {"seq": 0}),
        ("events", rows[2][1] | {"seq": 0}),
    ]
    assert texts(check_repeated(wrote(rows[0], *again))) == [
        "events.parquet, column seq, row 1: 0 of tm-0-1 is there more than once (1 repeated rows)",
        "tasks.parquet, column seq, row 0: 0 of tm-0-1 is there more than once (2 repeated rows)",
    ]
    assert check_repeated(Trial("r", "main-1", {})) == []


@pytest.mark.parametrize(("process", "other"), [("tm-0-1", "tm-1-1"), ("jobmanager-1", "jobmanager-2")])
def test_a_row_is_not_earlier_than_the_one_before(process: str, other: str):
    """The rows of a process may be in several tables. The first of each process is named; the runner passes rows on."""
    before = event("note", t=2, process=process)
    rows = [
        before,
        sample("a-0", 2, process=process),
        sample("a-0", 1.5, process=process),
        sample("a-0", 1, process=process),
    ]
    problem = "tasks.parquet, column t_ns, row {}: is 0.500 s before the row that {} wrote before it: one of them was changed"
    assert texts(check_order(wrote(*rows))) == [problem.format(1, process)]
    more = [event("note", t=2, process=other), sample("a-1", 1.5, process=other)]
    assert texts(check_order(wrote(*rows, *more))) == [problem.format(1, process), problem.format(3, other)]
    assert check_order(wrote(*rows[:2], sample("a-0", 1, process=other))) == []
    assert check_order(wrote(*((t, r | {"process": "runner"}) for t, r in rows))) == []
    assert check_order(Trial("r", "main-1", {})) == []


SECOND = "the clock of its process is not comparable"


@pytest.mark.parametrize(
    ("rows", "boot_id", "expected"),
    [
        ([state("b-0", "CREATED", "SCHEDULED", 3)], "b", ""),
        ([state("b-0", "CREATED", "SCHEDULED", 3.05)], "b", ""),
        ([state("b-0", "CREATED", "SCHEDULED", 3.051)], "b", f"b-0 took this sample 0.1 s before the JobManager deployed it: {SECOND}"),
        ([state("b-0", "CREATED", "SCHEDULED", 4)], "c", ""),
        ([state("b-0", "CREATED", "SCHEDULED", 4.001)], "c", f"b-0 took this sample 1.0 s before the JobManager deployed it: {SECOND}"),
        ([state("b-0", "CREATED", "SCHEDULED", 1), state("b-0", "SCHEDULED", "DEPLOYING", 4.001)], "c", f"b-0 took this sample 1.0 s before the JobManager deployed it: {SECOND}"),
        ([state("b-0", "CREATED", "SCHEDULED", 9, attempt=1)], "b", ""),
        ([state("b-1", "CREATED", "SCHEDULED", 9)], "b", ""),
        ([state("b-0", "DEPLOYING", "RUNNING", 9)], "b", ""),
        ([state("b-0", "RUNNING", "FINISHED", 3.95)], "b", ""),
        ([state("b-0", "RUNNING", "FINISHED", 3.949)], "b", f"b-0 took this sample 0.1 s after it reported its end: {SECOND}"),
        ([state("b-0", "RUNNING", "FINISHED", 3)], "c", ""),
        ([state("b-0", "RUNNING", "FINISHED", 2.999)], "c", f"b-0 took this sample 1.0 s after it reported its end: {SECOND}"),
        ([state("b-0", "RUNNING", "CANCELED", 1)], "b", ""),
    ],
)  # fmt: skip
def test_a_task_is_sampled_between_its_deployment_and_its_end(
    rows: list[Written], boot_id: str, expected: str
):
    """To 0.05 s on one clock, and to a second on two. A task that was cancelled may still be sampled."""
    samples = [sample("a-9", 1), sample("b-0", 3), sample("b-0", 4)]
    found = check_causality(wrote(*((t, r | {"boot_id": boot_id}) for t, r in rows), *samples))
    row = 2 if "after" in expected else 1
    assert texts(found) == ([f"tasks.parquet, column t_ns, row {row}: {expected}"] if expected else [])


PHASES = [
    {"name": "warmUp", "start_ns": at(0), "end_ns": at(5)},
    {"name": "drain", "start_ns": at(5), "end_ns": at(5)},
]
OTHER = "the clock of tm-0-1 (boot id b) is not comparable"


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (-1800, ""),
        (-1800.001, f"is 1800 s before the trial's start: {OTHER}"),
        (605, ""),
        (605.001, f"is 600 s after the trial's end: {OTHER}"),
    ],
)
def test_rows_are_within_the_time_of_the_trial(t: float, expected: str):
    """Half an hour before it, as pods may take to start, and ten minutes after it."""
    rows = [event("note", t=3, process="tm-0-1"), event("note", t=t, process="tm-0-1")]
    assert texts(check_times(wrote(*rows), trial_entry({"phases": PHASES}))) == ([f"events.parquet, column t_ns, row 1: {expected}"] if expected else [])  # fmt: skip
    assert texts(check_times(wrote(rows[1]), trial_entry({"phases": PHASES}))) == ([f"events.parquet, column t_ns, row 0: {expected}"] if expected else [])  # fmt: skip
    assert check_times(wrote(*rows), trial_entry({"phases": []})) == []


@pytest.mark.parametrize(("lag_s", "is_damaged"), [(2405, False), (2405.001, True)])
def test_a_lag_is_not_longer_than_the_trial_and_what_surrounds_it(lag_s: float, is_damaged: bool):
    """Half an hour, five seconds and ten minutes."""
    rows = [sample("a-0", 1), sample("a-0", 2, lag_ns=round(lag_s * NS))]
    problem = f"tasks.parquet, column lag_ns, row 1: is {round(lag_s * NS) / NS:g} s, which is longer than the trial"
    assert texts(check_times(wrote(*rows), trial_entry({"phases": PHASES}))) == (
        [problem] if is_damaged else []
    )
    assert texts(check_times(wrote(rows[1]), trial_entry({"phases": PHASES}))) == ([problem.replace("row 1", "row 0")] if is_damaged else [])  # fmt: skip
    assert check_times(wrote(*rows[:1]), trial_entry({"phases": PHASES})) == []


@pytest.mark.parametrize(
    ("task", "vertex", "expected"),
    [
        ("a-1", "a", ""),
        ("a-2", "a", "task, row 1: is 'a-2', which the job does not have"),
        ("a-sync-0", "a-sync", ""),
        ("a-sync", "a", "task, row 1: is 'a-sync', which the job does not have"),
        ("a-1", "b", "vertex, row 1: is 'b', but the task is a-1"),
    ],
)
def test_each_sample_is_of_a_task_of_the_job(task: str, vertex: str, expected: str):
    """The synchronisation task of an iteration is not in the manifest."""
    rows = [sample("a-0", 1), ("tasks", sample(task, 2)[1] | {"vertex": vertex})]
    entry = trial_entry({"phases": PHASES, "job": {"vertices": [{"name": "a", "parallelism": 2}]}})
    assert texts(check_times(wrote(rows[1]), entry)) == [f"tasks.parquet, column {text.replace('row 1', 'row 0')}" for text in [expected] if text]  # fmt: skip
    assert texts(check_times(wrote(*rows), entry)) == (
        [f"tasks.parquet, column {expected}"] if expected else []
    )
    assert check_times(wrote(*rows), trial_entry({"phases": PHASES})) == []


@pytest.mark.parametrize(("role", "is_damaged"), [("sink", False), ("operator", True)])
def test_each_sample_has_the_role_of_its_vertex(role: str, is_damaged: bool):
    """A vertex without a role in the manifest may have any."""
    job = {"vertices": [{"name": "a", "parallelism": 2, "role": "sink"}]}
    rows = [sample("a-0", 1, role="sink"), sample("a-1", 2, role=role)]
    problem = "tasks.parquet, column role, row 1: is 'operator', but a is a sink (manifest)"
    found = check_times(wrote(*rows), trial_entry({"phases": PHASES, "job": job}))
    assert texts(found) == ([problem] if is_damaged else [])
    alone = texts(check_times(wrote(rows[1]), trial_entry({"phases": PHASES, "job": job})))
    assert alone == ([problem.replace("row 1", "row 0")] if is_damaged else [])
    del job["vertices"][0]["role"]
    assert check_times(wrote(*rows), trial_entry({"phases": PHASES, "job": job})) == []


# ---- schemas and findings


def test_a_column_is_missing_or_has_another_type():
    """Each is a finding of its own."""
    schema = arrow_schema("checkpoints")
    assert check_schema("checkpoints", schema) == []
    index = schema.get_field_index("state_bytes")
    gone = schema.remove(index)
    assert texts(check_schema("checkpoints", gone)) == ["checkpoints.parquet, column state_bytes: is missing; another version of Headgate wrote the file"]  # fmt: skip
    retyped = schema.set(index, pa.field("state_bytes", pa.string()))
    assert texts(check_schema("checkpoints", retyped)) == ["checkpoints.parquet, column state_bytes: has the type string instead of int64"]  # fmt: skip


@pytest.mark.parametrize(("number", "more"), [(5, ""), (6, " (and 1 more)"), (8, " (and 3 more)")])
def test_an_error_names_the_first_five_findings(number: int, more: str):
    """And how many there are beyond them."""
    damage = [Damage("tasks", "task", n, "is x") for n in range(number)]
    shown = "; ".join(f"tasks.parquet, column task, row {n}: is x" for n in range(5))
    error = DamagedHistory("main-1", damage)
    assert f"the history is damaged: {shown}{more}" in str(error)
    assert bool(more) is ("more)" in str(error))
    assert error.found == tuple(damage)


def test_a_damaged_row_and_another_type_are_reported_alone():
    """Nothing else is compared then. Without an entry of the manifest, no tables are."""
    late = [sample("a-0", 3), sample("a-0", 2)]
    trial = wrote(*late)
    assert [d.column for d in check_trial(trial)] == ["t_ns", "t_ns"]
    schema = trial.table("tasks").schema
    retyped = trial.table("tasks").set_column(schema.get_field_index("role"), "role", pa.array([1, 2]))
    (only,) = check_trial(Trial("r", "main-1", {**trial.tables, "tasks": retyped}))
    assert only.problem == "has the type int64 instead of string"
    contradiction = wrote(sample("b-0", role="sink", records_out=1), state("a-0", "CREATED", "SCHEDULED"))
    assert check_trial(contradiction) == []
    assert check_trial(contradiction, trial_entry({"drained": True})) != []
    assert set(trial.tables) == set(TABLES)


@pytest.mark.parametrize(
    ("table", "column"),
    [("tasks", c) for c in ("process", "seq", "t_ns", "task", "lag_ns")]
    + [("events", c) for c in ("process", "seq", "t_ns", "kind", "subject", "attempt", "data")],
)
def test_a_table_with_a_null_is_not_compared(table: str, column: str):
    """It is named, and that is all."""
    states = [state("a-0", "CREATED", "SCHEDULED", 1), state("a-0", "SCHEDULED", "DEPLOYING", 1)]
    trial = wrote(sample("a-0", 1), sample("a-1", 2), *states)
    whole = trial.table(table)
    index = whole.schema.get_field_index(column)
    values = pa.array([None, *whole.column(column).to_pylist()[1:]], whole.schema.field(index).type)
    tables = {**trial.tables, table: whole.set_column(index, column, values)}
    entry = trial_entry({"phases": PHASES, "job": {"vertices": [{"name": "a", "parallelism": 2}]}})
    found = check_trial(Trial("r", "main-1", tables), entry)
    assert texts(found) == [f"{table}.parquet, column {column}, row 0: is null"]
