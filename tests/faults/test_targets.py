"""Targets of a fault as processes or links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.model import Fault, Target
from testbed_runtime.faults.targets import VertexNotRunning, resolve_targets

PLACEMENT = {"source-0": "tm-0", "source-1": "tm-10", "count-0": "tm-2", "count-1": "tm-3", "sink-0": "tm-2"}
NAMES = [f"tm-{n}" for n in range(12)]


def resolve(target, seed=7):
    return resolve_targets(
        Fault("f", "process.pause", 0.0, 1.0, target), placement=PLACEMENT, task_managers=NAMES, seed=seed
    )


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (Target(), tuple(NAMES)),
        (Target(names=("tm-3", "tm-1")), ("tm-1", "tm-3")),
        (Target(names=("jobmanager",)), ("jobmanager",)),
        (Target(running="source"), ("tm-0", "tm-10")),
        (Target(running="count", peers=("tm-0",)), ("tm-2->tm-0", "tm-3->tm-0")),
        (Target(running="count", peers_running="sink"), ("tm-3->tm-2",)),
        (Target(running="source", mode="percent", value=100), ("tm-0", "tm-10")),
    ],
)
def test_targets_are_names_in_order_or_links(target, names):
    """tm-2 comes before tm-10; no process is a peer of itself."""
    assert resolve(target) == names


def test_a_target_that_selects_no_process_is_an_error():
    """A vertex without a running subtask."""
    with pytest.raises(VertexNotRunning, match="no TaskManager runs"):
        resolve(Target(running="window"))


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (Target(names=("tm-0",), peers_running="window"), "no TaskManager runs vertex 'window'"),
        (Target(names=("tm-0",), peers=("tm-0",)), "there is no link to another process"),
        (Target(running="sink", peers_running="sink"), "there is no link to another process"),
    ],
)
def test_peers_that_make_no_link_are_an_error(target, problem):
    """Without its peers the fault would hit every link of its target, or nothing."""
    with pytest.raises(UserError, match=problem):
        resolve(target)


@given(seed=st.integers(0, 2**63 - 1), value=st.integers(1, 12))
def test_a_draw_depends_on_the_seed_alone_and_has_the_requested_size(seed, value):
    """The draw is the same in every environment, and a subset in order."""
    drawn = resolve(Target(mode="fixed", value=value), seed)
    assert drawn == resolve(Target(mode="fixed", value=value), seed)
    assert len(drawn) == value
    assert [n for n in NAMES if n in drawn] == list(drawn)


def test_one_is_not_always_the_same():
    """Over many seeds, every process is drawn."""
    assert {resolve(Target(mode="one"), seed)[0] for seed in range(200)} == set(NAMES)
