"""Pools of gates and partitions: the largest gate, the shares of scarce memory, the usage."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed_runtime.checking.common import Window, events
from testbed_runtime.checking.metrics import trial_metrics
from testbed_runtime.checking.pools import NetworkPool, deviation, largest_gates, network_pools, usage
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.values import MAX_INT
from testbed_runtime.taskmanager.sampler import pools_of


def pool(side: str, task: str, peer: str, **more: int) -> dict[str, Any]:
    """A pool of 1 to 8 buffers."""
    return {"side": side, "task": task, "peer": peer, "required": 1, "most": 8, "size": 3, **more}


def gate(task: str, *, channels: int, size: int = 3, **more: int) -> dict[str, Any]:
    return pool("in", task, "source", channels=channels, exclusive=2, size=size, **more)


def recorded(history: Any, *samples: list[dict[str, Any]], free: int = 4, others: int = 0) -> Any:
    """A trial with these samples, one a second from 3 s on."""
    built = history.empty()
    for t, pools in enumerate(samples, start=3):
        built.event(
            "network.pools", "tm-0-1", float(t), data={"pools": pools, "free": free, "others": others}
        )
    return built.trial()


def test_a_gate_is_its_exclusive_and_its_floating_buffers(history: Any):
    """The largest of each exchange, at any time."""
    first = [gate("count-0", channels=4), gate("count-1", channels=6, size=1)]
    trial = recorded(history, first, [gate("count-0", channels=4, size=8)])
    assert largest_gates(trial, 1 << 62) == {"count ← source": (4, 2, 8)}
    rows = {r.metric: r for r in trial_metrics(trial, history.entry())}
    assert (rows["buffers.gate"].value, rows["buffers.gate"].text) == (16, "count ← source 4 × 2 + 8")


def test_two_pools_of_the_same_need_share_what_is_there(history: Any):
    """4 buffers beyond the required ones: 2 for each. 3 and 1 are one off; with an unlisted pool nothing is known."""
    equal = [gate("count-0", channels=1, size=3), gate("count-1", channels=1, size=3)]
    unequal = [gate("count-0", channels=1, size=4), gate("count-1", channels=1, size=2)]
    assert deviation(recorded(history, equal)) == 0
    assert deviation(recorded(history, equal, unequal)) == 1
    assert deviation(recorded(history, unequal, others=1)) is None


def test_a_pool_that_may_not_grow_has_no_share(history: Any):
    """Nor does one without any buffers count as one without a limit."""
    none = gate("count-0", channels=1, size=0, required=0, most=0)
    assert deviation(recorded(history, [none, gate("count-1", channels=1, size=5, most=-1)])) == 0


class _Task:
    """A task without gates, as far as pools_of reads it."""

    def __init__(self, name: str, pools: list[Any]) -> None:
        named = type("Descriptor", (), {"gates": (), "partitions": [type("P", (), {"target_vertex": "x"})] * len(pools)})  # fmt: skip
        self.name = name
        self.descriptor = named
        self.input = type("Input", (), {"gates": ()})
        self.partitions = [type("Partition", (), {"pool": p, "is_released": False}) for p in pools]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12) | st.none()), min_size=1, max_size=12),
    spare=st.integers(0, 100),
)
def test_the_network_pool_never_misses_a_share_by_a_buffer(history: Any, sizes, spare: int):
    """Any pools, with or without a limit, with any memory that is enough to start."""
    network = NetworkBufferPool(sum(required for required, _ in sizes) + spare, 32)
    for required, more in sizes:
        network.create_buffer_pool(required, MAX_INT if more is None else required + more)
    found = pools_of([_Task("a-0", list(network.pools))], network, usage=True)  # type: ignore[list-item]
    assert found["others"] == 0
    assert (deviation(recorded(history, found["pools"], free=found["free"])) or 0) < 1


def test_usage_is_the_share_of_all_buffers_of_a_gate_or_partition(history: Any):
    """A gate of 2 × 2 + 4 with 3 and 1 in use; a partition that is overdrawn; before the window 100 %."""
    one = [
        gate("count-0", channels=2, size=4, used=3, used_exclusive=1),
        pool("out", "count-0", "sink", size=4, used=5),
    ]
    trial = recorded(history, [gate("count-0", channels=0, size=1, used=1)], one)
    second = events(trial, "network.pools")[1]["t_ns"]
    window = Window(second, second + 1)
    assert (usage(trial, "in", window).value, usage(trial, "in", window).text) == (0.5, "count ← source 50%")
    assert (usage(trial, "out", window).value, usage(trial, "out", window).text) == (
        1.25,
        "count → sink 125%",
    )
    assert usage(trial, "in", None).value is None
    assert usage(recorded(history, [gate("count-0", channels=1)] * 2), "in", window).value is None


def test_a_pool_that_does_not_change_keeps_its_usage_in_later_windows(history: Any):
    """A full pool is recorded once, when it became full: it is full in every window after that."""
    trial = recorded(history, [gate("count-0", channels=2, size=4, used=4, used_exclusive=4)])
    (event,) = events(trial, "network.pools")
    later = Window(event["t_ns"] + 10, event["t_ns"] + 20)
    assert usage(trial, "in", later).value == 1.0


def test_the_share_of_a_network_pool_lasts_until_the_next_sample():
    """Only the last one before a window counts in it, and what is sampled within it."""
    pool = NetworkPool("tm-0-1", [(1, 0.9), (2, 0.3), (6, 0.5)])
    assert [pool.largest_share(Window(*span)) for span in ((3, 5), (3, 7), (0, 1))] == [0.3, 0.5, None]


def test_buffers_count_as_exclusive_only_where_they_are(history: Any):
    """A partition has channels and no exclusive buffers: 2 of 4. A gate of 2 channels with 2 each: 5 of 8."""
    out = pool("out", "source-0", "count", size=4, used=2, channels=3)
    gated = gate("count-0", channels=2, size=4, used=1, used_exclusive=4)
    trial = recorded(history, [out, gated])
    window = Window(history.at(3), history.at(4))
    assert usage(trial, "out", window).value == 0.5
    assert usage(trial, "in", window).value == 5 / 8


def test_gates_count_until_the_job_ends(history: Any):
    """The buffers that a gate gets when other tasks end say nothing of the job. Equal exchanges keep their largest gate."""
    first = [gate("count-0", channels=4), gate("count-1", channels=1, size=12), gate("sink-0", channels=1)]
    trial = recorded(history, first, [gate("count-0", channels=4, size=80)])
    assert largest_gates(trial, history.at(4)) == {"count ← source": (1, 2, 12), "sink ← source": (1, 2, 3)}
    outgoing = recorded(history, [pool("out", "count-0", "sink", channels=9, exclusive=9)])
    assert largest_gates(outgoing, history.at(4)) == {}


SHARES = [
    ("two of equal need take all of it", 4, [(1, 8, 3), (1, 8, 3)], 0.0),
    ("one took all", 4, [(1, 8, 5), (1, 8, 1)], 2.0),
    ("more is free than they may take", 10, [(1, 3, 3), (1, 3, 3)], 0.0),
    ("one of them did not take it", 10, [(1, 3, 3), (1, 3, 1)], 2.0),
    ("one may grow by half as much as what is free", 4, [(1, -1, 4), (1, 3, 2)], 1 / 3),
    ("nothing is free", 0, [(1, 8, 1), (2, 8, 2)], 0.0),
    ("none may grow", 4, [(1, 1, 1), (2, 2, 3)], 1.0),
]


@pytest.mark.parametrize(("case", "free", "pools", "expected"), SHARES)
def test_a_pool_has_its_share_of_what_is_free(
    history: Any, case: str, free: int, pools: list[tuple[int, int, int]], expected: float
):
    """Each gets as much as its room is of all room. `most` is −1 without a limit: then the room is all that is free."""
    listed = [gate("a-0", channels=1, required=r, most=m, size=s) for r, m, s in pools]
    assert deviation(recorded(history, listed, free=free)) == pytest.approx(expected), case


def test_the_usage_of_an_exchange_is_its_fullest_pool(history: Any):
    """A pool that does not say how much it uses has none, and neither has one without buffers."""
    first = [gate("a-0", channels=0, size=4, used=3), gate("a-1", channels=0, size=4, used=1), gate("b-0", channels=0, size=8, used=1),
             gate("c-0", channels=0, size=0, used=1), gate("d-0", channels=1, size=1)]  # fmt: skip
    found = usage(recorded(history, first), "in", Window(history.at(3), history.at(4)))
    assert (found.value, found.text) == (0.75, "a ← source 75%; b ← source 12%")


def test_a_network_pool_is_read_from_its_samples_and_its_end(history: Any):
    """Pools are ordered by name. A sample without a total is none, and what did not return at the end is a leak."""
    built = history.empty()
    for t, name, more in (
        (1, "tm-1-1", {"total": 8, "used": 2}), (2, "tm-0-1", {"total": 0, "used": 0}), (3, "tm-1-1", {"total": 8, "used": 4}),
        (4, "tm-1-1", {"leaked": 0}),
    ):  # fmt: skip
        built.event("network.buffers", name, t, data=more)
    silent, used = network_pools(built.trial())
    assert (silent.taskmanager, silent.used, silent.leaked) == ("tm-0-1", [], None)
    assert (used.used, used.leaked) == ([(history.at(1), 0.25), (history.at(3), 0.5)], 0)
    assert used.largest_share(Window(history.at(3), history.at(4))) == 0.5
