"""Tables of the core's small functions, with each answer in full."""

from __future__ import annotations

import pytest

from testbed_runtime.core import values
from testbed_runtime.core.errors import UserError, first_line
from testbed_runtime.core.exchange import backpressure, frames, records, sizing, tls
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.faults.links import (
    any_matches,
    channel_id,
    flow_matches,
    flows_of,
    link,
    logical_name,
    owner_of,
    owners_of,
    split_link,
)
from testbed_runtime.core.faults.retransmission import connects_at, resumes_at
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.ids import InputChannelID, TaskManagerID, is_task_manager, ordinal_of, role_of
from testbed_runtime.core.job import checkpoints, keygroups, leaderelection, restart, statememory
from testbed_runtime.core.job.functions import FunctionReference, is_in_cluster
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex
from testbed_runtime.core.job.limits import replacement_limit
from testbed_runtime.core.job.messages import JobStatusReply
from testbed_runtime.core.job.restart import TYPE, restart_limit
from testbed_runtime.core.job.restore import has_same_exchanges
from testbed_runtime.core.options import Options, equal_values
from testbed_runtime.core.trial.sampling import Sampling, sampling_of
from testbed_runtime.core.waits import Limit, Outcome, ended_by


def test_the_types_of_a_buffer_have_flinks_properties() -> None:
    """Buffer.DataType: the data, the events without a property, those with priority, and those that block their channel."""
    data = {DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END}
    timeoutable = {DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER}
    blocking = {
        DataType.ALIGNED_CHECKPOINT_BARRIER,
        DataType.RECOVERY_COMPLETION,
        DataType.ALIGNED_WATERMARK_EVENT,
    }
    for one in DataType:
        assert one.is_buffer is (one in data)
        assert one.is_event is (one not in data | {DataType.NONE})
        assert one.has_priority is (one is DataType.PRIORITIZED_EVENT_BUFFER)
        assert one.requires_announcement is (one in timeoutable)
        assert one.is_blocking_upstream is (one in timeoutable | blocking)


@pytest.mark.parametrize(
    ("subtasks", "sample_s", "every", "channels_s"),
    [
        (1, 0.1, 1, 0.1),
        (128, 0.1, 1, 0.1),
        (129, 0.2, 2, 0.4),
        (256, 0.2, 2, 0.4),
        (257, 0.5, 3, 1.5),
        (641, 1.0, 6, 6.0),
        (1280, 1.0, 10, 10.0),
        (2560, 2.0, 20, 40.0),
        (4330, 2.0, 34, 68.0),
    ],
)
def test_a_large_job_is_sampled_more_rarely(
    subtasks: int, sample_s: float, every: int, channels_s: float
) -> None:
    """Up to 128 subtasks as in real processes, then in steps up to 2 s. Channels once for each 128 subtasks that have begun."""
    assert sampling_of(subtasks) == Sampling(sample_s, every)
    assert sampling_of(subtasks).channels_s == channels_s


def test_lost_bytes_and_handshakes_are_repeated_at_linuxs_times() -> None:
    """Two equal timeouts of 0.21 s before they double, and five of 1 s for a handshake. Bytes that were sent when all passes again
    are not late."""
    sent = [resumes_at(0.0, ends) for ends in (0.0, 0.2, 0.22, 0.43, 0.85, 1.7, 3.4)]
    assert sent == pytest.approx([0.0, 0.21, 0.42, 0.84, 1.68, 3.36, 6.72])
    assert [connects_at(7.0, 7.0 + ends) for ends in range(0, 21, 2)] == [
        7,
        9,
        11,
        14,
        18,
        18,
        26,
        26,
        26,
        26,
        42,
    ]
    assert [connects_at(0.0, float(ends)) for ends in (1, 5, 7)] == [1.0, 5.0, 7.0]


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("/a/f.py:count", FunctionReference("/a/f.py", "count")),
        ("f.py", None),
        ("f.py:two words", None),
        (
            "configmap://my-map/f.py:count",
            FunctionReference("/etc/headgate/functions/my-map/f.py", "count", "my-map"),
        ),
        ("configmap://my-map/f.txt:count", None),
        ("configmap://-map/f.py:count", None),
        ("configmap://m/f.py:count", FunctionReference("/etc/headgate/functions/m/f.py", "count", "m")),
    ],
)
def test_a_reference_to_a_function_has_its_parts(text: str, reference: FunctionReference | None) -> None:
    """A path, or a ConfigMap and a key of it."""
    assert FunctionReference.parse(text) == reference
    assert is_in_cluster(text) is text.startswith("configmap://")


