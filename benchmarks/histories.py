"""Write synthetic runs of any size, as the runner leaves them: a manifest and sealed histories.

The shares of the tables are those of a real run (57 % frames, 23 % channels, 14 % tasks). One TaskManager is killed in each fault
trial: its tasks restart with a second attempt, wait for 5 s, and catch up at twice the rate.

    python benchmarks/histories.py FOLDER --rows 1000000
    python benchmarks/histories.py FOLDER --rows 6500 --trials 2000
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from testbed_runtime.core.job.messages import CHUNK_RECORDS
from testbed_runtime.core.judgement.metrics import RECOVERY_PHASES
from testbed_runtime.core.trial.manifest import MANIFEST_SCHEMA
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS, TABLES, Trial, arrow_schema
from testbed_runtime.history.sealing import write_trial

NS = 1_000_000_000
START_NS = 1_000 * NS
SAMPLES_PER_S = 10
RATE = 2_000
"""Records per second of one source subtask."""
SUBTASKS_PER_TASKMANAGER = 9
DOWN_S = 5.0
STATE_BYTES = 8_000
"""The size of a task in a checkpoint."""
NOISE_S = (0.004, 0.012)
"""The lag of a sample, beyond that of the job. Each window has records with both."""
SHARES = {"frames": 0.57, "channels": 0.23, "tasks": 0.14, "latency": 0.02}
VERTICES = (("source", "source"), ("count", "operator"), ("sink", "sink"))

Columns = dict[str, Any]


class Shape:
    """The size of a trial that has about `rows` rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.seconds = 30 if rows < 50_000 else 120
        tasks = SHARES["tasks"] * rows / (self.seconds * SAMPLES_PER_S)
        self.parallelism = max(1, round(tasks / len(VERTICES)))
        self.fault_s = self.seconds * 0.4
        self.baseline_s = self.seconds * 0.15
        self.end_s = self.seconds - 2.0

    def phases(self) -> list[dict[str, Any]]:
        edges = [0.0, self.baseline_s, self.fault_s, self.fault_s + DOWN_S, self.end_s, float(self.seconds)]
        names = ("warmUp", "baseline", "fault", "observation", "drain")
        spans = zip(names, edges, edges[1:], strict=False)
        return [{"name": n, "start_ns": moment(a), "end_ns": moment(b)} for n, a, b in spans]


def moment(seconds: float) -> int:
    return START_NS + round(seconds * NS)


def entry(trial: str, shape: Shape, role: str) -> dict[str, Any]:
    """Return the trial's entry in the manifest."""
    fault = {"name": "kill", "kind": "process.kill", "at_s": 0.0, "duration_s": DOWN_S, "targets": ["tm-0"], "params": {},
             "backend": "supervisor", "why": ""}  # fmt: skip
    vertex = {"parallelism": shape.parallelism}
    return {
        "trial": trial, "variant": "main", "role": role, "number": 1, "seed": 1, "flinkVersion": "2.x",
        "configuration": {"heartbeat.timeout": "5 s", "execution.checkpointing.interval": "1 s"},
        "faults": [] if role == "control" else [fault], "phases": shape.phases(), "voided": False, "drained": True,
        "job_state": "RUNNING",
        "job": {
            "vertices": [{"name": "source", "role": "source", "recordsPerSecond": RATE, **vertex},
                         {"name": "count", "role": "operator", **vertex},
                         {"name": "sink", "role": "sink", **vertex}],
            "edges": [{"from": "source", "to": "count", "partitioning": "forward"},
                      {"from": "count", "to": "sink", "partitioning": "forward"}],
        },
    }  # fmt: skip


def history(trial: str, shape: Shape, role: str, seed: int, run: str) -> Trial:
    """Return the history of one trial."""
    random = np.random.default_rng(seed)
    failover = role != "control"
    tables = {
        "tasks": _tasks(shape, failover, random),
        "channels": _channels(shape, random),
        "latency": _latency(shape, failover, random),
        "frames": _frames(shape, random),
        "delivery": _delivery(shape, failover),
        "events": _events(shape, failover),
        "checkpoints": _checkpoints(shape, failover),
        "faults": _faults(shape, failover),
    }
    _number(tables)
    return Trial(run, trial, {name: _table(name, tables.get(name), run, trial) for name in TABLES})


