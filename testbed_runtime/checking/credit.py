"""Credit: no producer sends more buffers than were announced, counters only grow, and both sides agree.

Both sides count from the same start: `announced` includes the initial credit, `used` counts data buffers (events are free).
A channel is judged by itself (`by_channel`), so that the channels of a large trial can be judged in parts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from testbed_runtime.history.columns import Ints, ints
from testbed_runtime.history.schema import Trial

CREDIT = "credit"
"""Name of the table of judged channels among the tables of a reduced trial."""
CHANNELS_SCHEMA = pa.schema(
    [
        ("producer", pa.string()),
        ("consumer", pa.string()),
        ("attempt", pa.int32()),
        ("local", pa.bool_()),
        ("samples", pa.int64()),  # 0 for a local channel, which has no credit
        ("violations", pa.int64()),
        ("details", pa.list_(pa.string())),
        # median of the buffers that were sent and not yet received; null if one side is missing
        ("in_flight", pa.float64()),
    ]
)
MAX_DETAILS = 3

Key = tuple[str, str, int]
"""Producing task, consuming task, attempt."""


class Credit(Struct, frozen=True):
    """The result. With 0 `samples` nothing is known: all channels were local, or none was recorded."""

    violations: int
    samples: int
    detail: str
    only_local: bool
    in_flight: float | None
    """Buffers of the channel with most of them that were sent and not yet received: the median of its samples."""


class _Side(Struct, frozen=True):
    boot_id: str
    t_ns: Ints
    announced: Ints
    used: Ints
    credit: Ints
    doubtful: bool
    """Whether `_alone` finds something."""


def check_credit(trial: Trial) -> Credit:
    """Check all remote channels. Local channels have no credit."""
    found = trial.tables.get(CREDIT)
    channels = (by_channel(trial.table("channels")) if found is None else found).to_pylist()
    channels.sort(key=lambda c: (c["producer"], c["consumer"], c["attempt"], c["local"]))
    return Credit(
        violations=sum(c["violations"] for c in channels),
        samples=sum(c["samples"] for c in channels),
        detail="; ".join([d for c in channels for d in c["details"]][:MAX_DETAILS]),
        only_local=bool(channels) and all(c["local"] for c in channels),
        in_flight=max((c["in_flight"] for c in channels if c["in_flight"] is not None), default=None),
    )


def by_channel(table: pa.Table) -> pa.Table:
    """Judge the channels in a `channels` table that has all rows of each of them. Return one row for each
    channel (CHANNELS_SCHEMA)."""
    local = table.filter(table.column("local")).group_by(["side", "task", "peer", "attempt"]).aggregate([])
    keys: list[Key] = [(*_ends(r["side"], r["task"], r["peer"]), r["attempt"]) for r in local.to_pylist()]
    rows = [_row(key, {}, [], None, local=True) for key in keys]
    sides: dict[Key, dict[str, _Side]] = {}
    for key, side, samples in _sides(table.filter(pc.invert(table.column("local")))):
        sides.setdefault(key, {})[side] = samples
    rows += [_judge(key, found) for key, found in sorted(sides.items())]
    return pa.Table.from_pylist(rows, schema=CHANNELS_SCHEMA)


def _judge(key: Key, sides: dict[str, _Side]) -> dict[str, object]:
    producer, consumer, _ = key
    doubtful = [side for side in ("producer", "consumer") if side in sides and sides[side].doubtful]
    found = [
        (f"{side} of {producer} → {consumer}: {what}", count)
        for side in doubtful
        for what, count in _alone(sides[side])
    ]
    in_flight = None
    if len(sides) == 2 and sides["producer"].boot_id == sides["consumer"].boot_id:
        in_flight = _in_flight(sides["producer"], sides["consumer"])
        together = _together(sides["producer"], sides["consumer"])
        found += [(f"{producer} → {consumer}: {what}", count) for what, count in together]
    return _row(key, sides, found, in_flight, local=False)


def _row(
    key: Key, sides: dict[str, _Side], found: list[tuple[str, int]], in_flight: float | None, *, local: bool
) -> dict[str, object]:
    return {
        **dict(zip(("producer", "consumer", "attempt"), key, strict=True)),
        "local": local,
        "in_flight": in_flight,
        "samples": sum(len(s.t_ns) for s in sides.values()),
        "violations": sum(count for _, count in found),
        "details": [what for what, count in found if count],
    }


def _ends(side: str, task: str, peer: str) -> tuple[str, str]:
    return (task, peer) if side == "producer" else (peer, task)


def _sides(table: pa.Table) -> Iterator[tuple[Key, str, _Side]]:
    """Yield the samples of each side of each channel, by time. A task that moved has several processes: the last one counts."""
    if not len(table):
        return
    names = ("side", "task", "peer", "attempt", "process", "boot_id")
    codes, values = [], []
    for name in names:
        encoded = pc.dictionary_encode(table.column(name)).combine_chunks()
        codes.append(encoded.indices.to_numpy(zero_copy_only=False))
        values.append(encoded.dictionary.to_pylist())
    columns = {n: ints(table, n) for n in ("t_ns", "announced", "used", "credit")}
    order = np.lexsort((columns["t_ns"], *reversed(codes)))
    changed = np.any([np.diff(c[order], prepend=-1) != 0 for c in codes], axis=0)
    announced, used, credit = (columns[name][order] for name in ("announced", "used", "credit"))
    shrank = (np.diff(announced, prepend=0) < 0) | (np.diff(used, prepend=0) < 0)
    starts = np.flatnonzero(changed)
    doubtful = np.logical_or.reduceat((used > announced) | (credit < 0) | shrank & ~changed, starts)
    for chosen, doubt in zip(np.split(order, starts[1:]), doubtful.tolist(), strict=True):
        side, task, peer, attempt, _, boot_id = (v[c[chosen[0]]] for v, c in zip(values, codes, strict=True))
        picked = {n: column[chosen] for n, column in columns.items()}
        yield (*_ends(side, task, peer), attempt), side, _Side(boot_id=boot_id, **picked, doubtful=doubt)


def _alone(samples: _Side) -> list[tuple[str, int]]:
    return [
        ("more buffers than announced credit", _count(samples.used > samples.announced)),
        ("negative credit", _count(samples.credit < 0)),
        ("announced credit shrank", _count(np.diff(samples.announced) < 0)),
        ("the number of sent buffers decreased", _count(np.diff(samples.used) < 0)),
    ]


def _count(places: npt.NDArray[np.bool_]) -> int:
    return int(places.sum())


def _together(producer: _Side, consumer: _Side) -> list[tuple[str, int]]:
    """Check that each side received no more than the other had sent. Samples without a later one of the peer are ignored."""
    buffers = _ahead(consumer.t_ns, consumer.used, producer.t_ns, producer.used)
    credit = _ahead(producer.t_ns, producer.announced, consumer.t_ns, consumer.announced)
    return [
        ("received more buffers than were sent", buffers),
        ("more credit arrived than was announced", credit),
    ]


def _in_flight(producer: _Side, consumer: _Side) -> float | None:
    """Return the median number of buffers in flight: what the producer had sent by its last sample before
    each sample of the consumer, less what had arrived."""
    before = np.searchsorted(producer.t_ns, consumer.t_ns, side="right") - 1
    known = before >= 0
    missing = np.sort(np.maximum(producer.used[before[known]] - consumer.used[known], 0))
    if not (count := len(missing)):
        return None
    # `np.median` takes ten times as long
    return (int(missing[(count - 1) // 2]) + int(missing[count // 2])) / 2


def _ahead(t_ns: Ints, received: Ints, other_t_ns: Ints, sent: Ints) -> int:
    """Count the samples in which `received` exceeds what the sender had counted by its next sample."""
    following = np.searchsorted(other_t_ns, t_ns, side="left")
    known = following < len(other_t_ns)
    return _count(received[known] > sent[following[known]])
