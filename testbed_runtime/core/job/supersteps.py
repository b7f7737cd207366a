"""Supersteps: the events by which heads and synchronisation task agree on their end, and the task's decision.

The events are Flink's task events (`org.apache.flink.runtime.iterative.event`): a class name and its fields, big-endian.

WorkerDoneEvent      | worker index i32 | aggregators …          head → synchronisation task, with the data
AllWorkersDoneEvent  | aggregators …                              back to every head: begin the next superstep
TerminationEvent     |                                            back to every head: the iteration has ended
aggregators          | number i32 | name UTF | class UTF | length i32 | value i64
"""

from __future__ import annotations

import struct
from contextlib import suppress

from msgspec import Struct

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import OtherEvent, decode_utf, encode_utf
from testbed_runtime.core.job.jobgraph import DELTA, IterationConfig

_PACKAGE = "org.apache.flink.runtime.iterative.event."
WORKER_DONE = f"{_PACKAGE}WorkerDoneEvent"
ALL_WORKERS_DONE = f"{_PACKAGE}AllWorkersDoneEvent"
TERMINATION = f"{_PACKAGE}TerminationEvent"
_WORKSET_EMPTY = "pact.runtime.workset-empty-aggregator"
_TERMINATION_CRITERION = "terminationCriterion.aggregator"
_LONG_VALUE = "org.apache.flink.types.LongValue"
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")

MAX_ITERATIONS_REACHED = "max-iterations"
CONVERGED = "converged"


def aggregator_of(config: IterationConfig) -> str:
    """Return the name of the aggregator that decides: of the workset, or of the termination criterion."""
    return _WORKSET_EMPTY if config.kind == DELTA else _TERMINATION_CRITERION


def worker_done(worker: int, aggregator: str, count: int) -> OtherEvent:
    """Build the event of a head whose superstep has ended, with its count."""
    return OtherEvent(WORKER_DONE, _INT.pack(worker) + _aggregator(aggregator, count))


def all_workers_done(aggregator: str, count: int) -> OtherEvent:
    """Build the event that lets every head begin the next superstep, with the sum of the counts."""
    return OtherEvent(ALL_WORKERS_DONE, _aggregator(aggregator, count))


def termination() -> OtherEvent:
    """Build the event that ends the iteration."""
    return OtherEvent(TERMINATION, b"")


def read_worker_done(event: OtherEvent) -> tuple[int, int]:
    """Return the worker and its count. Raises FlinkError IOException for another or a damaged event."""
    found: tuple[int, int] | None = None
    with suppress(struct.error, ValueError):
        found = _read_worker_done(event.payload) if event.class_name == WORKER_DONE else None
    if found is None:
        text = f"An event {event.class_name} of {len(event.payload)} bytes is no WorkerDoneEvent with one LongValue."
        raise FlinkError("IOException", text)
    return found


def _read_worker_done(data: bytes) -> tuple[int, int] | None:
    (worker,), (aggregators,) = _INT.unpack_from(data), _INT.unpack_from(data, _INT.size)
    _, position = decode_utf(data, 2 * _INT.size)
    value_class, position = decode_utf(data, position)
    (size,) = _INT.unpack_from(data, position)
    if (aggregators, value_class, size) != (1, _LONG_VALUE, _LONG.size):
        return None
    (count,) = _LONG.unpack_from(data, position + _INT.size)
    return int(worker), int(count)


def _aggregator(name: str, count: int) -> bytes:
    value = _INT.pack(_LONG.size) + _LONG.pack(count)
    return _INT.pack(1) + encode_utf(name) + encode_utf(_LONG_VALUE) + value


class SuperstepEnded(Struct, frozen=True):
    """All heads have ended a superstep. `ended` is why the iteration ends with it, empty if it continues."""

    superstep: int
    count: int
    """The count of the tails: records of the next workset, or for which the criterion was true."""
    ended: str


class Synchronization:
    """The decision of the synchronisation task (Flink's SyncEventHandler and `checkForConvergence`)."""

    def __init__(self, config: IterationConfig, workers: int) -> None:
        self._config = config
        self._workers = workers
        self._done: dict[int, int] = {}
        self._superstep = 1

    def on_worker_done(self, worker: int, count: int) -> SuperstepEnded | None:
        """Note that a head has ended the superstep. Return the decision when it was the last one. Raises FlinkError for a head
        that does not exist, or that ends a superstep twice."""
        if not 0 <= worker < self._workers or worker in self._done:
            text = f"Worker {worker} cannot end superstep {self._superstep} of {self._config.head}."
            raise FlinkError("IllegalStateException", text)
        self._done[worker] = count
        if len(self._done) < self._workers:
            return None
        total, self._done = sum(self._done.values()), {}
        found = SuperstepEnded(self._superstep, total, self._reason(total))
        self._superstep += 1
        return found

    def _reason(self, count: int) -> str:
        if self._superstep >= self._config.max_iterations:
            return MAX_ITERATIONS_REACHED
        return CONVERGED if self._config.converges and count == 0 else ""
