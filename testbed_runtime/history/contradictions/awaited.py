"""Compare what tasks wait for with the edges of the job, and with the checkpoints that it took and restored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from testbed_runtime.history.columns import deployments, distinct, events, sound
from testbed_runtime.history.contradictions.executions import recorded_to_its_end
from testbed_runtime.history.damage import Damage, first_of_each
from testbed_runtime.history.manifest import edges
from testbed_runtime.history.schema import Trial

NUMBER = r"checkpoint (\d+)"
OWN = "its own"
"""A task waits for its own partition before it may use it."""


def check_awaited(trial: Trial, entry: Mapping[str, Any]) -> list[Damage]:
    """Return waits for something that the job does not have, at most one for each rule, if the JobManager recorded the whole job."""
    if not deployments(trial) or not recorded_to_its_end(trial):
        return []
    rules = (_producers(trial, entry), _checkpoints(trial))
    return first_of_each(rules)


def _producers(trial: Trial, entry: Mapping[str, Any]) -> Iterator[Damage]:
    """Yield a wait for the partition of a task that sends nothing to the one that waits."""
    known = {(source, target) for source, target, _ in edges(entry)}
    for row, r in distinct(trial, "waits", "kind", "who", "what"):
        ends = r["what"].rpartition("-")[0], r["who"].rpartition("-")[0]
        if r["kind"] == "partition" and r["what"] != OWN and known and ends not in known:
            yield Damage(
                "waits", "what", row, f"is {r['what'][:60]!r}, which sends nothing to {r['who']} (manifest)"
            )


def _checkpoints(trial: Trial) -> Iterator[Damage]:
    """Yield a wait for another checkpoint than the one that the task restored, and for the barriers of one that was not triggered."""
    restored = {(e["subject"], e["attempt"]): e["checkpoint"] for _, e in events(trial, "task.restored")}
    table, waits = trial.table("checkpoints"), trial.table("waits")
    columns = ("kind", "who", "what", "attempt")
    triggered = set(table.column("checkpoint").to_pylist()) if sound(table, "checkpoint") else set()
    for row, r in enumerate(waits.select(columns).to_pylist() if sound(waits, *columns) else ()):
        found = re.fullmatch(NUMBER, r["what"])
        number = found and int(found[1])
        if r["kind"] == "restore" and number != restored.get((r["who"], r["attempt"]), number):
            problem = f"is {r['what']!r}, but {r['who']} restored checkpoint {restored[r['who'], r['attempt']]} (task.restored in events)"
            yield Damage("waits", "what", row, problem)
        elif r["kind"] == "alignment" and number not in triggered:
            yield Damage("waits", "what", row, f"is {r['what']!r}, which was not triggered (checkpoints)")
