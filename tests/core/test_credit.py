"""No interleaving creates or loses a credit, a segment or a byte."""

from __future__ import annotations

from collections import defaultdict

import pytest
from exchange_model import (
    RESOURCE,
    Consumer,
    Exchange,
    barrier,
    nothing,
    partition_id,
    producer_pool,
    receiver_id,
)
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.credit import SequenceViewReader
from testbed_runtime.core.exchange.events import AlignmentType, CheckpointBarrier
from testbed_runtime.core.exchange.frames import AddCredit, BufferResponse, ResumeConsumption
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition

CHANNELS = 2


class CreditMachine(RuleBasedStateMachine):
    """Two channels over one connection; every frame travels when Hypothesis lets it."""

    @initialize(exclusive=st.integers(0, 2), floating=st.integers(1, 6), pool=st.integers(3, 8))
    def begin(self, exclusive: int, floating: int, pool: int) -> None:
        self.exchange = Exchange(
            segments=CHANNELS * exclusive + floating,
            floating=(floating, floating),
            channels=CHANNELS,
            exclusive=exclusive,
            producer_pool=pool,
        )
        self.exchange.manager.register(self.exchange.partition)
        for number in range(CHANNELS):
            self.exchange.client.add(self.exchange.channel(number))
        self.emitted: dict[int, bytearray] = defaultdict(bytearray)
        self.received: dict[int, bytearray] = defaultdict(bytearray)
        self.held: list[Buffer] = []
        self.blocked: list[int] = []
        self.checkpoint = 0
        self.byte = 0

    @rule(channel=st.integers(0, CHANNELS - 1), size=st.integers(1, 300))
    def emit(self, channel: int, size: int) -> None:
        data = bytes((self.byte + i) % 256 for i in range(size))
        taken = self.exchange.partition.emit(channel, data)
        self.byte += taken
        self.emitted[channel] += data[:taken]

    @rule()
    def flush(self) -> None:
        self.exchange.partition.flush_all()

    @rule(
        alignment=st.sampled_from(
            [AlignmentType.ALIGNED, AlignmentType.AT_LEAST_ONCE, AlignmentType.UNALIGNED]
        )
    )
    def send_barrier(self, alignment: AlignmentType) -> None:
        self.checkpoint += 1
        self.exchange.partition.broadcast_event(barrier(self.checkpoint, alignment))

    @rule(frames=st.integers(1, 3))
    def producer_sends(self, frames: int) -> None:
        for _ in range(frames):
            self.exchange.server_step()

    @rule()
    def consumer_sends(self) -> None:
        self.exchange.client_step()

    @rule(frames=st.integers(1, 3))
    def consumer_receives(self, frames: int) -> None:
        for _ in range(frames):
            self.exchange.arrive_at_client()

    @rule()
    def producer_receives(self) -> None:
        self.exchange.arrive_at_server()

    @rule()
    def everything_travels(self) -> None:
        self.exchange.partition.flush_all()
        self.exchange.settle()

    @rule(elements=st.integers(1, 4))
    def poll(self, elements: int) -> None:
        for _ in range(elements):
            self._poll_one()

    def _poll_one(self) -> bool:
        item = self.exchange.gate.poll()
        if item is None:
            return False
        index, element = item
        if isinstance(element, Buffer):
            self.received[index] += element.view()
            self.held.append(element)
        elif isinstance(element, CheckpointBarrier) and element.alignment is AlignmentType.ALIGNED:
            self.blocked.append(index)
        return True

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def recycle(self, data: st.DataObject) -> None:
        self.held.pop(data.draw(st.integers(0, len(self.held) - 1))).recycle()

    @precondition(lambda self: self.blocked)
    @rule()
    def resume(self) -> None:
        self.exchange.gate.resume_consumption(self.blocked.pop(0))

    @invariant()
    def every_buffer_is_promised_exactly_once(self) -> None:
        """The receiver's free buffers match the sender's credit, announced or not yet announced."""
        for number in range(CHANNELS):
            channel = self.exchange.channel(number)
            manager = channel.buffers
            assert manager is not None
            assert channel.error is None
            credit = manager.unannounced + sum(
                f.credit
                for f in self.exchange.to_server
                if isinstance(f, AddCredit) and f.receiver == channel.receiver
            )
            reader = self._reader(number)
            credit += manager.initial_credit if reader is None else reader.credit
            credit += sum(
                1
                for f in self.exchange.to_client
                if isinstance(f, BufferResponse) and f.receiver == channel.receiver and f.data_type.is_buffer
            )
            if manager.initial_credit or not self._is_blocked(number):
                assert manager.available == credit

    def _reader(self, number: int) -> SequenceViewReader | None:
        receiver = self.exchange.channel(number).receiver
        return next((r for r in self.exchange.server.readers if r.receiver == receiver), None)

    def _is_blocked(self, number: int) -> bool:
        """Floating buffers may already be returned between the barrier and the producer's resumption."""
        receiver = self.exchange.channel(number).receiver
        return self.exchange.partition.subpartitions[number].is_blocked or any(
            isinstance(f, ResumeConsumption) and f.receiver == receiver for f in self.exchange.to_server
        )

    @invariant()
    def bytes_arrive_in_order(self) -> None:
        for number in range(CHANNELS):
            assert self.emitted[number].startswith(self.received[number])

    def teardown(self) -> None:
        """Once both sides continue, everything arrives and every segment returns to its pool."""
        if not hasattr(self, "exchange"):
            return
        moved = True
        while moved:
            self.exchange.partition.flush_all()
            self.exchange.settle()
            moved = False
            while self._poll_one():
                moved = True
            while self.held:
                self.held.pop().recycle()
                moved = True
            while self.blocked:
                self.exchange.gate.resume_consumption(self.blocked.pop())
                moved = True
        assert dict(self.received) == dict(self.emitted)
        self.exchange.close()


