"""Find runs of data buffers in the input: buffers that arrive together are decoded together."""

from __future__ import annotations

from typing import TypeAlias

from testbed_runtime.core.exchange.encoding import BUFFER_TYPES, NUMBERED, TYPES, WHOLE
from testbed_runtime.core.exchange.frames import MAGIC, DataType, WireVersion
from testbed_runtime.core.ids import InputChannelID

MAX_BUFFER_BYTES = 64 * 1024 * 1024
"""Maximum size of a data payload. The segment that receives it is the tighter limit."""
UNREAD_BYTES = 4096
"""Maximum number of missing bytes of a buffer for which waiting pays off: loopback cuts the stream every 64
KiB, shortly before a buffer ends."""
RUN_FRAMES = 64
"""Maximum number of data buffers that are handled together. Without buffers for them (legacy mode), they are
read again at every attempt."""
Head: TypeAlias = tuple[int, int, int, int, DataType, bool]
"""A data buffer in the input: where its payload starts and ends, its sequence number, backlog, type, and whether it is compressed."""
_Known: TypeAlias = tuple[InputChannelID, int, bytes, bytes, int, DataType, bool]
"""The fields that the headers of a channel share: receiver and subpartition, the bytes before and after the
numbers, size, type, and whether the data is compressed."""


class Arrivals:
    """Finds buffers that arrive together. The fields that their headers share (all except sequence number and backlog) are read once."""

    __slots__ = ("_is_v2", "_known", "_numbered", "_whole", "missing")

    def __init__(self, version: WireVersion) -> None:
        self._is_v2 = version is WireVersion.V2
        self._whole = WHOLE[version]
        self._numbered = NUMBERED[version]
        self._known: _Known = InputChannelID(bytes(16)), 0, b"", b"", 0, DataType.DATA_BUFFER, False
        self.missing = 0
        """How many bytes are missing of the data buffer that follows those found last. 0: something else
        follows, or nothing."""

    def find(self, view: memoryview, start: int) -> tuple[InputChannelID, int, list[Head]] | None:
        """Return receiver, subpartition and up to RUN_FRAMES heads of the complete data buffers of one
        channel at the start of view[start:]. None if it begins with something else. Their sequence numbers
        are consecutive and do not wrap."""
        whole, unpack, end = self._numbered.size, self._numbered.unpack_from, len(view)
        receiver, subpartition, ahead, behind, size, data_type, compressed = self._known
        found: list[Head] = []
        expected = self.missing = 0
        for _ in range(RUN_FRAMES):
            body = start + whole
            if body > end:
                break
            its_ahead, sequence, backlog, its_behind = unpack(view, start)
            if its_ahead != ahead or its_behind != behind:
                known = self._read(view, start, its_ahead, its_behind)
                if known is None or (found and (receiver, subpartition) != known[:2]):
                    break
                self._known = known
                receiver, subpartition, ahead, behind, size, data_type, compressed = known
            start = body + size
            if start > end and backlog >= 0:
                self.missing = start - end
                break
            if backlog < 0 or (sequence != expected and found):
                break
            expected = sequence + 1
            found.append((body, start, sequence, backlog, data_type, compressed))
        return (receiver, subpartition, found) if found else None

    def _read(self, view: memoryview, start: int, ahead: bytes, behind: bytes) -> _Known | None:
        """Return the fields of a header, or None if it is not the header of a usual data buffer."""
        partials = 0
        if self._is_v2:
            (length, magic, number, receiver, subpartition, partials, _, _, type_number, compressed,
             size) = self._whole.unpack_from(view, start)  # fmt: skip
        else:
            (length, magic, number, receiver, subpartition, _, _, type_number, compressed,
             size) = self._whole.unpack_from(view, start)  # fmt: skip
        if (
            magic != MAGIC
            or number
            or partials
            or type_number not in BUFFER_TYPES
            or not 0 < size <= MAX_BUFFER_BYTES
            or length != self._whole.size + size
        ):
            return None
        return (
            InputChannelID(receiver),
            subpartition,
            ahead,
            behind,
            size,
            TYPES[type_number],
            compressed != 0,
        )
