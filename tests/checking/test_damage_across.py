"""Rows that healthy processes write and that look like damage have no finding; trials that are read in parts are compared too."""

from __future__ import annotations

import copy
import math
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from testbed_runtime.checking.reduced import reduced
from testbed_runtime.evaluation.splits import check_assembled
from testbed_runtime.history.columns import places
from testbed_runtime.history.contradictions.channels import check_credit
from testbed_runtime.history.contradictions.checkpoints import check_checkpoints
from testbed_runtime.history.contradictions.counters import check_counters_across
from testbed_runtime.history.contradictions.executions import check_executions
from testbed_runtime.history.contradictions.faults import check_faults
from testbed_runtime.history.contradictions.waits import check_waits
from testbed_runtime.history.crosschecks import check_across
from testbed_runtime.history.schema import Trial, arrow_schema
from testbed_runtime.history.validation import DamagedHistory
from tests.checking.recorded import DOCUMENT, Recorded, Row, record, recorded
from tests.checking.written import checked
from tests.ordered import in_order

NS = 1_000_000_000


def across(history: Recorded) -> list[str]:
    return [str(d) for d in check_across(history.trial, history.entry)]


def other(*, options: Row, fault: Row, version: str = "", **vertices: Row) -> Row:
    """The document of `recorded` with other options, another fault, and changes of its vertices."""
    document: Row = copy.deepcopy(DOCUMENT)
    spec = document["spec"]
    spec["testbed"]["flinkConfiguration"] |= options
    spec["testbed"] |= {"flinkVersion": version} if version else {}
    spec["faults"][0] = {"name": "f", "duration": "3 s", **fault}
    for vertex in spec["testbed"]["job"]["vertices"]:
        vertex.update(vertices.get(vertex["name"], {}))
    return document


SOURCE = {"taskManagers": {"running": "source", "mode": "one"}}
OTHERS: dict[str, Row] = {
    "calls that fail, in-flight records": other(
        options={"heartbeat.rpc-failure-threshold": "2", "execution.checkpointing.unaligned.enabled": "true"},
        fault={"at": "1 s", "target": SOURCE, "process": {"kill": {}}}, count={"serviceTime": "1ms"},
    ),
    "input splits, sinks that write at least once, no credit": other(
        options={"taskmanager.network.credit-model": "false"}, fault={"at": "0 s", "target": SOURCE, "process": {"pause": {}}},
        source={"source": {"recordsPerSecond": 600, "limit": 4000, "splits": 8}}, sink={"delivery": "at-least-once"},
    ),
    "a JobManager that is killed, incremental checkpoints, markers": other(
        options={"execution.checkpointing.incremental": "true", "metrics.latency.interval": "100 ms"},
        fault={"at": "2 s", "jobmanager": {"kill": {}}}, version="1.20",
    ),
}  # fmt: skip


@pytest.mark.parametrize("document", OTHERS.values(), ids=OTHERS)
def test_other_healthy_histories_have_no_contradiction(document: Row):
    """Every rule has to hold for whatever processes can write."""
    assert record(document).found() == []


def sources(history: Any, *, attempt: int) -> Trial:
    """The good trial with samples of sources that emitted ten times as much as their end says."""
    record = history.empty()
    for source in (0, 1):
        ended = {"kind": "source.end", "subject": f"source-{source}", "attempt": 1, "data": {"next": 500}}
        record.add(f"tm-{source}-1", "events", 24.5, **ended)
        for tick in range(1, 26):
            record.add(
                f"tm-{source}-1", "tasks", tick, task=f"source-{source}", vertex="source", role="source", attempt=attempt,
                records_out=200 * tick, idle_ns=tick * NS,
            )  # fmt: skip
    return in_order(record.trial())


def test_an_attempt_that_reported_no_end_may_have_emitted_more(history: Any):
    """A source ended with a drain, the drain failed, and its next attempt was killed later."""
    (found,) = check_counters_across(checked(sources(history, attempt=1), history.entry()))
    assert (found.table, found.column) == ("tasks", "records_out")
    assert check_counters_across(checked(sources(history, attempt=2), history.entry())) == []


def test_the_places_of_a_combination_are_all_its_rows_in_order():
    """Rules look up the rows of a task instead of comparing every row with it. An empty table has none."""
    table = pa.table({"task": ["b", "a", "b", "a", "b"], "attempt": [0, 0, 1, 0, 0]})
    found = places(table, "task", "attempt")
    assert {key: rows.tolist() for key, rows in found.items()} == {
        ("b", 0): [0, 4],
        ("b", 1): [2],
        ("a", 0): [1, 3],
    }
    assert places(Trial("r", "t", {}).table("tasks"), "task") == {}


