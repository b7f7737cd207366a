"""The versioned tables of the history, from which everything is judged. Processes write rows; the recorder adds none.

Times are nanoseconds of the writer's monotonic clock. Rows with the same `boot_id` are directly comparable. Ranges are
half open. An unknown column is a bug of the writer and never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeVar

import pyarrow as pa

T = TypeVar("T")

SCHEMA_VERSION = 1

COMMON: list[tuple[str, pa.DataType]] = [
    ("run", pa.string()),
    ("trial", pa.string()),
    ("process", pa.string()),  # `tm-0-1`, `jobmanager-1`, `runner`, `supervisor`, `proxy-1`
    ("boot_id", pa.string()),
    ("seq", pa.int64()),  # per process, gapless from 0: the recorder refuses duplicates and counts gaps
    ("t_ns", pa.int64()),
]

# the event kinds, and what their `subject`, `text` and `data` contain
EVENT_KINDS: dict[str, str] = {
    "trial.phase": "subject: warmUp | baseline | fault | observation | drain | end",
    "job.submitted": "the runner submits the job, to a JobManager that may be busy or stopped",
    "job.state": "subject: job; text: cause; data: from, to, cause_class, after a failure also wait (kind of the wait that it ended), root (the cause that the text wraps)",
    "leadership": "subject: JobManager process; text: Flink's text; data: granted (bool), leader (leader session id): with `high-availability.type: kubernetes`",
    "task.state": "subject: vertex-subtask; attempt; text: cause; data: from, to, taskmanager, cause_class",
    "job.restored": "subject: job; checkpoint; data: next (the first number of each source subtask): the job starts from a checkpoint of an earlier run",
    "task.restored": "subject: vertex-subtask; attempt; checkpoint",
    "source.end": "subject: vertex-subtask; attempt; data: next (one more than the last sequence number this source ever emitted): "
    "written once, when it ends by drain or by its limit; without it, it is unknown which records should have arrived",
    "taskmanager.registered": "subject: ResourceID; data: slots",
    "taskmanager.lost": "subject: ResourceID; text: Flink's text; data: detector (JobMaster | ResourceManager), cause_class, wait (kind of the wait that it ended)",
    "failover.started": "subject: restart number; text: first cause; data: cause_class, wait (kind of the wait that it ended), region (list), taskmanager, detector, delay_option and delay_s (the restart delay; empty and 0 without one), counted (whether the restart strategy counts it)",
    "failover.failure": "subject: restart number that follows, or the last one if none follows; text: cause; data: cause_class, wait, task, taskmanager, detector, ended (number of the last restart in progress of one of these tasks, 0 if there was none), restarted (bool): one event per failure of a task or of the job",
    "failover.cancelled": "subject: restart number: every task of the region has terminated",
    "failover.slots": "subject: restart number: all slots are allocated",
    "failover.deployed": "subject: restart number: all tasks of the region RUNNING",
    "failover.attempt": "subject: restart number; data: attempt: one event per deployment attempt",
    "gate.connected": "subject: vertex-subtask; attempt: the producer of every input channel has responded",
    "sink.first-record": "subject: vertex-subtask; attempt: first record of this attempt that no earlier attempt committed; data: latency_ns (since it was due)",
    "sink.end": "subject: vertex-subtask; attempt: it has received everything: the end of the data of every input",
    "function.dropped": "subject: vertex-subtask; attempt: its Python function dropped records, or, as the head of a delta iteration, it replaced a record by another one with its key; written once per attempt",
    "iteration.superstep": "subject: subtask of the synchronisation task; attempt; data: superstep, count (records of the next workset, or for which the termination criterion was true), ended (max-iterations | converged, empty if another superstep follows)",
    "partition.request": "subject: receiving vertex-subtask; attempt; data: partition, request (1, 2, …), backoff_s, connection (ResourceID of the producer and index; only of the first request of a remote channel)",
    "stale.rejected": "subject: vertex-subtask; attempt; checkpoint, of an acknowledgement or a commit; data: what (acknowledgement | commit | record), count",
    "rpc.timeout": "subject: endpoint; text: Flink's text; data: method, timeout_s, peer",
    "backpressure.sampled": "subject: vertex-subtask; attempt; data: samples, backpressured (how many of them): one round of samples",
    "latency.markers": "subject: vertex-subtask that received latency markers; attempt; data: source (vertex-subtask), ns (list of latencies): one per source and second with markers",
    "receive-queue.closed": "subject: vertex-subtask; attempt; data: dropped (records), largest_bytes",
    "source.rate": "subject: vertex whose receive queue decided; data: records_per_second that the coordinator of flow control set for its sources (0: stopped, negative: not limited)",
    "input-split": "subject: vertex-subtask; attempt; data: split (its number), records: one per request that got a split",
    "loop.stall": "subject: process; data: seconds: how long this process did not run",
    "clock.offset": "subject: process; data: offset_s (how far its clock is ahead of the recorder's), uncertainty_s: only if they certainly differ (core.clocks)",
    "history.shed": "subject: process; data: table, rows",
    "network.buffers": "subject: ResourceID; data: total, used (segments in use now): at most once a second, when `used` changed; leaked (segments in use after every task had ended): once, when the TaskManager ends by itself",
    "cpu.spent": "subject: ResourceID; data: seconds (processor time of all its tasks), buffers (that they have sent), both cumulative: with every sample, only in virtual time with headgate.simulation.cost",
    "network.pools": "subject: ResourceID; data: pools (side in or out, task, peer, required, most, size; in: channels, exclusive; used, used_exclusive: now), free (buffers beyond the required ones, which the pools share), others (pools that are not listed): at most once a second, when it changed",
    "socket.state": "subject: ResourceID; data: side (consumer | producer), peer, connection (the consumer's port), the fields of ports.network.SocketState: one event per connection and sample in which they changed, only in legacy mode and where the kernel has them",
    "process.exit": "subject: process name; data: pid, code, signal, asked (bool)",
    "note": "text: a remark for the reader",
}


def columns_of_event(kind: str) -> frozenset[str]:
    """Return which of `attempt` and `checkpoint` an event of this kind has, as its declaration lists. The
    others are -1."""
    parts = [part.strip() for part in EVENT_KINDS.get(kind, "").split(";")]
    return frozenset(c for c in ("attempt", "checkpoint") if any(part.startswith(c) for part in parts))


TABLES: dict[str, list[tuple[str, pa.DataType]]] = {
    "events": [
        ("kind", pa.string()),
        ("subject", pa.string()),
        ("attempt", pa.int32()),  # attempt number, -1 when it does not apply
        ("checkpoint", pa.int64()),  # -1 when it does not apply
        ("text", pa.string()),
        ("data", pa.string()),  # JSON object
    ],
    # samples on change, at most 10 per second and channel
    "channels": [
        ("side", pa.string()),  # producer | consumer
        ("task", pa.string()),  # vertex-subtask
        ("attempt", pa.int32()),
        ("peer", pa.string()),  # vertex-subtask at the other end
        ("local", pa.bool_()),
        ("credit", pa.int32()),  # producer: available; consumer: unannounced
        ("announced", pa.int64()),  # cumulative credit incl. initial, as this side knows it
        ("used", pa.int64()),  # cumulative data buffers sent / received
        ("backlog", pa.int32()),
        ("queued", pa.int32()),
        ("floating", pa.int32()),
        ("exclusive", pa.int32()),
    ],
    # every 100 ms per running task; cumulative counters of this attempt
    "tasks": [
        ("task", pa.string()),
        ("vertex", pa.string()),
        ("role", pa.string()),  # source | operator | sink
        ("attempt", pa.int32()),
        ("records_in", pa.int64()),
        ("records_out", pa.int64()),
        ("bytes_in", pa.int64()),
        ("bytes_out", pa.int64()),
        ("busy_ns", pa.int64()),
        ("backpressured_ns", pa.int64()),
        ("idle_ns", pa.int64()),
        # source: how far emission is behind schedule; sink: latency of the last record received
        ("lag_ns", pa.int64()),
    ],
    # one row per sink subtask and 250 ms window with records
    "latency": [
        ("task", pa.string()),
        ("attempt", pa.int32()),
        ("window_start_ns", pa.int64()),
        ("window_ns", pa.int64()),
        ("count", pa.int64()),
        ("buckets", pa.list_(pa.int64())),  # counts by LATENCY_BOUNDS_NS, from the due time
        ("max_ns", pa.int64()),
    ],
    # commits: exactly-once rows are written by the JobManager with the completed checkpoint, at-least-once ones by the sink
    "delivery": [
        ("task", pa.string()),
        ("attempt", pa.int32()),
        ("checkpoint", pa.int64()),  # -1: without a checkpoint
        ("source", pa.string()),  # vertex-subtask
        ("base", pa.int64()),
        ("bitmap", pa.binary()),  # messages.CHUNK_RECORDS bits, bit i (LSB first) = sequence number base + i
        ("duplicated", pa.int64()),
        ("out_of_order", pa.int64()),
        ("corrupted", pa.int64()),
        # of the commit: on one of its rows, 0 on the others, so that weights can be summed
        ("weight", pa.int64()),
    ],
    "checkpoints": [
        ("checkpoint", pa.int64()),
        ("state", pa.string()),  # triggered | acknowledged | finalizing | completed | failed
        ("task", pa.string()),  # the acknowledging task, else empty
        ("reason", pa.string()),
        ("duration_ns", pa.int64()),
        ("alignment_ns", pa.int64()),
        ("state_bytes", pa.int64()),  # acknowledged: what this checkpoint stored; completed: the whole state
        ("persisted_bytes", pa.int64()),  # channel state in it
    ],
    "faults": [
        ("fault", pa.string()),  # its name in the scenario
        # asked | injected | verified | unverified | ended | clean | residue | failed | voided
        ("state", pa.string()),
        ("kind", pa.string()),  # `network.latency`, …
        ("backend", pa.string()),
        ("targets", pa.string()),  # JSON list
        ("asked", pa.string()),  # JSON object
        ("measured", pa.string()),  # JSON object
        ("text", pa.string()),
    ],
    # intervals in which something could not proceed (core.waits.Wait); t_ns is the end
    "waits": [
        ("wait", pa.string()),  # id, unique in the trial: `<process>/<number>`
        ("kind", pa.string()),  # of core.waits.KINDS
        ("who", pa.string()),  # who waits: JobMaster, ResourceManager, a process or a task
        ("what", pa.string()),  # for what: a ResourceID, a partition, a task, a checkpoint
        ("attempt", pa.int32()),
        ("start_ns", pa.int64()),
        ("option", pa.string()),  # key of the option that limits it, else empty
        ("value", pa.string()),
        ("budget_ns", pa.int64()),  # how long the option lets it wait, -1 without a limit
        ("outcome", pa.string()),  # of core.waits.Outcome
        ("cause", pa.string()),
        ("after", pa.string()),  # ids of waits that had to end first, separated by spaces
    ],
    # sampled taps of frames, before the interceptor and after receipt, matched by channel and number
    "frames": [
        ("side", pa.string()),  # sent | received
        ("link", pa.string()),  # `tm-0->tm-1` in the direction of the frame
        ("channel", pa.string()),  # receiver id, hex
        ("frame_class", pa.string()),  # buffer | event | barrier | credit | backlog | request | other
        # BufferResponse: its sequence number; otherwise the count of this class on this channel
        ("number", pa.int64()),
        ("size", pa.int32()),
    ],
}

LATENCY_BOUNDS_NS: list[int] = [int(10_000 * 1.25**i) for i in range(80)]
"""Upper bounds of the latency buckets, 10 µs to about 450 s. One more bucket holds larger values."""
LATENCY_WINDOW_NS = 250_000_000
"""The length of the window that a row of `latency` covers. It begins at a multiple of this length."""


def by_column(table: str, values: tuple[Any, ...]) -> dict[str, Any]:
    """Return the values of a row by the names of its columns. `values` has one for every column."""
    return {name: value for (name, _), value in zip(TABLES[table], values, strict=True)}


def arrow_schema(table: str) -> pa.Schema:
    """Return the schema of a table, with the common columns first."""
    return pa.schema([*COMMON, *TABLES[table]], metadata={"headgate.schema": str(SCHEMA_VERSION)})


@dataclass(frozen=True, slots=True)
class Trial:
    """The history of one trial, as `checking` reads it: maps a table name to a pyarrow Table with `arrow_schema(name)`.

    `problems` lists what the recorder and the reader found wrong (a truncated end, a gap). `_kept` is a cache.
    """

    run: str
    trial: str
    tables: Mapping[str, pa.Table]
    problems: tuple[str, ...] = ()
    _kept: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def table(self, name: str) -> pa.Table:
        """Return a table. Empty if nothing was recorded."""
        found = self.tables.get(name)
        return arrow_schema(name).empty_table() if found is None else found

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows as dicts, ordered by time, process and number (for small tables only)."""

        def ordered() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = self.table(name).to_pylist()
            rows.sort(key=itemgetter("t_ns", "process", "seq"))
            return rows

        return self.kept(f"rows of {name}", ordered)

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of `make`, which computes it from the tables. It is computed once for each
        name."""
        if name not in self._kept:
            self._kept[name] = make()
        found: T = self._kept[name]
        return found
