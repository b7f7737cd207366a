"""A blocking result: written to one file, complete before it is read, and read as often as consumers ask for it.

Flink's BoundedBlockingSubpartition, with one file for each partition and the index in memory, as its sort-merge results have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import IO

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.frames import (
    LAST_SEQUENCE_NUMBER,
    BytesLike,
    DataType,
    next_sequence_number,
)
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.subpartition import (
    Element,
    PipelinedSubpartition,
    Polled,
    Run,
    SendReason,
    SubpartitionOwner,
    SubpartitionView,
)

MAX_RESULT_BYTES = 4 * 1024**3
"""Limit for one partition's file, so that a source without an end does not fill the disk."""


class ResultFile:
    """The bytes of all buffers of a partition, in the order in which they were written."""

    def __init__(self, file: IO[bytes], what: str = "A blocking result") -> None:
        """Use `file`, which is empty, open for reading and writing, and disappears when it is closed. `what`
        names it in errors."""
        self._file = file
        self._what = what
        self.size = 0

    def append(self, data: BytesLike) -> int:
        """Write at the end. Return the offset. Raises FlinkError IOException, for example when the disk is full."""
        if self.size + len(data) > MAX_RESULT_BYTES:
            raise FlinkError("IOException", f"{self._what} has at most {MAX_RESULT_BYTES} bytes.")
        try:
            self._file.write(data)
        except OSError as error:
            raise FlinkError("IOException", f"{self._what} cannot be written: {error}") from error
        offset, self.size = self.size, self.size + len(data)
        return offset

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes at an offset. Raises FlinkError IOException if they cannot be read."""
        try:
            self._file.seek(offset)
            data = self._file.read(size)
        except OSError as error:
            raise FlinkError("IOException", f"{self._what} cannot be read: {error}") from error
        if len(data) != size:
            raise FlinkError("IOException", f"{self._what} ends after {offset + len(data)} bytes.")
        return data

    def flush(self) -> None:
        """Write buffered bytes to the file. Raises FlinkError IOException: a full disk is the producer's
        failure, not its consumer's."""
        try:
            self._file.flush()
        except OSError as error:
            raise FlinkError("IOException", f"{self._what} cannot be written: {error}") from error

    def close(self) -> None:
        """Close the file. Errors of the final flush are ignored."""
        with suppress(OSError):
            self._file.close()


class BlockingSubpartition(PipelinedSubpartition):
    """Holds one buffer while it is filled, and writes it to the file when the next element comes."""

    __slots__ = ("data_buffers", "elements", "file", "owner")

    def __init__(
        self, index: int, owner: SubpartitionOwner, file: ResultFile, *, name: str = "", exclusive: int = 2
    ) -> None:
        super().__init__(index, owner, name=name, exclusive=exclusive)
        self.owner = owner
        self.file = file
        self.elements: list[tuple[int, int, DataType]] = []
        """Offset, size and type of everything that was written."""
        self.data_buffers = 0
        """Number of data buffers among the elements."""

    def add(self, element: Element, *, last: bool = False) -> bool:
        if self._finished or self.is_released:
            element.release()
            return False
        self._write()
        self._buffers.append(element)
        if element.finished:
            self._write()
        if last:
            self.file.flush()
        self._finished = last
        return True

    def _write(self) -> None:
        while self._buffers:
            element = self._buffers.pop()
            if element.readable:
                buffer = element.build_last()
                try:
                    self.elements.append((self.file.append(buffer.view()), buffer.size, buffer.data_type))
                finally:
                    buffer.recycle()
                self.data_buffers += buffer.is_buffer
            else:
                element.release()

    def flush(self, reason: SendReason = SendReason.TIMEOUT) -> None:
        """Do nothing: the result is not read before its end."""

    def create_view(self, on_data: Callable[[], None]) -> SubpartitionView:
        """Return a view that begins at the first element. Raises FlinkError IllegalStateException before the
        end of the result."""
        if self.is_released:
            raise FlinkError("IllegalStateException", "Partition released.")
        if not self._finished:
            raise FlinkError("IllegalStateException", "Trying to read unfinished blocking partition.")
        return SubpartitionView(BlockingReading(self), on_data)


class BlockingReading:
    """One reading of a blocking subpartition, as a view sees it. No element of such a result blocks its reader."""

    def __init__(self, written: BlockingSubpartition) -> None:
        self._written = written
        self.index = written.index
        self.name = written.name
        self.has_priority = False
        self.backlog = written.data_buffers
        self._position = 0
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._written.elements) - self._position

    @property
    def is_released(self) -> bool:
        return self._written.is_released

    @property
    def failure_cause(self) -> FlinkError | None:
        return self._written.owner.failure_cause

    def _next_type(self) -> DataType:
        return self._written.elements[self._position][2] if len(self) else DataType.NONE

    def poll(self) -> Polled | None:
        """Return the next element, read from the file. If that fails, the whole result is released with the error."""
        if self.is_released or not len(self):
            return None
        offset, size, data_type = self._written.elements[self._position]
        try:
            buffer = Buffer.unpooled(self._written.file.read(offset, size), data_type)
        except FlinkError as error:
            self._written.owner.release(error)
            return None
        self._position += 1
        self.backlog -= data_type.is_buffer
        sequence, self._sequence = self._sequence, next_sequence_number(self._sequence)
        return Polled(buffer, self.backlog, self._next_type(), sequence)

    def poll_run(self, most: int, most_bytes: int) -> tuple[Run, DataType]:
        """Return the next data buffers and the type of what follows them; see `PipelinedSubpartition.poll_run`."""
        run: list[Buffer] = []
        total, first, most = 0, self._sequence, min(most, LAST_SEQUENCE_NUMBER - self._sequence)
        backlog = self.backlog - 1
        while len(run) < most and total < most_bytes and self._next_type() is DataType.DATA_BUFFER:
            polled = self.poll()
            if polled is None:
                break
            total += polled.buffer.size
            run.append(polled.buffer)
        return Run(run, backlog, first), self._next_type()

    def availability(self, *, credit: bool) -> tuple[bool, int]:
        next_type = self._next_type()
        return (next_type is not DataType.NONE if credit else next_type.is_event), self.backlog

    def resume(self) -> None:
        """Raise FlinkError: such a result has no barriers that could have blocked it."""
        raise FlinkError("UnsupportedOperationException", "Method should never be called.")

    def set_buffer_size(self, size: int) -> None:
        """Ignore the debloater: the buffers are written already."""

    def on_all_data_processed(self) -> None:
        """Do nothing: the producer has ended."""

    def on_view_released(self) -> None:
        """Do nothing: the result can be read once more."""
