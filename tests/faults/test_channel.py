"""The channel backend inside a process: frames, calls, registration and the store, on the loop of the test."""

from __future__ import annotations

import asyncio

import pytest

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.exchange.frames import (
    AddCredit,
    BufferResponse,
    CancelPartitionRequest,
    DataType,
    PartitionRequest,
    ResumeConsumption,
)
from testbed_runtime.core.faults.frame_classes import frame_class
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.ids import ExecutionAttemptID, InputChannelID, ResultPartitionID
from testbed_runtime.core.job.messages import Acknowledge, Heartbeat, SubmitTask
from testbed_runtime.faults.backend import Rule
from testbed_runtime.faults.channel.backend import judge_calls, took_effect
from testbed_runtime.faults.channel.calls import StoreFailure
from testbed_runtime.faults.channel.process import MEASURE, ChannelFaults
from testbed_runtime.simulation.loop import run_virtual

A, B = InputChannelID(b"a" * 16), InputChannelID(b"b" * 16)
PARTITION = ResultPartitionID(b"d" * 16, 0, ExecutionAttemptID(b"g" * 16, b"v" * 16, 0, 0))
LINK = "tm-0->tm-1"
LONG_S = 60.0


def buffer(
    number: int, channel: InputChannelID = A, data_type: DataType = DataType.DATA_BUFFER
) -> BufferResponse:
    return BufferResponse(channel, 0, number, 0, data_type, b"\0\0\0\1payload")


def rule(kind: str, *, rule_id: str = "r", seconds: float = LONG_S, flows=None, seed=1, **params) -> Rule:
    if flows is None:
        flows = (("tm-0", "*"),) if kind.startswith("frames.") else ()
    deadline = asyncio.get_running_loop().time() + seconds
    return Rule(rule_id, kind, deadline, flows=flows, seed=seed, params=params)


class Wire:
    """The frames that the interceptor passed on, and those that it dropped."""

    def __init__(self, faults: ChannelFaults) -> None:
        self.faults = faults
        self.out: list[object] = []
        self.dropped: list[object] = []
        self.arrived = asyncio.Event()

    def send(self, frame, link: str = LINK) -> None:
        def forward() -> None:
            self.out.append(frame)
            self.arrived.set()

        self.faults.frames.outgoing(link, frame, forward, lambda: self.dropped.append(frame))

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.out) < count:
                self.arrived.clear()
                await self.arrived.wait()


@pytest.fixture
async def wire():
    return Wire(ChannelFaults("tm-0"))


async def test_without_a_rule_nothing_is_intercepted(wire):
    """The pump need not even call."""
    assert not wire.faults.frames.active


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (buffer(0), "buffer"),
        (buffer(0, data_type=DataType.EVENT_BUFFER), "barrier"),
        (BufferResponse(A, 0, 0, 0, DataType.EVENT_BUFFER, b"\0\0\0\0"), "event"),
        (buffer(0, data_type=DataType.ALIGNED_CHECKPOINT_BARRIER), "barrier"),
        (BufferResponse(A, 0, 0, 0, DataType.END_OF_DATA, b"\0\0\0\7"), "event"),
        (AddCredit(1, A), "credit"),
        (PartitionRequest(PARTITION, 0, 0, A, 2), "request"),
        (ResumeConsumption(A), "other"),
    ],
)
def test_frames_have_the_class_that_faults_name(frame, name):
    """An at-least-once barrier shows only in its payload."""
    assert frame_class(frame) == name


async def test_a_delayed_buffer_delays_its_own_channel_and_no_other(wire):
    """Later frames of the channel wait, in order; the other channel continues."""
    wire.faults.apply(rule("frames.delay", frame_class="buffer", delay_s=0.05))
    begin = asyncio.get_running_loop().time()
    wire.send(buffer(0))
    event = buffer(1, data_type=DataType.END_OF_DATA)
    wire.send(event)
    credit = AddCredit(1, B)
    wire.send(credit)
    assert wire.out == [credit]
    await wire.until(3)
    assert wire.out == [credit, buffer(0), event]
    assert asyncio.get_running_loop().time() - begin >= 0.049


