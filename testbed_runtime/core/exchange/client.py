"""The consumer's end of a connection: passes frames to the channels, sends requests and credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from testbed_runtime.core.errors import FlinkError, HeadgateError
from testbed_runtime.core.exchange.arrivals import Head
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.codec import DISCARD, Discard
from testbed_runtime.core.exchange.frames import (
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    ClientFrame,
    CloseRequest,
    DataType,
    ErrorResponse,
    ServerFrame,
    next_sequence_number,
)
from testbed_runtime.core.exchange.memory import Buffer, MemorySegment
from testbed_runtime.core.ids import InputChannelID

RESET = "Connection reset by peer"
NO_BUFFER = "The read buffer is null in credit-based input channel."
PARTITION_NOT_FOUND = "PartitionNotFoundException"

_Pending: TypeAlias = tuple[ClientFrame | None, RemoteInputChannel | None]
"""A message and its channel. Without a message, it is an AddCredit. Without a channel, it is sent in any
case."""


def peer_text(address: str, resource_id: str) -> str:
    """Return the peer of a connection as Flink's messages name it: `<addr> [ <resource id> ] `, or the address alone without an id."""
    return f"{address} [ {resource_id} ] " if resource_id else address


class PartitionRequestClient:
    """Flink's NettyPartitionRequestClient and CreditBasedPartitionRequestClientHandler of one connection.

    `peer` is the address as Flink prints it (`host:port`), `resource_id` the TaskManager at that address; with `names_peer`, errors
    name both. `wake` is
    called when `next_frame` may return a frame after it returned None. `resume` (legacy mode only) is called when a
    channel for which `allocate` returned None has a buffer.
    """

    __slots__ = (
        "_channels", "_credit_based", "_names_peer", "_pending", "_resume", "_reuse", "_wake", "closing", "error",
        "peer", "resource_id",
    )  # fmt: skip

    def __init__(
        self,
        peer: str,
        wake: Callable[[], None],
        *,
        resource_id: str = "",
        reuse: bool = True,
        credit_based: bool = True,
        names_peer: bool = True,
        resume: Callable[[], None] | None = None,
    ) -> None:
        self.peer = peer
        self.resource_id = resource_id
        self._names_peer = names_peer
        self._wake = wake
        self._reuse = reuse
        self._credit_based = credit_based
        self._resume = resume or (lambda: None)
        self._channels: dict[InputChannelID, RemoteInputChannel] = {}
        self._pending: deque[_Pending] = deque()
        self.error: FlinkError | None = None
        """The first failure of the connection. Nothing is sent or delivered after it."""
        self.closing = False
        """CloseRequest was queued: close the connection once `next_frame` is drained."""

    @property
    def description(self) -> str:
        """The peer as Flink's messages name it."""
        return peer_text(self.peer, self.resource_id if self._names_peer else "")

    # ---- channels ------------------------------------------------------------------------------------------

    def add(self, channel: RemoteInputChannel) -> None:
        """Register the channel and request its subpartition."""
        self._channels[channel.receiver] = channel
        channel.attach(self)
        if self.error is not None:
            channel.on_error(self.error)
        else:
            channel.send_request()

    def remove(self, channel: RemoteInputChannel) -> None:
        """Remove a released channel: notify the producer, or close the connection if it has no channel left and is not
        reused."""
        if self._channels.pop(channel.receiver, None) is None or self.error is not None:
            return
        if self._channels or self._reuse:
            self.send(CancelPartitionRequest(channel.receiver))
        else:
            self._pending.clear()
            self.closing = True
            self.send(CloseRequest())

    # ---- out -----------------------------------------------------------------------------------------------

    def has_more(self) -> bool:
        """Whether `next_frame` may return a message."""
        return bool(self._pending)

    def send(self, frame: ClientFrame, channel: RemoteInputChannel | None = None) -> None:
        """Queue a message. A message of a `channel` is dropped once the channel is released."""
        if self.error is None:
            self._pending.append((frame, channel))
            if len(self._pending) == 1:  # otherwise woken already
                self._wake()

    def announce_credit(self, channel: RemoteInputChannel) -> None:
        """Queue an AddCredit whose value is read when it is written."""
        if self.error is None and self._credit_based:
            self._pending.append((None, channel))
            if len(self._pending) == 1:
                self._wake()

    def next_frame(self) -> tuple[ClientFrame, None] | None:
        """Return the next message, which has no buffer, or None."""
        while self._pending:
            frame, channel = self._pending.popleft()
            if channel is not None and channel.is_released:
                continue
            if frame is not None:
                return frame, None
            if channel is not None and (credit := channel.take_unannounced_credit()) > 0:
                return AddCredit(credit, channel.receiver), None
        return None

    # ---- in ------------------------------------------------------------------------------------------------

    def allocate(self, receiver: InputChannelID, size: int, data_type: DataType) -> Buffer | Discard | None:
        """Return memory for an incoming payload; called by the decoder.

        DISCARD: no channel wants the payload; the producer is notified. None: an event, which needs no segment, or, in
        legacy mode, no buffer is available: stop reading until `resume` is called."""
        channel = self._channels.get(receiver)
        if channel is None or channel.is_released:
            self.send(CancelPartitionRequest(receiver))
            return DISCARD
        if not data_type.is_buffer:
            return None
        buffer = channel.request_buffer()
        if buffer is not None:
            return buffer
        if not self._credit_based:
            return channel.request_buffer_or_wait(self._resume)
        if not size:  # Flink's decoder does not miss a buffer for nothing
            return Buffer(memoryview(b""), data_type, MemorySegment(0))
        channel.on_error(FlinkError("IllegalStateException", NO_BUFFER))
        return DISCARD

    def on_run(self, receiver: InputChannelID, view: memoryview, heads: list[Head]) -> list[Buffer]:
        """Handle the data buffers that `ClientDecoder.heads` found. Return them; see `RemoteInputChannel.on_run`. The next one needs
        `on_frame`."""
        channel = self._channels.get(receiver)
        return [] if channel is None else channel.on_run(view, heads)

    def on_frame(self, frame: ServerFrame, buffer: Buffer | None = None) -> None:
        """Handle a frame of the producer. `buffer` is the filled one from `allocate`; ownership passes to this method. It may
        be given for an event too."""
        if type(frame) is BufferResponse:
            channel = self._channels.get(frame.receiver)
            if channel is None or channel.is_released:
                if buffer is not None:
                    buffer.recycle()
                self.send(CancelPartitionRequest(frame.receiver))
            elif buffer is not None and len(frame.data) and not frame.partials:
                buffer.data_type = frame.data_type
                buffer.compressed = frame.compressed
                channel.on_buffer(buffer, frame.sequence_number, frame.backlog)
            else:
                try:
                    _deliver(channel, frame, buffer)
                except FlinkError as error:
                    channel.on_error(error)
        elif isinstance(frame, BacklogAnnouncement):
            channel = self._channels.get(frame.receiver)
            if channel is None or channel.is_released:
                self.send(CancelPartitionRequest(frame.receiver))
            else:
                try:
                    channel.on_sender_backlog(frame.backlog)
                except FlinkError as error:
                    channel.on_error(error)
        elif isinstance(frame, ErrorResponse):
            self._on_error_response(frame)

    def _on_error_response(self, frame: ErrorResponse) -> None:
        cause = FlinkError(frame.class_name, frame.message)
        if frame.receiver is None:
            self._fail(self._remote(f"Fatal error at remote task manager '{self.description}'.", cause))
            return
        channel = self._channels.get(frame.receiver)
        if channel is None:
            return
        if frame.class_name == PARTITION_NOT_FOUND:
            channel.on_failed_partition_request()
        else:
            channel.on_error(self._remote(f"Error at remote task manager '{self.description}'.", cause))

    def on_closed(self, error: Exception | None) -> None:
        """Fail every channel because the connection closed, with Flink's message. Only the first failure counts."""
        self._fail(self._translate(error))

    def _translate(self, error: Exception | None) -> FlinkError:
        if isinstance(error, FlinkError):
            return error
        # a write may notice it before the reader does
        if error is None or isinstance(error, BrokenPipeError):
            return self._remote(
                f"Connection unexpectedly closed by remote task manager '{self.description}'. "
                "This might indicate that the remote task manager was lost."
            )
        if isinstance(error, ConnectionResetError) or RESET in str(error):
            return self._remote(
                f"Lost connection to task manager '{self.description}'. "
                "This indicates that the remote task manager was lost.",
                FlinkError("IOException", RESET),
            )
        text = str(error) or type(error).__name__
        peer = f"{self.peer} [{self.resource_id}]" if self._names_peer else self.peer
        local = FlinkError(
            "LocalTransportException",
            f"{text} (connection to '{peer}')",
            lost_taskmanager=self.resource_id,
        )
        local.__cause__ = error if isinstance(error, HeadgateError) else None
        return local

    def _remote(self, text: str, cause: FlinkError | None = None) -> FlinkError:
        error = FlinkError("RemoteTransportException", text, lost_taskmanager=self.resource_id)
        error.__cause__ = cause
        return error

    def _fail(self, error: FlinkError) -> None:
        if self.error is not None:
            return
        self.error = error
        self._pending.clear()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.on_error(error)


def _deliver(channel: RemoteInputChannel, frame: BufferResponse, buffer: Buffer | None) -> None:
    """Pass on an event, an empty buffer, or a buffer with several parts."""
    sequence, backlog = frame.sequence_number, frame.backlog
    if not frame.data_type.is_buffer:
        channel.on_buffer(Buffer.unpooled(frame.data, frame.data_type), sequence, backlog)
        return
    if buffer is None or not len(frame.data):
        if buffer is not None:
            buffer.recycle()
        channel.on_empty_buffer(sequence, backlog)
        return
    buffer.data_type = frame.data_type
    buffer.compressed = frame.compressed
    start, last = 0, len(frame.partials) - 1
    for number, size in enumerate(frame.partials):
        part = buffer.cut(start, start + size)
        start += size
        channel.on_buffer(part, sequence, backlog if number == last else -1)
        sequence = next_sequence_number(sequence)
    buffer.recycle()
