"""The network of one TaskManager: which pools, partitions and gates it makes from the options."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from random import Random
from typing import IO, Any

import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.localchannel import LocalInputChannel
from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.messages import (
    InputChannelDescriptor,
    InputGateDescriptor,
    ResultPartitionDescriptor,
)
from testbed_runtime.core.options import (
    REQUIRED_PER_GATE,
    SORT_MIN_BUFFERS,
    SORT_MIN_PARALLELISM,
    Options,
)
from testbed_runtime.core.values import MAX_INT
from testbed_runtime.ports.interception import NO_INTERCEPTION, Interception
from testbed_runtime.process.clock import LoopClock
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.environment import NetworkEnvironment
from testbed_runtime.taskmanager.waiting import Wakeup
from tests.core.exchange_model import partition_id
from tests.transport.inprocess_network import InProcessNetwork

WANTED = ResultPartitionDescriptor(str(partition_id()), "next", "hash", 4, 128)


def environment(
    *,
    version: str = "2.x",
    interception: Interception = NO_INTERCEPTION,
    open_file: Callable[[], IO[bytes]] = io.BytesIO,
    **options: str,
) -> NetworkEnvironment:
    return NetworkEnvironment(
        TaskManagerID(0, 1),
        Options(options, flink_version=version),
        InProcessNetwork(),
        clock=LoopClock("sim"),
        entropy=Random(1),
        interception=interception,
        open_file=open_file,
        memory=True,
    )


def inside(check: Callable[[], Any]) -> Any:
    """Call a function in a virtual loop."""

    async def main() -> Any:
        found = check()
        return await found if asyncio.iscoroutine(found) else found

    return run_virtual(main())


def gate_of(*producers: str) -> InputGateDescriptor:
    """A gate with a channel to each of these TaskManagers."""
    return InputGateDescriptor(
        "source",
        "hash",
        tuple(
            InputChannelDescriptor(str(partition_id(number)), producer, ("host", 1), number)
            for number, producer in enumerate(producers)
        ),
    )


BUFFERS = {
    "taskmanager.network.memory.buffers-per-channel": "3",
    "taskmanager.network.memory.floating-buffers-per-gate": "5",
    "taskmanager.network.memory.max-buffers-per-channel": "7",
    "taskmanager.network.memory.max-overdraft-buffers-per-gate": "2",
}


UNSORTED = {SORT_MIN_PARALLELISM: str(MAX_INT)}
"""No blocking result is sorted: Flink's hash shuffle."""


@pytest.mark.parametrize(
    ("changes", "most"),
    [({}, 4 * 3 + 5), ({"bounded": False}, MAX_INT), ({"bounded": False, "blocking": True}, MAX_INT)],
    ids=["bounded", "unbounded", "blocking, not sorted"],
)
def test_F_151_only_the_pool_of_a_bounded_pipelined_partition_has_a_limit(
    changes: dict[str, bool], most: int
):
    """One buffer for each subpartition and one more are required. A blocking one frees its full buffers itself, so it needs none
    beyond its pool."""

    def check() -> None:
        made = environment(**BUFFERS, **UNSORTED).create_partition(replace(WANTED, **changes), Wakeup())
        assert (made.pool.required, made.pool.maximum) == (5, most)
        assert made.pool.max_overdraft == (0 if "blocking" in changes else 2)
        taken = [made.pool.request_segment(0) for _ in range(7)]
        assert None not in taken
        assert made.pool.is_available is ("blocking" in changes)  # max-buffers-per-channel

    inside(check)


@pytest.mark.parametrize(
    ("version", "subpartitions", "options", "pool"),
    [
        ("2.x", 4, {}, (512, 512)),
        ("1.15", 1, {}, (512, 512)),
        ("2.x", 200, {}, (512, 800)),
        ("1.14", 200, {}, (201, MAX_INT)),
        ("1.14", 200, {SORT_MIN_PARALLELISM: "200"}, (64, MAX_INT)),
        ("2.x", 4, {SORT_MIN_BUFFERS: "12"}, (12, 16)),
        ("1.20", 4, {SORT_MIN_PARALLELISM: "5"}, (5, MAX_INT)),
    ],
)
def test_a_blocking_result_is_sorted_from_flink_1_15_on(
    version: str, subpartitions: int, options: dict[str, str], pool: tuple[int, int]
):
    """It requires min-buffers, and uses at most 4 for each subpartition (NettyShuffleUtils). It never overdraws its pool."""

    def check() -> None:
        wanted = replace(WANTED, subpartitions=subpartitions, bounded=False, blocking=True)
        made = environment(version=version, **options).create_partition(wanted, Wakeup())
        assert (made.pool.required, made.pool.maximum, made.pool.max_overdraft) == (*pool, 0)

    inside(check)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({SORT_MIN_BUFFERS: "1"}, f"Too few sort buffers, please increase Key: '{SORT_MIN_BUFFERS}' , default: 512"),
        (
            {"taskmanager.memory.network.min": "16352 kb", "taskmanager.memory.network.max": "16352 kb"},
            "Insufficient number of network buffers: required 512, but only 511 available.",
        ),
    ],
)  # fmt: skip
def test_a_sorted_result_without_enough_buffers_fails_its_task(options: dict[str, str], text: str):
    """It does not make do with those that are free."""

    def check() -> None:
        made = environment(**options)
        with pytest.raises(FlinkError, match=text) as caught:
            made.create_partition(replace(WANTED, blocking=True), Wakeup())
        assert (caught.value.class_name, made.pool.required) == ("IOException", 0)

    inside(check)


