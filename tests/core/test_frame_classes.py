"""The class of each frame, and the channel that it belongs to."""

from __future__ import annotations

import pytest
from exchange_model import barrier, partition_id, receiver_id

from testbed_runtime.core.exchange.events import AlignmentType, EndOfPartition, encode_event
from testbed_runtime.core.exchange.frames import (
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CloseRequest,
    DataType,
    ErrorResponse,
    Frame,
    PartitionRequest,
)
from testbed_runtime.core.faults.frame_classes import OTHER, channel_of, frame_class

CHANNEL = receiver_id(0)


def response(data_type: DataType, data: bytes) -> BufferResponse:
    return BufferResponse(CHANNEL, 0, 0, 0, data_type, data)


BARRIER = encode_event(barrier(1))
UNALIGNED = encode_event(barrier(1, AlignmentType.UNALIGNED))


@pytest.mark.parametrize(
    ("frame", "named"),
    [
        (response(DataType.DATA_BUFFER, bytes((0, 0, 0, 1))), "buffer"),
        (response(DataType.ALIGNED_CHECKPOINT_BARRIER, b""), "barrier"),
        (response(DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER, b""), "barrier"),
        (response(DataType.PRIORITIZED_EVENT_BUFFER, UNALIGNED), "barrier"),
        (response(DataType.EVENT_BUFFER, BARRIER), "barrier"),
        (response(DataType.EVENT_BUFFER, bytes((0, 0, 0, 1))), "barrier"),
        (response(DataType.EVENT_BUFFER, bytes((0, 0, 1))), "event"),
        (response(DataType.EVENT_BUFFER, encode_event(EndOfPartition())), "event"),
        (AddCredit(1, CHANNEL), "credit"),
        (BacklogAnnouncement(1, CHANNEL), "backlog"),
        (PartitionRequest(partition_id(), 0, 0, CHANNEL, 2), "request"),
        (ErrorResponse("E", "m", CHANNEL), OTHER),
    ],
)
def test_a_frame_has_the_class_that_faults_name(frame: Frame, named: str) -> None:
    """Unaligned barriers are recognised by their content."""
    assert frame_class(frame) == named
    assert channel_of(frame) == CHANNEL


def test_a_frame_of_the_whole_connection_has_no_channel() -> None:
    """It ends the connection."""
    assert channel_of(CloseRequest()) == channel_of(ErrorResponse("E", "m")) == b""