@pytest.mark.parametrize(
    ("name", "taskmanager", "role"), [("tm-12", True, "taskmanager"), ("jobmanager", False, "jobmanager")]
)
def test_a_process_is_a_taskmanager_by_its_name(name: str, taskmanager: bool, role: str) -> None:
    """All others are named after their role, and have no ordinal."""
    assert (is_task_manager(name), role_of(name)) == (taskmanager, role)
    if taskmanager:
        assert ordinal_of(name) == 12
    else:
        with pytest.raises(
            ValueError, match="'jobmanager' is not the name of a TaskManager: write tm-<ordinal>"
        ):
            ordinal_of(name)
    assert TaskManagerID.parse("tm-3-14") == TaskManagerID(3, 14)


def test_links_name_their_ends_without_the_incarnations() -> None:
    """Only the name of a TaskManager with its incarnation has three parts, two of them numbers."""
    assert split_link(link("tm-0-1", "jobmanager")) == ("tm-0", "jobmanager")
    names = ("tm-0-1", "tm-0", "tm-0-x", "tm-x-1", "a-b-c-1-2", "jobmanager")
    assert [logical_name(name) for name in names] == ["tm-0", *names[1:]]
    assert owners_of(["tm-1-1", "tm-0->tm-2", "tm-0-3"]) == ("tm-1", "tm-0")


@pytest.mark.parametrize(
    ("direction", "flows"),
    [
        ("from", (("tm-0", "*"), ("tm-1", "tm-2"))),
        ("to", (("*", "tm-0"), ("tm-2", "tm-1"))),
        ("both", (("tm-0", "*"), ("*", "tm-0"), ("tm-1", "tm-2"), ("tm-2", "tm-1"))),
    ],
)
def test_the_flows_of_a_fault_follow_its_direction(
    direction: str, flows: tuple[tuple[str, str], ...]
) -> None:
    """A process and a link, each named twice. `*` stands for every process."""
    assert flows_of(["tm-0-1", "tm-0", "tm-1->tm-2", "tm-1-7->tm-2"], direction) == flows
    with pytest.raises(UserError, match=r"'up' is not a direction \(write to, from or both\)"):
        flows_of([], "up")


def test_a_flow_matches_its_own_direction_only() -> None:
    """Each end is a name or `*`."""
    flows = (("tm-0", "tm-1"), ("*", "tm-1"), ("tm-0", "*"), ("*", "*"))
    assert [flow_matches(flow, "tm-0", "tm-1") for flow in flows] == [True] * 4
    assert [flow_matches(flow, "tm-1", "tm-0") for flow in flows] == [False, False, False, True]
    assert [any_matches(flows[:count], "tm-2", "tm-1") for count in (1, 2)] == [False, True]


