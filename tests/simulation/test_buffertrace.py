"""One buffer, step by step: builder → subpartition → wire → channel → reader → recycle → credit."""

from __future__ import annotations

import pytest

from testbed_runtime.core.options import Options
from testbed_runtime.simulation.buffertrace import CONSUMER, PRODUCER, TraceRequest, trace_buffer

PATH = [
    (PRODUCER, "builder"),
    (PRODUCER, "subpartition"),
    (PRODUCER, "wire"),
    (CONSUMER, "channel"),
    (CONSUMER, "reader"),
    (CONSUMER, "recycle"),
    (CONSUMER, "credit"),
    (PRODUCER, "credit"),
]


def steps_of(sequence: int, **configuration: str):
    options = Options(
        {f"taskmanager.network.memory.{k.replace('_', '-')}": v for k, v in configuration.items()}
    )
    return trace_buffer(TraceRequest(sequence, options, latency_s=0.002, service_time_s=0.01))


@pytest.mark.parametrize("sequence", [0, 1, 25])
def test_a_buffer_goes_the_whole_way_in_order(sequence: int) -> None:
    """Each place once, and time never goes back."""
    steps = steps_of(sequence)
    assert [(step.side, step.place) for step in steps] == PATH
    assert [step.at_s for step in steps] == sorted(step.at_s for step in steps)
    assert f"sent as number {sequence} " in steps[2].text


def test_the_wire_takes_its_latency_and_the_reader_its_time() -> None:
    """2 ms from the wire to the channel and from AddCredit to the producer; 10 ms from the reader to the recycling."""
    _, _, wire, channel, reader, recycle, announced, arrived = steps_of(25)
    assert channel.at_s - wire.at_s == pytest.approx(0.002)
    assert recycle.at_s - reader.at_s == pytest.approx(0.01)
    assert arrived.at_s - announced.at_s == pytest.approx(0.002)


def test_under_back_pressure_the_segment_comes_back_as_one_credit() -> None:
    """1 exclusive and 1 floating buffer: the producer has no credit left, and each recycled segment is one."""
    _, _, wire, _, _, recycle, announced, arrived = steps_of(
        25, buffers_per_channel="1", floating_buffers_per_gate="1"
    )
    assert (wire.credit, recycle.unannounced, announced.unannounced, arrived.credit) == (0, 1, 0, 1)
    assert announced.text == "AddCredit(1) is sent"
    assert wire.consumer_buffers == 2


def test_the_backlog_of_the_frame_is_the_producers() -> None:
    """Finished buffers wait behind the buffer, at most the pool of 2 + 8 buffers."""
    wire = steps_of(25)[2]
    assert f"with backlog {wire.backlog}," in wire.text
    assert 0 < wire.backlog < 10