async def test_a_frame_fault_has_no_counters_of_its_own(wire):
    """The taps at both ends measure it. A report would show the counters instead of the frames that arrived late or not at all."""
    wire.faults.apply(rule("frames.drop", frame_class="buffer"))
    wire.send(buffer(0))
    assert wire.faults.counters("r") is None
    wire.faults.remove("r")
    assert (wire.dropped, wire.faults.counters("r")) == ([buffer(0)], None)


async def test_healing_lets_everything_go_at_once_and_in_order(wire):
    """Nothing is held afterwards."""
    wire.faults.apply(rule("frames.delay", frame_class="buffer", delay_s=30))
    for number in range(5):
        wire.send(buffer(number))
    wire.faults.remove("r")
    assert [f.sequence_number for f in wire.out] == [0, 1, 2, 3, 4]
    assert not wire.faults.frames.active
    assert wire.faults.state()["held"] == 0


async def test_a_rule_ends_at_its_own_deadline(wire):
    """Even without a call to heal it."""
    wire.faults.apply(rule("frames.delay", frame_class="buffer", delay_s=30, seconds=0.05))
    wire.send(buffer(0))
    await wire.until(1)
    assert wire.faults.state()["active"] == {}


async def test_only_the_link_and_the_class_that_are_named_are_hit(wire):
    """tm-0 to tm-1, buffers."""
    wire.faults.apply(rule("frames.drop", frame_class="buffer", flows=(("tm-0", "tm-1"),)))
    wire.send(buffer(0), "tm-0->tm-2")
    wire.send(AddCredit(1, A))
    wire.send(buffer(1), "tm-0-1->tm-1-4")
    assert wire.out == [buffer(0), AddCredit(1, A)]
    assert wire.dropped == [buffer(1)]


async def test_a_share_of_the_frames_is_dropped_by_the_seed(wire):
    """The same seed drops the same ones."""
    wire.faults.apply(rule("frames.drop", frame_class="buffer", percent=30.0, seed=5))
    other = Wire(ChannelFaults("tm-0"))
    other.faults.apply(rule("frames.drop", frame_class="buffer", percent=30.0, seed=5))
    for number in range(1_000):
        wire.send(buffer(number))
        other.send(buffer(number))
    assert 230 < len(wire.dropped) < 370
    assert wire.dropped == other.dropped


async def test_withheld_credits_come_at_the_end_and_hold_up_nothing_else(wire):
    """A cancelled channel's credits are given back instead."""
    wire.faults.apply(rule("frames.withhold-credit"))
    wire.send(AddCredit(1, A))
    wire.send(ResumeConsumption(A))
    wire.send(AddCredit(2, B))
    wire.send(CancelPartitionRequest(B))
    assert wire.out == [ResumeConsumption(A), CancelPartitionRequest(B)]
    assert wire.dropped == [AddCredit(2, B)]
    wire.faults.remove("r")
    assert wire.out[-1] == AddCredit(1, A)


async def test_the_tap_numbers_frames_alike_on_both_sides():
    """Counting goes on without a measurement; sightings are kept only during one."""
    sender, receiver = ChannelFaults("tm-0"), ChannelFaults("tm-1")
    for faults, side in ((sender, "sent"), (receiver, "received")):
        tap = faults.interception().tap
        tap.seen(side, LINK, AddCredit(1, A))
        assert faults.effects.sightings() == []
        faults.apply(rule(MEASURE, rule_id="watch"))
        tap.seen(side, LINK, AddCredit(1, A))
        tap.seen(side, LINK, buffer(41))
    ends = [[(s[3], s[2], s[4]) for s in f.effects.sightings()] for f in (sender, receiver)]
    assert ends[0] == ends[1] == [(A.hex(), "credit", 1), (A.hex(), "buffer", 41)]
    sender.remove("watch")
    assert sender.effects.sightings() == []