def test_D_27_the_gates_and_results_of_a_task_require_what_flink_announces_for_them():
    """NettyShuffleUtilsTest: gates of 3 and 4 channels with 5 exclusive buffers each and 8 floating ones, a pipelined result of 5
    subpartitions, a blocking one of 6, and a sorted one of 10: 23 + 28 + 33 + 7 + 12 buffers."""

    async def check() -> None:
        options = {
            "taskmanager.network.memory.buffers-per-channel": "5",
            SORT_MIN_PARALLELISM: "8",
            SORT_MIN_BUFFERS: "12",
            **limited(103),
        }
        made = environment(**options)
        gates = [
            made.create_gate(replace(gate_of(*["tm-1-1"] * n), blocking=b), Wakeup(), lambda channel: None)
            for n, b in ((3, False), (4, True))
        ]
        for gate in gates:
            await made.set_up(gate)
        results = [
            made.create_partition(replace(WANTED, subpartitions=n, bounded=not b, blocking=b), Wakeup()).pool
            for n, b in ((5, False), (6, True), (10, True))
        ]
        largest = [gate.pool.maximum + len(gate.channels) * gate.exclusive for gate in gates]
        assert [*largest, results[0].maximum, *(pool.required for pool in results[1:])] == [23, 28, 33, 7, 12]

    inside(check)


def limited(segments: int) -> dict[str, str]:
    """The options of a TaskManager with so many buffers."""
    size = f"{32 * segments} kb"
    return {"taskmanager.memory.network.min": size, "taskmanager.memory.network.max": size}


RESULTS = ((2, False, False), (2, False, True), (2, True, False), (4, True, False))
"""The subpartitions of four results, whether they are bounded, and whether they are blocking."""


@pytest.mark.parametrize(("segments", "error"), [(18 + 10 * 2, ""), (10 + 10 * 2 - 1, "Insufficient number")])
def test_D_25_the_results_and_gates_of_a_task_need_what_they_require(segments: int, error: str):
    """14 buffers for four results and 4 for four gates, and 2 exclusive ones for each of ten channels."""

    async def check() -> None:
        made = environment(**limited(segments), **UNSORTED)
        assert made.pool.total == segments
        results = [
            made.create_partition(replace(WANTED, subpartitions=n, bounded=b, blocking=f), Wakeup())
            for n, b, f in RESULTS
        ]
        gates = [
            made.create_gate(
                replace(gate_of(*["tm-1-1"] * n), blocking=blocking), Wakeup(), lambda channel: None
            )
            for n, _, blocking in RESULTS
        ]
        for gate in gates:
            await made.set_up(gate)
        assert [(r.pool.required, r.pool.size) for r in results] == [(3, 3)] * 3 + [(5, 5)]
        assert [r.pool.maximum for r in results] == [MAX_INT, MAX_INT, 2 * 2 + 8, 4 * 2 + 8]
        assert [(g.pool.required, g.pool.maximum) for g in gates] == [(1, 8)] * 4

    if not error:
        inside(check)
        return
    with pytest.raises(FlinkError, match=error) as caught:
        inside(check)
    assert caught.value.class_name == "IOException"


@pytest.mark.parametrize(
    ("version", "blocking", "configured", "expected"),
    [
        ("2.x", True, "", (500, 508, 1)), ("2.x", False, "", (1, 8, 2)), ("1.16", True, "", (1, 8, 2)),
        ("1.17", True, "", (500, 508, 1)), ("2.x", False, "100", (100, 1008, 0)), ("1.16", False, "100", (1, 8, 2)),
        ("2.x", True, "2000", (1, 8, 2)),
    ],
)  # fmt: skip
def test_a_gate_requires_no_more_buffers_than_are_allowed_for_its_result(
    version: str, blocking: bool, configured: str, expected: tuple[int, int, int]
):
    """With 500 channels, 1001 are too many for a blocking result: from 1.17 on, the channels have fewer exclusive buffers, and the
    gate more floating ones."""

    def check() -> None:
        options = {REQUIRED_PER_GATE: configured} if configured else {}
        made = environment(version=version, **options)
        wanted = replace(gate_of(*["tm-1-1"] * 500), blocking=blocking)
        gate = made.create_gate(wanted, Wakeup(), lambda channel: None)
        assert (gate.pool.required, gate.pool.maximum, gate.exclusive) == expected

    inside(check)


