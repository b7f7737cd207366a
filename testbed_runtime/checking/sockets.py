"""TCP as flow control, step by step, from samples of the sockets: from the moment at which the reader stops
until the source waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from testbed_runtime.checking.busyness import source_waits
from testbed_runtime.checking.common import data, events
from testbed_runtime.core.judgement.quantities import seconds
from testbed_runtime.core.values import NS
from testbed_runtime.history.schema import Trial

FULL = 0.95
"""A queue counts as full from this share of the bytes that it had when the next step happened."""
_Sample = tuple[int, Mapping[str, Any]]


class PushBack(Struct, frozen=True):
    """The steps of one connection. Seconds count from the first step. A step that was not seen is missing."""

    link: str
    steps: tuple[tuple[str, float], ...]
    limited: float
    """Share of the time in which the receiver's window limited the sender."""
    probes: int
    """Most zero-window probes in a row."""

    @property
    def complete(self) -> bool:
        return len(self.steps) == len(STEPS)

    @property
    def text(self) -> str:
        return f"{self.link}: " + ", ".join(f"{name} {seconds(at)}" for name, at in self.steps)


STEPS = ("reader stops", "receive queue full", "window 0", "send queue full", "not writable", "source waits")


def push_backs(trial: Trial) -> list[PushBack]:
    """Return each connection whose reader stopped. Empty without samples: in virtual time, with credit, on other kernels."""
    samples: dict[tuple[str, str, str, int], list[_Sample]] = {}
    for event in events(trial, "socket.state"):
        more = data(event)
        key = more["side"], event["subject"].rpartition("-")[0], more["peer"], more["connection"]
        samples.setdefault(key, []).append((event["t_ns"], more))
    found = []
    for (side, consumer, producer, port), received in sorted(samples.items()):
        stopped = _first(received, lambda s: not s["reading"])
        if side == "consumer" and stopped is not None:
            sent = samples.get(("producer", producer, consumer, port), [])
            found.append(_push_back(trial, f"{producer} → {consumer}", stopped, received, sent))
    return found


def _push_back(
    trial: Trial, link: str, stopped: _Sample, received: list[_Sample], sent: list[_Sample]
) -> PushBack:
    since = stopped[0]
    received = [one for one in received if one[0] >= since]
    after = [one for one in sent if one[0] >= since]
    closed = _first(received, lambda s: s["receive_window"] == 0)
    blocked = _first(after, lambda s: not s["writable"])
    waits = source_waits(trial, blocked[0]) if blocked else None
    found: tuple[_Sample | None, ...] = (
        stopped,
        _filled(received, closed, "receive_queue"),
        _first(after, lambda s: s["peer_window"] == 0),
        _filled(after, blocked, "send_queue"),
        blocked,
        None if waits is None else (waits, {}),
    )
    lasted = (sent[-1][0] - sent[0][0]) / NS if sent else 0.0
    limited = (sent[-1][1]["limited_s"] - sent[0][1]["limited_s"]) / lasted if lasted else 0.0
    limited = min(1.0, limited)  # the counter is read a little later than the clock
    seen = [(name, at) for name, at in zip(STEPS, found, strict=True) if at is not None]
    steps = tuple((name, (at[0] - since) / NS) for name, at in seen)
    return PushBack(link, steps, limited, max((s["probes"] for _, s in sent), default=0))


def _first(samples: Sequence[_Sample], wanted: Callable[[Mapping[str, Any]], bool]) -> _Sample | None:
    return next((one for one in samples if wanted(one[1])), None)


def _filled(samples: Sequence[_Sample], until: _Sample | None, queue: str) -> _Sample | None:
    """Return the sample in which the queue was as full as when the next step happened."""
    if until is None or not until[1][queue]:
        return None
    return _first(samples, lambda s: s[queue] >= FULL * until[1][queue])