def test_a_task_acknowledges_a_checkpoint_once(history: Any):
    """A second time is damage, unless it was triggered again: a JobMaster that lost its leadership numbers from the last completed one."""
    record = history.empty()
    record.add("jobmanager-1", "checkpoints", 10.0, checkpoint=3, state="triggered")
    for t in (10.1, 10.2):
        record.add(
            "jobmanager-1",
            "checkpoints",
            t,
            checkpoint=3,
            state="acknowledged",
            task="sink-0",
            duration_ns=NS // 10,
        )
    (found,) = check_checkpoints(checked(record.trial(), history.entry()))
    assert str(found).endswith("is sink-0, which had acknowledged checkpoint 3")
    again = history.empty()
    for t in (10.0, 11.0):
        again.add("jobmanager-1", "checkpoints", t, checkpoint=3, state="triggered")
        again.add(
            "jobmanager-1",
            "checkpoints",
            t + 0.1,
            checkpoint=3,
            state="acknowledged",
            task="sink-0",
            duration_ns=NS // 10,
        )
    assert check_checkpoints(checked(again.trial(), history.entry())) == []


def killed(boot_id: str) -> Recorded:
    """The killed TaskManager's clock is three seconds ahead; it may be that of another machine."""
    found = recorded()
    (ended,) = [e["subject"] for e in found.trial.table("events").to_pylist() if e["kind"] == "process.exit"]

    def ahead(row: Row) -> Row:
        mine = row["process"] == ended
        times = [c for c in ("t_ns", "start_ns", "window_start_ns") if c in row]
        return row | {c: row[c] + 3 * NS for c in times} | {"boot_id": boot_id} if mine else row

    for table in ("events", "channels", "tasks", "latency", "waits"):
        found = found.changed(table, ahead)
    return found


def test_times_are_compared_only_if_all_processes_share_a_clock():
    """Another machine's clock may differ by any amount."""
    assert any(
        "after tm-" in text and "ended (process.exit in events)" in text for text in across(killed("sim"))
    )
    assert across(killed("another machine")) == []


def test_attempts_are_compared_only_if_one_jobmanager_recorded_the_job_to_its_end():
    """A JobManager that was killed loses its last rows, so that a deployment may be missing."""
    moved = recorded().changed("delivery", lambda row: row | {"attempt": row["attempt"] + 1})
    assert ("delivery", "attempt") in moved.columns()
    unknown = moved.changed("events", lambda row: None if row["kind"] == "job.state" else row)
    assert check_executions(checked(unknown.trial, unknown.entry)) == []
    another = moved.changed(
        "events", lambda row: row | {"process": "jobmanager-2"} if row["kind"] == "job.state" else row
    )
    assert check_executions(checked(another.trial, another.entry)) == []


def test_one_sample_of_a_source_that_was_paused_while_it_waited_may_have_no_lag():
    """It was behind by the pause, which it knows only once it runs."""
    seen: list[int] = []

    def late(row: Row) -> Row:
        if row["role"] != "source" or row["records_out"] < 500 or len(seen) == 2:
            return row
        seen.append(row["seq"])
        return row | {"lag_ns": row["lag_ns"] + 4 * NS}

    assert across(recorded().changed("tasks", late)) == []


@pytest.mark.parametrize(
    ("side", "values", "is_damaged"),
    [
        ("producer", (4, 10, 6), False),
        ("producer", (0, 10, 6), False),  # without exclusive buffers, its consumer resumed
        ("producer", (2**31 - 1, 2, 6), False),  # without credit-based flow control
        ("producer", (5, 10, 6), True),
        ("producer", (-1, 10, 11), False),  # a violation, which is judged
        ("consumer", (2, 10, 10), False),
        ("consumer", (0, 161, 157), False),
        ("consumer", (0, 10, 11), False),  # a violation, which is judged
        ("consumer", (0, 10, 9), True),
    ],
)  # fmt: skip
def test_no_more_credit_is_used_than_was_announced(side: str, values: tuple[int, int, int], is_damaged: bool):
    """Both sides may have less: a consumer without exclusive buffers begins at 0 when it resumes. The consumers hold two segments."""
    text = {
        "run": "r",
        "trial": "t",
        "process": "tm-0-1",
        "boot_id": "b",
        "side": side,
        "task": "a-0",
        "peer": "b-0",
    }
    row = dict.fromkeys(arrow_schema("channels").names, 0) | text | {"local": False}
    row["exclusive"] = 2 if side == "consumer" and values != (0, 161, 157) else 0
    row |= dict(zip(("credit", "announced", "used"), values, strict=True))
    table = pa.Table.from_pylist([row], schema=arrow_schema("channels"))
    assert bool(list(check_credit(table))) is is_damaged


