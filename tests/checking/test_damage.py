"""Damaged histories whose row counts agree with the seal: none passes, and the reason names the table and the column."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.messages import CHUNK_RECORDS
from testbed_runtime.core.judgement.verdict import RunVerdict, Verdict
from testbed_runtime.core.trial.manifest import MANIFEST_SCHEMA, TrialEntry
from testbed_runtime.history.reader import read_trial
from testbed_runtime.history.schema import TABLES, Trial
from testbed_runtime.history.sealing import SEALED, write_trial
from testbed_runtime.history.validation import DamagedHistory, check_causality, check_times, check_trial
from testbed_runtime.runner.engine import judge_run
from testbed_runtime.runner.manifest import write_json
from testbed_runtime.runner.progress import Silent
from testbed_runtime.simulation.entry import DirectEvaluator
from tests.checking.agreeing import agreeing
from tests.checking.conftest import Builder

RUN = "run"
HOUR_NS = 3600 * 1_000_000_000
Change = Callable[[pa.Table], pa.Table]

ASKED = [
    {"metric": "delivery.lost", "equals": "0"},
    {"metric": "job.state", "equals": "RUNNING"},
    {"metric": "throughput.relative", "phase": "observation", "min": "0.9"},
]


def put(column: str, value: Any, *rows: int, kind: pa.DataType | None = None) -> Change:
    """Replace a column's values in some rows."""

    def change(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        for row in rows:
            values[row] = value
        index = table.schema.get_field_index(column)
        return table.set_column(index, column, pa.array(values, kind or table.schema.field(index).type))

    return change


def when(column: str, value: Any, changed: str, by: Any) -> Change:
    """Replace a column's value in the first row with this value in another column."""

    def change(table: pa.Table) -> pa.Table:
        return put(changed, by, table.column(column).to_pylist().index(value))(table)

    return change


def shift(column: str, by: int, process: str = "tm-") -> Change:
    """Add to a column in all rows of some processes."""

    def change(table: pa.Table) -> pa.Table:
        mine = pc.starts_with(table.column("process"), process)
        moved = pc.if_else(mine, pc.add(table.column(column), by), table.column(column))
        return table.set_column(table.schema.get_field_index(column), column, moved)

    return change


def retype(column: str, kind: pa.DataType) -> Change:
    """Give a column another type."""

    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(column)
        return table.set_column(index, column, table.column(column).cast(kind))

    return change


def reset(column: str) -> Change:
    """Let a cumulative counter of the first task begin again in the middle."""

    def change(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        first = (table.column("task")[0].as_py(), table.column("attempt")[0].as_py())
        mine = [
            i for i in range(len(table))
            if (table.column("task")[i].as_py(), table.column("attempt")[i].as_py()) == first
        ]  # fmt: skip
        for position, row in enumerate(mine):
            values[row] = position if position < len(mine) // 2 else position - len(mine) // 2
        index = table.schema.get_field_index(column)
        return table.set_column(index, column, pa.array(values, table.schema.field(index).type))

    return change


def doubled(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table])


def foreign(table: pa.Table) -> pa.Table:
    """Add rows of another trial."""
    other = table.set_column(1, "trial", pa.array(["main-2"] * len(table)))
    return pa.concat_tables([table, other.set_column(4, "seq", pc.add(table.column("seq"), 100_000))])


def numbered(table: pa.Table) -> pa.Table:
    """Replace the subjects by numbers."""
    index = table.schema.get_field_index("subject")
    return table.set_column(index, "subject", pa.array(np.arange(len(table)), pa.int64()))


def with_nan(column: str) -> Change:
    def change(table: pa.Table) -> pa.Table:
        values = [float(v) for v in table.column(column).to_pylist()]
        values[3] = float("nan")
        return table.set_column(table.schema.get_field_index(column), column, pa.array(values, pa.float64()))

    return change


DAMAGE: list[tuple[str, str, str, Change]] = [
    ("TaskManager clocks one hour ahead", "tasks", "t_ns", shift("t_ns", HOUR_NS)),
    ("TaskManager clocks one hour behind", "tasks", "t_ns", shift("t_ns", -HOUR_NS)),
    ("one sample an hour ahead", "tasks", "t_ns", put("t_ns", 4600 * 10**9, 200)),
    ("a clock that steps back", "tasks", "t_ns", put("t_ns", 1000 * 10**9, 40)),
    ("latency an hour ahead", "latency", "t_ns", shift("t_ns", HOUR_NS)),
    ("rows written twice", "tasks", "seq", doubled),
    ("events written twice", "events", "seq", doubled),
    ("delivery written twice", "delivery", "seq", doubled),
    ("checkpoints written twice", "checkpoints", "seq", doubled),
    ("faults written twice", "faults", "seq", doubled),
    ("null counter", "tasks", "records_in", put("records_in", None, 7)),
    ("null time", "tasks", "t_ns", put("t_ns", None, 7)),
    ("null role", "tasks", "role", put("role", None, 7)),
    ("null event kind", "events", "kind", put("kind", None, 1)),
    ("null bitmap", "delivery", "bitmap", put("bitmap", None, 0)),
    ("null histogram", "latency", "buckets", put("buckets", None, 4)),
    ("null in a histogram", "latency", "buckets", put("buckets", [1, None], 4)),
    ("records counter that begins again", "tasks", "records_in", reset("records_in")),
    ("busy time that begins again", "tasks", "busy_ns", reset("busy_ns")),
    ("negative counter", "tasks", "records_out", put("records_out", -5, 9)),
    ("rows of another trial", "tasks", "trial", foreign),
    ("delivery of another trial", "delivery", "trial", foreign),
    ("unknown trial", "events", "trial", put("trial", "main-77", 0)),
    ("another run", "faults", "run", put("run", "other", 0)),
    ("text instead of a number", "tasks", "records_in", retype("records_in", pa.string())),
    ("fraction instead of an integer", "tasks", "lag_ns", retype("lag_ns", pa.float64())),
    ("number instead of a text", "events", "subject", numbered),
    ("not a number", "tasks", "lag_ns", with_nan("lag_ns")),
    ("NaN in an event", "events", "data", put("data", '{"seconds": NaN}', 2)),
    ("an event that is no JSON", "events", "data", put("data", '{"to": "RUN', 0)),
    ("an unknown event", "events", "kind", put("kind", "failover.strted", 3)),
    ("an unknown role", "tasks", "role", put("role", "snik", 5)),
    ("an unknown fault state", "faults", "state", put("state", "", 2)),
    ("an unknown checkpoint state", "checkpoints", "state", put("state", "done", 0)),
    ("histogram that does not add up", "latency", "buckets", put("count", 1, 10)),
    ("histogram with a negative count", "latency", "buckets", put("buckets", [-1, 101], 10)),
    ("histogram of another version", "latency", "buckets", put("buckets", [0] * 99 + [100], 10)),
    ("bitmap of another size", "delivery", "bitmap", put("bitmap", b"\xff" * (CHUNK_RECORDS // 8 + 1), 0)),
    ("chunk at an odd base", "delivery", "base", put("base", 17, 0)),
    ("negative number", "delivery", "duplicated", put("duplicated", -1, 0)),
    ("nameless process", "events", "process", put("process", "", 0)),
    ("one event an hour of the trial later", "events", "t_ns", put("t_ns", 1020 * 10**9, 0)),
    ("one commit before its time", "delivery", "t_ns", put("t_ns", 1001 * 10**9, 4)),
    ("a fault that was injected after its end", "faults", "t_ns", when("state", "injected", "t_ns", 1012 * 10**9)),
    ("a state that no task has", "events", "data", when("kind", "job.state", "data", '{"to": "RUNNIG"}')),
    ("a state that is no text", "events", "data", when("kind", "job.state", "data", '{"to": ["RUNNING"]}')),
    ("a state without data", "events", "data", when("kind", "job.state", "data", "")),
    ("data that is no object", "events", "data", when("kind", "job.state", "data", "[1]")),
    ("a wait that begins after its end", "waits", "start_ns", put("start_ns", 1020 * 10**9, 0)),
    ("an option that no wait has", "waits", "option", put("option", "heartbeat.timeuot", 0)),
    ("an option of another kind of wait", "waits", "option", put("option", "slot.request.timeout", 0)),
    ("an id for two waits", "waits", "wait", put("wait", "jobmanager-1/1", 1)),
    ("a window of no length", "latency", "window_ns", put("window_ns", 0, 3)),
    ("a window that is longer than any trial", "latency", "window_ns", put("window_ns", 2**62, 3)),
    ("a window after its row", "latency", "window_start_ns", put("window_start_ns", 1020 * 10**9, 3)),
    ("a maximum in another bucket", "latency", "max_ns", put("max_ns", 10**18, 3)),
    ("no maximum", "latency", "max_ns", put("max_ns", 0, 3)),
    ("a lag of years", "tasks", "lag_ns", put("lag_ns", 10**18, 3)),
    ("a lag before all times", "tasks", "lag_ns", put("lag_ns", -(10**18), 3)),
    ("a task that the job does not have", "tasks", "task", put("task", "sink-7", 3)),
    ("a task of another vertex", "tasks", "vertex", put("vertex", "snik", 3)),
    ("a task name without end", "tasks", "task", put("task", "sink" * 9_999, 3)),
    ("a completion without a trigger", "checkpoints", "checkpoint", when("state", "triggered", "state", "failed")),
    ("a checkpoint that took years", "checkpoints", "duration_ns", when("state", "completed", "duration_ns", 10**18)),
    ("missing column", "tasks", "lag_ns", lambda table: table.drop_columns(["lag_ns"])),
]  # fmt: skip


def write(
    folder: Path,
    sealed_trial: Path,
    entry: TrialEntry | dict[str, Any],
    damaged: str = "",
    change: Change | None = None,
) -> Path:
    """Write a run with a copy of one trial, and damage one table so that the seal agrees with it. The seal is of an earlier version, without
    digests, which would find each damage."""
    history = folder / "history" / "main-1"
    shutil.copytree(sealed_trial, history)
    if change is not None:
        path = history / f"{damaged}.parquet"
        table = change(pq.ParquetFile(path).read())
        pq.write_table(table, path)
        sealed = json.loads((history / SEALED).read_text())
        sealed["rows"][damaged] = len(table)
        del sealed["blocks"]
        (history / SEALED).write_text(json.dumps(sealed))
    manifest = {
        "schema": MANIFEST_SCHEMA, "run": RUN, "scenario": {}, "place": "local", "seed": 7, "started": "", "machine": {},
        "interrupted": False, "expectations": {"main": ASKED}, "trials": [msgspec.to_builtins(entry)],
    }  # fmt: skip
    write_json(folder / "manifest.json", manifest)
    return history


@cache
def good() -> Trial:
    """The good history under the run's name."""

    def rename(table: pa.Table) -> pa.Table:
        table = table.set_column(0, "run", pa.array([RUN] * len(table), pa.string()))
        return table.set_column(1, "trial", pa.array(["main-1"] * len(table), pa.string()))

    built = agreeing(Builder())
    return Trial(RUN, "main-1", {name: rename(built.table(name)) for name in TABLES})


@pytest.fixture(scope="module")
def sealed_trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The good history in files."""
    folder = tmp_path_factory.mktemp("good") / "main-1"
    write_trial(folder, good())
    return folder


def conclude(folder: Path) -> RunVerdict:
    return asyncio.run(judge_run(folder, DirectEvaluator(), Silent())).verdict


def test_the_good_history_is_sound(history: Any, sealed_trial: Path, tmp_path: Path):
    """Without damage the same run passes, so every verdict below comes from the damage."""
    folder = write(tmp_path, sealed_trial, history.entry())
    assert check_trial(read_trial(folder, run=RUN), history.entry()) == []
    assert conclude(tmp_path).verdict is Verdict.PASS


@pytest.mark.parametrize(("what", "table", "column", "change"), DAMAGE, ids=[d[0] for d in DAMAGE])
def test_a_damaged_history_is_an_error_that_names_table_and_column(
    history: Any, sealed_trial: Path, tmp_path: Path, what: str, table: str, column: str, change: Change
):
    """The damage is found when the history is opened, before any metric is computed."""
    del what
    folder = write(tmp_path, sealed_trial, history.entry(), table, change)
    with pytest.raises(DamagedHistory) as caught:
        read_trial(folder, run=RUN, entry=history.entry())
    assert any((d.table, d.column) == (table, column) for d in caught.value.found)
    verdict = conclude(tmp_path)
    assert verdict.verdict is Verdict.ERROR
    assert f"{table}.parquet, column {column}" in verdict.summary


def test_a_seal_without_the_rows_of_a_table_is_damaged(history: Any, sealed_trial: Path, tmp_path: Path):
    """Otherwise the table could lack any rows."""
    folder = write(tmp_path, sealed_trial, history.entry())
    sealed = json.loads((folder / SEALED).read_text())
    del sealed["rows"]["tasks"]
    (folder / SEALED).write_text(json.dumps(sealed))
    verdict = conclude(tmp_path)
    assert verdict.verdict is Verdict.ERROR
    assert "sealed.json: has no number of rows of tasks" in verdict.summary


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"phases": [{"name": "baseline", "start_ns": "soon", "end_ns": 5}]}, "trials[0].phases[0].start_ns: Expected `int`, got `str`"),
        ({"phases": [5]}, "trials[0].phases[0]: Expected `object`, got `int`"),
        ({"phases": [{"start_ns": 1, "end_ns": 5}]}, "trials[0].phases[0]: Object missing required field `name`"),
        ({"faults": [{"name": "kill"}]}, "trials[0].faults[0]: Object missing required field `kind`"),
        ({"faults": [{"name": "kill", "kind": "process.kill", "at_s": "x"}]}, "trials[0].faults[0].at_s: Expected `float`, got `str`"),
        ({"faults": None}, "trials[0].faults: Expected `array`, got `null`"),
        ({"configuration": "none"}, "trials[0].configuration: Expected `object`, got `str`"),
        ({"job": [1]}, "trials[0].job: Expected `object`, got `array`"),
        ({"job": {"vertices": [{"name": "a", "parallelism": "two"}]}}, "trials[0].job.vertices[0].parallelism: Expected `int`, got `str`"),
        ({"job": {"vertices": [{"name": "a", "parallelism": 10**7}]}}, "trials[0].job.vertices[0].parallelism: Expected `int` <= 32768"),
        ({"job": {"vertices": [{"name": "a"}], "edges": 5}}, "trials[0].job.edges: Expected `array`, got `int`"),
        ({"trial": None}, "trials[0].trial: Expected `str`, got `null`"),
        ({"seed": "x"}, "trials[0].seed: Expected `int`, got `str`"),
        ({"number": None}, "trials[0].number: Expected `int`, got `null`"),
        ({"variant": ["main"]}, "trials[0].variant: Expected `str`, got `array`"),
        ({"variant": "snik"}, "expectations has no list for 'snik', the variant of trials[0]"),
    ],
)  # fmt: skip
def test_a_damaged_manifest_names_the_field(
    history: Any, sealed_trial: Path, tmp_path: Path, changes: dict[str, Any], problem: str
):
    """No stack trace, whatever its entries are."""
    write(tmp_path, sealed_trial, msgspec.to_builtins(history.entry()) | changes)
    with pytest.raises(UserError) as caught:
        conclude(tmp_path)
    assert problem in str(caught.value)


@pytest.mark.parametrize("table", ["delivery", "tasks", "events", "faults", "latency", "channels"])
def test_an_emptied_table_never_passes(history: Any, sealed_trial: Path, tmp_path: Path, table: str):
    """Its rows are missing from the sequence numbers, so nothing can be said: neither a pass nor lost records."""
    write(tmp_path, sealed_trial, history.entry(), table, lambda t: t.slice(0, 0))
    verdict = conclude(tmp_path)
    assert verdict.verdict is Verdict.INCONCLUSIVE, verdict.summary
    if table in ("delivery", "events"):  # the others are the last rows, or the only ones, of their process
        missing = next(e for e in verdict.judged if e.metric == "history.missing")
        assert f"{table} is empty" in missing.measured
        assert "column seq of " in missing.measured
        assert "waits: jobmanager-1 lacks" in missing.measured
        assert missing.measured in verdict.summary


@pytest.mark.parametrize("key", ["execution.state-recovery.path", "execution.savepoint.path"])
def test_a_job_that_starts_from_a_checkpoint_may_lag_by_the_time_since_that(
    history: Any, sealed_trial: Path, tmp_path: Path, key: str
):
    """Records that were in flight in an unaligned checkpoint keep the time at which they were due in the earlier run."""
    entry = history.entry(configuration={key: "files/main-1"})
    folder = write(tmp_path, sealed_trial, entry, "tasks", put("lag_ns", 3 * 3600 * 10**9, 3))
    assert check_times(read_trial(folder, run=RUN), entry) == []


def test_samples_outside_the_life_of_their_task_have_another_clock(history: Any):
    """A TaskManager whose clock is 5 s behind samples a task before the JobManager has deployed it."""
    built = history.empty(lambda t, r: r | {"t_ns": r["t_ns"] - 5 * 10**9} if t == "tasks" else r)
    built.event("task.state", "sink-0", 0.0, attempt=0, data={"to": "SCHEDULED"})
    history.sample(built)
    (found,) = check_causality(built.trial())
    assert (found.table, found.column) == ("tasks", "t_ns")
    assert "5.0 s before the JobManager deployed it" in found.problem
    late = history.empty(lambda t, r: r | {"t_ns": r["t_ns"] + 5 * 10**9} if t == "tasks" else r)
    late.event("task.state", "sink-0", 24.0, attempt=1, data={"to": "FINISHED"})
    history.sample(late)
    (found,) = check_causality(late.trial())
    assert "after it reported its end" in found.problem


def test_every_row_is_named_as_stored(history: Any):
    """The row of a finding is its position in the file, so that it can be looked up."""
    tables = {**good().tables, "tasks": put("records_in", None, 7)(good().tables["tasks"])}
    trial = Trial(RUN, "main-1", tables)
    (found,) = check_trial(trial, history.entry())
    assert str(found) == "tasks.parquet, column records_in, row 7: is null"


def test_validation_is_cheap(history: Any):
    """A million rows are validated in seconds: nothing loops over rows."""
    rows = 1_000_000
    number = np.arange(rows, dtype=np.int64)
    columns = {name: pa.array(np.zeros(rows, dtype=np.int64)).cast(kind) for name, kind in TABLES["tasks"] if pa.types.is_integer(kind)}  # fmt: skip
    task = pa.DictionaryArray.from_arrays(number % 100, [f"sink-{i}" for i in range(100)]).cast(pa.string())
    text = {"task": task, "vertex": pa.repeat("sink", rows), "role": pa.repeat("sink", rows)}
    common = {
        "run": pa.repeat(RUN, rows), "trial": pa.repeat("main-1", rows), "process": pa.repeat("tm-0-1", rows),
        "boot_id": pa.repeat("boot", rows), "seq": pa.array(number), "t_ns": pa.array(history.start + number),
    }  # fmt: skip
    names = [*common, *(name for name, _ in TABLES["tasks"])]
    table = pa.table({name: (common | text | columns)[name] for name in names})
    begun = time.process_time()
    job = {"vertices": [{"name": "sink", "parallelism": 100}]}
    assert check_trial(Trial(RUN, "main-1", {"tasks": table}), history.entry(job=job)) == []
    assert time.process_time() - begun < 10
