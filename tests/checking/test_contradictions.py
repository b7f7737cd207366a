"""Damage that leaves each table consistent in itself, made to a history that processes wrote: the reason names table and column."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest

from testbed_runtime.checking.delivery import check_delivery
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS, Trial
from tests.checking.recorded import Change, Recorded, Row, recorded

NS = 1_000_000_000
When = Callable[[Row], bool]


def always(row: Row) -> bool:
    return True


def of(**values: Any) -> When:
    """Whether a row has these values."""
    return lambda row: values.items() <= row.items()


def times(factor: float, *columns: str, when: When = always) -> Change:
    return lambda row: row | {c: int(row[c] * factor) for c in columns} if when(row) else row


def plus(amount: int, *columns: str, when: When = always) -> Change:
    return lambda row: row | {c: row[c] + amount for c in columns} if when(row) else row


def put(when: When = always, **values: Any) -> Change:
    return lambda row: row | values if when(row) else row


def without(when: When) -> Change:
    return lambda row: None if when(row) else row


def data(when: When, **values: Any) -> Change:
    """Change the JSON of some events."""
    return lambda row: row | {"data": json.dumps(json.loads(row["data"]) | values)} if when(row) else row


def slower(shift: int) -> Change:
    """Move each latency by some buckets, consistently."""

    def change(row: Row) -> Row:
        buckets = [0] * (len(LATENCY_BOUNDS_NS) + 1)
        for number, count in enumerate(row["buckets"]):
            buckets[min(max(number + shift, 0), len(LATENCY_BOUNDS_NS))] += count
        highest = max(number for number, count in enumerate(buckets) if count)
        return row | {"buckets": buckets, "max_ns": LATENCY_BOUNDS_NS[highest]}

    return change


SOURCE, COUNT, SINK = of(role="source"), of(vertex="count"), of(role="sink")
TASKS: list[tuple[str, str, Change]] = [
    ("sinks received ten times as much", "records_in", times(10, "records_in", when=SINK)),
    ("sinks received a tenth", "records_in", times(0.1, "records_in", when=SINK)),
    ("sinks received ten times as much, bytes too", "records_in", times(10, "records_in", "bytes_in", when=SINK)),
    ("sinks received ten times the bytes", "bytes_in", times(10, "bytes_in", when=SINK)),
    ("operators received ten times as much", "records_in", times(10, "records_in", when=COUNT)),
    ("operators received a tenth", "bytes_in", times(0.1, "records_in", when=COUNT)),
    ("operators received ten times as much, bytes too", "records_in", times(10, "records_in", "bytes_in", when=COUNT)),
    ("operators sent ten times as much", "records_in", times(10, "records_out", when=COUNT)),
    ("operators sent a tenth", "bytes_out", times(0.1, "records_out", when=COUNT)),
    ("operators sent ten times the bytes", "bytes_out", times(10, "bytes_out", when=COUNT)),
    ("operators sent a tenth of the bytes", "bytes_in", times(0.1, "bytes_out", when=COUNT)),
    ("sources sent ten times as much", "records_out", times(10, "records_out", when=SOURCE)),
    ("sources sent a tenth", "records_out", times(0.1, "records_out", when=SOURCE)),
    ("all counters divided by ten", "records_out", times(0.1, "records_in", "records_out", "bytes_in", "bytes_out")),
    ("ten times idle", "idle_ns", times(10, "idle_ns")),
    ("a tenth idle", "idle_ns", times(0.1, "idle_ns")),
    ("sources ten times as late", "records_out", plus(3 * NS, "lag_ns", when=lambda r: SOURCE(r) and r["records_out"] > 1000)),
    ("sinks ten times as late", "lag_ns", times(10, "lag_ns", when=SINK)),
    ("sinks a hundredth as late", "lag_ns", times(0.01, "lag_ns", when=SINK)),
    ("samples of a task that ran elsewhere", "process", put(of(task="sink-0"), task="sink-1")),
    ("an attempt of one task moved by one", "attempt", plus(1, "attempt", when=of(task="sink-0", attempt=1))),
    ("no samples of one process", "task", without(of(process="tm-0-1"))),
    ("sinks that sent a record", "records_out", plus(1, "records_out", when=SINK)),
    ("operators with a lag", "lag_ns", plus(1, "lag_ns", when=COUNT)),
    ("two seconds more idle, always", "idle_ns", plus(2 * NS, "idle_ns")),
    ("no samples of an attempt that was cancelled", "t_ns", without(of(task="count-0", attempt=0))),
    ("no samples of a task for its first four seconds", "t_ns", without(lambda r: r["task"] == "count-1" and r["attempt"] == 1 and r["records_in"] < 1500)),
    ("no samples of a task for four seconds", "t_ns", without(lambda r: r["task"] == "count-1" and 400 < r["records_in"] < 2800)),
    ("a third of a second more busy in the second half", "idle_ns", plus(NS // 3, "busy_ns", when=lambda r: r["task"] == "count-1" and r["records_in"] > 1300)),
    ("samples of another machine", "boot_id", put(boot_id="other")),
    ("no later samples of the sinks", "t_ns", without(lambda r: SINK(r) and r["attempt"] == 1 and r["records_in"] > 400)),
]  # fmt: skip
LATENCY: list[tuple[str, tuple[str, str], Change]] = [
    ("latencies nine times as long", ("tasks", "lag_ns"), slower(10)),
    ("latencies a tenth as long", ("tasks", "lag_ns"), slower(-10)),
    ("ten times as many latencies", ("tasks", "records_in"), lambda r: r | {"count": 10 * r["count"], "buckets": [10 * b for b in r["buckets"]]}),
    ("half of the windows", ("tasks", "records_in"), without(lambda r: r["window_start_ns"] // r["window_ns"] % 2 == 0)),
    ("windows of ten times the length", ("latency", "window_ns"), times(10, "window_ns")),
    ("windows of half the length", ("latency", "window_ns"), times(0.5, "window_ns")),
    ("windows that begin between two", ("latency", "window_start_ns"), plus(-NS // 10, "window_start_ns")),
    ("windows of another process", ("latency", "process"), lambda r: r | {"process": r["process"].upper()}),
    ("windows of another attempt", ("latency", "attempt"), plus(1, "attempt")),
    ("windows two seconds earlier", ("latency", "window_start_ns"), plus(-2 * NS, "window_start_ns")),
]  # fmt: skip
ACKNOWLEDGED, COMPLETED = of(state="acknowledged"), of(state="completed")
CHECKPOINTS: list[tuple[str, tuple[str, str], Change]] = [
    ("a missing acknowledgement", ("checkpoints", "state"), without(lambda r: ACKNOWLEDGED(r) and r["task"] == "sink-0")),
    ("acknowledgements of another checkpoint", ("checkpoints", "state"), plus(1, "checkpoint", when=lambda r: ACKNOWLEDGED(r) and r["task"] == "sink-0")),
    ("acknowledgements of an unknown task", ("checkpoints", "task"), put(lambda r: ACKNOWLEDGED(r) and r["task"] == "sink-0", task="sink-9")),
    ("acknowledged half a minute later", ("checkpoints", "duration_ns"), plus(30 * NS, "duration_ns", when=ACKNOWLEDGED)),
    ("alignments of five seconds", ("checkpoints", "alignment_ns"), plus(5 * NS, "alignment_ns", when=ACKNOWLEDGED)),
    ("more channel state than state", ("checkpoints", "persisted_bytes"), put(ACKNOWLEDGED, persisted_bytes=10**9)),
    ("a tenth of the size", ("checkpoints", "state_bytes"), times(0.1, "state_bytes", when=COMPLETED)),
    ("ten times the size", ("checkpoints", "state_bytes"), times(10, "state_bytes", when=COMPLETED)),
    ("parts of ten times the size", ("checkpoints", "state_bytes"), times(10, "state_bytes", when=ACKNOWLEDGED)),
    ("durations of ten times the time that passed", ("checkpoints", "duration_ns"), times(10, "duration_ns")),
    ("an alignment before any barrier", ("checkpoints", "alignment_ns"), put(of(state="triggered"), alignment_ns=1)),
    ("acknowledgements of what was not triggered", ("checkpoints", "checkpoint"), plus(1000, "checkpoint", when=ACKNOWLEDGED)),
    ("completed checkpoints that failed", ("delivery", "checkpoint"), put(COMPLETED, state="failed")),
    ("failed checkpoints that were completed", ("waits", "outcome"), put(of(state="failed"), state="completed")),
    ("other numbers", ("events", "checkpoint"), plus(1000, "checkpoint")),
]  # fmt: skip
DELIVERY: list[tuple[str, str, Change]] = [
    ("commits of another attempt", "attempt", plus(1, "attempt")),
    ("commits of another checkpoint", "checkpoint", plus(1, "checkpoint")),
    ("commits of the first attempt", "attempt", put(attempt=0)),
    ("commits of one checkpoint", "checkpoint", put(checkpoint=1)),
    ("commits of ten times the weight", "weight", times(10, "weight")),
    ("no commits of one attempt", "weight", without(of(task="sink-0", attempt=1))),
    ("a commit that is missing", "weight", without(of(task="sink-1", checkpoint=12))),
    ("commits of records of an unknown source", "source", put(of(source="source-0"), source="source-00")),
    ("commits of an operator", "task", put(of(task="sink-0"), task="count-0")),
    ("commits without their records", "weight", lambda r: r | {"bitmap": bytes(len(r["bitmap"]))}),
]
MANDATORY = (
    "checkpoint", "completion", "restore", "first-record", "partition", "deployment", "cancellation", "slot", "registration",
)  # fmt: skip
"""Kinds of waits that every restart or every checkpoint has."""
WAITS: list[tuple[str, str, Change]] = [
    ("all waits five seconds later", "t_ns", plus(5 * NS, "start_ns", "t_ns")),
    ("all waits five seconds earlier", "t_ns", plus(-5 * NS, "start_ns", "t_ns")),
    ("waits that end five seconds later", "t_ns", plus(5 * NS, "t_ns")),
    ("waits that end a tenth of a second later", "t_ns", plus(NS // 10, "t_ns")),
    ("waits that begin a tenth of a second earlier", "start_ns", plus(-NS // 10, "start_ns", when=of(process="jobmanager-1"))),
    ("waits that begin five seconds earlier", "start_ns", plus(-5 * NS, "start_ns")),
    ("waits without length", "start_ns", lambda r: r | {"start_ns": r["t_ns"]}),
    ("a heartbeat that was awaited for less than its timeout", "start_ns", plus(NS // 10, "start_ns", when=of(kind="heartbeat"))),
    ("checkpoints that took two seconds longer", "start_ns", plus(-2 * NS, "start_ns", when=of(kind="checkpoint"))),
    ("waits of another attempt", "attempt", plus(1, "attempt", when=lambda r: r["attempt"] >= 0)),
    ("waits of an unknown task", "who", put(of(who="sink-0"), who="sink-9")),
    ("waits that expired", "outcome", put(of(outcome="completed"), outcome="expired")),
    ("a heartbeat of a TaskManager that was not lost", "outcome", put(of(kind="heartbeat"), what="tm-0-1")),
    ("an option with another value", "value", put(lambda r: bool(r["option"]), value="7 s")),
    ("a budget that is twice its option", "budget_ns", times(2, "budget_ns", when=of(option="slot.request.timeout"))),
    ("no budget", "budget_ns", put(of(option="heartbeat.timeout"), budget_ns=-1)),
    ("a budget without an option", "budget_ns", put(of(kind="restore"), budget_ns=NS)),
    ("an option without its value", "option", put(of(kind="slot"), value="")),
    ("waits that another process recorded", "wait", lambda r: r | {"wait": r["wait"].replace("tm-", "tm-9-")}),
    ("checkpoints of an attempt", "attempt", put(of(kind="checkpoint"), attempt=0)),
    ("a restart that did not start", "attempt", plus(5, "attempt", when=of(kind="cancellation"))),
    ("deployments that began before they were scheduled", "start_ns", plus(-2 * NS, "start_ns", when=of(kind="deployment"))),
    ("restores of another kind", "kind", put(of(kind="restore"), kind="open")),
    *((f"no waits for a {kind}", "kind", without(of(kind=kind))) for kind in MANDATORY),
    ("partitions of another task", "who", put(of(kind="partition", who="sink-0"), who="sink-1")),
]  # fmt: skip
EVENTS: list[tuple[str, str, Change]] = [
    ("a restart that did not start", "kind", put(of(kind="failover.started"), kind="note")),
    ("no restart at all", "kind", without(lambda r: r["kind"].startswith("failover."))),
    ("a restart that did not end", "kind", without(of(kind="failover.deployed"))),
    ("a restart that ended twice", "subject", put(of(kind="failover.slots"), kind="failover.deployed")),
    ("no restored tasks", "kind", without(of(kind="task.restored"))),
    ("tasks restored from a later checkpoint", "checkpoint", plus(1, "checkpoint", when=of(kind="task.restored"))),
    ("gates of another attempt", "attempt", plus(1, "attempt", when=of(kind="gate.connected"))),
    ("first records ten times as late", "data", data(of(kind="sink.first-record"), latency_ns=9 * NS)),
    ("an attempt of what has none", "attempt", put(of(kind="network.buffers"), attempt=0)),
    ("the buffers of another TaskManager", "subject", put(of(kind="network.buffers"), subject="tm-9-1")),
    ("states that do not follow each other", "data", data(lambda r: r["kind"] == "task.state" and '"RUNNING"' in r["data"], **{"from": "FAILED"})),
    ("a phase that came twice", "subject", put(of(kind="trial.phase", subject="baseline"), subject="warmUp")),
    ("no end of the job", "kind", without(lambda r: r["kind"] == "job.state" and '"to": "FINISHED"' in r["data"])),
    ("a failure without its cause", "data", put(of(kind="failover.failure"), data="{}")),
    ("samples of back pressure without their number", "data", data(of(kind="backpressure.sampled"), samples=None)),
    ("less than no segment", "data", data(lambda r: r["kind"] == "network.buffers" and '"used"' in r["data"], used=-1)),
    ("a restart with another cause", "data", data(of(kind="failover.started"), detector="other")),
    ("segments that are no number", "data", data(lambda r: r["kind"] == "network.buffers" and '"used"' in r["data"], used="7")),
    ("first records of another sink", "subject", put(of(kind="sink.first-record", subject="sink-0"), subject="sink-1")),
    ("tasks restored from an earlier checkpoint", "checkpoint", put(of(kind="task.restored"), checkpoint=1)),
    ("a restart with another number", "kind", put(of(kind="failover.cancelled"), subject="7")),
    *(
        (f"no {kind}", "kind", without(of(kind=kind)))
        for kind in ("trial.phase", "task.state", "source.end", "gate.connected", "partition.request", "failover.slots", "taskmanager.registered")
    ),
    ("phases that began two seconds later", "t_ns", plus(2 * NS, "t_ns", when=of(kind="trial.phase"))),
    ("phases that began two seconds earlier", "t_ns", plus(-2 * NS, "t_ns", when=of(kind="trial.phase"))),
]  # fmt: skip
ELSEWHERE: list[tuple[str, str, tuple[str, str], Change]] = [
    ("events", "deployments of other attempts", ("tasks", "attempt"), plus(1, "attempt", when=of(kind="task.state"))),
    ("events", "deployments elsewhere", ("tasks", "process"), data(lambda r: r["kind"] == "task.state" and r["subject"] == "sink-0", taskmanager="tm-9-1")),
    ("events", "a TaskManager that was not lost", ("waits", "outcome"), without(of(kind="taskmanager.lost"))),
    ("events", "a TaskManager that ended earlier", ("faults", "t_ns"), plus(-2 * NS, "t_ns", when=of(kind="process.exit"))),
    ("events", "sources that ended sooner", ("tasks", "records_out"), data(of(kind="source.end"), next=100)),
    ("channels", "channels of another attempt", ("channels", "attempt"), plus(1, "attempt")),
    ("channels", "ten times the credit", ("channels", "credit"), times(10, "credit", when=of(side="producer", local=False))),
    ("channels", "no credit", ("channels", "credit"), put(of(side="producer", local=False), credit=0)),
    ("channels", "ten times as much announced", ("channels", "credit"), times(10, "announced")),
    ("channels", "ten times as much announced and used", ("channels", "credit"), times(10, "announced", "used")),
    ("channels", "ten times as many buffers used", ("channels", "credit"), times(10, "used")),
    ("channels", "ten times as many free segments", ("channels", "announced"), times(10, "exclusive")),
    ("channels", "channels of another task", ("channels", "process"), put(of(side="consumer", task="count-0"), task="count-1")),
    ("channels", "channels on no edge", ("channels", "peer"), put(of(side="producer", task="source-0"), peer="sink-0")),
    ("channels", "channels to an unknown subtask", ("channels", "peer"), lambda r: r | {"peer": r["peer"] + "1"}),
    ("channels", "remote channels that are local", ("channels", "local"), put(local=True)),
    ("faults", "a fault without rows", ("faults", "fault"), without(always)),
    ("events", "a TaskManager that was lost earlier", ("events", "t_ns"), plus(-2 * NS, "t_ns", when=of(kind="taskmanager.lost"))),
    ("frames", "frames of other TaskManagers", ("frames", "link"), put(of(side="sent"), link="tm-8->tm-9")),
    ("frames", "frames of an unknown class", ("frames", "frame_class"), put(frame_class="data")),
    ("faults", "a fault that was not injected", ("faults", "state"), without(of(state="injected"))),
    ("faults", "a fault that ended two seconds later", ("faults", "t_ns"), plus(2 * NS, "t_ns", when=of(state="ended"))),
    ("faults", "a fault that was asked for otherwise", ("faults", "asked"), put(of(state="ended"), asked="{}")),
    ("faults", "a fault three seconds earlier", ("faults", "t_ns"), plus(-3 * NS, "t_ns")),
    ("faults", "a fault three seconds later", ("faults", "t_ns"), plus(3 * NS, "t_ns")),
    ("faults", "a fault that was not planned", ("faults", "fault"), put(fault="other")),
    ("faults", "a fault of another kind", ("faults", "kind"), put(kind="process.pause")),
    ("faults", "a fault elsewhere", ("faults", "targets"), put(targets='["tm-0"]')),
]  # fmt: skip
DAMAGE: list[tuple[str, str, tuple[str, str], Change]] = [
    *(("tasks", what, ("tasks", column), change) for what, column, change in TASKS),
    *(("latency", what, found, change) for what, found, change in LATENCY),
    *(("checkpoints", what, found, change) for what, found, change in CHECKPOINTS),
    *(("delivery", what, ("delivery", column), change) for what, column, change in DELIVERY),
    *(("waits", what, ("waits", column), change) for what, column, change in WAITS),
    *(("events", what, ("events", column), change) for what, column, change in EVENTS),
    *ELSEWHERE,
]


def test_a_history_that_processes_wrote_has_no_contradiction():
    """So every finding below comes from the damage."""
    assert recorded().found() == []


def test_a_sink_that_writes_a_record_twice_is_judged_and_no_damage():
    """Its commits have one record more than it received. That is a duplicate of the job, and delivery says so."""
    twice = recorded().changed(
        "delivery", plus(1, "weight", "duplicated", when=of(task="sink-1", checkpoint=12))
    )
    assert twice.found() == []


@pytest.mark.parametrize(("last", "found"), [("baseline", False), ("fault", True)])
def test_a_fault_that_was_due_after_the_end_of_the_job_has_no_rows(last: str, found: bool):
    """A job that finishes by itself in the baseline ends the schedule. One that finishes later had the fault."""
    history = recorded()
    names = [p["name"] for p in history.manifest["phases"]]
    kept = names[: names.index(last) + 1]
    phases = [p for p in history.manifest["phases"] if p["name"] in (*kept, "drain")]
    gone = history.changed("faults", without(always)).changed(
        "events",
        without(lambda r: r["kind"] == "trial.phase" and r["subject"] in set(names) - {*kept, "drain"}),
    )
    assert (("faults", "fault") in gone.with_entry(phases=phases).columns()) == found


def test_a_sink_that_loses_a_record_before_its_commit_is_judged_and_no_damage():
    """The commit of a checkpoint lacks one record that the sink received. Delivery says that it is lost."""

    def lose(row: Row) -> Row:
        if not of(task="sink-1", checkpoint=12, source="source-0")(row) or not row["weight"]:
            return row
        bits = int.from_bytes(row["bitmap"], "little")
        kept = (bits & (bits - 1)).to_bytes(len(row["bitmap"]), "little")
        return row | {"bitmap": kept, "weight": row["weight"] - 1}

    fewer = recorded().changed("delivery", lose)
    assert fewer.found() == []
    assert check_delivery(fewer.trial, fewer.entry).lost == 1


def test_a_sink_that_loses_most_of_its_records_is_damage():
    """Its commits are consistent in themselves, but have a tenth of what it received."""

    def decimate(row: Row) -> Row:
        if row["task"] != "sink-1":
            return row
        kept = (int.from_bytes(row["bitmap"], "little") & int("1" + "0" * 9, 2)).to_bytes(
            len(row["bitmap"]), "little"
        )
        return row | {"bitmap": kept, "weight": 0}

    assert ("delivery", "weight") in recorded().changed("delivery", decimate).columns()


def test_the_commits_of_a_completed_checkpoint_are_missed_also_where_a_job_ends_without_one():
    """Flink 1.14 takes no checkpoint at the end of the data, so a sink may lack its last commit, but no earlier one."""
    history = recorded()
    old = history.with_entry(flinkVersion="1.14")
    assert ("delivery", "weight") not in old.columns()
    gone = old.changed("delivery", without(lambda row: row["task"] == "sink-1" and row["checkpoint"] > 2))
    assert ("delivery", "weight") in gone.columns()


@pytest.mark.parametrize(
    ("table", "what", "found", "change"), DAMAGE, ids=[f"{d[0]}: {d[1]}" for d in DAMAGE]
)
def test_damage_that_another_table_contradicts_is_found(
    table: str, what: str, found: tuple[str, str], change: Change
):
    """Whole columns were changed, so no row stands out."""
    del what
    assert found in recorded().changed(table, change).columns()


@pytest.mark.parametrize("table", ["tasks", "channels", "latency", "checkpoints", "waits"])
def test_a_table_whose_rows_are_all_missing_is_named(table: str):
    """Its seal may agree."""
    emptied = recorded().changed(table, without(always))
    assert table in {found for found, _ in emptied.columns()}


def test_a_job_whose_channels_are_sampled_rarely_may_have_no_sample_of_them():
    """In virtual time, those of thousands of subtasks are sampled once a minute."""
    emptied = recorded().changed("channels", without(always))
    vertices = [{**v, "parallelism": 4_000} for v in emptied.manifest["job"]["vertices"]]
    large = {**emptied.manifest, "job": {**emptied.manifest["job"], "vertices": vertices}}
    assert "channels" not in {found for found, _ in Recorded(emptied.trial, large).columns()}


@pytest.mark.parametrize("process", ["jobmanager-1", "tm-3-1"])
def test_a_process_without_any_row_is_found(process: str):
    """Its rows have numbers of their own, so no number is missing. One TaskManager was killed after some seconds."""
    history = recorded()
    tables = {
        name: table.filter(pc.not_equal(table.column("process"), process))
        for name, table in history.trial.tables.items()
    }
    found = Recorded(Trial(history.trial.run, history.trial.trial, tables), history.manifest).columns()
    assert found & {("events", "kind"), ("tasks", "process")}


MOVED = [(p, s) for p in ("tm-0-1", "tm-2-1", "jobmanager-1", "runner") for s in (2.0, -2.0)]


@pytest.mark.parametrize(("process", "seconds"), [*MOVED, ("tm-2-1", 0.5), ("jobmanager-1", 0.5)])
def test_a_process_whose_times_are_moved_within_the_trial_is_found(process: str, seconds: float):
    """All processes of a machine have one clock."""
    damaged = recorded()
    for table in ("events", "channels", "tasks", "latency", "delivery", "checkpoints", "waits", "frames"):
        if any(row["process"] == process for row in damaged.trial.table(table).to_pylist()):
            columns = [
                c
                for c in ("t_ns", "start_ns", "window_start_ns")
                if c in damaged.trial.table(table).column_names
            ]
            damaged = damaged.changed(table, plus(int(seconds * NS), *columns, when=of(process=process)))
    assert damaged.found()


@pytest.mark.parametrize("table", ["tasks", "latency", "channels", "events", "faults", "waits"])
def test_rows_that_were_written_twice_under_new_numbers_are_found(table: str):
    """Repeated samples would count their records twice."""
    assert twice(recorded(), table).columns() & {(table, "seq"), ("tasks", "records_in")}


def ids(row: Row) -> Row:
    """Return another id for a wait."""
    return {"wait": f"{row['wait']}000"} if "wait" in row else {}


def twice(history: Recorded, table: str) -> Recorded:
    """Number all rows by twos, and let each row of a table follow itself."""
    doubled = history
    for name in history.trial.tables:
        if len(history.trial.table(name)):
            doubled = doubled.changed(name, lambda row: row | {"seq": 2 * row["seq"] + 1})
    rows = [row | {"seq": row["seq"] - 1} | ids(row) for row in doubled.trial.table(table).to_pylist()]
    return doubled.with_rows(table, rows).numbered()


def test_an_offered_rate_that_the_sources_did_not_follow_is_found():
    """The manifest states it, and what the sources counted follows from it."""
    history = recorded()
    job = json.loads(json.dumps(history.manifest["job"]))
    job["vertices"][0]["recordsPerSecond"] *= 2
    damaged = history.with_entry(job=job)
    assert ("tasks", "records_out") in damaged.columns()
    assert any("at 600 records/s" in d.problem for d in damaged.found())


def test_a_task_may_lack_its_last_rows_if_its_taskmanager_was_killed_after_it_had_finished():
    """They were not written yet when it was killed. The JobManager knows that the task finished."""
    lost = without(of(kind="gate.connected", subject="count-0", attempt=1))
    history = recorded()
    (deployed,) = (
        json.loads(row["data"])["taskmanager"]
        for row in history.trial.rows("events")
        if row["kind"] == "task.state"
        and (row["subject"], row["attempt"]) == ("count-0", 1)
        and '"to": "DEPLOYING"' in row["data"]
    )
    damage = ("events", "kind")
    assert damage in history.changed("events", lost).columns()
    killed = history.changed("events", put(of(kind="process.exit"), subject=deployed))
    assert damage not in killed.changed("events", lost).columns()


def test_a_history_of_an_earlier_version_has_no_contradiction():
    """Its failures do not name the wait that they ended."""

    def before(row: Row) -> Row:
        return row | {"data": json.dumps({k: v for k, v in json.loads(row["data"]).items() if k != "wait"})}

    assert recorded().changed("events", before).found() == []
