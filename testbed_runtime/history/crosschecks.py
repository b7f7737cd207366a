"""Compare the tables of a sealed trial with each other, and with its entry in the manifest.

Each rule holds for every row that a process can write. It finds damage that leaves each table consistent in itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from testbed_runtime.history.damage import Damage
from testbed_runtime.history.schema import Trial

NS = 1_000_000_000
SAMPLES = 20
"""A task with fewer samples than this can have had no lag by chance."""
LATE_NS = 10_000_000
"""A sink whose typical window has a slower record than this has a lag."""

Ints = npt.NDArray[np.int64]


def check_counts(trial: Trial, entry: Mapping[str, Any]) -> list[Damage]:
    """Return the contradictions between what tables count, at most one finding per rule."""
    return [*_emitted(trial, entry), *_acknowledgements(trial)]


def check_across(trial: Trial, entry: Mapping[str, Any]) -> list[Damage]:
    """Return those of `check_counts`, and those of times that all processes took from one clock. A sink whose clock is behind
    another node's may have no lag although its records are late."""
    return [*check_counts(trial, entry), *_lags(trial)]


def _ints(table: pa.Table, column: str) -> Ints:
    return np.asarray(table.column(column).to_numpy(zero_copy_only=False), dtype=np.int64)


def _sound(table: pa.Table, *columns: str) -> bool:
    """Whether a table has rows, and no nulls in these columns."""
    known = all(c in table.column_names for c in columns)
    return bool(len(table)) and known and not any(table.column(c).null_count for c in columns)


def _emitted(trial: Trial, entry: Mapping[str, Any]) -> Iterator[Damage]:
    """Yield a source that counted more records than it emitted: an attempt that ends reports its next number."""
    tasks, log = trial.table("tasks"), trial.table("events")
    if not _sound(tasks, "task", "role", "attempt", "records_out"):
        return
    if not _sound(log, "kind", "subject", "attempt", "data"):
        return
    ends: dict[tuple[str, int], int] = {}
    for row in log.filter(pc.equal(log.column("kind"), "source.end")).to_pylist():
        found = _object(row["data"]).get("next")
        if isinstance(found, int):
            ends[row["subject"], row["attempt"]] = found
    copies = _copies(entry)
    counted, attempts = _ints(tasks, "records_out"), _ints(tasks, "attempt")
    names = np.asarray(tasks.column("task").to_pylist())
    sources = np.asarray(pc.equal(tasks.column("role"), "source").to_pylist())
    for (task, attempt), following in sorted(ends.items()):
        most = following * copies.get(task.rpartition("-")[0], 0)
        mine = sources & (names == task) & (attempts == attempt)
        beyond = np.flatnonzero(mine & (counted > most) & (most > 0))
        if len(beyond):
            row = int(beyond[0])
            problem = f"is {counted[row]}, but {task} emitted {most} records (source.end in events)"
            yield Damage("tasks", "records_out", row, problem)
            return


def _copies(entry: Mapping[str, Any]) -> dict[str, int]:
    """Map each vertex to how often it sends a record, over all its edges. Empty for a job that is not in the manifest."""
    job = entry.get("job")
    if not isinstance(job, Mapping):
        return {}
    parallelism = {v["name"]: int(v.get("parallelism") or 1) for v in job.get("vertices") or ()}
    found: dict[str, int] = {}
    for edge in job.get("edges") or ():
        source, target = edge.get("source") or edge.get("from"), edge.get("target") or edge.get("to")
        many = parallelism.get(target, 1) if edge.get("partitioning") == "broadcast" else 1
        found[source] = found.get(source, 0) + many
    return found


def _lags(trial: Trial) -> Iterator[Damage]:
    """Yield a sink that was never late, although the latencies of its records say so."""
    tasks, latency = trial.table("tasks"), trial.table("latency")
    if not _sound(tasks, "task", "role", "lag_ns", "records_in") or not _sound(latency, "task", "max_ns"):
        return
    slowest, sinks = _ints(latency, "max_ns"), np.asarray(latency.column("task").to_pylist())
    names, lag = np.asarray(tasks.column("task").to_pylist()), _ints(tasks, "lag_ns")
    received = _ints(tasks, "records_in")
    roles = np.asarray(pc.equal(tasks.column("role"), "sink").to_pylist())
    for task in sorted(set(sinks.tolist())):
        mine = np.flatnonzero(roles & (names == task) & (received > 0))
        late = float(np.median(slowest[sinks == task]))
        if len(mine) >= SAMPLES and late >= LATE_NS and not lag[mine].any():
            problem = f"is 0 in every sample of {task}, whose records were {late / NS:.3f} s late (max_ns in latency)"
            yield Damage("tasks", "lag_ns", int(mine[0]), problem)
            return


def _acknowledgements(trial: Trial) -> Iterator[Damage]:
    """Yield a task that acknowledged a checkpoint a second time: the JobMaster takes only the first. One that has lost its
    leadership may trigger a checkpoint of the same number again."""
    table = trial.table("checkpoints")
    if not _sound(table, "process", "checkpoint", "state", "task", "t_ns"):
        return
    seen: dict[tuple[str, int], set[str]] = {}
    rows = enumerate(table.select(["process", "checkpoint", "state", "task", "t_ns"]).to_pylist())
    for row, r in sorted(rows, key=lambda pair: pair[1]["t_ns"]):
        key = (r["process"], r["checkpoint"])
        if r["state"] == "triggered":
            seen[key] = set()
        elif r["state"] == "acknowledged" and r["task"] in seen.get(key, ()):
            problem = f"is {r['task']}, which had acknowledged checkpoint {r['checkpoint']}"
            yield Damage("checkpoints", "task", row, problem)
            return
        elif r["state"] == "acknowledged" and key in seen:
            seen[key].add(r["task"])


def _object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
