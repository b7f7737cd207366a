"""A subtask's state as versioned bytes. Channel state is the data that an unaligned barrier has overtaken.

0       4        6
| HGSS  | version| msgpack of SubtaskSnapshot …        version big-endian
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import asdict

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.frames import BytesLike
from testbed_runtime.workload.sortedfile import Block, Rows

MAGIC = b"HGSS"
VERSION = 3
_HEADER = struct.Struct(">4sH")
SMALL_BYTES = 16 * 1024
SMALL_SNAPSHOTS_MAX = 1024
"""Maximum number of decoded snapshots that are kept, and the maximum size of each: 16 MiB in total."""


class KeyGroupState(Block, frozen=True, kw_only=True):
    """The rows of one key group."""

    key_group: int

    @classmethod
    def divided(cls, groups: npt.NDArray[np.int64], rows: Rows) -> tuple[KeyGroupState, ...]:
        """Divide rows by key group. A row keeps its place among those of its group."""
        order = np.argsort(groups, kind="stable")
        whole = rows.chosen(order).block()
        numbers, starts = np.unique(groups[order], return_index=True)
        ends = pairwise([*starts.tolist(), len(rows)])
        parts = ((number, whole.part(*span)) for number, span in zip(numbers.tolist(), ends, strict=True))
        return tuple(cls(**asdict(part), key_group=number) for number, part in parts)


class StateFile(Struct, frozen=True):
    """A sorted file of the state. `name` is local to the attempt that wrote it."""

    name: str
    size: int
    handle: str = ""
    """Blob key of its copy in the checkpoint store; empty before it has one."""


class ChannelState(Struct, frozen=True):
    """The bytes of one channel that were in flight, in their order; they may begin and end inside a record."""

    group: int
    """Number of the gate (input) or of the result partition (output)."""
    channel: int
    """Number of the channel in the gate, or of the subpartition."""
    data: tuple[bytes, ...]

    @property
    def size(self) -> int:
        return sum(len(part) for part in self.data)


class SubtaskSnapshot(Struct, frozen=True):
    """The state from which a subtask continues."""

    checkpoint: int
    vertex: str
    subtask: int
    parallelism: int
    max_parallelism: int
    next_sequence: int = 0
    """Next sequence number of a source, or of the records that an operator creates (windows)."""
    record_bytes: int = 0
    """Size of the records that a window creates; 0 before its first input."""
    key_groups: tuple[KeyGroupState, ...] = ()
    runs: tuple[tuple[StateFile, ...], ...] = ()
    """State in files: sorted runs, the oldest first. Rows of a later run replace those of an earlier one."""
    staged: tuple[str, ...] = ()
    """Files of a file sink that this checkpoint commits."""
    input_state: tuple[ChannelState, ...] = ()
    output_state: tuple[ChannelState, ...] = ()

    @property
    def persisted_bytes(self) -> int:
        """Bytes of channel state."""
        return sum(state.size for state in (*self.input_state, *self.output_state))

    @property
    def files(self) -> tuple[StateFile, ...]:
        return tuple(file for run in self.runs for file in run)


def encode_snapshot(snapshot: SubtaskSnapshot) -> bytes:
    return _HEADER.pack(MAGIC, VERSION) + msgspec.msgpack.encode(snapshot)


def decode_snapshot(data: BytesLike) -> SubtaskSnapshot:
    """Decode a snapshot. Raises FlinkError IOException for invalid data or an unknown version.

    Small decoded snapshots are kept, because every subtask of a vertex may read the snapshots of all subtasks."""
    return _decode_small(bytes(data)) if len(data) <= SMALL_BYTES else _decode(data)


def _decode(data: BytesLike) -> SubtaskSnapshot:
    try:
        magic, version = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise _unreadable("it does not start with HGSS")
        if version != VERSION:
            raise _unreadable(f"unknown version {version} (supported: {VERSION})")
        return msgspec.msgpack.decode(memoryview(data)[_HEADER.size :], type=SubtaskSnapshot)
    except (struct.error, msgspec.MsgspecError) as error:
        raise _unreadable(str(error)) from error


_decode_small = lru_cache(maxsize=SMALL_SNAPSHOTS_MAX)(_decode)


def _unreadable(why: str) -> FlinkError:
    return FlinkError("IOException", f"Could not read the state snapshot: {why}.")
