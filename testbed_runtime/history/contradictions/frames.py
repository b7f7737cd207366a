"""Compare each sampled frame with its channel: which TaskManager receives its data, and the frames before it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from testbed_runtime.core.faults.frame_classes import FRAME_CLASSES
from testbed_runtime.core.faults.links import owner_of
from testbed_runtime.core.ids import ABSTRACT_ID_BYTES, InputChannelID
from testbed_runtime.core.values import NS
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import CAUSAL_NS, Flags, Owned, equal, first_true, ints, numbered, sound
from testbed_runtime.history.damage import Damage, first_of_each

BUFFERS = ("buffer", "event", "barrier")
"""The classes that have a size, and whose numbers are the sequence numbers of their channel."""
TO_CONSUMER = (*BUFFERS, "backlog")
"""The classes that go from the producer to the consumer. The others of FRAME_CLASSES go back."""
SIDES = ("sent", "received")
TAPPED_MIN = 1000
"""Minimum frames of one side. Fewer may all have been lost on the way."""
COUNTED_CHANNELS = 100
"""A process of which more channels were sampled may have more of them than counters (`faults.channel.frames`), and count
the frames of one from 0 again."""


def check_frames(trial: CheckedTrial) -> list[Damage]:
    """Return the contradictions between frames, at most one for each rule."""
    table = trial.table("frames")
    if not sound(table, "process", "seq", "side", "link", "channel", "frame_class", "number", "size"):
        return []
    rules = [_channels(trial), _sizes(table), _numbers(table), _one_sided(trial)]
    return first_of_each(*rules, *([_early(table)] if trial.one_clock else []))


def _channels(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a channel whose id cannot be one, and one whose id names another consumer than the end of the link: it begins with the
    ordinal of its TaskManager."""
    for row, r in trial.distinct("frames", "link", "channel", "frame_class"):
        if r["frame_class"] not in FRAME_CLASSES:
            continue
        producer, _, consumer = r["link"].partition("->")
        if r["frame_class"] not in TO_CONSUMER:
            consumer = producer
        owner = _owner(r["channel"])
        if owner is None:
            problem = f"is {r['channel'][:60]!r}, which is not the id of a channel"
            yield Damage("frames", "channel", row, problem)
        elif owner not in ("", consumer):
            problem = f"is {r['frame_class']!r} on {r['link']}, but the channel is one of {owner}, which sends credit and requests and receives the others (channel)"
            yield Damage("frames", "frame_class", row, problem)


def _owner(channel: str) -> str | None:
    """Return the consumer's TaskManager; empty for an id that Headgate did not choose, None if it is not an id."""
    try:
        found = bytes.fromhex(channel)
    except ValueError:
        return None
    if len(found) != ABSTRACT_ID_BYTES or found.hex() != channel:
        return None
    return owner_of(InputChannelID(found))


def _sizes(table: pa.Table) -> Iterator[Damage]:
    """Yield a frame that has a size although it carries no buffer."""
    size = ints(table, "size")
    for row in first_true((size != 0) & ~_carries(table)):
        kind = table.column("frame_class")[row].as_py()
        problem = f"is {size[row]}, but a frame of the class {kind} carries no buffer"
        yield Damage("frames", "size", row, problem)


def _numbers(table: pa.Table) -> Iterator[Damage]:
    """Yield a frame whose number is not above the one before it: the buffers of a channel have sequence numbers, whatever their
    class, and the frames of each other class are counted. A fault on frames keeps their order."""
    carries = _carries(table)
    counted = np.where(carries, 0, 1 + numbered([table], ("frame_class",)))
    stream = numbered([table], ("process", "side", "link", "channel"))
    channels = numbered([table], ("process", "side", "frame_class"))
    of_class = np.bincount(np.unique(np.stack([channels, stream]), axis=1)[0])
    owned = Owned.of(stream * (int(counted.max()) + 1) + counted, ints(table, "seq"))
    number = ints(table, "number")[owned.order]
    counted_once = carries | (of_class[channels] <= COUNTED_CHANNELS)
    for at in first_true(owned.follows(np.diff(number) <= 0) & counted_once[owned.order]):
        row = int(owned.order[at])
        process, kind = (table.column(c)[row].as_py() for c in ("process", "frame_class"))
        problem = f"is {number[at]}, but {process} had recorded {number[at - 1]} of this channel before this {kind} frame"
        yield Damage("frames", "number", row, problem)


def _one_sided(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield frames that were sent and of which none was received, or the reverse: every TaskManager records both."""
    sides = trial.table("frames").column("side")
    counts = {side: pc.sum(pc.equal(sides, side)).as_py() for side in SIDES}
    for side, other in (SIDES, SIDES[::-1]):
        if counts[side] >= TAPPED_MIN and not counts[other]:
            problem = f"is {side!r} in all {counts[side]} rows: no frame was {other}"
            yield Damage("frames", "side", -1, problem)


def _early(table: pa.Table) -> Iterator[Damage]:
    """Yield a frame that was received before it was sent. One of several with one number was sent first."""
    t_ns, sent = ints(table, "t_ns"), equal(table, "side", "sent")
    owned = Owned.of(numbered([table], ("link", "channel", "frame_class", "number")), t_ns)
    times, unknown = t_ns[owned.order], np.iinfo(np.int64).max
    begun = owned.spread(np.minimum.reduceat(np.where(sent[owned.order], times, unknown), owned.starts))
    early = ~sent[owned.order] & (begun < unknown) & (times < begun - CAUSAL_NS)
    for at in first_true(early):
        row = int(owned.order[at])
        link, process = (table.column(c)[row].as_py() for c in ("link", "process"))
        problem = f"is {(begun[at] - t_ns[row]) / NS:.3f} s before the frame was sent on {link}: the clock of {process}, or that of the sender, is not comparable"
        yield Damage("frames", "t_ns", row, problem)


def _carries(table: pa.Table) -> Flags:
    found = pc.is_in(table.column("frame_class"), pa.array(BUFFERS))
    return np.asarray(found, dtype=np.bool_)