@pytest.mark.parametrize("bounded", [True, False])
def test_a_subpartition_of_a_pipelined_partition_has_a_limit_of_its_own(bounded: bool):
    """max-buffers-per-channel, which ResultPartitionFactory gives to every pool; without it, one slow consumer may hold the whole pool."""

    def check() -> None:
        options = {**BUFFERS, "taskmanager.network.memory.floating-buffers-per-gate": "30"}
        made = environment(**options).create_partition(replace(WANTED, bounded=bounded), Wakeup())
        size = made.pool.segment_bytes
        sent = made.emit(0, bytes(size * 30))
        assert sent // size in (6, 7, 8)

    inside(check)


@pytest.mark.parametrize(("version", "passes"), [("2.x", True), ("2.2", False)])
def test_an_unaligned_barrier_passes_a_blocked_subpartition_from_flink_2_3_on(version: str, passes: bool):
    """Before, it waits until the consumer resumes."""

    def check() -> None:
        made = environment(version=version).create_partition(WANTED, Wakeup())
        assert {subpartition.priority_passes_block for subpartition in made.subpartitions} == {passes}

    inside(check)


@pytest.mark.parametrize(("version", "grows"), [("1.19", True), ("1.18", False)])
def test_the_last_buffer_of_a_partition_grows_from_flink_1_19_on(version: str, grows: bool):
    """Before, a task waits for another buffer in the middle of a record."""

    def check() -> None:
        made = environment(version=version).create_partition(WANTED, Wakeup())
        assert made.last_buffer_grows is grows

    inside(check)


@pytest.mark.parametrize(("version", "fit"), [("1.15", True), ("1.14", False)])
def test_a_debloated_buffer_has_room_for_its_first_record_from_flink_1_15_on(version: str, fit: bool):
    """Before, it has the size that its reader asks for."""

    def check() -> None:
        made = environment(version=version).create_partition(WANTED, Wakeup())
        assert made.buffers_fit_records is fit

    inside(check)


@pytest.mark.parametrize(("version", "limits"), [("1.16", False), ("1.15", True)])
def test_a_subpartition_at_its_limit_gets_no_buffer_until_flink_1_15(version: str, limits: bool):
    """Later, the limit only makes the pool unavailable."""

    def check() -> None:
        made = environment(version=version).create_partition(WANTED, Wakeup())
        assert made.pool.limits_requests is limits

    inside(check)


def test_the_buffers_of_a_debloated_partition_begin_small():
    """Without debloating, readers ask for no size. The buffers of a blocking one are full: it has no readers yet."""

    def sizes(*, blocking: bool = False, **options: str) -> set[int]:
        made = environment(**options).create_partition(replace(WANTED, blocking=blocking), Wakeup())
        return {subpartition.buffer_size for subpartition in made.subpartitions}

    def check() -> None:
        on = {
            "taskmanager.network.memory.buffer-debloat.enabled": "true",
            "taskmanager.memory.starting-segment-size": "2 kb",
        }
        assert sizes(**on) == {2048}
        assert sizes() == sizes(blocking=True, **on) == {MAX_INT}

    inside(check)


def test_a_blocking_result_whose_file_cannot_be_opened_is_named():
    """Nothing is taken from the pool."""

    def broken() -> IO[bytes]:
        raise OSError("no space left on device")

    def check() -> None:
        made = environment(open_file=broken)
        with pytest.raises(
            FlinkError, match="The file of a blocking result cannot be opened: no space"
        ) as caught:
            made.create_partition(replace(WANTED, blocking=True), Wakeup())
        assert (caught.value.class_name, made.pool.required) == ("IOException", 0)
        assert not made.create_partition(WANTED, Wakeup()).is_released

    inside(check)


def test_a_channel_is_local_if_its_producer_is_on_this_incarnation_of_the_taskmanager():
    """The receivers of remote channels differ, and name the TaskManager."""

    def check() -> None:
        made = environment(**BUFFERS)
        gate = made.create_gate(gate_of("tm-0-1", "tm-1-1", "tm-0-2"), Wakeup(), lambda channel: None)
        kinds = [type(channel) for channel in gate.channels]
        assert kinds == [LocalInputChannel, RemoteInputChannel, RemoteInputChannel]
        assert [channel.partition for channel in gate.channels] == [partition_id(n) for n in range(3)]
        receivers = {c.receiver for c in gate.channels if isinstance(c, RemoteInputChannel)}
        assert len(receivers) == 2
        assert (gate.pool.required, gate.pool.maximum, gate.exclusive) == (1, 5, 3)

    inside(check)


