"""Samples of back-pressured tasks, and Flink's back-pressure levels (JobVertexBackPressureHandler)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from msgspec import Struct

from testbed_runtime.core.options import SAMPLES, Options

LOW_RATIO = 0.10
"""Ratios up to this are OK."""
HIGH_RATIO = 0.5
"""Ratios up to this are LOW, above it HIGH."""


class BackPressureLevel(enum.Enum):
    OK = "OK"
    LOW = "LOW"
    HIGH = "HIGH"


def level(ratio: float) -> BackPressureLevel:
    """Return the level of a share of time (0 to 1)."""
    if ratio <= LOW_RATIO:
        return BackPressureLevel.OK
    return BackPressureLevel.LOW if ratio <= HIGH_RATIO else BackPressureLevel.HIGH


MIN_DELAY_S = 0.001
MAX_SAMPLES = 10_000
"""Limits of a round of samples."""


class SamplePlan(Struct, frozen=True):
    """A round of samples: their number, the time between them, and how long after its beginning the next
    round begins."""

    samples: int
    delay_s: float
    refresh_s: float

    @classmethod
    def read(cls, options: Options) -> Self:
        return cls(
            max(1, min(MAX_SAMPLES, options.integer(SAMPLES))),
            max(MIN_DELAY_S, options.duration("web.backpressure.delay-between-samples")),
            options.duration("web.backpressure.refresh-interval"),
        )

    @property
    def pause_s(self) -> float:
        """The time from the last sample of a round to the first one of the next."""
        return max(self.delay_s, self.refresh_s - (self.samples - 1) * self.delay_s)


@dataclass(slots=True)
class SampleRound:
    """The samples of each task in one round, as Flink took them until 1.12: back-pressured at that instant or not."""

    plan: SamplePlan
    taken: int = 0
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The number of samples, and of back-pressured samples, of each task. A task that started during the
    round has fewer samples."""

    def take(self, pressed: Mapping[str, int], samples: int) -> bool:
        """Add samples of each running task. `pressed` has the number of back-pressured samples of each task.
        Return True when the round is complete."""
        for task, found in pressed.items():
            before = self.counts.get(task, (0, 0))
            self.counts[task] = (before[0] + samples, before[1] + found)
        self.taken += samples
        return self.taken >= self.plan.samples
