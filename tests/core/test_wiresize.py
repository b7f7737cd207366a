"""Sizes of frames that are carried without being encoded."""

from __future__ import annotations

import pytest

from testbed_runtime.core.exchange.encoding import encode
from testbed_runtime.core.exchange.frames import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    DataType,
    ErrorResponse,
    PartitionRequest,
    ResumeConsumption,
    WireVersion,
)
from testbed_runtime.core.exchange.wiresize import wire_size
from testbed_runtime.core.ids import RESULT_PARTITION_ID_BYTES, InputChannelID, ResultPartitionID

RECEIVER = InputChannelID(bytes(range(16)))
FRAMES = (
    BufferResponse(RECEIVER, 3, 7, 2, DataType.DATA_BUFFER, b"x" * 321),
    BufferResponse(RECEIVER, 3, 7, 2, DataType.ALIGNED_CHECKPOINT_BARRIER, b"barrier"),
    AddCredit(2, RECEIVER),
    PartitionRequest(ResultPartitionID.from_bytes(bytes(RESULT_PARTITION_ID_BYTES)), 1, 1, RECEIVER, 2),
    ResumeConsumption(RECEIVER),
    CancelPartitionRequest(RECEIVER),
    AckAllUserRecordsProcessed(RECEIVER),
    BacklogAnnouncement(1, RECEIVER),
    CloseRequest(),
    ErrorResponse("PartitionNotFoundException", "Partition p not found.", RECEIVER),
)


@pytest.mark.parametrize("version", WireVersion)
@pytest.mark.parametrize("frame", FRAMES, ids=lambda f: type(f).__name__)
def test_the_size_is_that_of_the_encoded_frame(frame, version):
    """Bandwidth and window of a simulated link count the bytes that a real one would carry."""
    assert wire_size(frame, version) == sum(map(len, encode(frame, version)))
