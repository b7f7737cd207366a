"""Judge by probes whether a path shows the requested effect. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from msgspec import Struct

from testbed_runtime.faults.backend import Measurement
from testbed_runtime.faults.packets.machine import Impairment

CONFIDENCE_Z = 3.8906
"""The z value of the two-sided 99.99 % interval: one of ten thousand sound measurements is rejected."""
LATENCY_PROBES = 200
LOSS_PROBES = 2_300
"""Enough probes that 2,000 remain for the way back if the way there loses some too."""
LATENCY_TOLERANCE_S = 0.001
"""Allowed difference between the median and the requested delay."""
LATENCY_TOLERANCE = 0.05
"""Allowed difference as a share of the requested delay, for long delays: a busy machine sends a packet that waited for 300 ms a few
milliseconds late."""
JITTER_SPREADS = 2.5
"""Allowed error of the median of n probes under a uniform jitter: this many times the jitter, divided by the root of n."""


class PathReading(Struct, frozen=True):
    """One series of probes. `forward_*`: from the prober to the echo; losses are counted per direction by the echo's own count."""

    sent: int = 0
    echoed: int = 0
    """Probes that the echo received."""
    answered: int = 0
    """Answers that the prober received, without duplicates."""
    forward_duplicates: int = 0
    backward_duplicates: int = 0
    overtaken: int = 0
    round_trips_s: tuple[float, ...] = ()
    forward_s: tuple[float, ...] = ()
    """Times of the way there: receive time by the echo's clock minus send time by the prober's clock. The offset of the clocks cancels out
    between two series."""
    backward_s: tuple[float, ...] = ()
    beside_forward_s: tuple[float, ...] = ()
    """Times of the way there for simultaneous probes that no rule covers. They show the delay caused by the two machines."""
    beside_backward_s: tuple[float, ...] = ()
    fenced: bool = True
    """Whether the final probe was answered. Then earlier probes without an answer are lost, not late."""
    error: str = ""


def added(before: PathReading, now: PathReading, *, forward: bool) -> float | None:
    """Return how much longer (median, in s) one way takes than before; None without answers.

    Each median is compared with that of the uncovered probes: a machine that is busier than before is not network latency."""

    def cost(reading: PathReading) -> float | None:
        through = reading.forward_s if forward else reading.backward_s
        beside = reading.beside_forward_s if forward else reading.beside_backward_s
        if not through:
            return None
        return median(through) - (median(beside) if both_beside else 0.0)

    both_beside = bool(before.beside_backward_s and now.beside_backward_s)
    was, found = cost(before), cost(now)
    return None if was is None or found is None else found - was


def wilson(hits: int, of: float, z: float = CONFIDENCE_Z) -> tuple[float, float]:
    """Return Wilson's score interval of a share; (0, 1) without observations. `of` may be an effective number."""
    if of <= 0:
        return 0.0, 1.0
    share = hits / of
    middle = share + z * z / (2 * of)
    spread = z * math.sqrt(max(0.0, share * (1 - share) / of + z * z / (4 * of * of)))
    scale = 1 + z * z / of
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def effective_count(count: int, loss: float, burst: float) -> float:
    """Return the effective number of independent packets: losses in bursts are correlated (lag-one, of the two states)."""
    if burst <= 1.0 or loss >= 1.0:
        return float(count)
    correlation = max(0.0, 1.0 - 1.0 / burst - loss / (burst * (1.0 - loss)))
    return count * (1.0 - correlation) / (1.0 + correlation)


def judge_latency(
    before: PathReading, now: PathReading, ways: tuple[bool, bool], asked_s: float, jitter_s: float = 0.0
) -> Measurement:
    """Judge a latency. `ways`: whether (forward, backward) should take `asked_s` longer. The median may differ by LATENCY_TOLERANCE_S
    or LATENCY_TOLERANCE, whichever is more, under jitter by its spread too."""
    spread = max(LATENCY_TOLERANCE_S, LATENCY_TOLERANCE * asked_s) + JITTER_SPREADS * jitter_s / math.sqrt(
        max(1, now.answered)
    )
    values: dict[str, Any] = {"probes": now.answered, "tolerance_s": round(spread, 6)}
    ok = any(ways)
    for name, hit in zip(("forward", "backward"), ways, strict=True):
        if not hit:
            continue
        more = added(before, now, forward=name == "forward")
        if more is None:
            return Measurement(False, values, "no probe was answered")
        values[f"{name}_asked_s"] = round(asked_s, 6)
        values[f"{name}_added_s"] = round(more, 6)
        ok = ok and abs(more - asked_s) <= spread
    return Measurement(ok, values, "" if ok else "packets did not take as much longer as was asked")


