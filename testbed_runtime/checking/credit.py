"""Credit: no producer sends more buffers than were announced, counters only grow, and both sides agree.

Both sides count from the same start: `announced` includes the initial credit, `used` counts data buffers (events are free).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from testbed_runtime.checking.common import Ints, ints
from testbed_runtime.history.schema import Trial

Key = tuple[str, str, int]
"""Producing task, consuming task, attempt."""


@dataclass(frozen=True, slots=True)
class Credit:
    """The result. With 0 `samples` nothing is known: all channels were local, or none was recorded."""

    violations: int
    samples: int
    detail: str


@dataclass(frozen=True, slots=True)
class _Side:
    boot_id: str
    t_ns: Ints
    announced: Ints
    used: Ints
    credit: Ints


def check_credit(trial: Trial) -> Credit:
    """Check all remote channels. Local channels have no credit."""
    producers = _sides(trial.table("channels"), "producer")
    consumers = _sides(trial.table("channels"), "consumer")
    violations, details = 0, []
    for side, sides in (("producer", producers), ("consumer", consumers)):
        for key, samples in sides.items():
            for what, count in _alone(samples):
                violations += count
                details += [f"{side} of {key[0]} → {key[1]}: {what}"] if count else []
    for key, producer in producers.items():
        consumer = consumers.get(key)
        if consumer is None or consumer.boot_id != producer.boot_id:
            continue
        for what, count in _together(producer, consumer):
            violations += count
            details += [f"{key[0]} → {key[1]}: {what}"] if count else []
    looked_at = sum(len(s.t_ns) for s in (*producers.values(), *consumers.values()))
    return Credit(violations, looked_at, "; ".join(details[:3]))


def _sides(table: pa.Table, side: str) -> dict[Key, _Side]:
    members: dict[tuple[Any, ...], list[int]] = {}
    names = ("side", "task", "peer", "attempt", "local", "boot_id", "process")
    for index, row in enumerate(zip(*(table.column(n).to_pylist() for n in names), strict=True)):
        if row[0] == side and not row[4]:
            members.setdefault(row[1:4] + row[5:], []).append(index)
    columns = {n: ints(table, n) for n in ("t_ns", "announced", "used", "credit")}
    sides: dict[Key, _Side] = {}
    for (task, peer, attempt, boot_id, _), indices in members.items():
        chosen = np.asarray(indices)[np.argsort(columns["t_ns"][indices], kind="stable")]
        ends = (task, peer) if side == "producer" else (peer, task)
        picked = {n: column[chosen] for n, column in columns.items()}
        sides[(*ends, attempt)] = _Side(boot_id=boot_id, **picked)
    return sides


def _alone(samples: _Side) -> list[tuple[str, int]]:
    return [
        ("more buffers than announced credit", int((samples.used > samples.announced).sum())),
        ("negative credit", int((samples.credit < 0).sum())),
        ("announced credit shrank", int((np.diff(samples.announced) < 0).sum())),
        ("the number of sent buffers decreased", int((np.diff(samples.used) < 0).sum())),
    ]


def _together(producer: _Side, consumer: _Side) -> list[tuple[str, int]]:
    """Check that each side received no more than the other had sent. Samples without a later one of the peer are ignored."""
    return [
        (
            "received more buffers than were sent",
            _ahead(consumer.t_ns, consumer.used, producer.t_ns, producer.used),
        ),
        (
            "more credit arrived than was announced",
            _ahead(producer.t_ns, producer.announced, consumer.t_ns, consumer.announced),
        ),
    ]


def _ahead(t_ns: Ints, received: Ints, other_t_ns: Ints, sent: Ints) -> int:
    """Count the samples in which `received` exceeds what the sender had counted by its next sample."""
    following = np.searchsorted(other_t_ns, t_ns, side="left")
    known = following < len(other_t_ns)
    return int((received[known] > sent[following[known]]).sum())
