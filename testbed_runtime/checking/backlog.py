"""The backlog of a restarted job, in words: the time without records, and the part that it replays."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from testbed_runtime.checking.checkpoints import restored_age_s
from testbed_runtime.checking.common import Window, events
from testbed_runtime.checking.criticalpath import DELAY_CATCH_UP
from testbed_runtime.checking.progress import processed_s, progress_of
from testbed_runtime.checking.rounds import Outage
from testbed_runtime.checking.waits import created_ns
from testbed_runtime.core.judgement.quantities import seconds
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import Outcome, Wait
from testbed_runtime.history.columns import vertex_of
from testbed_runtime.history.schema import Trial

LEAST_S = 0.001
"""A shorter replay is not mentioned."""


def backlog_words(
    trial: Trial,
    outage: Outage,
    running: int,
    *,
    waits: Sequence[Wait],
    baseline: Window | None,
    stored: bool,
    windowed: Collection[str] = (),
) -> str:
    """Return the backlog of a job that runs since `running`: the time without records, and how much of it is replayed. The replayed part is
    what the sinks had received between the checkpoint and the last failure before `running`: the sinks receive records until the failure is
    noticed. `stored`: the results before the restart were kept, even without a checkpoint. `windowed`: the sink vertices that get no record
    before the end of a window. If there are no other sinks, the sources show what is replayed."""
    failures = [r.cause.t_ns for r in outage.rounds if r.cause is not None and r.cause.t_ns <= running]
    ended = [w for w in waits if w.kind in DELAY_CATCH_UP and w.outcome is Outcome.COMPLETED]
    late = [w.end_ns for w in ended if w.seconds >= 1]
    begun = max([running, *(t for t in late if running < t <= outage.end and outage.recovered)])
    behind = (begun - outage.effect) / NS
    age_s = _age_s(trial, outage.effect, begun, stored=stored or not failures)
    if age_s is None:
        return f"backlog of {seconds(behind)}"
    since = outage.effect - round(age_s * NS)
    subtasks = progress_of(trial, baseline=baseline)
    direct = [s for s in subtasks if s.role == "sink" and vertex_of(s.task) not in windowed]
    received = direct or [s for s in subtasks if s.role == "source"]
    replayed = processed_s(received, since, max(failures, default=since))
    words = f"backlog of {seconds(behind + age_s)}"
    return f"{words}, {seconds(replayed)} of it replayed" if replayed >= LEAST_S else words


def _age_s(trial: Trial, effect: int, running: int, *, stored: bool) -> float | None:
    """Return how many seconds before the effect the restored checkpoint was triggered, or the job was created
    if no checkpoint had been completed. None if that is not known."""
    restored = [e for e in events(trial, "task.restored") if effect <= e["t_ns"] <= running]
    if restored:
        return restored_age_s(trial, restored[-1]["checkpoint"], effect)
    kept = any(r["state"] == "completed" and r["t_ns"] <= running for r in trial.rows("checkpoints"))
    created = created_ns(trial)
    return None if stored or kept or created is None else (effect - created) / NS