def judge_loss(now: PathReading, ways: tuple[bool, bool], asked: float, burst: float = 1.0) -> Measurement:
    """Judge a loss. `ways`: whether (forward, backward) should lose the share `asked`, which must lie in the 99.99 % interval."""
    values: dict[str, Any] = {}
    ok = any(ways) and now.sent > 0
    if now.answered and not now.fenced:
        return Measurement(
            False, values, "the probes were still on their way when the measurement had to end"
        )
    # if the echo has counted no probe, all have arrived there, unless a loss was requested on that way
    echoed = now.echoed or (0 if ways[0] else now.sent)
    series = (("forward", now.sent, now.echoed), ("backward", echoed, now.answered))
    for (name, sent, came), hit in zip(series, ways, strict=True):
        if not hit:
            continue
        lost = max(0, sent - came)
        count = effective_count(sent, asked, burst)
        low, high = wilson(round(lost * count / sent) if sent else 0, count)
        values[f"{name}_probes"] = sent
        values[f"{name}_asked_percent"] = round(asked * 100, 4)
        values[f"{name}_lost_percent"] = round(100 * lost / sent, 4) if sent else None
        values[f"{name}_interval_percent"] = [round(low * 100, 4), round(high * 100, 4)]
        ok = ok and sent > 0 and lost > 0 and low <= asked <= high
    return Measurement(ok, values, "" if ok else "the share of lost packets is not what was asked")


def judge_duplicates(hits: int, of: int, asked: float) -> Measurement:
    low, high = wilson(hits, of)
    ok = of > 0 and low <= asked <= high
    values = {
        "probes": of,
        "asked_percent": round(asked * 100, 4),
        "duplicated_percent": round(100 * hits / of, 4) if of else None,
        "interval_percent": [round(low * 100, 4), round(high * 100, 4)],
    }
    return Measurement(ok, values, "" if ok else "the share of duplicated packets is not what was asked")


def judge_silence(now: PathReading) -> Measurement:
    ok = now.sent > 0 and now.answered == 0
    values = {"probes": now.sent, "answered": now.answered}
    return Measurement(ok, values, "" if ok else "a probe was answered")


def residue_of(before: PathReading, after: PathReading, ways: tuple[bool, bool], asked: Impairment) -> str:
    """Return why a path is not as before in the directions of the fault; empty if it is: it answers, takes no longer, and loses no
    share that the fault could explain."""
    if not after.answered:
        return after.error or "no probe was answered"
    slack = max(2 * LATENCY_TOLERANCE_S, asked.latency_s / 2)
    for name, hit in zip(("forward", "backward"), ways, strict=True):
        more = added(before, after, forward=name == "forward")
        if hit and more is not None and more > slack:
            return f"{name} takes {1000 * more:.1f} ms longer than before"
    lost = (after.sent - after.echoed) * ways[0] + (after.echoed - after.answered) * ways[1]
    low, _ = wilson(lost, after.sent)
    if (asked.loss or asked.corrupt) and low >= (asked.loss or asked.corrupt) / 2:
        return f"{lost} of {after.sent} probes were lost"
    return ""


def summary(reading: PathReading) -> dict[str, Any]:
    """Return a path's round trip (median, 99 %) and loss in both directions, for history, manifest and report."""
    times: Sequence[float] = sorted(reading.round_trips_s)
    return {
        "probes": reading.sent,
        "round_trip_s": round(median(times), 6) if times else None,
        "round_trip_p99_s": round(times[min(len(times) - 1, int(len(times) * 0.99))], 6) if times else None,
        "lost_percent": round(100 * (1 - reading.answered / reading.sent), 4) if reading.sent else None,
    }