def test_a_channels_id_names_its_owner() -> None:
    """An ordinal of two bytes. An id that Flink chose names none."""
    found = channel_id(258, bytes(range(20)))
    assert found == b"HG\x01\x02" + bytes(range(12))
    assert [owner_of(one) for one in (found, channel_id(2**16 + 5, bytes(12)), InputChannelID(bytes(16)))] == ["tm-258", "tm-5", ""]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "one", "other", "equal"),
    [
        ("heartbeat.timeout", "60 s", "1 min", True),
        ("heartbeat.timeout", "60 s", "61 s", False),
        ("akka.ask.timeout", "1000 ms", "1 s", True),
        ("heartbeat.timeout", "soon", "soon", True),
        ("heartbeat.timeout", "soon", "1 s", False),
        ("unknown.key", "1 s", "1000 ms", False),
        ("unknown.key", "1 s", "1 s", True),
    ],
)
def test_values_are_equal_if_they_mean_the_same(key: str, one: str, other: str, equal: bool) -> None:
    """Those of an option without a type, and those that cannot be read, are compared as text."""
    assert equal_values(key, one, other) is equal
    assert equal_values(key, other, one) is equal


def test_values_replace_those_of_a_configuration_and_defaults_do_not() -> None:
    """A batch job has no checkpoints; any other job keeps all options."""
    interval = "execution.checkpointing.interval"
    options = Options({interval: "3 s", "heartbeat.timeout": "9 s"}, flink_version="1.17")
    assert options.with_values({interval: "4 s"}).duration(interval) == 4.0
    filled = options.with_defaults({interval: "5 s", "heartbeat.interval": "1 s"})
    assert (filled.duration(interval), filled.duration("heartbeat.interval")) == (3.0, 1.0)
    batch, job = options.of_job(batch=True), options.of_job(batch=False)
    assert (batch.as_map(), job.as_map()) == ({"heartbeat.timeout": "9 s"}, options.as_map())
    assert {one.flink_version for one in (filled, batch, job)} == {"1.17"}


def test_groups_keep_the_order_of_their_pairs() -> None:
    """Keys in the order of their first values."""
    found = grouped([("b", 1), ("a", 2), ("b", 3)])
    assert list(found.items()) == [("b", [1, 3]), ("a", [2])]


@pytest.mark.parametrize(
    ("text", "line"), [("\n  one \ntwo", "one"), ("", "ValueError"), (" \n ", "ValueError")]
)
def test_an_error_has_a_first_line(text: str, line: str) -> None:
    """The name of its class if it has no text."""
    assert first_line(ValueError(text)) == line


def test_finished_tasks_count_as_running() -> None:
    """A job that is ending has lost none."""
    states = ("RUNNING", "FINISHED", "FAILED", "RUNNING", "CREATED")
    status = JobStatusReply(state="RUNNING", tasks={f"v-{i}": state for i, state in enumerate(states)})
    assert (status.running_tasks, status.total_tasks) == (3, 5)


@pytest.mark.parametrize(
    ("values", "version", "limit"),
    [
        ({}, "2.x", "restart-strategy.type = none"),
        ({"execution.checkpointing.interval": "1 s"}, "1.18", ""),
        ({TYPE: "fixed-delay", "restart-strategy.fixed-delay.attempts": "4"}, "2.x", "restart-strategy.fixed-delay.attempts = 4"),
        ({TYPE: "failure-rate"}, "2.x", "restart-strategy.failure-rate.max-failures-per-interval = 1"),
        ({TYPE: "exponential-delay"}, "1.18", ""),
    ],
)  # fmt: skip
def test_the_limit_of_restarts_is_an_option_with_its_value(
    values: dict[str, str], version: str, limit: str
) -> None:
    """Empty if the number of restarts is unlimited."""
    assert restart_limit(Options(values, flink_version=version)) == limit


def test_a_replacement_is_limited_by_the_document() -> None:
    """`replaceLost` is no option of Flink."""
    assert replacement_limit(2.5) == Limit("replaceLost", "2.5 s", 2.5)


def test_only_a_wait_that_ended_by_its_option_belongs_to_it() -> None:
    """The others have a margin. A cancellation may end with a heartbeat timeout, any other wait with its own kind."""
    assert {one for one in Outcome if one.belongs_to_option} == {Outcome.EXPIRED, Outcome.FIRED}
    assert [ended_by(kind) for kind in ("cancellation", "slot", "unknown")] == [
        "heartbeat",
        "slot",
        "unknown",
    ]


