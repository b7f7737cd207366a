"""Checkpoints: how many completed or failed, and how long they took."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Any

from msgspec import Struct

from testbed_runtime.checking.common import Window
from testbed_runtime.core.values import NS
from testbed_runtime.history.schema import Trial


class Checkpoints(Struct, frozen=True):
    """The counts of a phase. None if nothing is known."""

    completed: int | None = None
    failed: int | None = None
    longest_s: float | None = None
    median_s: float | None = None
    alignment_s: float | None = None
    """Longest alignment of a task; None if no task acknowledged a checkpoint."""
    completion_s: float | None = None
    """Longest time from the last acknowledgement to the end of a checkpoint, or of the window."""
    persisted_bytes: int | None = None
    """Most channel state of one checkpoint."""
    size_bytes: float | None = None
    """Bytes that a completed checkpoint stored, on average."""
    full_bytes: float | None = None
    """Bytes of the state that a completed checkpoint covers, on average."""


def check_checkpoints(trial: Trial, window: Window) -> Checkpoints:
    """Count the checkpoints that completed or failed within the window."""
    rows = [r for r in trial.rows("checkpoints") if r["t_ns"] in window]
    completed = {r["checkpoint"]: r["duration_ns"] for r in rows if r["state"] == "completed"}
    failed = {r["checkpoint"] for r in rows if r["state"] == "failed"}
    aligned = [r["alignment_ns"] for r in rows if r["state"] == "acknowledged"]
    return Checkpoints(
        len(completed),
        len(failed),
        max(completed.values()) / NS if completed else None,
        median(completed.values()) / NS if completed else None,
        max(aligned) / NS if aligned else None,
        _longest_completion_s(rows, window),
        max(_persisted(rows).values(), default=None),
        _mean([size for t_ns, size in _sizes(trial) if t_ns in window]),
        _mean([r["state_bytes"] for r in rows if r["state"] == "completed"]),
    )


def _longest_completion_s(rows: list[dict[str, Any]], window: Window) -> float | None:
    ended = {r["checkpoint"]: r["t_ns"] for r in rows if r["state"] in ("completed", "failed")}
    taken = [ended.get(r["checkpoint"], window.end) - r["t_ns"] for r in rows if r["state"] == "finalizing"]
    return max(taken) / NS if taken else None


def _persisted(rows: list[dict[str, Any]]) -> dict[int, int]:
    """Return the bytes in flight that the tasks of each checkpoint persisted."""
    found = Counter[int]()
    for row in rows:
        if row["state"] == "acknowledged":
            found[row["checkpoint"]] += row["persisted_bytes"]
    return found


def _sizes(trial: Trial) -> list[tuple[int, int]]:
    """Return when each checkpoint completed, and the bytes that its tasks stored for it. Only bytes since its
    last trigger count, because a new JobManager may use the id of an unfinished checkpoint again."""
    found: list[tuple[int, int]] = []
    stored: dict[int, int] = {}
    for row in sorted(trial.rows("checkpoints"), key=lambda r: r["t_ns"]):
        checkpoint = row["checkpoint"]
        if row["state"] == "triggered":
            stored[checkpoint] = 0
        elif row["state"] == "acknowledged":
            stored[checkpoint] = stored.get(checkpoint, 0) + row["state_bytes"]
        elif row["state"] == "completed":
            found.append((row["t_ns"], stored.pop(checkpoint, 0)))
    return found


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None


def restored_age_s(trial: Trial, checkpoint: int, at_ns: int) -> float | None:
    """Return how long before `at_ns` the checkpoint was triggered, which is the time to replay. None if unknown."""
    own = [r for r in trial.rows("checkpoints") if r["checkpoint"] == checkpoint]
    triggered = [r["t_ns"] for r in own if r["state"] == "triggered"]
    return (at_ns - triggered[-1]) / NS if triggered else None