async def test_a_muted_request_is_swallowed_where_it_arrives(wire):
    """Answers and other messages pass."""
    wire.faults.apply(rule("heartbeats.mute", direction="request"))
    calls = wire.faults.calls
    assert not await calls.before_handle("taskexecutor", Heartbeat("jobmanager"))
    assert await calls.before_handle("taskexecutor", Acknowledge())
    assert await calls.before_handle("jobmaster", Heartbeat("tm-0-1"))


async def test_a_muted_response_is_swallowed_at_the_jobmanager_for_its_sender_only():
    """tm-1's heart is not heard, tm-2's is."""
    faults = ChannelFaults("jobmanager")
    faults.apply(rule("heartbeats.mute", direction="response", flows=(("tm-1", "*"),)))
    assert not await faults.calls.before_handle("jobmaster", Heartbeat("tm-1-3"))
    assert await faults.calls.before_handle("resourcemanager", Heartbeat("tm-2-1"))
    assert faults.counters("r")["swallowed"] == 1


async def test_a_delayed_method_waits_in_the_callees_mailbox_and_at_the_longest_until_it_heals(wire):
    """Other methods do not wait themselves."""
    loop = asyncio.get_running_loop()
    wire.faults.apply(rule("rpc.delay", method="SubmitTask", delay_s=30))
    message = SubmitTask(descriptor=None)  # type: ignore[arg-type]
    waiting = loop.create_task(wire.faults.calls.before_handle("taskexecutor", message))
    assert await wire.faults.calls.before_handle("taskexecutor", Acknowledge())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    wire.faults.remove("r")
    assert await waiting
    assert wire.faults.counters("r")["delay_s"] >= 0.015


def test_a_partition_is_registered_late_by_time():
    """Only the named vertex's."""

    async def main() -> list[float]:
        loop, faults = asyncio.get_running_loop(), ChannelFaults("tm-0")
        faults.apply(rule("registration.delay", delay_s=0.5, vertex="source"))
        times = [loop.time()]
        for vertex, partition in (("count", "p0"), ("source", "p1")):
            await faults.registration.before_registration(vertex, partition)
            times.append(loop.time())
        return times

    begin, other, named = run_virtual(main())
    assert (other, named) == (begin, begin + 0.5)


async def test_a_partition_is_registered_after_so_many_requests_found_nothing(wire):
    """Only requests for this partition count."""
    loop = asyncio.get_running_loop()
    wire.faults.apply(rule("registration.delay", attempts=2))
    hook = wire.faults.registration
    waiting = loop.create_task(hook.before_registration("source", "p"))
    await asyncio.sleep(0)
    for partition in ("p", "q", "q"):
        hook.request_seen(partition)
        await asyncio.sleep(0)
    assert not waiting.done()
    hook.request_seen("p")
    async with asyncio.timeout(5):
        await waiting


class Blobs:
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def put(self, key: str, data: bytes) -> None:
        self.kept[key] = data

    async def get(self, key: str) -> bytes:
        return self.kept[key]

    async def list(self, prefix: str) -> list[str]:
        return [k for k in self.kept if k.startswith(prefix)]

    async def delete(self, key: str) -> None:
        self.kept.pop(key, None)


async def test_a_failing_store_refuses_writes_and_still_reads(wire):
    """Writes succeed again after the fault."""
    store = wire.faults.store(Blobs())
    await store.put("a", b"1")
    wire.faults.apply(rule("store.failing"))
    with pytest.raises(StoreFailure):
        await store.put("b", b"2")
    assert await store.get("a") == b"1"
    wire.faults.remove("r")
    await store.put("b", b"2")
    assert await store.list("") == ["a", "b"]


async def test_a_slow_store_takes_its_time_for_each_object(wire):
    """Reads and writes."""
    loop = asyncio.get_running_loop()
    store = wire.faults.store(Blobs())
    wire.faults.apply(rule("store.slow", delay_s=0.03))
    begin = loop.time()
    await store.put("a", b"1")
    await store.get("a")
    assert loop.time() - begin >= 0.059


async def test_a_kind_of_another_backend_is_refused(wire):
    """The hint names the command that lists the kinds."""
    with pytest.raises(UserError, match="channel backend"):
        wire.faults.apply(rule("network.latency"))


