"""The shape of a job against all paths of small job graphs, where its tasks ran, and which waits for a TaskManager a fault explains."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed_runtime.checking.common import JobShape
from testbed_runtime.checking.criticalpath import NEAR_NS, lateness_ns
from testbed_runtime.checking.delivery import source_ends
from testbed_runtime.checking.heldmessages import acts_on, keeps_silent
from testbed_runtime.checking.limiting import places_of_behind
from testbed_runtime.core.waits import Outcome
from tests.checking.test_held_messages import lost
from tests.checking.test_rules import effect
from tests.checking.written import NS, at, event, sample, wrote
from tests.manifests import trial_entry

Path = tuple[str, ...]
Edge = tuple[str, str, str]
VERTICES = "abcde"


@st.composite
def shapes(draw: st.DrawFn) -> JobShape:
    """Job graphs of five vertices, in which edges lead to later letters. The order of vertices and edges is any."""
    pairs = [(a, b) for a in VERTICES for b in VERTICES if a < b]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=7))
    edges = tuple((a, b, draw(st.sampled_from(["hash", "broadcast"]))) for a, b in chosen)
    vertices = draw(st.permutations(VERTICES))
    parallelism = {v: draw(st.integers(1, 3)) for v in vertices}
    ends = ({v for v in VERTICES if all(v != edge[n] for edge in edges)} for n in (1, 0))
    sources, sinks = (tuple(sorted(found)) for found in ends)
    windows = draw(st.frozensets(st.sampled_from(VERTICES), max_size=2))
    return JobShape(parallelism, edges, sources, sinks, windows)


def paths(shape: JobShape, start: str) -> Iterator[tuple[Edge, ...]]:
    """Every path from a vertex, also the empty one, as its edges."""
    yield ()
    for edge in shape.edges:
        if edge[0] == start:
            yield from ((edge, *rest) for rest in paths(shape, edge[1]))


def visited(start: str, path: tuple[Edge, ...]) -> Path:
    """The vertices of a path."""
    return (start, *(target for _, target, _ in path))


@given(shape=shapes())
def test_a_shape_agrees_with_all_its_paths(shape: JobShape):
    """A record reaches a sink once on each path, and every subtask behind a broadcast."""
    every = {start: [(visited(start, p), p) for p in paths(shape, start)] for start in VERTICES}
    for source in shape.sources:
        arriving = dict.fromkeys(shape.sinks, 0)
        for through, path in every[source]:
            if through[-1] in arriving:
                arriving[through[-1]] += prod(
                    shape.parallelism[b] if how == "broadcast" else 1 for _, b, how in path
                )
        assert shape.copies(source) == {sink: number for sink, number in arriving.items() if number}
    assert shape.hops() == {
        v: max(len(path) for found in every.values() for through, path in found if through[-1] == v) for v in VERTICES
    }  # fmt: skip
    for sink in shape.sinks:
        to_sink = [t for source in shape.sources for t, _ in every[source] if t[-1] == sink]
        for source in shape.sources:
            between = any(shape.windows & set(through) for through in to_sink if through[0] == source)
            assert shape.windowed(source, sink) == between
        before = {w for w in shape.windows for through, _ in every[w] if through[-1] == sink}
        # a window that is the sink itself comes too late
        each_has_one = all(shape.windows & set(through[:-1]) for through in to_sink)
        assert shape.windows_before(sink) == (tuple(sorted(before)) if each_has_one else ())


def test_the_end_of_a_source_is_its_last_number():
    """A report without a number says nothing."""
    trial = wrote(
        event("source.end", "s-0", next=3), event("source.end", "s-0", next=5), event("source.end", "s-0", next="7"),
        event("source.end", "s-1"),
    )  # fmt: skip
    assert source_ends(trial) == {"s-0": 5}


@pytest.mark.parametrize(
    ("kind", "span", "targets", "acts", "silent"),
    [
        ("process.pause", (0, 2.5), '["tm-1"]', True, True),  # half of the wait from 0 to 5 s
        ("process.pause", (0, 2.499), '["tm-1"]', False, False),
        ("process.pause", (2.5, None), '["tm-1"]', True, True),
        ("process.pause", (2.501, 9), '["tm-1"]', False, False),
        ("process.pause", (-3, 2), '["tm-1"]', False, False),  # from the beginning of the wait on
        ("process.pause", (0, 9), '["tm-2"]', False, False),
        ("process.pause", (0, 9), '["tm-2", "tm-1"]', True, True),
        ("process.kill", (0, 9), '["tm-1"]', True, False),
        ("process.pause", (0, 9), "[]", False, False),
    ],
)
def test_a_fault_acts_on_a_lost_taskmanager_for_half_of_the_wait(
    kind: str, span: Any, targets: str, acts: bool, silent: bool
):
    """A killed process does not come back."""
    fault, loss = effect(kind, span, targets=targets), lost(0, 5)
    assert (acts_on(fault, loss), keeps_silent(fault, loss)) == (acts, silent)


@pytest.mark.parametrize(("target", "plane", "silent"), [("tm-1->jobmanager", "rpc", True), ("tm-1->jobmanager", "data", False), ("tm-1->tm-2", "rpc", False)])  # fmt: skip
def test_a_cut_link_keeps_a_taskmanager_silent_if_it_carries_heartbeats(
    target: str, plane: str, silent: bool
):
    """Other TaskManagers expect none."""
    fault = effect("network.partition", (0, 5), targets=f'["{target}"]', plane=plane)
    assert keeps_silent(fault, lost(0, 5)) is silent


@pytest.mark.parametrize(
    ("kind", "budget_s", "lasted_s", "outcome", "late_s"),
    [
        ("heartbeat", 5, 7, Outcome.EXPIRED, 2),
        ("heartbeat", 0, 2, Outcome.EXPIRED, 2),
        ("heartbeat", -1, 2, Outcome.EXPIRED, 0),  # without a limit
        ("heartbeat", 5, 5, Outcome.EXPIRED, 0),
        ("heartbeat", 5, 7, Outcome.COMPLETED, 0),
        ("catch-up", 5, 7, Outcome.EXPIRED, 0),
    ],
)
def test_the_end_of_a_wait_is_late_by_what_exceeds_its_limit(
    kind: str, budget_s: int, lasted_s: int, outcome: Outcome, late_s: int
):
    """An option whose limit is 0 expires at once."""
    budget_ns = budget_s * NS if budget_s >= 0 else -1
    found = replace(lost(1, 1 + lasted_s), kind=kind, budget_ns=budget_ns, outcome=outcome)
    assert lateness_ns(found) == late_s * NS


@pytest.mark.parametrize(("off_ns", "late_ns"), [(NEAR_NS - 1, 0), (NEAR_NS, NEAR_NS)])
def test_a_short_lateness_is_none(off_ns: int, late_ns: int):
    """Heartbeats are checked in steps."""
    found = lost(0, 5)
    assert lateness_ns(replace(found, end_ns=found.start_ns + found.budget_ns + off_ns)) == late_ns


@pytest.mark.parametrize(
    ("span", "behind", "places"),
    [
        ((1, 2), {"b-0"}, {"tm-1", "tm-2"}),  # both ends of the span belong to it
        ((1, 2), {"a-0"}, {"tm-1"}),
        ((1, 2), (), {"tm-1", "tm-2", "tm-3"}),
        ((1.1, 2), {"b-0"}, {"tm-2"}),
        ((1, 1.9), {"b-0"}, {"tm-1"}),
        ((1.1, 1.9), {"b-0"}, set()),
        ((1, 2), {"c-0"}, {"tm-1", "tm-2", "tm-3"}),
    ],
)
def test_the_places_of_a_subtask_include_those_upstream(span: Any, behind: Any, places: set[str]):
    """The job is a chain of a, b and c."""
    edges = [{"from": a, "to": b, "partitioning": "hash"} for a, b in ("ab", "bc")]
    entry = trial_entry({"job": {"vertices": [{"name": name} for name in "abc"], "edges": edges}})
    rows = [("a-0", 1, "tm-1-1"), ("b-0", 2, "tm-2-1"), ("c-0", 1, "tm-3-1"), ("c-0", 2, "tm-3-1")]
    trial = wrote(*(("tasks", sample(task, t)[1] | {"process": process}) for task, t, process in rows))
    found = places_of_behind(trial, entry, (at(span[0]), at(span[1])), behind)
    assert found == places