def _process(subtask: Any) -> Any:
    return subtask // SUBTASKS_PER_TASKMANAGER


def _arrived(shape: Shape, t: Any, failover: bool) -> Any:
    """Return the records of one source that have reached its sink until `t`."""
    usual = RATE * np.clip(t, 0, shape.end_s)
    if not failover:
        return usual
    stopped = RATE * shape.fault_s
    after = stopped + 2 * RATE * np.clip(t - shape.fault_s - DOWN_S, 0, None)
    return np.where(t < shape.fault_s, usual, np.minimum(after, usual))


def _tasks(shape: Shape, failover: bool, random: Any) -> Columns:
    ticks = np.arange(1, shape.seconds * SAMPLES_PER_S + 1) / SAMPLES_PER_S
    down = (ticks > shape.fault_s) & (ticks < shape.fault_s + DOWN_S)
    ticks = ticks[~down] if failover else ticks
    arrived = _arrived(shape, ticks, failover)
    attempt = ((ticks >= shape.fault_s + DOWN_S) & failover).astype(np.int32)
    base = np.where(attempt == 1, RATE * shape.fault_s, 0)
    lag = np.clip(np.minimum(ticks, shape.end_s) - arrived / RATE, 0, None)
    parts: list[Columns] = []
    for vertex, role in VERTICES:
        for subtask in range(shape.parallelism):
            noise = random.uniform(*NOISE_S, len(ticks))
            records = (arrived - base).astype(np.int64)
            received, sent = records * (role != "source"), records * (role != "sink")
            parts.append({
                "process": np.full(len(ticks), _process(subtask)), "t_ns": _at(ticks, random),
                "task": [f"{vertex}-{subtask}"] * len(ticks), "vertex": [vertex] * len(ticks), "role": [role] * len(ticks),
                "attempt": attempt, "records_in": received, "records_out": sent,
                "bytes_in": received * 100, "bytes_out": sent * 100, "busy_ns": (ticks * NS / 3).astype(np.int64),
                "backpressured_ns": np.zeros_like(records), "idle_ns": (ticks * NS * 2 / 3).astype(np.int64),
                "lag_ns": ((lag + noise) * NS).astype(np.int64) * (role != "operator"),
            })  # fmt: skip
    return _joined(parts)


def _at(ticks: Any, random: Any) -> Any:
    return START_NS + (ticks * NS).astype(np.int64) + random.integers(0, 1_000_000, len(ticks))


def _channels(shape: Shape, random: Any) -> Columns:
    """Both sides of as many forward channels as the share of the table allows."""
    ticks = np.arange(1, int(shape.end_s * SAMPLES_PER_S) + 1) / SAMPLES_PER_S
    count = max(1, round(SHARES["channels"] * shape.rows / 2 / len(ticks)))
    used = (ticks * 40).astype(np.int64)
    parts: list[Columns] = []
    for number in range(count):
        subtask, layer = number % shape.parallelism, number // shape.parallelism
        up, down = f"source-{subtask}", f"count-{(subtask + layer) % shape.parallelism}"
        for side, task, peer in (("producer", up, down), ("consumer", down, up)):
            zero = np.zeros(len(ticks), dtype=np.int32)
            parts.append({
                "process": np.full(len(ticks), _process(subtask)), "t_ns": _at(ticks, random), "side": [side] * len(ticks),
                "task": [task] * len(ticks), "attempt": zero, "peer": [peer] * len(ticks),
                "local": np.zeros(len(ticks), dtype=np.bool_), "credit": zero + (10 if side == "producer" else 2), "announced": used + 10,
                "used": used, "backlog": zero, "queued": zero, "floating": zero + 10, "exclusive": zero + 2,
            })  # fmt: skip
    return _joined(parts)


