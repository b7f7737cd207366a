"""Checkpoints: how many completed or failed, and how long the longest took."""

from __future__ import annotations

from dataclasses import dataclass

from testbed_runtime.checking.common import NS, Window
from testbed_runtime.history.schema import Trial


@dataclass(frozen=True, slots=True)
class Checkpoints:
    completed: int
    failed: int
    longest_s: float | None
    alignment_s: float | None
    """Longest alignment of a task; None if no task acknowledged a checkpoint."""


def check_checkpoints(trial: Trial, window: Window) -> Checkpoints:
    """Count the checkpoints that completed or failed within the window."""
    rows = [r for r in trial.rows("checkpoints") if int(r["t_ns"]) in window]
    completed = {r["checkpoint"]: int(r["duration_ns"]) for r in rows if r["state"] == "completed"}
    failed = {r["checkpoint"] for r in rows if r["state"] == "failed"}
    aligned = [int(r["alignment_ns"]) for r in rows if r["state"] == "acknowledged"]
    return Checkpoints(
        len(completed),
        len(failed),
        max(completed.values()) / NS if completed else None,
        max(aligned) / NS if aligned else None,
    )


def restored_age_s(trial: Trial, checkpoint: int, at_ns: int) -> float | None:
    """Return how long before `at_ns` the checkpoint was triggered, which is the time to replay. None if unknown."""
    triggered = [
        int(r["t_ns"])
        for r in trial.rows("checkpoints")
        if r["checkpoint"] == checkpoint and r["state"] == "triggered"
    ]
    return (at_ns - triggered[-1]) / NS if triggered else None
