"""The progress of a run, kept for a test."""

from __future__ import annotations

from testbed_runtime.runner.progress import ProgressEvent


class Collected:
    """Keeps all events."""

    def __init__(self) -> None:
        self.events: list[ProgressEvent] = []

    def on_event(self, event: ProgressEvent) -> None:
        self.events.append(event)