TestCredit = CreditMachine.TestCase


@pytest.mark.parametrize("exclusive", [0, 2])
def test_data_still_arrives_after_a_flush_that_found_only_priority_events(exclusive: int) -> None:
    """Two unaligned barriers, flushed and polled, must not leave a flush behind that silences the next one."""
    exchange = Exchange(
        segments=2 * exclusive + 1,
        floating=(1, 1),
        channels=2,
        exclusive=exclusive,
        producer_pool=3,
    ).start()
    exchange.partition.broadcast_event(barrier(1, AlignmentType.UNALIGNED))
    exchange.partition.broadcast_event(barrier(2, AlignmentType.UNALIGNED))
    exchange.partition.flush_all()
    exchange.run()
    assert exchange.partition.emit(0, b"x") == 1
    exchange.partition.flush_all()
    assert exchange.run() == [(0, b"x")]
    exchange.close()


def test_A_06_a_released_channel_refuses_a_floating_buffer_and_still_counts_as_waiting() -> None:
    """BufferManager.notifyBufferAvailable returns before it looks at its flag; the next listener gets the buffer."""
    consumer = Consumer(channels=2, floating=(1, 1))
    consumer.connect()
    held = consumer.pool.request()
    assert held is not None
    first, second = consumer.channel(0), consumer.channel(1)
    for channel in (first, second):
        channel.on_sender_backlog(1)
    first.release()
    held.recycle()
    managers = [channel.buffers for channel in (first, second)]
    assert [(m.waiting, m.available_floating) for m in managers if m is not None] == [(True, 0), (False, 1)]


def test_credit_that_wrapped_below_zero_sends_nothing_together() -> None:
    """Java's int wraps: -1 credits are none, and the frame that is asked for singly fails as in Flink."""
    network = NetworkBufferPool(8, 32)
    partition = ResultPartition(partition_id(), 1, producer_pool(network, 1, 8))
    assert partition.emit(0, bytes(128)) == 128
    reader = SequenceViewReader(receiver_id(0), 0, 2)
    reader.view = partition.create_view(0, nothing)
    reader.credit = -1
    assert not reader.poll_run(64, 10**6)[0].buffers
    with pytest.raises(FlinkError, match="no credit available"):
        reader.poll()
    partition.release()
    assert network.outstanding == 0


def test_in_legacy_mode_a_reader_needs_no_credit() -> None:
    """Back-pressure is the connection's."""
    exchange = Exchange(credit_based=False, producer_pool=16, segments=40, floating=(30, 30)).start()
    exchange.partition.emit(0, b"x" * 32 * 12)
    exchange.partition.flush_all()
    sent = 0
    while exchange.server_step():
        sent += 1
    assert sent == 12
    assert exchange.client.resource_id == RESOURCE
    assert len(exchange.run()) == 12
    exchange.close()
    nothing()