@pytest.mark.parametrize("measure", [{"delay_s": 30.0}, {"attempts": 3}])
async def test_a_registration_is_late_when_its_task_is_cancelled_but_not_yet_while_it_is_held(measure):
    """A job that ends before the delay has passed is an effect; that the delay has begun is none."""
    faults = ChannelFaults("tm-0")
    faults.apply(rule("registration.delay", **measure))
    loop = asyncio.get_running_loop()
    asked = measure.get("delay_s", 0.0)
    assert not took_effect("registration.delay", faults.counters("r"), asked)
    held = loop.create_task(faults.registration.before_registration("source", "p"))
    await asyncio.sleep(0)
    assert not took_effect("registration.delay", faults.counters("r"), asked)
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    counters = faults.counters("r")
    assert (counters["holding"], counters["given_up"]) == (0, 1)
    assert took_effect("registration.delay", counters, asked)
    faults.remove_all()


@pytest.mark.parametrize("measure", [{"delay_s": 30.0}, {"attempts": 3}])
async def test_a_registration_that_the_end_of_its_fault_lets_through_is_not_late(measure):
    """The counters say that it was cut short, and after how long."""
    faults = ChannelFaults("tm-0")
    faults.apply(rule("registration.delay", **measure))
    held = asyncio.get_running_loop().create_task(faults.registration.before_registration("source", "p"))
    await asyncio.sleep(0.02)
    faults.remove("r")
    await held
    counters = faults.counters("r")
    assert (counters["cut_short"], counters["given_up"]) == (1, 0)
    assert 0.015 <= counters["longest_s"] < 30
    assert not took_effect("registration.delay", counters, measure.get("delay_s", 0.0))


def test_a_fault_that_is_applied_again_goes_on_holding():
    """Another of its targets restarted: what is held here is neither let through, then or at the former end, nor counted anew."""

    async def main() -> None:
        faults = ChannelFaults("tm-0")
        faults.apply(rule("store.slow", seconds=0.05, delay_s=30.0))
        held = asyncio.get_running_loop().create_task(faults.store(Blobs()).put("a", b"1"))
        await asyncio.sleep(0)
        faults.apply(rule("store.slow", delay_s=30.0))
        await asyncio.sleep(0.06)
        assert not held.done()
        assert faults.counters("r")["holding"] == 1
        faults.remove("r")
        await held
        assert faults.counters("r")["cut_short"] == 1

    run_virtual(main())


async def test_many_short_delays_are_not_one_long_one():
    """Each access waits for 20 ms, together more than the 50 ms that each should take."""
    faults = ChannelFaults("tm-0")
    store = faults.store(Blobs())
    faults.apply(rule("store.slow", delay_s=0.02))
    for key in "abcd":
        await store.put(key, b"1")
    counters = faults.counters("r")
    assert counters["delay_s"] >= 0.079
    assert took_effect("store.slow", counters, 0.02)
    assert not took_effect("store.slow", {**counters, "longest_s": 0.021}, 0.05)


def test_a_registration_that_was_let_through_is_not_late():
    """A hook that does not hold has no effect, however often it was asked."""
    counters = {"delayed": 5, "holding": 0, "given_up": 0, "cut_short": 5, "longest_s": 0.001}
    assert not took_effect("registration.delay", counters, 3.0)


@pytest.mark.parametrize(("duration_s", "why"), [(30.0, ""), (6.0, "it lasts 6 s, so ")])
def test_a_delay_that_is_too_short_is_blamed_on_the_end_of_the_fault_only_if_that_is_why(duration_s, why):
    """The only call came 5 s before the end, and should have been 10 s late."""
    fault = Fault("slow", "store.slow", at_s=0.0, duration_s=duration_s, params={"delay_s": 10.0})
    counters = {"tm-0": {"delayed": 1, "holding": 0, "given_up": 0, "cut_short": 1, "longest_s": 5.0}}
    found = judge_calls(fault, counters, before={}, stopped=True, early=False)
    assert (found.ok, found.text) == (False, f"{why}the longest delay was 5 s instead of 10 s")
