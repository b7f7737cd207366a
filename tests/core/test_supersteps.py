"""Supersteps: the events of Flink's iterations, byte by byte, and when an iteration ends."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import OtherEvent, decode_event, encode_event
from testbed_runtime.core.job.jobgraph import BULK, DELTA, IterationConfig
from testbed_runtime.core.job.supersteps import (
    ALL_WORKERS_DONE,
    CONVERGED,
    MAX_ITERATIONS_REACHED,
    TERMINATION,
    SuperstepEnded,
    Synchronization,
    aggregator_of,
    all_workers_done,
    read_worker_done,
    termination,
    worker_done,
)

EMPTY_WORKSET = "pact.runtime.workset-empty-aggregator"
PACKAGE = "org.apache.flink.runtime.iterative.event"


def delta(most: int = 100) -> IterationConfig:
    return IterationConfig("loop", DELTA, most)


def test_a_worker_done_event_has_flinks_bytes():
    """WorkerDoneEvent.write: the worker, then name, class and value of its one aggregator."""
    name, value_class = EMPTY_WORKSET.encode(), b"org.apache.flink.types.LongValue"
    payload = b"".join(
        (
            (3).to_bytes(4, "big"),
            (1).to_bytes(4, "big"),
            len(name).to_bytes(2, "big") + name,
            len(value_class).to_bytes(2, "big") + value_class,
            (8).to_bytes(4, "big") + (258).to_bytes(8, "big"),
        )
    )
    event = worker_done(3, aggregator_of(delta()), 258)
    assert event == OtherEvent(f"{PACKAGE}.WorkerDoneEvent", payload)
    assert read_worker_done(event) == (3, 258)


def test_the_answers_survive_the_wire():
    """Flink pads events with zeros; the answers have no worker, and TerminationEvent has no fields at all."""
    answers = {ALL_WORKERS_DONE: all_workers_done(aggregator_of(delta()), 7), TERMINATION: termination()}
    for name, event in answers.items():
        received = decode_event(encode_event(event) + bytes(4))
        assert isinstance(received, OtherEvent)
        assert received.class_name == name
        assert received.payload == event.payload + bytes(4)
    assert aggregator_of(IterationConfig("loop", BULK, 9, "a.py:f")) == "terminationCriterion.aggregator"


@pytest.mark.parametrize("cut", [0, 5, 20, -1])
def test_a_damaged_event_is_refused(cut: int):
    """Also one of another class."""
    whole = worker_done(0, EMPTY_WORKSET, 1)
    for event in (OtherEvent(whole.class_name, whole.payload[:cut]), OtherEvent("a.B", whole.payload)):
        with pytest.raises(FlinkError, match="is no WorkerDoneEvent"):
            read_worker_done(event)


def test_a_superstep_ends_when_every_head_has_ended_it():
    """In any order. The counts add up, and begin at 0 in the next superstep."""
    sync = Synchronization(delta(), 3)
    assert [sync.on_worker_done(w, 10 + w) for w in (2, 0)] == [None, None]
    assert sync.on_worker_done(1, 11) == SuperstepEnded(1, 33, "")
    assert [sync.on_worker_done(w, 0) for w in (0, 1)] == [None, None]
    assert sync.on_worker_done(2, 1) == SuperstepEnded(2, 1, "")


@pytest.mark.parametrize(
    ("config", "counts", "ended"),
    [
        (delta(), [5, 1, 0], CONVERGED),
        (delta(2), [5, 1], MAX_ITERATIONS_REACHED),
        (IterationConfig("loop", BULK, 9, "a.py:f"), [4, 0], CONVERGED),
        (IterationConfig("loop", BULK, 3), [4, 0, 4], MAX_ITERATIONS_REACHED),
        (IterationConfig("loop", BULK, 1), [4], MAX_ITERATIONS_REACHED),
    ],
)
def test_an_iteration_ends_by_its_criterion_or_its_maximum(config, counts, ended):
    """A bulk iteration without a criterion counts too, and does not end before its maximum."""
    sync = Synchronization(config, 1)
    found = [sync.on_worker_done(0, count) for count in counts]
    assert [step.ended for step in found if step] == [""] * (len(counts) - 1) + [ended]


@pytest.mark.parametrize("worker", [0, 2, -1])
def test_a_head_ends_a_superstep_once(worker: int):
    """A second event of one head, or one of a head that does not exist, would end the superstep too early."""
    sync = Synchronization(delta(), 2)
    sync.on_worker_done(0, 1)
    with pytest.raises(FlinkError, match="cannot end superstep 1 of loop"):
        sync.on_worker_done(worker, 1)
