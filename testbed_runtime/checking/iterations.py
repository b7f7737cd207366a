"""The supersteps of a job's iterations, from the events of their synchronisation tasks."""

from __future__ import annotations

from testbed_runtime.checking.common import data, events
from testbed_runtime.history.schema import Trial


def supersteps(trial: Trial) -> tuple[int | None, str]:
    """Return how many supersteps the last attempt of the iteration had (of several iterations: the most), and why each one
    ended. None if there was no iteration, or none has ended."""
    last: dict[str, tuple[int, int, str]] = {}
    for event in events(trial, "iteration.superstep"):
        found = data(event)
        row = (int(event["attempt"]), int(found.get("superstep", 0)), str(found.get("ended", "")))
        last[event["subject"]] = max(row, last.get(event["subject"], row))
    ended = {subject: row for subject, row in sorted(last.items()) if row[2]}
    text = ", ".join(f"{subject}: {number} ({why})" for subject, (_, number, why) in ended.items())
    return max((number for _, number, _ in ended.values()), default=None), text
