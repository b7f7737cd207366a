"""The attempts that each TaskManager should hold, compared with those that its heartbeats report.

As Flink's DefaultExecutionDeploymentTracker and DefaultExecutionDeploymentReconciler (FLINK-17075, 1.12). The report that a task has
ended may be lost: then the next heartbeat shows that the task is missing.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from testbed_runtime.core.ids import TaskManagerID


class Missing(Struct, frozen=True):
    """An attempt that its TaskManager no longer holds, although it has not reported its end."""

    attempt: str
    since: float
    """When its TaskManager was last known to hold it, in seconds of the JobMaster's clock."""


class Comparison(Struct, frozen=True):
    missing: tuple[Missing, ...]
    unknown: tuple[str, ...]
    """Attempts that the TaskManager holds and that are not expected there."""


class Deployments:
    """Attempts from their submission to their end."""

    def __init__(self) -> None:
        self._by_taskmanager: dict[TaskManagerID, dict[str, float | None]] = {}
        """When the submission of each attempt was acknowledged; None while it is pending."""
        self._reported: dict[TaskManagerID, float] = {}
        """When the newest report of each TaskManager was requested."""

    def begin(self, attempt: str, taskmanager: TaskManagerID) -> None:
        self._by_taskmanager.setdefault(taskmanager, {})[attempt] = None

    def acknowledge(self, attempt: str, taskmanager: TaskManagerID, now: float) -> None:
        """Note that the TaskManager has accepted the attempt. Does nothing if it has ended."""
        expected = self._by_taskmanager.get(taskmanager, {})
        if attempt in expected:
            expected[attempt] = now

    def end(self, attempt: str, taskmanager: TaskManagerID) -> None:
        expected = self._by_taskmanager.get(taskmanager, {})
        expected.pop(attempt, None)
        if not expected:
            self._by_taskmanager.pop(taskmanager, None)
            self._reported.pop(taskmanager, None)

    def compare(self, taskmanager: TaskManagerID, reported: Collection[str], asked_at: float) -> Comparison:
        """Compare a report that was requested at `asked_at`. The report may be older than an acknowledgement
        that came later: unlike on Flink's single connection, messages can overtake each other here."""
        expected = self._by_taskmanager.get(taskmanager, {})
        before = self._reported.get(taskmanager, 0.0)
        held = frozenset(reported)
        missing = tuple(
            Missing(attempt, max(acknowledged, before))
            for attempt, acknowledged in expected.items()
            if acknowledged is not None and acknowledged < asked_at and attempt not in held
        )
        if expected:
            self._reported[taskmanager] = max(before, asked_at)
        return Comparison(missing, tuple(attempt for attempt in reported if attempt not in expected))
