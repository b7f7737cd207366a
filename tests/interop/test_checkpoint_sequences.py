"""CheckpointCoordinator: random schedules, acknowledgements, declines, expiries and restarts of its scheduler."""

from __future__ import annotations

import random

import pytest

from testbed_runtime.core.job.checkpoints import (
    AckOutcome,
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointFailureReason,
    Failed,
    Triggered,
)
from testbed_runtime.core.job.failover import Task
from testbed_runtime.core.job.messages import AcknowledgeCheckpoint
from tests.interop.sequences import COUNTS, compare, draw

pytestmark = pytest.mark.processes
DECLINED = ("CHECKPOINT_DECLINED", "CHECKPOINT_DECLINED_TASK_NOT_READY", "CHECKPOINT_ASYNC_EXCEPTION")
MICROSECOND_S = 1e-6
"""Sums of seconds are exact to this."""


def a_schedule(chance: random.Random) -> list[str]:
    """A schedule whose timers never end in the same millisecond, and what the tasks answer to most checkpoints."""
    tasks, interval = chance.randint(1, 3), chance.choice([20, 100, 500])
    pause = chance.choice([0, 0, 50, 200])
    lines = [
        f"new {interval} {chance.choice([53, 203, 1003])} {pause} {chance.randint(1, 3)} {chance.randint(0, 3)} {tasks}",
        "start",
    ]
    newest, started, ended = 1, True, False
    for _ in range(chance.randint(3, 40)):
        number = max(1, newest - chance.choice([0, 0, 0, 1, 1, 2]))
        kind = chance.choices(
            ["wait", "all", "one", "decline", "stop", "start", "ready", "now"], [40, 30, 12, 7, 2, 3, 3, 2]
        )[0]
        match kind:
            case "wait":
                lines.append(f"wait {chance.choice([1, 7, 21, 55, 101, 101, 207, 511])}")
                newest += chance.choice([0, 1, 1, 1, 2])
            case "all":
                lines += [f"acknowledge {task} {number}" for task in chance.sample(range(tasks), tasks)]
            case "one":
                lines.append(f"acknowledge {chance.randrange(tasks)} {number}")
            case "decline":
                lines.append(f"decline {chance.randrange(tasks)} {number} {chance.choice(DECLINED)}")
            case "ready":
                lines.append(f"ready {chance.choice(['true', 'true', 'false'])}")
            case "now" if ended or not started:
                pass
            case _:
                ended = ended or kind == "now"
                started = started if kind == "now" else kind == "start"
                lines += [kind, "wait 1"]
    return lines


def with_one_delay(lines: list[str]) -> list[str]:
    """Make min-pause the interval, between which Flink 1.20 draws the delay of the first checkpoint."""
    new, interval, timeout, pause, *rest = lines[0].split()
    return [" ".join([new, interval, timeout, str(max(int(interval), int(pause))), *rest]), *lines[1:]]


class Checkpoints:
    """The coordinator of a job whose store completes and deletes checkpoints at once."""

    version = "2.x"

    def __init__(self) -> None:
        self._coordinator = CheckpointCoordinator(CheckpointConfig())
        self._tasks: list[Task] = []
        self._ready = True
        self._now_ms = 0
        self._events: list[str] = []
        self._completed = 0

    def step(self, words: list[str]) -> str:
        self._events = []
        now = self._now_ms / 1000
        match words:
            case "new", *numbers:
                interval, timeout, pause, concurrent, tolerable, tasks = map(int, numbers)
                self._coordinator = CheckpointCoordinator(
                    CheckpointConfig(
                        interval / 1000, timeout / 1000, pause / 1000, concurrent, tolerable, self.version
                    )
                )
                self._tasks = [("v", task) for task in range(tasks)]
            case ["start"]:
                self._note(self._coordinator.stop(now))
                self._coordinator.on_task_running(now)
                self._coordinator.on_job_running(now)
            case ["stop"]:
                self._note(self._coordinator.stop(now))
            case ["now"]:
                self._coordinator.on_end_of_data(now)
            case "ready", ready:
                self._ready = ready == "true"
            case "wait", milliseconds:
                self._pass(self._now_ms + int(milliseconds))
            case "acknowledge", task, checkpoint:
                self._acknowledge(("v", int(task)), int(checkpoint))
            case "decline", _, checkpoint, reason:
                failed = self._coordinator.fail(
                    int(checkpoint), CheckpointFailureReason[reason], now, by_task=True
                )
                self._note([failed] if failed else [])
        self._pass(self._now_ms)
        return ", ".join(self._events)

    def _acknowledge(self, task: Task, checkpoint: int) -> None:
        answer = AcknowledgeCheckpoint("", checkpoint, "", 0, 0.0)
        if self._coordinator.acknowledge(task, answer) is AckOutcome.COMPLETE:
            now = self._now_ms / 1000
            subsumed = self._coordinator.complete(checkpoint, now)
            self._note(subsumed)
            self._events.append(f"{self._now_ms} {checkpoint} completed")
            if self._completed:
                self._coordinator.on_deleting(1)
                self._coordinator.on_deleted(1, now)
            self._completed = checkpoint

    def _pass(self, until_ms: int) -> None:
        while (due := self._coordinator.next_deadline()) <= until_ms / 1000 + MICROSECOND_S:
            self._now_ms = max(self._now_ms, round(due * 1000))
            now = max(self._now_ms / 1000, due)
            self._note(self._coordinator.on_time(now, self._tasks if self._ready else []))
        self._now_ms = until_ms

    def _note(self, effects: list[Triggered | Failed] | list[Failed]) -> None:
        for effect in effects:
            if isinstance(effect, Failed) and effect.job_failure:
                self._events.append("fails")
            what = "triggered" if isinstance(effect, Triggered) else effect.reason.name
            self._events.append(f"{self._now_ms} {effect.checkpoint} {what}")

    def state(self) -> str:
        return ""


def _until_failure(answer: str) -> str:
    """Return an answer without the order of events, which two checkpoints that expire in one millisecond do not have, and without
    what happens around the failure of the job."""
    return "fails" if "fails" in answer else ", ".join(sorted(answer.split(", ")))


@pytest.mark.parametrize("count", COUNTS)
def test_random_schedules_trigger_and_end_checkpoints_as_flinks_coordinator_does(flink, count, monkeypatch):
    """When each checkpoint is triggered, and how it ends, until the job fails."""
    monkeypatch.setattr(Checkpoints, "version", flink.name)
    drawn = draw(11, count, a_schedule)
    if flink.name != "2.x":
        drawn = [with_one_delay(lines) for lines in drawn]
    compare(
        flink,
        "checkpoints",
        Checkpoints,
        drawn,
        is_last=lambda answer: "fails" in answer,
        normal=_until_failure,
    )