@pytest.mark.parametrize(
    ("version", "per_channel", "producer", "refused"),
    [
        ("1.12", "0", "tm-1-1", True), ("1.12", "0", "tm-0-1", False), ("1.12", "2", "tm-1-1", False),
        ("2.x", "0", "tm-1-1", False),
    ],
)  # fmt: skip
def test_a_remote_channel_needs_exclusive_buffers_before_flink_1_14(
    version: str, per_channel: str, producer: str, refused: bool
):
    """Local channels need none in any version."""

    async def check() -> None:
        made = environment(
            version=version, **{**BUFFERS, "taskmanager.network.memory.buffers-per-channel": per_channel}
        )
        gate = made.create_gate(gate_of(producer), Wakeup(), lambda channel: None)
        if not refused:
            await made.set_up(gate)
            return
        with pytest.raises(FlinkError, match="larger than 0") as caught:
            await made.set_up(gate)
        assert caught.value.class_name == "IllegalArgumentException"

    inside(check)


def test_a_gate_waits_for_its_exclusive_buffers_and_no_longer_than_the_timeout():
    """Buffers that another task returns in time are enough."""

    async def seconds(returns_s: float) -> float:
        made = environment(
            **BUFFERS
            | {
                "taskmanager.network.memory.max-buffers-per-channel": "8",
                "taskmanager.network.memory.buffers-request-timeout": "2 s",
                "taskmanager.memory.network.min": "320 kb",
                "taskmanager.memory.network.max": "320 kb",
                "taskmanager.memory.segment-size": "32 kb",
            },
        )
        loop = asyncio.get_running_loop()
        held = made.create_partition(replace(WANTED, subpartitions=1, bounded=False), Wakeup())
        assert held.emit(0, bytes(8 << 15)) == 8 << 15
        loop.call_later(returns_s, held.release)
        began = loop.time()
        gate = made.create_gate(gate_of("tm-1-1"), Wakeup(), lambda channel: None)
        try:
            await made.set_up(gate)
        except FlinkError:
            return -(loop.time() - began)
        return loop.time() - began

    assert inside(lambda: seconds(1.0)) == pytest.approx(1.0)
    assert inside(lambda: seconds(3.0)) == pytest.approx(-2.0)


def test_the_registration_hook_sees_the_requests_that_find_nothing():
    """Those of remote and of local consumers, each once, while it is active."""

    class Hook:
        def __init__(self, *, active: bool) -> None:
            self.active, self.seen = active, list[str]()

        async def before_registration(self, vertex: str, partition: str) -> None:
            """Nothing is held up."""

        def request_seen(self, partition: str) -> None:
            self.seen.append(partition)

    def check() -> None:
        for active in (True, False):
            hook = Hook(active=active)
            made = environment(interception=Interception(registration=hook))
            assert made.manager.get(partition_id()) is None
            with pytest.raises(FlinkError):
                made.manager.create_view(partition_id(), 0, lambda: None)
            assert hook.seen == [str(partition_id())] * (2 if active else 0)
            made.register(made.create_partition(WANTED, Wakeup()))
            assert made.manager.get(partition_id()) is not None
            made.manager.create_view(partition_id(), 0, lambda: None)
            assert len(hook.seen) == (2 if active else 0)

    inside(check)


def test_a_partition_that_is_released_is_gone_and_its_buffers_are_free():
    """Also one that was never registered. The history gets the number of the buffers in use."""

    def check() -> None:
        made = environment()
        for registered in (True, False):
            partition = made.create_partition(WANTED, Wakeup())
            partition.emit(0, b"x")
            if registered:
                made.register(partition)
            assert made.segments_in_use == made.segments()["used"] > 0
            cause = FlinkError("Exception", "failed")
            made.release(partition, cause)
            assert (partition.is_released, partition.failure_cause) == (True, cause)
            assert made.manager.get(partition_id()) is None
            assert made.segments() == {"total": made.pool.total, "used": 0}
        assert made.sockets() == []

    inside(check)


def test_a_partition_is_released_when_its_reader_has_left_and_wakes_its_task_when_all_is_processed():
    """After its task has closed it."""

    async def check() -> None:
        made, wakeup = environment(), Wakeup()
        partition = made.create_partition(replace(WANTED, subpartitions=1), wakeup)
        made.register(partition)
        view = made.manager.create_view(partition_id(), 0, lambda: None)
        partition.notify_end_of_data()
        view.acknowledge_all_data_processed()
        await asyncio.wait_for(wakeup.wait(), 1.0)
        view.release()
        assert made.manager.get(partition_id()) is partition
        partition.close()
        assert made.manager.get(partition_id()) is None

    inside(check)
