"""Events that the channels of a partition share."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.core.exchange import barriers
from testbed_runtime.core.exchange.barriers import ArrivedBarriers, event_of
from testbed_runtime.core.exchange.events import encode_event
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.transport.pump import event_buffer
from tests.core.exchange_model import barrier

KIND = DataType.ALIGNED_CHECKPOINT_BARRIER


def test_a_buffer_that_many_channels_share_is_decoded_once(monkeypatch: pytest.MonkeyPatch):
    """Its arrival on each channel, and the gate that takes it, find the same event; another buffer is decoded by itself."""
    decoded: list[int] = []
    decode = barriers.decode_event
    monkeypatch.setattr(barriers, "decode_event", lambda data: decoded.append(len(data)) or decode(data))
    shared, other = (Buffer.unpooled(encode_event(barrier(number)), KIND) for number in (1, 2))
    for _ in range(100):
        assert ArrivedBarriers().arrive(shared, 7) == barrier(1)
        assert event_of(shared) == barrier(1)
    assert len(decoded) == 1
    assert event_of(other) == barrier(2)
    assert len(decoded) == 2


def test_a_buffer_that_cannot_be_decoded_is_refused_each_time():
    """An error is not kept."""
    broken = Buffer.unpooled(b"\0", KIND)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="Incomplete event"):
            event_of(broken)


def test_channels_of_all_connections_share_the_buffer_of_an_event():
    """Producers send the same barrier on all their channels. The same bytes of another type are another event."""
    first, second = (event_buffer(bytes(encode_event(barrier(1))), KIND) for _ in range(2))
    assert first is second
    assert event_buffer(bytes(encode_event(barrier(1))), DataType.EVENT_BUFFER) is not first
    assert event_of(first) == barrier(1)
