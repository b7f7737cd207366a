"""A hand-written history of one trial: a job of two sources, a keyed count and two sinks, with a TaskManager killed at second 8.

Tests take the good one and break a single thing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from testbed_runtime.core.job.ledger import Ledger
from testbed_runtime.core.job.messages import SinkCommit
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS, Trial
from testbed_runtime.history.writer import MemoryHistory
from tests.manifests import trial_entry

NS = 1_000_000_000
START = 1000 * NS
"""The monotonic clock does not begin at 0."""
RATE = 1000
"""Records a second and sink."""
END = 5000
"""One more than the last number of each source."""


HEARTBEAT = ("heartbeat.interval × heartbeat.rpc-failure-threshold", "1 s × 2", 2.0)
DELAY = ("restart-strategy.fixed-delay.delay", "500 ms", 0.5)


def at(seconds: float) -> int:
    return START + round(seconds * NS)


@dataclass
class History:
    """Rows are written through the real sink; `change` sees each of them before, and may drop it by returning None."""

    change: Callable[[str, dict[str, Any]], dict[str, Any] | None] = lambda table, row: row
    memory: MemoryHistory = field(default_factory=MemoryHistory)
    _waits: int = 0

    def __post_init__(self) -> None:
        self._sinks = {
            p: self.memory.sink(p, lambda: START) for p in ("jobmanager-1", "tm-0-1", "tm-1-1", "supervisor")
        }

    def add(self, process: str, table: str, t: float, **row: Any) -> None:
        changed = self.change(table, {"t_ns": at(t), **row})
        if changed is not None:
            self._sinks[changed.pop("process", process)].append(table, **changed)

    def event(self, kind: str, subject: str = "", t: float = 0.0, **more: Any) -> None:
        self.add("jobmanager-1", "events", t, kind=kind, subject=subject, **more)

    def wait(
        self,
        kind: str,
        who: str,
        what: str,
        span: tuple[float, float],
        limit: tuple[str, str, float] = ("", "", -1.0),
        outcome: str = "completed",
        **more: Any,
    ) -> str:
        """Add a wait over `span`. `limit`: option, value, budget in seconds. Return its id."""
        self._waits += 1
        option, value, budget_s = limit
        name = f"jobmanager-1/{self._waits}"
        row = {
            "kind": kind,
            "who": who,
            "what": what,
            "start_ns": at(span[0]),
            "option": option,
            "value": value,
        }
        budget = round(budget_s * NS) if budget_s >= 0 else -1
        self.add(
            "jobmanager-1",
            "waits",
            span[1],
            wait=name,
            **row,
            budget_ns=budget,
            outcome=outcome,
            **({"attempt": -1} | more),
        )
        return name

    def trial(self) -> Trial:
        return self.memory.trial()


def entry(**changes: Any) -> TrialEntry:
    """The manifest's entry: warm-up to 2 s, baseline to 8 s, fault to 9 s, observation to 24 s, drain to 25 s."""
    edges = [("warmUp", 0, 2), ("baseline", 2, 8), ("fault", 8, 9), ("observation", 9, 24), ("drain", 24, 25)]
    return trial_entry({
        "trial": "main-1", "variant": "main", "role": "fault", "number": 1, "seed": 7, "flinkVersion": "2.x",
        "configuration": {
            "heartbeat.interval": "1 s", "heartbeat.timeout": "5 s", "execution.checkpointing.interval": "1 s",
            "restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "500 ms",
        },
        "faults": [{"name": "kill", "kind": "process.kill", "at_s": 0, "duration_s": 1, "targets": ["tm-1"], "params": {}}],
        "phases": [{"name": n, "start_ns": at(a), "end_ns": at(b)} for n, a, b in edges],
        "voided": False, "drained": True,
        "job": {
            "vertices": [
                {"name": "source", "parallelism": 2, "role": "source", "recordsPerSecond": 2 * RATE},
                {"name": "count", "parallelism": 2, "role": "operator", "kind": "keyed-count"},
                {"name": "sink", "parallelism": 2, "role": "sink", "kind": "ledger"},
            ],
            "edges": [
                {"from": "source", "to": "count", "partitioning": "hash"},
                {"from": "count", "to": "sink", "partitioning": "forward"},
            ],
        },
    }, **changes)  # fmt: skip


def commits(history: History, checkpoint: int, task: str, attempt: int, commit: SinkCommit, t: float) -> None:
    """Add events like those that the JobMaster writes."""
    for index, (source, base, bitmap, duplicated, disorder, corrupted) in enumerate(commit.chunks):
        history.add(
            "jobmanager-1", "delivery", t, task=task, attempt=attempt, checkpoint=checkpoint, source=source, base=base,
            bitmap=bytes.fromhex(bitmap), duplicated=duplicated, out_of_order=disorder, corrupted=corrupted,
            weight=commit.weight if index == 0 else 0,
        )  # fmt: skip


def deliver(history: History) -> None:
    """Sink 0 takes the even numbers, sink 1 the odd ones, in two checkpoints."""
    for sink in (0, 1):
        ledger = Ledger()
        for checkpoint, (low, high) in enumerate([(0, 2000), (2000, END)], start=1):
            for source in (0, 1):
                ledger.add(f"source-{source}", np.arange(low + sink, high, 2, dtype=np.int64), lane=source)
            commits(history, checkpoint, f"sink-{sink}", 0, ledger.take(), 5.0 + checkpoint)
    for source in (0, 1):
        history.event("source.end", f"source-{source}", 24.5, attempt=1, data={"next": END})