@pytest.mark.parametrize(
    ("table", "column"),
    [("waits", "t_ns"), ("delivery", "attempt"), ("checkpoints", "duration_ns"), ("tasks", "records_out")],
)
def test_a_trial_that_is_read_in_parts_is_compared_too(table: str, column: str):
    """Its latencies and channels are merged, and its samples have no bytes."""
    history = recorded()
    check_assembled(reduced(history.trial), history.entry)
    by = {"t_ns": 5 * NS, "attempt": 1, "duration_ns": 9 * NS, "records_out": 0}[column]

    def change(row: Row) -> Row:
        if table == "tasks":
            return row | {column: row[column] // 10}
        return row | {column: row[column] + by}

    with pytest.raises(DamagedHistory) as caught:
        check_assembled(reduced(history.changed(table, change).trial), history.entry)
    assert (table, column) in {(d.table, d.column) for d in caught.value.found}


def test_a_trial_that_is_read_in_parts_has_one_clock_too():
    """Samples from before the deployment of their task are damage, and not a difference of clocks of less than a second."""
    history = recorded()
    early = history.changed("tasks", lambda row: row | {"t_ns": row["t_ns"] - NS // 2})
    with pytest.raises(DamagedHistory, match="before the JobManager deployed it"):
        check_assembled(reduced(early.trial), history.entry)


def test_a_fault_may_be_delayed_and_its_phase_be_entered_later():
    """Ending a fault may take long, so one phase may begin later than planned; all phases may not."""

    def later(row: Row) -> Row:
        late = row["kind"] == "trial.phase" and row["subject"] == "observation"
        return row | {"t_ns": row["t_ns"] + 5 * NS} if late else row

    assert across(recorded().changed("events", later)) == []


def test_a_damaged_row_is_reported_before_tables_are_compared():
    """A table that is damaged in itself contradicts others in ways that say nothing more."""
    history = recorded().changed(
        "tasks", lambda row: row | {"records_in": -1} if row["role"] == "sink" else row
    )
    assert {d.problem.partition(",")[0] for d in history.found()} <= {"is -1"}


def test_a_few_lost_records_are_judged_and_no_damage():
    """A loss in the exchange makes counters differ, and it must be a Fail of delivery, not an Error."""

    def fewer(row: Row) -> Row:
        is_late = row["vertex"] == "count" and row["records_in"] > 1000
        return row | {"records_in": row["records_in"] - 5} if is_late else row

    assert across(recorded().changed("tasks", fewer)) == []


def test_a_history_that_is_known_to_lack_rows_is_not_compared():
    """It is Inconclusive: what is missing contradicts the rest."""
    fewer = recorded().changed("delivery", lambda row: row | {"attempt": row["attempt"] + 1})
    assert across(fewer)
    tables = {**fewer.trial.tables, "waits": fewer.trial.table("waits").slice(1)}
    assert check_across(Trial(fewer.trial.run, fewer.trial.trial, tables), fewer.entry) == []
    shed = fewer.changed(
        "events", lambda row: row | {"kind": "history.shed"} if row["kind"] == "gate.connected" else row
    )
    assert across(shed) == []


def texts(history: Recorded, **configuration: str) -> str:
    entry = replace(history.entry, configuration={**history.entry.configuration, **configuration})
    return "\n".join(str(d) for d in check_across(history.trial, entry))


def test_a_task_with_a_receive_queue_may_read_much_more_than_it_processes():
    """It drops records, or it fails before it has processed them, and need not say so."""

    def unfinished(row: Row) -> Row | None:
        return None if row["kind"] == "task.state" and "FINISHED" in row["data"] else row

    def slow(row: Row) -> Row:
        return row | {"records_in": row["records_in"] // 100} if row["vertex"] == "count" else row

    history = recorded().changed("events", unfinished).changed("tasks", slow)
    assert "too many for" in texts(history)
    for mode in ("none", "pid", "watermark"):
        assert "too many for" not in texts(history, **{"headgate.flow-control": mode})


def test_a_source_that_waits_for_a_split_or_defers_its_records_follows_no_schedule():
    """It has no lag meanwhile: only a lazy source defers, for as long as the buffer timeout lets it."""

    def slow(row: Row) -> Row:
        return row | {"records_out": row["records_out"] // 2} if row["role"] == "source" else row

    history, found = recorded().changed("tasks", slow), "cannot have emitted by then"
    assert found in texts(history)
    assert found not in texts(history, **{"execution.buffer-timeout.enabled": "false"})
    assert found not in texts(history, **{"execution.buffer-timeout.interval": "5 s"})
    split = history.trial.table("events").to_pylist()[-1] | {"kind": "input-split", "attempt": -1}
    assert found not in texts(history.with_rows("events", [split]))


def test_a_failure_may_be_merged_into_a_restart_that_has_already_deployed():
    """The tasks are deployed again under the same number of restart."""

    def without(*kinds: str) -> str:
        return texts(recorded().changed("events", lambda row: None if row["kind"] in kinds else row))

    assert "was deployed 2 times" not in without("failover.started")
    assert "was deployed 2 times" in without("failover.started", "failover.failure")


PRODUCT = "heartbeat.interval × heartbeat.rpc-failure-threshold"


@pytest.mark.parametrize(
    ("kind", "outcome", "option", "threshold", "lasted", "is_damaged"),
    [
        ("heartbeat", "expired", "heartbeat.timeout", "-1", 0.90, True),
        ("heartbeat", "expired", "heartbeat.timeout", "-1", 0.96, False),
        ("heartbeat", "fired", "heartbeat.interval", "-1", 0.25, False),
        ("heartbeat", "completed", "heartbeat.timeout", "-1", 0.25, False),
        ("heartbeat", "expired", PRODUCT, "4", 0.40, True),
        ("heartbeat", "expired", PRODUCT, "4", 0.51, False),
        ("heartbeat", "expired", PRODUCT, "1", 0.00, False),
        ("first-record", "fired", "execution.buffer-timeout.interval", "-1", 0.30, True),
        ("first-record", "fired", "execution.buffer-timeout.interval", "-1", 0.46, False),
        ("slot", "expired", "slot.request.timeout", "-1", 0.10, False),
    ],
)
def test_a_wait_that_its_option_decided_lasted_as_long_as_that_says(
    kind: str, outcome: str, option: str, threshold: str, lasted: float, is_damaged: bool
):
    """The first of several calls that fail may begin at once. A TaskManager that is lost was silent for the whole timeout, and the
    heartbeat that shows a missing task may follow its deployment at once."""
    history = recorded()
    chosen = {**history.entry.configuration, "heartbeat.rpc-failure-threshold": threshold}
    entry = replace(history.entry, configuration=chosen)
    options = entry.options
    keys = option.split(" × ")
    budget = math.prod(
        options.duration(k) if k != "heartbeat.rpc-failure-threshold" else int(threshold) for k in keys
    )
    waits = [r for r in history.trial.table("waits").to_pylist() if r["process"].startswith("jobmanager")]
    short = waits[-1] | {"kind": kind, "who": "JobMaster", "outcome": outcome, "option": option}
    short |= {"value": " × ".join(options.shown(key) for key in keys), "budget_ns": int(budget * NS)}
    short["start_ns"] = short["t_ns"] - int(short["budget_ns"] * lasted)
    trial = Trial(
        "", "", {**history.trial.tables, "waits": pa.Table.from_pylist([short], schema=arrow_schema("waits"))}
    )
    found = [d for d in check_waits(checked(trial, entry)) if d.column != "t_ns"]
    assert (found != []) is is_damaged
    assert all("let it wait for" in d.problem for d in found)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"at_s": 2.0}, "was injected 2.0 s before its time"),
        ({"at_s": 0.9}, ""),
        ({"at_s": 2.0, "before_submit": True}, "after the job was submitted"),
        ({"kind": "process.pause"}, "is process.pause (manifest)"),
        ({"targets": ["tm-9"]}, "is on tm-9 (manifest)"),
        ({"targets": []}, ""),
        ({"name": "other"}, "which the manifest does not have"),
    ],
)
def test_a_fault_is_compared_with_its_entry_in_the_manifest(changes: Row, found: str):
    """A fault before the job is submitted has no time."""
    history = recorded()
    fault = history.manifest["faults"][0] | changes
    problems = [
        str(d)
        for d in check_faults(checked(history.trial, {**history.manifest, "faults": [fault]}, one_clock=True))
    ]
    assert any(found in p for p in problems) if found else problems == []
