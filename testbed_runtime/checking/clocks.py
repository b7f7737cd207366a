"""The differences between the clocks of a trial's processes, from the offsets that they measured against the recorder's."""

from __future__ import annotations

from msgspec import Struct

from testbed_runtime.checking.common import data, events
from testbed_runtime.core.judgement.quantities import seconds
from testbed_runtime.history.schema import Trial


class ClockDifference(Struct, frozen=True):
    """`seconds`: between the two clocks that differ most. `text`: every process whose clock differs from the recorder's."""

    seconds: float
    text: str


def clock_difference(trial: Trial) -> ClockDifference:
    """Compare the clocks by the most exact offset of each process. A process without a recorded offset has
    the recorder's clock."""
    best: dict[str, tuple[float, float]] = {}
    for event in events(trial, "clock.offset"):
        found = data(event)
        measured = float(found.get("uncertainty_s", 0)), float(found.get("offset_s", 0))
        process = str(event["subject"])
        best[process] = min(best.get(process, measured), measured)
    offsets = {process: offset for process, (_, offset) in sorted(best.items())}
    difference = max((0.0, *offsets.values())) - min((0.0, *offsets.values()))
    text = "; ".join(
        f"{process} {seconds(abs(offset))} {'ahead of' if offset > 0 else 'behind'} the recorder"
        for process, offset in offsets.items()
    )
    return ClockDifference(difference, text)