def test_channels_are_counted_over_all_edges() -> None:
    """Three producers for each of four consumers, and one for each in a forward exchange."""
    vertices = tuple(JobVertex(name, count, 128) for name, count in (("a", 3), ("b", 4), ("c", 4)))
    graph = JobGraph("j", vertices, (JobEdge("a", "b"), JobEdge("b", "c", "forward")))
    assert graph.channels == 16
    fewer = JobGraph("j", (vertices[0], JobVertex("b", 2, 128), vertices[2]), graph.edges)
    assert has_same_exchanges(graph, graph)
    assert not has_same_exchanges(graph, fewer)
    assert not has_same_exchanges(graph, JobGraph("j", vertices, graph.edges[:1]))


@pytest.mark.parametrize(
    ("value", "in_flink"),
    [
        pytest.param(backpressure.LOW_RATIO, 0.1, id="JobVertexBackPressureHandler.getBackPressureLevel, LOW"),
        pytest.param(backpressure.HIGH_RATIO, 0.5, id="JobVertexBackPressureHandler.getBackPressureLevel, HIGH"),
        pytest.param(checkpoints.MINIMAL_TIME_S, 0.01, id="CheckpointCoordinatorConfiguration.MINIMAL_CHECKPOINT_TIME"),
        pytest.param(checkpoints.MAX_QUEUED_REQUESTS, 1000, id="CheckpointRequestDecider.DEFAULT_MAX_QUEUED_REQUESTS"),
        pytest.param(checkpoints.MAX_MIN_PAUSE_S, 31_536_000.0, id="CheckpointCoordinator, max time between checkpoints"),
        pytest.param(frames.MAGIC, 0xBADC0FFE, id="NettyMessage.MAGIC_NUMBER"),
        pytest.param(frames.FRAME_HEADER_BYTES, 9, id="NettyMessage.FRAME_HEADER_LENGTH"),
        pytest.param(keygroups.LOWER_BOUND_MAX_PARALLELISM, 128, id="KeyGroupRangeAssignment.DEFAULT_LOWER_BOUND_MAX_PARALLELISM"),
        pytest.param(keygroups.UPPER_BOUND_MAX_PARALLELISM, 32_768, id="KeyGroupRangeAssignment.UPPER_BOUND_MAX_PARALLELISM"),
        pytest.param(leaderelection.JITTER_FACTOR, 1.2, id="LeaderElector.JITTER_FACTOR of fabric8"),
        pytest.param(records.SPILL_BYTES, 5_242_880, id="SpanningWrapper.DEFAULT_THRESHOLD_FOR_SPILLING"),
        pytest.param(restart.UNSET_DELAY_S, 1.0, id="delay of Flink without a strategy, until 1.18"),
        pytest.param(sizing.MAX_REQUIRED_BATCH, 1000, id="InputGateSpecUtils.DEFAULT_MAX_REQUIRED_BUFFERS_PER_GATE_FOR_BATCH"),
        pytest.param(statememory.UNMANAGED_CACHE, 8_388_608, id="block cache of RocksDB"),
        pytest.param(statememory.UNMANAGED_WRITE_BUFFER, 67_108_864, id="write buffer of RocksDB"),
        pytest.param(tls.DEFAULT_HANDSHAKE_S, 10.0, id="SslHandler.handshakeTimeoutMillis of Netty"),
        pytest.param(values.MAX_INT, 2_147_483_647, id="Integer.MAX_VALUE"),
        pytest.param(values.MAX_LONG, 9_223_372_036_854_775_807, id="Long.MAX_VALUE"),
    ],
)  # fmt: skip
def test_a_constant_has_the_value_that_it_has_in_flink(value: float, in_flink: float) -> None:
    """Other tests use the constants, so that they would follow a wrong value."""
    assert value == in_flink
