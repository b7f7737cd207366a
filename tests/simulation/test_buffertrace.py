"""One buffer, step by step: builder → subpartition → wire → channel → reader → recycle → credit."""

from __future__ import annotations

import pytest

from testbed_runtime.core.options import Options
from testbed_runtime.simulation.buffertrace import CONSUMER, PRODUCER, TraceRequest, trace_buffer, trace_sent

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


@pytest.mark.parametrize(
    ("sequence", "text"), [(0, "no buffers are"), (1, "1 buffer is"), (3, "2 buffers are")]
)
def test_the_channel_says_how_many_buffers_are_queued_before_it(sequence: int, text: str) -> None:
    """The first two use the initial credit, the others floating buffers."""
    assert steps_of(sequence)[3].text == f"received; {text} queued before it"


def reasons_of(
    sequence: int, timeout: str, *, rate: float = 0.0, service_s: float = 0.0, barriers_s: float = 0.0
):
    options = Options({"execution.buffer-timeout.interval": timeout})
    request = TraceRequest(sequence, options, 0.001, service_s, rate=rate, barriers_s=barriers_s)
    found = trace_sent(request)
    assert [buffer.sequence for buffer in found.buffers] == list(range(sequence + 1))
    return found, [buffer.reason for buffer in found.buffers]


def test_a_slow_producer_sends_on_the_buffer_timeout_and_the_rest_of_a_segment_when_it_is_full() -> None:
    """1,000 records/s of 104 bytes fill 32 KiB in 315 ms: three flushes of 100 ms, then the full segment's rest."""
    found, reasons = reasons_of(4, "100 ms", rate=1000)
    assert reasons == ["timeout", "timeout", "timeout", "full", "timeout"]
    assert sum(buffer.size for buffer in found.buffers[:4]) == 32 * 1024


def test_a_barrier_sends_the_growing_buffer_before_it() -> None:
    """20,000 records/s fill a buffer in 16 ms: each barrier, every 50 ms, cuts the fourth one."""
    _, reasons = reasons_of(9, "10 s", rate=20_000, barriers_s=0.05)
    assert reasons[:5] == ["full", "full", "full", "event", "aligned_checkpoint_barrier"]
    assert reasons[5:] == reasons[:5]


def test_with_a_timeout_of_zero_each_record_is_sent_alone() -> None:
    """Ten records a second, each in a buffer of its own."""
    found, reasons = reasons_of(9, "0 ms", rate=10)
    assert set(reasons) == {"timeout"}
    assert {buffer.size for buffer in found.buffers} == {104}


def test_under_back_pressure_the_flusher_sends_nothing() -> None:
    """A consumer of 50 buffers/s, a flusher of 1 ms: its thread runs every millisecond, and every buffer is full."""
    found, reasons = reasons_of(60, "1 ms", service_s=0.02)
    assert set(reasons) == {"full"}
    assert found.flushes == pytest.approx(found.buffers[-1].at_s / 0.001, abs=3)
