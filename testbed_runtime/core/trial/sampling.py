"""How often a job in virtual time is sampled. Real processes are always sampled ten times a second."""

from __future__ import annotations

import math

from msgspec import Struct

SAMPLED_SUBTASKS = 128
"""Subtasks up to which every task and channel is sampled as in real processes."""
SAMPLE_STEPS_S = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Intervals between samples, by the size of the job."""


class Sampling(Struct, frozen=True):
    """The interval between two samples of a task, and how many of these pass between two samples of its channels."""

    sample_s: float
    channel_every: int

    @property
    def channels_s(self) -> float:
        """Seconds between two samples of a channel."""
        return self.sample_s * self.channel_every


def sampling_of(subtasks: int) -> Sampling:
    """Return how often a job of this size is sampled: more rarely above SAMPLED_SUBTASKS, so that the rows of a run do not
    grow with the job."""
    factor = subtasks / SAMPLED_SUBTASKS
    sample_s = next(
        (step for step in SAMPLE_STEPS_S if step >= SAMPLE_STEPS_S[0] * factor), SAMPLE_STEPS_S[-1]
    )
    return Sampling(sample_s, max(1, math.ceil(factor)))
