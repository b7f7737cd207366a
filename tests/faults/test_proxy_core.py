"""The shaper of one direction, with time given by hand."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.faults.backend import Rule
from testbed_runtime.faults.proxy.shaper import CLEAR, HOLD_MAX_BYTES, End, FlowShaper, Shape, shape_of


def shaper(**shape) -> FlowShaper:
    made = FlowShaper(Random(7))
    made.shape = Shape(**shape)
    return made


def joined(pieces) -> bytes:
    return b"".join(bytes(p) for p in pieces if not isinstance(p, End))


def test_latency_holds_each_piece_for_as_long_after_it_arrived():
    """Not after the one before it."""
    flow = shaper(latency_s=0.1)
    flow.push(b"a", 10.0)
    flow.push(b"b", 10.05)
    assert flow.next_time() == pytest.approx(10.1)
    assert flow.pull(10.099) == []
    assert flow.pull(10.1) == [b"a"]
    assert flow.pull(10.149) == []
    assert flow.pull(10.151) == [b"b"]
    assert not flow.held_bytes


def test_jitter_never_changes_the_order():
    """A piece with a short delay waits for the one before it."""
    flow = shaper(latency_s=0.1, jitter_s=0.1)
    sent = [bytes([i]) for i in range(100)]
    for i, piece in enumerate(sent):
        flow.push(piece, 10.0 + i * 0.001)
    got = []
    now = 10.0
    while flow.held_bytes:
        now = flow.next_time()
        got += flow.pull(now)
    assert got == sent
    assert now <= 10.0 + 0.1 + 0.2 + 1e-9


def test_the_end_of_the_stream_follows_its_bytes():
    """Orderly or reset."""
    flow = shaper(latency_s=0.1)
    flow.push(b"last words", 10.0)
    flow.end(End.RESET, 10.0)
    assert flow.pull(10.2) == [b"last words", End.RESET]


@pytest.mark.parametrize(("kind", "arrives"), [("blocked", 13.36), ("stalled", 12.0)])
def test_a_partition_and_a_stall_let_nothing_pass_until_they_end(kind, arrives):
    """Then everything, in order: at once, or when TCP sends again what was lost first."""
    flow = shaper(**{kind: True})
    flow.push(b"a", 10.0)
    flow.push(b"b", 11.0)
    assert flow.next_time() is None
    assert flow.pull(1e9) == []
    flow.reshape(CLEAR, 12.0)
    assert max(12.0, flow.next_time()) == pytest.approx(arrives)
    flow.push(b"c", 12.1)
    assert flow.pull(arrives + 0.2) == [b"a", b"b", b"c"]


def test_a_partition_stops_reading_and_a_stall_reads_on_up_to_its_limit():
    """Bytes of a partition stay in the sender's socket, except those that show when the first of them was sent."""
    lost = shaper(blocked=True)
    assert lost.wants_more
    lost.push(b"a", 10.0)
    assert not lost.wants_more
    flow = shaper(stalled=True)
    assert flow.wants_more
    flow.push(bytes(HOLD_MAX_BYTES), 10.0)
    assert not flow.wants_more


def test_a_ceiling_spreads_the_bytes_evenly():
    """100 kB at 1 MB/s take 0.1 s, half of them half of it."""
    flow = shaper(bytes_per_s=1_000_000)
    flow.push(bytes(100_000), 10.0)
    assert len(joined(flow.pull(10.05))) == pytest.approx(50_000, abs=6_000)
    assert len(joined(flow.pull(10.1 + 1e-9))) == pytest.approx(50_000, abs=6_000)
    assert not flow.held_bytes


def test_half_open_swallows():
    """Nothing is held, and nothing comes out later."""
    flow = shaper(void=True)
    flow.push(b"hello", 1.0)
    assert not flow.held_bytes
    assert flow.pull(2.0) == []


def test_a_lower_latency_counts_for_what_is_already_held():
    """Healing lets go at once."""
    flow = shaper(latency_s=10)
    flow.push(b"a", 10.0)
    flow.reshape(Shape(latency_s=0.5), 10.0)
    assert flow.next_time() == pytest.approx(10.5)
    flow.reshape(CLEAR, 10.0)
    assert flow.pull(10.0) == [b"a"]


def test_rules_add_up():
    """Latencies are added, the lowest ceiling counts, only rules of this flow and plane do."""

    def rule(kind="network.latency", flows=(("a", "*"),), planes=("data",), **values):
        return Rule(rule_id="r", kind=kind, deadline=1.0, flows=flows, planes=planes, params=values)

    rules = [
        rule(latency_s=0.1),
        rule(latency_s=0.2, jitter_s=0.1),
        rule(latency_s=5, planes=("rpc",)),
        rule(latency_s=5, flows=(("b", "*"),)),
        rule("network.bandwidth", bytes_per_s=5.0),
        rule("network.bandwidth", bytes_per_s=3.0),
        rule("network.stall", flows=(("*", "b"),)),
    ]
    shape = shape_of(rules, "a", "b", "data")
    assert shape.latency_s == pytest.approx(0.3)
    assert (shape.bytes_per_s, shape.stalled, shape.blocked) == (3.0, True, False)


shapes = st.builds(
    Shape,
    latency_s=st.floats(0, 2),
    jitter_s=st.floats(0, 1),
    bytes_per_s=st.sampled_from([0.0, 1_000.0, 1e6]),
    blocked=st.booleans(),
    stalled=st.booleans(),
)


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=2_000), shapes, st.floats(0.0, 3.0)), max_size=40))
def test_whatever_happens_the_bytes_come_out_in_order_and_whole(steps):
    """Any mix of bytes, changes of shape and passing time; at the end it is healed."""
    flow = FlowShaper(Random(1))
    now, sent, got = 100.0, b"", b""
    for step in steps:
        if isinstance(step, bytes):
            flow.push(step, now)
            sent += step
        elif isinstance(step, Shape):
            flow.reshape(step, now)
        else:
            now += step
        got += joined(flow.pull(now))
        assert flow.held_bytes == len(sent) - len(got)
    flow.reshape(CLEAR, now)
    flow.end(End.EOF, now)
    rest = flow.pull(max(now, flow.next_time()))
    assert got + joined(rest) == sent
    assert rest[-1] is End.EOF