def _frames(shape: Shape, random: Any) -> Columns:
    rows = round(SHARES["frames"] * shape.rows)
    subtask = random.integers(0, shape.parallelism, rows)
    number, process = np.arange(rows), _process(subtask)
    links = [
        link
        for p in range(int(process.max(initial=0)) + 1)
        for link in (f"tm-{p}->tm-{p + 1}", f"tm-{p + 1}->tm-{p}")
    ]
    return {
        "process": process, "t_ns": START_NS + np.sort(random.integers(0, int(shape.end_s * NS), rows)),
        "side": _words(["sent", "received"], number % 2), "link": _words(links, 2 * process + number % 2),
        "channel": _words([f"{n:032x}" for n in range(64)], subtask % 64),
        "frame_class": _words(["buffer", "credit", "barrier"], number % 3), "number": number,
        "size": np.where(number % 3 == 1, 0, 32_768).astype(np.int32),
    }  # fmt: skip


def _words(words: list[str], codes: Any) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), words).cast(pa.string())


def _latency(shape: Shape, failover: bool, random: Any) -> Columns:
    ticks = np.arange(1, int(shape.end_s * 4) + 1) / 4
    before, now = _arrived(shape, ticks - 0.25, failover), _arrived(shape, ticks, failover)
    ticks, count, now = (
        ticks[now > before],
        np.rint((now - before)[now > before]).astype(np.int64),
        now[now > before],
    )
    lag = np.clip(ticks - now / RATE, 0, None)
    bounds = np.asarray(LATENCY_BOUNDS_NS)
    parts: list[Columns] = []
    for subtask in range(shape.parallelism):
        late = random.lognormal(-3.4, 0.45, (len(ticks), 8))
        late[:, :2] = NOISE_S
        values = ((lag[:, None] + late) * NS).astype(np.int64)
        buckets = np.zeros((len(ticks), len(bounds) + 1), dtype=np.int64)
        places = np.searchsorted(bounds, values)
        for column in range(values.shape[1]):
            share = count // values.shape[1] + (count % values.shape[1] if column == 2 else 0)
            np.add.at(buckets, (np.arange(len(ticks)), places[:, column]), share)
        at = START_NS + (ticks * NS).astype(np.int64)
        parts.append({
            "process": np.full(len(ticks), _process(subtask)), "t_ns": at, "task": [f"sink-{subtask}"] * len(ticks),
            "attempt": ((ticks > shape.fault_s) & failover).astype(np.int32), "window_start_ns": at - NS // 4,
            "window_ns": np.full(len(ticks), NS // 4), "count": buckets.sum(axis=1), "buckets": list(buckets),
            "max_ns": values.max(axis=1),
        })  # fmt: skip
    return _joined(parts)


def _commits(shape: Shape, failover: bool) -> list[tuple[int, int, int]]:
    """Return the checkpoints as (second, first record, first record that is not included)."""
    seconds = [
        s
        for s in range(1, shape.seconds)
        if not failover or not shape.fault_s - 1 < s < shape.fault_s + DOWN_S
    ]
    total = round(RATE * shape.end_s)
    until = [int(_arrived(shape, np.asarray(float(s)), failover)) for s in seconds[:-1]] + [total]
    return [(s, a, b) for s, a, b in zip(seconds, [0, *until], until, strict=False) if a < b]


def _delivery(shape: Shape, failover: bool) -> Columns:
    rows: list[tuple[int, int, int, int, bytes]] = []
    for number, (second, first, end) in enumerate(_commits(shape, failover), 1):
        for base in range(first // CHUNK_RECORDS * CHUNK_RECORDS, end, CHUNK_RECORDS):
            low, high = max(first - base, 0), min(end - base, CHUNK_RECORDS)
            bits = np.zeros(CHUNK_RECORDS, dtype=np.uint8)
            bits[low:high] = 1
            rows.append((number, second, base, high - low, np.packbits(bits, bitorder="little").tobytes()))
    many = [(subtask, *row) for subtask in range(shape.parallelism) for row in rows]
    zero = np.zeros(len(many), dtype=np.int64)
    attempt = np.asarray([int(failover and r[2] > shape.fault_s) for r in many], dtype=np.int32)
    return {
        "process": np.full(len(many), -1), "t_ns": np.asarray([moment(r[2] + 0.15) for r in many]),
        "task": [f"sink-{r[0]}" for r in many], "attempt": attempt, "checkpoint": [r[1] for r in many],
        "source": [f"source-{r[0]}" for r in many], "base": [r[3] for r in many], "bitmap": [r[5] for r in many],
        "duplicated": zero, "out_of_order": zero, "corrupted": zero, "weight": [r[4] for r in many],
    }  # fmt: skip


def _events(shape: Shape, failover: bool) -> Columns:
    rows: list[tuple[float, str, str, int, str, Any]] = []

    def add(t: float, kind: str, subject: str = "", attempt: int = -1, text: str = "", **data: Any) -> None:
        rows.append((t, kind, subject, attempt, text, data))

    restored = sum(second + 0.2 < shape.fault_s + DOWN_S for second, _, _ in _commits(shape, failover))
    region = [f"{v}-{i}" for v, _ in VERTICES for i in range(shape.parallelism)]
    add(-0.9, "job.state", "job", to="RUNNING", cause_class="")
    for task in region:
        for step, state in enumerate(("SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")):
            add(-2 + step / 10, "task.state", task, 0, to=state)
    if failover:
        at = shape.fault_s
        cause: dict[str, Any] = {"cause_class": "TimeoutException", "detector": "JobMaster"}
        text = "The heartbeat of TaskManager with id tm-0-1 timed out."
        add(at + 3.0, "taskmanager.lost", "tm-0-1", text=text, **cause)
        add(at + 3.0, "failover.started", "1", text=text, region=region, taskmanager="tm-0-1", **cause)
        for step, phase in enumerate(RECOVERY_PHASES[1:3], 1):
            add(at + 3.0 + step / 4, f"failover.{'cancelled' if phase == 'cancel' else phase}", "1")
        add(at + 3.6, "failover.attempt", "1")
        for task in region:
            for step, state in enumerate(("SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")):
                add(at + 3.7 + step / 10, "task.state", task, 1, to=state)
            add(at + 4.2, "task.restored", task, 1)
            add(at + 4.6, "gate.connected", task, 1)
        add(at + 4.4, "failover.deployed", "1")
        add(at + DOWN_S, "sink.first-record", "sink-0", 1)
    for subtask in range(shape.parallelism):
        add(
            shape.end_s + 0.3,
            "source.end",
            f"source-{subtask}",
            int(failover),
            next=round(RATE * shape.end_s),
        )
    add(shape.seconds - 0.1, "job.state", "job", to="FINISHED", cause_class="")
    return {
        "process": np.full(len(rows), -1), "t_ns": np.asarray([moment(r[0]) for r in rows]), "kind": [r[1] for r in rows],
        "subject": [r[2] for r in rows], "attempt": np.asarray([r[3] for r in rows], dtype=np.int32),
        "checkpoint": np.asarray([restored if r[1] == "task.restored" else -1 for r in rows]), "text": [r[4] for r in rows],
        "data": [json.dumps(r[5]) for r in rows],
    }  # fmt: skip


def _checkpoints(shape: Shape, failover: bool) -> Columns:
    tasks = [f"{v}-{i}" for v, _ in VERTICES for i in range(shape.parallelism)]
    steps = [
        ("triggered", "", 0.0),
        *(("acknowledged", task, 0.1) for task in tasks),
        ("completed", "", 0.14),
    ]
    rows = [(number, state, task, second, late_s) for number, (second, _, _) in enumerate(_commits(shape, failover), 1)
            for state, task, late_s in steps]  # fmt: skip
    zero = np.zeros(len(rows), dtype=np.int64)
    size = {"triggered": 0, "acknowledged": STATE_BYTES, "completed": STATE_BYTES * len(tasks)}
    return {
        "process": np.full(len(rows), -1), "t_ns": np.asarray([moment(r[3] + r[4]) for r in rows]),
        "checkpoint": [r[0] for r in rows], "state": [r[1] for r in rows], "task": [r[2] for r in rows],
        "reason": [""] * len(rows), "duration_ns": [round(r[4] * NS) for r in rows], "alignment_ns": zero,
        "state_bytes": [size[r[1]] for r in rows], "persisted_bytes": zero,
    }  # fmt: skip


def _faults(shape: Shape, failover: bool) -> Columns | None:
    if not failover:
        return None
    after_s = {"asked": 0.0, "injected": 0.012, "verified": 0.03, "ended": DOWN_S, "clean": DOWN_S + 0.05}
    states = list(after_s)
    return {
        "process": np.full(len(states), -2), "t_ns": np.asarray([moment(shape.fault_s + after_s[s]) for s in states]),
        "fault": ["kill"] * 5, "state": states, "kind": ["process.kill"] * 5, "backend": ["supervisor"] * 5,
        "targets": ['["tm-0"]'] * 5, "asked": ["{}"] * 5, "measured": ["{}"] * 5, "text": [""] * 5,
    }  # fmt: skip


def _joined(parts: list[Columns]) -> Columns:
    def join(values: list[Any]) -> Any:
        if isinstance(values[0], np.ndarray):
            return np.concatenate(values)
        return pa.concat_arrays([pa.array(v) for v in values])

    return {name: join([part[name] for part in parts]) for name in parts[0]}


def _number(tables: dict[str, Any]) -> None:
    """Number the rows of each process without gaps, in order of time."""
    present = {name: columns for name, columns in tables.items() if columns is not None}
    process = np.concatenate([c["process"] for c in present.values()])
    t_ns = np.concatenate([c["t_ns"] for c in present.values()])
    order = np.lexsort((t_ns, process))
    first = np.searchsorted(process[order], process[order], side="left")
    seq = np.empty(len(order), dtype=np.int64)
    seq[order] = np.arange(len(order)) - first
    start = 0
    for columns in present.values():
        columns["seq"] = seq[start : start + len(columns["t_ns"])]
        start += len(columns["t_ns"])


def _table(name: str, columns: Columns | None, run: str, trial: str) -> pa.Table:
    schema = arrow_schema(name)
    if columns is None:
        return schema.empty_table()
    names = {-1: "jobmanager-1", -2: "supervisor"}
    codes, places = np.unique(columns["process"], return_inverse=True)
    process = _words([names.get(int(c), f"tm-{c}-1") for c in codes], places)
    rows = len(columns["t_ns"])
    same = {
        key: pa.array([value] * rows) for key, value in (("run", run), ("trial", trial), ("boot_id", "boot"))
    }
    every = {**columns, **same, "process": process}
    table = pa.table([pa.array(every[f.name]).cast(f.type) for f in schema], schema=schema)
    return table.take(pc.sort_indices(table, [("t_ns", "ascending")]))


def write_run(folder: Path, *, rows: int, trials: int) -> Path:
    """Write a run with `trials` trials of about `rows` rows each. Every tenth of many trials is a control trial."""
    run = folder.name
    shape = Shape(rows)
    entries = []
    kept: dict[str, Trial] = {}
    for number in range(1, trials + 1):
        role = "control" if trials > 1 and number % 10 == 1 else "fault"
        name = f"main-{'control-' if role == 'control' else ''}{number}"
        entries.append({**entry(name, shape, role), "number": number})
        made = kept.get(role) or kept.setdefault(role, history(name, shape, role, number, run))
        write_trial(folder / "history" / name, _renamed(made, name))
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "apiVersion": "headgate.dev/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": "synthetic"},
        "spec": {},
    }
    manifest = {"schema": MANIFEST_SCHEMA, "run": run, "scenario": document, "place": "local", "seed": 1,
                "expectations": {"main": []}, "started": "2026-11-22T00:00:00+00:00", "machine": {}, "trials": entries,
                "interrupted": False}  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _renamed(trial: Trial, name: str) -> Trial:
    """Return the same history under another trial id, so that thousands of trials are made in seconds."""
    tables = {
        table: rows.set_column(
            rows.schema.get_field_index("trial"), "trial", pa.array([name] * len(rows), pa.string())
        )
        for table, rows in trial.tables.items()
    }
    return Trial(trial.run, name, tables)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--trials", type=int, default=1)
    options = parser.parse_args()
    write_run(options.folder, rows=options.rows, trials=options.trials)


if __name__ == "__main__":
    main()
