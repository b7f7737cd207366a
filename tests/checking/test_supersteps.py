"""The supersteps of an iteration that a fault held up."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.faults import FaultEffect
from testbed_runtime.checking.iterations import held_supersteps
from testbed_runtime.core.waits import EVERYTHING, Wait
from tests.checking.conftest import at
from tests.checking.test_recovery_path import segments, wait


def cut(begun: float, ended: float | None, kind: str = "network.partition") -> FaultEffect:
    return FaultEffect(
        fault="cut", kind=kind, verified=True, injected_ns=at(begun),
        ended_ns=None if ended is None else at(ended), residue=False, targets="", text="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "effect", "held"),
    [
        ([1, 2, 3, 4, 7.5, 8.5], cut(4.5, 7), [(4.5, 7.0)]),  # half a second of work was left
        ([1, 2, 3, 4, 12, 13], cut(4, 6), [(4.0, 8.0)]),  # TCP sends again at last after 2 s more
        ([1, 2, 3, 5, 7, 9, 10, 11], cut(3, 9, "network.latency"), [(3.0, 8.0)]),  # the last one had its work to do
        ([1, 2, 3, 4, 7, 8], cut(3.5, 4), []),  # it ended before the long one
        ([1, 2, 3, 4, 5, 6], cut(2.5, 4.5), []),  # of a link that the iteration does not need
        ([1, 2, 3, 4], cut(4.5, None), [(4.5, 11.5)]),  # it lasted until the end
        ([1, 2, 3, 4, 7.5], cut(4.5, 7, "store.slow"), []),
    ],
)  # fmt: skip
def test_a_fault_has_the_supersteps_that_took_longer(history: Any, ends: Any, effect: Any, held: Any):
    """Each of the others takes a second. The work that a superstep had left when the fault began belongs to the iteration."""
    built = history.empty()
    for end in ends:
        built.event("iteration.superstep", "loop-sync-0", float(end), attempt=0, data={"superstep": 1})
    last = max(ends) if effect.ended_ns is not None else 12
    heads = [
        Wait(
            wait=f"tm-0-1/{n}",
            kind="iteration",
            who=f"loop-{n}",
            what="loop",
            start_ns=at(0),
            end_ns=at(last),
        )
        for n in (1, 2)
    ]
    found = held_supersteps(built.trial(), heads, [effect])
    assert [(w.start_ns, w.end_ns) for w in found] == [(at(a), at(b)) for a, b in held]
    assert all(w.fault == "cut" and "`cut`" in w.cause for w in found)


def test_another_iteration_divides_no_superstep(history: Any):
    """The supersteps of `slow` take a second, those of `quick` a third. The fault held up one of `slow` only."""
    built = history.empty()
    for end in (1, 2, 3, 4, 9, 10):
        built.event("iteration.superstep", "slow-sync-0", float(end), attempt=0, data={"superstep": 1})
    for end in range(1, 31):
        built.event("iteration.superstep", "quick-sync-0", end / 3, attempt=0, data={"superstep": 1})
    waits = [
        Wait(wait=f"tm-0-1/{head}", kind="iteration", who=f"{head}-0", what=head, start_ns=at(0), end_ns=at(10))
        for head in ("quick", "slow")
    ]  # fmt: skip
    found = held_supersteps(built.trial(), waits, [cut(4, 9)])
    assert [(w.what, w.start_ns, w.end_ns) for w in found] == [("slow", at(4), at(8))]


@pytest.mark.parametrize(("span", "expected"), [((4, 8), [3, 4, 1]), ((1, 8), [7, 1]), ((4, 9), [3, 5])])
def test_a_superstep_that_a_fault_delayed_is_a_part_of_its_iteration(
    span: tuple[float, float], expected: list[float]
):
    """The iteration lasts from 1 to 9 s, and the fault holds up a superstep of it. It owns that time only."""
    whole = wait("iteration", 1, 9, who="loop-0", what="loop")
    held = wait("fault", *span, who=EVERYTHING, what="loop", fault="cut", cause="c")
    found = [s for s in segments([wait("deployment", 0, 1), whole, held], 9) if s.kind == "iteration"]
    assert [round(s.seconds, 6) for s in found] == expected
    assert [(s.start_ns, s.end_ns) for s in found if s.fault == "cut"] == [(held.start_ns, held.end_ns)]