def run_job(history: History) -> None:
    """Running, killed at 8 s: known after 1.5 s, all running after 3, caught up after 4."""
    history.event("job.state", "job", 0.1, data={"from": "CREATED", "to": "RUNNING", "cause_class": ""})
    for sink in (0, 1):
        history.event("sink.first-record", f"sink-{sink}", 0.3, attempt=0)
    text = "TaskManager with id tm-1-1 is no longer reachable."
    history.wait("heartbeat", "JobMaster", "tm-1-1", (7.5, 9.5), HEARTBEAT, "expired")
    history.wait("restart-delay", "JobMaster", "", (9.5, 10.0), DELAY, "fired")
    cause = {
        "cause_class": "JobMasterException",
        "taskmanager": "tm-1-1",
        "detector": "JobMaster",
        "region": [],
    }
    history.event("taskmanager.lost", "tm-1-1", 9.5, text=text, data={"detector": "JobMaster", "cause_class": "JobMasterException"})  # fmt: skip
    history.event("failover.started", "1", 9.5, text=text, data=cause)
    history.event("failover.cancelled", "1", 9.7)
    history.event("failover.slots", "1", 10.3)
    history.event("failover.attempt", "1", 10.3, data={"attempt": 1})
    for task in ("source-0", "sink-0", "sink-1"):
        history.event("task.restored", task, 10.4, attempt=1, checkpoint=1)
    history.event("failover.deployed", "1", 10.8)
    history.event("gate.connected", "sink-0", 10.9, attempt=1)
    history.event("sink.first-record", "sink-0", 11.0, attempt=1)
    history.event("sink.first-record", "sink-1", 11.1, attempt=1)
    history.event("job.state", "job", 24.8, data={"from": "RUNNING", "to": "FINISHED", "cause_class": ""})
    history.add("jobmanager-1", "checkpoints", 7.0, checkpoint=1, state="triggered")
    for task in ("sink-0", "sink-1"):
        history.add("jobmanager-1", "checkpoints", 7.1, checkpoint=1, state="acknowledged", task=task)
    history.add("jobmanager-1", "checkpoints", 7.1, checkpoint=1, state="completed", duration_ns=NS // 10)
    history.add("jobmanager-1", "checkpoints", 9.0, checkpoint=2, state="failed", reason="Checkpoint expired before completing.")  # fmt: skip


def inject(history: History) -> None:
    """The fault's life in the record."""
    more = {"fault": "kill", "kind": "process.kill", "backend": "supervisor", "targets": ["tm-1"]}
    for t, state in ((7.99, "asked"), (8.0, "injected"), (8.1, "verified"), (9.0, "ended"), (9.1, "clean")):
        history.add("supervisor", "faults", t, state=state, **more)


def sample(history: History, failover: bool = True) -> None:
    """Samples every 100 ms: 1000 records a second a sink, none from 8 to 11 s. In the second after that come the backlog and the
    900 records since checkpoint 1 again."""
    for tick in range(241):
        t = tick / 10
        attempt = 1 if failover and t >= 11.0 else 0
        if failover and 8.05 < t < 10.95:
            continue
        received, lag = RATE * t, 0.02
        if failover and attempt == 1:
            received = RATE * (t - 11) + 3900 * min(t - 11, 1)
            lag = max(0.02, 3.0 - 3.0 * (t - 11))
        for sink in (0, 1):
            history.add(
                f"tm-{sink}-1", "tasks", t, task=f"sink-{sink}", vertex="sink", role="sink", attempt=attempt,
                records_in=round(received), lag_ns=round(lag * NS),
            )  # fmt: skip
            counts = [0] * (len(LATENCY_BOUNDS_NS) + 1)
            counts[40 if lag < 0.1 else 60] = RATE // 10
            history.add(
                f"tm-{sink}-1", "latency", t, task=f"sink-{sink}", attempt=attempt, window_start_ns=at(t),
                window_ns=NS // 10, count=RATE // 10, buckets=counts, max_ns=LATENCY_BOUNDS_NS[40 if lag < 0.1 else 60],
            )  # fmt: skip


def exchange(history: History) -> None:
    """One remote channel, both sides; one local one."""
    for step in range(50):
        announced, used = 10 + step, step
        t = 1 + step / 10
        history.add("tm-0-1", "channels", t, side="producer", task="source-0", attempt=0, peer="count-1", credit=announced - used, announced=announced, used=used)  # fmt: skip
        history.add("tm-1-1", "channels", t + 0.01, side="consumer", task="count-1", attempt=0, peer="source-0", announced=announced, used=used)  # fmt: skip
        history.add("tm-0-1", "channels", t, side="producer", task="source-0", attempt=0, peer="count-0", local=True, used=step)  # fmt: skip


@dataclass
class Builder:
    """Gives tests a correct history, to which they make one change, and manifest entries."""

    entry = staticmethod(entry)
    at = staticmethod(at)
    start = START
    end = END
    heartbeat = HEARTBEAT

    def empty(self, change: Any = None) -> History:
        return History(change) if change else History()

    def good(self, change: Any = None) -> Trial:
        """Everything as it should be, after `change`."""
        return self.record(change).trial()

    def record(self, change: Any = None) -> History:
        """The same, to which rows can be added."""
        history = self.empty(change)
        self.fill(history)
        return history

    @staticmethod
    def fill(history: History) -> None:
        """Add the rows of the good trial."""
        run_job(history)
        inject(history)
        deliver(history)
        sample(history)
        exchange(history)

    def without(self, table: str, **match: Any) -> Trial:
        """The good history without the rows that match."""
        return self.good(lambda t, r: None if t == table and match.items() <= r.items() else r)

    commits = staticmethod(commits)
    sample = staticmethod(sample)


@pytest.fixture
def history() -> Builder:
    """Builds trials."""
    return Builder()
