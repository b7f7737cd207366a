"""Validate the tables of a sealed trial when they are opened, so that damaged rows never reach a metric.

The seal compares row counts and the recorder compares sequence numbers as they arrive. This module finds what both cannot
see: wrong types, nulls, rows of another trial, repeated rows, counters that decrease, clocks that differ. Each finding
names the table, the column and the row (from 0, as stored).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from testbed_runtime.core.documents import HISTORY_FOLDER
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.frame_classes import FRAME_CLASSES, OTHER
from testbed_runtime.core.job.executiongraph import ExecutionState
from testbed_runtime.core.job.jobgraph import SYNC_SUFFIX
from testbed_runtime.core.job.messages import CHUNK_RECORDS, JOB_STATES
from testbed_runtime.core.job.restore import STATE_RECOVERY
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import KINDS, Outcome
from testbed_runtime.history.columns import (
    ATTEMPT,
    CAUSAL_NS,
    JOB_PROCESSES,
    OWN_CLOCK,
    TOLERANCE_NS,
    Attempt,
    Ints,
    Owned,
    attempt_of,
    committed_records,
    distinct,
    filled_buckets,
    first_true,
    has_one_clock,
    ints,
    numbered,
    parsed,
    places,
    sound,
    vertex_of,
)
from testbed_runtime.history.contradictions.channels import check_credit
from testbed_runtime.history.contradictions.owners import check_owners
from testbed_runtime.history.crosschecks import check_across, lacks_rows
from testbed_runtime.history.damage import Damage, first_of_each
from testbed_runtime.history.digests import Block, changed, recounted
from testbed_runtime.history.schema import EVENT_KINDS, LATENCY_BOUNDS_NS, TABLES, Trial, arrow_schema

BEFORE_NS = 1800 * NS
"""Rows may precede the trial's first phase by this much: processes start, images are pulled."""
AFTER_NS = 600 * NS
"""Rows may follow the trial's last phase by this much: processes stop, the recorder seals."""
LONGEST_NS = 2**62
"""A larger time is damage. In pods, times are those of the wall clock (1.8 × 10¹⁸ in 2027). The sum of two
does not overflow."""
SHOWN_MAX = 5
"""Maximum findings named in one error."""
ROLES = ("source", "operator", "sink")
SIDES = ("producer", "consumer")
CHECKPOINT_STATES = ("triggered", "acknowledged", "finalizing", "completed", "failed")
FAULT_STATES = (
    "asked", "injected", "verified", "unverified", "ended", "clean", "residue", "failed", "voided",
)  # fmt: skip
VOCABULARY: Mapping[tuple[str, str], frozenset[str]] = {
    ("events", "kind"): frozenset(EVENT_KINDS),
    ("tasks", "role"): frozenset(ROLES),
    ("channels", "side"): frozenset(SIDES),
    ("checkpoints", "state"): frozenset(CHECKPOINT_STATES),
    ("faults", "state"): frozenset(FAULT_STATES),
    ("frames", "side"): frozenset(("sent", "received")),
    ("frames", "frame_class"): frozenset((*FRAME_CLASSES, OTHER)),
    ("waits", "kind"): frozenset(KINDS),
    ("waits", "outcome"): frozenset(Outcome),
}
STATES: Mapping[str, frozenset[str]] = {"task.state": frozenset(ExecutionState), "job.state": JOB_STATES}
"""The states that `to` in the data of these events can have."""
_MAY_BE_NEGATIVE = {
    "attempt": -1, "checkpoint": -1, "budget_ns": -1, "credit": None, "max_ns": None,
}  # fmt: skip
"""Least value of the integer columns that are not counters; None for no limit. All others are at least 0."""
COUNTERS = (
    "records_in", "records_out", "bytes_in", "bytes_out", "busy_ns", "backpressured_ns", "idle_ns", "t_ns"
)  # fmt: skip
"""Columns of `tasks` that never decrease, in the order of `seq`, for an attempt. The sampler's clock is one of them."""
TASK = ("task", "attempt")
JSON_COLUMNS = {"events": ("data",), "faults": ("targets", "asked", "measured")}
_NOT_FINITE = re.compile(r"-?\b(NaN|Infinity)\b")


class DamagedHistory(UserError):
    """The history of a trial cannot be judged."""

    def __init__(self, trial: str, found: list[Damage]) -> None:
        self.found = tuple(found)
        more = f" (and {len(found) - SHOWN_MAX} more)" if len(found) > SHOWN_MAX else ""
        problem = f"the history is damaged: {'; '.join(map(str, found[:SHOWN_MAX]))}{more}"
        super().__init__(f"{HISTORY_FOLDER}/{trial}", problem, "restore it, or run the scenario again")


def check_schema(table: str, schema: pa.Schema) -> list[Damage]:
    """Return the columns that are missing or have another type than in `history.schema`."""
    found = []
    for field in arrow_schema(table):
        index = schema.get_field_index(field.name)
        kind = schema.field(index).type if index >= 0 else None
        if kind is None:
            missing = "is missing; another version of Headgate wrote the file"
            found.append(Damage(table, field.name, -1, missing))
        elif kind != field.type:
            found.append(Damage(table, field.name, -1, f"has the type {kind} instead of {field.type}"))
    return found


def check_trial(trial: Trial, entry: TrialEntry | None = None) -> list[Damage]:
    """Return everything that is wrong with the tables of a trial, at most one finding per column and rule.

    `entry` is the trial's entry in the manifest; without it the time range is not checked."""
    named = {"run": trial.run, "trial": trial.trial}
    tables = {name: trial.table(name) for name in TABLES}
    schemas = {name: check_schema(name, table.schema) for name, table in tables.items()}
    found = [d for name, t in tables.items() for d in schemas[name] or check_rows(name, t, **named)]
    if any(schemas.values()):
        return found
    found += check_repeated(trial) + check_owners(trial) + check_order(trial) + check_causality(trial)
    if entry is not None:
        found += check_times(trial, entry)
    return found if found or entry is None else check_across(trial, entry)


def require_sound(trial: Trial, entry: TrialEntry | None) -> Trial:
    """Return the trial. Raises DamagedHistory if `check_trial` finds anything."""
    found = check_trial(trial, entry)
    if found:
        raise DamagedHistory(trial.trial, found)
    return trial


def check_sealed(trial: Trial, blocks: Mapping[str, Sequence[Block]]) -> list[Damage]:
    """Return the columns that differ from what was sealed. None if rows are known to be missing, as in `check_across`."""
    found: list[Damage] = []
    for name, table in trial.tables.items():
        found += recounted(name, blocks.get(name), len(table)) or changed(name, blocks.get(name, ()), table)
    return [] if found and lacks_rows(trial) else found


def check_rows(name: str, table: pa.Table, *, run: str, trial: str) -> list[Damage]:
    """Return the damage in the rows of a table with a sound schema. Columns that no rule needs may be left out."""
    found = list(_nulls(name, table))
    if found or not len(table):
        return found
    rules = [_identity(name, table, run, trial)]
    rules += [rule(name, table) for rule in (_ranges, _words, _json)]
    rules += [_OF_TABLE[name](table)] if name in _OF_TABLE else []
    return [damage for rule in rules for damage in rule]


def _first(name: str, table: pa.Table, column: str, wrong: Any, problem: str, *more: Any) -> Iterator[Damage]:
    """Yield the first row for which `wrong` is true. `problem` is formatted with the row's value in the
    column, and with `more`: its values in these arrays, or values that are not arrays."""
    for row in first_true(wrong):
        of_row = [one[row] if isinstance(one, np.ndarray) else one for one in more]
        yield Damage(name, column, row, problem.format(table.column(column)[row].as_py(), *of_row))


def _nulls(name: str, table: pa.Table) -> Iterator[Damage]:
    for field in table.schema:
        column = table.column(field.name)
        if column.null_count:
            yield Damage(name, field.name, first_true(pc.is_null(column))[0], "is null")
        elif pa.types.is_list(field.type) and pc.list_flatten(column).null_count:
            yield Damage(name, field.name, -1, "contains a null")


def _identity(name: str, table: pa.Table, run: str, trial: str) -> Iterator[Damage]:
    for column, expected in (("run", run), ("trial", trial)):
        other = pc.not_equal(table.column(column), expected)
        yield from _first(name, table, column, other, "is {!r} instead of {!r}", expected)
    for column in ("process", "boot_id"):
        yield from _first(name, table, column, pc.equal(table.column(column), ""), "is empty")


def _ranges(name: str, table: pa.Table) -> Iterator[Damage]:
    """Yield integers below their least value, and times that are too long. Every count, time and number is at least 0."""
    for field in table.schema:
        least = _MAY_BE_NEGATIVE.get(field.name, 0)
        if not pa.types.is_integer(field.type) or least is None:
            continue
        column = table.column(field.name)
        if field.name.endswith("_ns") and field.name != "budget_ns":
            longer = pc.greater(column, LONGEST_NS)
            yield from _first(name, table, field.name, longer, "is {}, longer than any trial")
        below = pc.less(column, least)
        yield from _first(name, table, field.name, below, "is {}, which is below {}", least)


def _words(name: str, table: pa.Table) -> Iterator[Damage]:
    for (owner, column), words in VOCABULARY.items():
        if owner != name or column not in table.column_names:
            continue
        unknown = pc.invert(pc.is_in(table.column(column), pa.array(sorted(words))))
        yield from _first(name, table, column, unknown, "is {!r}, which is not in the schema")


def _json(name: str, table: pa.Table) -> Iterator[Damage]:
    """Yield texts that should be JSON and are not. NaN and Infinity are not JSON."""
    for column in JSON_COLUMNS.get(name, ()):
        encoded = table.column(column).combine_chunks().dictionary_encode()
        for code, text in enumerate(encoded.dictionary.to_pylist()):
            if problem := _json_problem(text):
                yield Damage(name, column, first_true(pc.equal(encoded.indices, code))[0], problem)
                break


def _json_problem(text: str) -> str:
    if not text:
        return ""
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        constant = _NOT_FINITE.search(text)
        return f"contains {constant[0]}" if constant else f"is not JSON: {text[:60]!r}"
    return ""


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def check_counters(tasks: pa.Table) -> Iterator[Damage]:
    """Yield counters that decrease from one sample of an attempt to the next."""
    order, owner = _by_owner(tasks, ATTEMPT)
    same = np.diff(owner[order]) == 0
    for column in (c for c in COUNTERS if c in tasks.column_names):
        values = ints(tasks, column)[order]
        fell = np.flatnonzero(same & (np.diff(values) < 0))
        if len(fell):
            row = int(order[fell + 1].min())
            (at,) = first_true(order == row)
            what = ", ".join(str(tasks.column(k)[row].as_py()) for k in ATTEMPT)
            problem = f"decreases from {values[at - 1]} to {values[at]} ({what})"
            yield Damage("tasks", column, row, problem)


def _by_owner(table: pa.Table, keys: tuple[str, ...]) -> tuple[Ints, Ints]:
    """Return the rows in order of owner and sequence number, and the owner's number of each row."""
    owner = numbered([table], keys)
    return Owned.of(owner, ints(table, "seq")).order, owner


def _latency(table: pa.Table) -> Iterator[Damage]:
    """Yield histograms whose buckets do not add up to their count."""
    lengths, most = np.asarray(pc.list_value_length(table.column("buckets"))), len(LATENCY_BOUNDS_NS) + 1
    of_schema = f"has {{1}} buckets, the schema {most}"
    yield from _first("latency", table, "buckets", lengths > most, of_schema, lengths)
    rows, buckets, counts = filled_buckets(table)
    total = np.zeros(len(table), dtype=np.int64)
    np.add.at(total, rows, counts)
    stated = ints(table, "count")
    if negative := first_true(counts < 0):
        yield Damage("latency", "buckets", int(rows[negative[0]]), "contains a negative count")
    elif wrong := first_true(total != stated):
        (row,) = wrong
        yield Damage("latency", "buckets", row, f"adds up to {total[row]}, but count is {stated[row]}")
    else:
        yield from _windows(table, rows, buckets)


def _windows(table: pa.Table, rows: Ints, buckets: Ints) -> Iterator[Damage]:
    """Yield windows that are empty or begin after their row was written, and maxima outside the highest bucket with records.
    `rows` and `buckets` name the buckets with records."""
    begins, t_ns = ints(table, "window_start_ns"), ints(table, "t_ns")
    lasts = ints(table, "window_ns")
    yield from _first("latency", table, "window_ns", (lasts == 0) | (lasts > AFTER_NS), "is {}")
    late, after = (begins - t_ns) / NS, "is {1:.1f} s after the row was written"
    yield from _first("latency", table, "window_start_ns", begins > t_ns, after, late)
    highest = np.full(len(table), -1, dtype=np.int64)
    np.maximum.at(highest, rows, buckets)
    largest = np.searchsorted(np.asarray(LATENCY_BOUNDS_NS), ints(table, "max_ns"))
    outside, stated = (highest >= 0) & (largest != highest), ints(table, "max_ns") / NS
    problem = "is {1:g} s, which is not in the highest bucket with records"
    yield from _first("latency", table, "max_ns", outside, problem, stated)


def _events(table: pa.Table) -> Iterator[Damage]:
    """Yield data that is not a JSON object, and states that a task or the job cannot have."""
    kinds = table.column("kind").to_pylist()
    for row, (kind, text) in enumerate(zip(kinds, table.column("data").to_pylist(), strict=True)):
        if kind not in STATES and text[:1] in ("", "{"):
            continue
        try:
            value = json.loads(text or "{}")
        except ValueError:
            continue  # `_json` reports it
        if not isinstance(value, dict):
            yield Damage("events", "data", row, f"of {kind} is not a JSON object: {text[:60]!r}")
            return
        if kind in STATES and str(value.get("to")) not in STATES[kind]:
            problem = f"of {kind} has the state {value.get('to')!r} in `to`, which Flink does not have"
            yield Damage("events", "data", row, problem)
            return


def _waits(table: pa.Table) -> Iterator[Damage]:
    """Yield waits that begin after their end, ids that more than one wait has, and options that do not limit their kind."""
    starts, ends = ints(table, "start_ns"), ints(table, "t_ns")
    after = "is {1:.1f} s after the end of the wait"
    yield from _first("waits", table, "start_ns", starts > ends, after, (starts - ends) / NS)
    again = np.ones(len(table), dtype=np.bool_)
    again[np.unique(numbered([table], ["wait"]), return_index=True)[1]] = False
    yield from _first("waits", table, "wait", again, "is {!r}, which another wait has too")
    for row, r in distinct(table, "kind", "option"):
        kind, option = r["kind"], r["option"]
        if option and kind in KINDS and not KINDS[kind].may_be_limited_by(option):
            yield Damage("waits", "option", row, f"is {option[:60]!r}, which limits no {kind} wait")


def _faults(table: pa.Table) -> Iterator[Damage]:
    """Yield faults that were seen or ended before they were injected. Agents may be on several nodes."""
    injected: dict[tuple[str, str], tuple[int, int]] = {}
    rows = list(enumerate(table.select(["fault", "targets", "state", "t_ns"]).to_pylist()))
    for row, r in rows:
        if r["state"] == "injected":
            injected.setdefault((r["fault"], r["targets"]), (row, r["t_ns"]))
    for _, r in rows:
        row, begun = injected.get((r["fault"], r["targets"]), (0, 0))
        if r["state"] in ("verified", "unverified", "ended") and r["t_ns"] < begun - TOLERANCE_NS:
            off = (begun - r["t_ns"]) / NS
            problem = f"says that {r['fault']} was injected {off:.1f} s after it was {r['state']}"
            yield Damage("faults", "t_ns", row, problem)
            return


def _delivery(table: pa.Table) -> Iterator[Damage]:
    """Yield bitmaps that are too long, chunks that do not begin at a multiple of CHUNK_RECORDS, and rows with
    more out-of-order records than records."""
    lengths, most = np.asarray(pc.binary_length(table.column("bitmap"))), CHUNK_RECORDS // 8
    long, beyond = lengths > most, f"has {{1}} bytes, at most {most} are possible"
    yield from _first("delivery", table, "bitmap", long, beyond, lengths)
    off = ints(table, "base") % CHUNK_RECORDS
    yield from _first("delivery", table, "base", off, f"is {{}}, which is not a multiple of {CHUNK_RECORDS}")
    records = committed_records(table)
    late = ints(table, "out_of_order") > records
    problem = "is {}, more than the {} records of the row (bitmap, duplicated)"
    yield from _first("delivery", table, "out_of_order", late, problem, records)


_OF_TABLE: Mapping[str, Callable[[pa.Table], Iterator[Damage]]] = {
    "tasks": check_counters,
    "channels": check_credit,
    "latency": _latency,
    "delivery": _delivery,
    "events": _events,
    "waits": _waits,
    "faults": _faults,
}
"""The rule for the rows of one table."""


def _together(trial: Trial, names: Iterable[str], *columns: str) -> tuple[dict[str, int], pa.Table]:
    """Return the rows of several tables as one, and the number of the first row of each. No rows if one has a
    null."""
    parts = {name: table for name in names if len(table := trial.table(name))}
    tables = [arrow_schema("events").empty_table(), *parts.values()]
    rows = pa.concat_tables([table.select(columns) for table in tables])
    starts = np.cumsum([0, *map(len, parts.values())]).tolist()
    nulls = any(column.null_count for column in rows.columns)
    return dict(zip(parts, starts, strict=False)), rows.slice(0, 0) if nulls else rows


def check_repeated(trial: Trial) -> list[Damage]:
    """Return one finding per table with rows that repeat a sequence number of their process."""
    starts, rows = _together(trial, TABLES, "process", "boot_id", "seq")
    order, owner = _by_owner(rows, ("process", "boot_id"))
    seq = ints(rows, "seq")
    again = np.sort(order[1:][(np.diff(owner[order]) == 0) & (np.diff(seq[order]) == 0)])
    found = []
    for name, start in starts.items():
        mine = again[(again >= start) & (again < start + len(trial.table(name)))]
        if len(mine):
            process = rows.column("process")[int(mine[0])].as_py()
            problem = f"{seq[mine[0]]} of {process} is there more than once ({len(mine)} repeated rows)"
            found.append(Damage(name, "seq", int(mine[0]) - start, problem))
    return found


def check_order(trial: Trial) -> list[Damage]:
    """Return the first row of each process of the job that is earlier than the previous row of that process:
    its time was changed."""
    starts, rows = _together(trial, OWN_CLOCK, "process", "boot_id", "seq", "t_ns")
    order, owner = _by_owner(rows, ("process", "boot_id"))
    t_ns = ints(rows, "t_ns")
    earlier = (np.diff(owner[order]) == 0) & (np.diff(t_ns[order]) < 0)
    found: dict[str, Damage] = {}
    for at in np.flatnonzero(earlier).tolist():
        row, before = int(order[at + 1]), int(order[at])
        process = rows.column("process")[row].as_py()
        if process in found or not process.startswith(JOB_PROCESSES):  # others pass rows on
            continue
        name, start = next((n, first) for n, first in reversed(starts.items()) if first <= row)
        off = (t_ns[before] - t_ns[row]) / NS
        problem = f"is {off:.3f} s before the row that {process} wrote before it: one of them was changed"
        found[process] = Damage(name, "t_ns", row - start, problem)
    return list(found.values())


def check_causality(trial: Trial) -> list[Damage]:
    """Return the first sample that a task took before the JobManager deployed it, or after it had reported its end."""
    tasks, log = trial.table("tasks"), trial.table("events")
    states = log.filter(pc.equal(log.column("kind"), "task.state"))
    if not sound(tasks, *TASK, "seq", "t_ns") or not sound(states, "subject", "attempt", "t_ns"):
        return []
    begun: dict[Attempt, int] = {}
    ended: dict[Attempt, int] = {}
    for row in states.select(["subject", "attempt", "t_ns", "data"]).to_pylist():
        state = parsed(row["data"]).get("to")
        if state in ("SCHEDULED", "DEPLOYING", "FINISHED"):
            into, attempt = ended if state == "FINISHED" else begun, attempt_of(row)
            into[attempt] = max(into.get(attempt, 0), row["t_ns"])
    seq, t_ns = ints(tasks, "seq"), ints(tasks, "t_ns")
    latest = int(t_ns.max())
    allowed = CAUSAL_NS if has_one_clock(trial) else TOLERANCE_NS
    for (task, number), unordered in places(tasks, *TASK).items():
        rows = unordered[np.argsort(seq[unordered], kind="stable")]
        early = rows[t_ns[rows] < begun.get((task, number), 0) - allowed]
        late = rows[t_ns[rows] > ended.get((task, number), latest) + allowed]
        if len(early) or len(late):
            row = int(early[0] if len(early) else late[0])
            off = abs(int(t_ns[row]) - (begun if len(early) else ended)[task, number]) / NS
            what = "before the JobManager deployed it" if len(early) else "after it reported its end"
            problem = (
                f"{task} took this sample {off:.1f} s {what}: the clock of its process is not comparable"
            )
            return [Damage("tasks", "t_ns", row, problem)]
    return []


def check_times(trial: Trial, entry: TrialEntry) -> list[Damage]:
    """Return one finding per table with rows outside the time of the trial: their process used another
    clock."""
    moments = entry.moments
    if not moments:
        return []
    first, last = min(moments) - BEFORE_NS, max(moments) + AFTER_NS
    found = []
    for name in TABLES:
        table = trial.table(name)
        if not len(table) or table.column("t_ns").null_count:
            continue
        t_ns = ints(table, "t_ns")
        for row in first_true((t_ns < first) | (t_ns > last)):
            off = (t_ns[row] - (max(moments) if t_ns[row] > last else min(moments))) / NS
            process, boot = (table.column(c)[row].as_py() for c in ("process", "boot_id"))
            where = "after the trial's end" if off > 0 else "before the trial's start"
            problem = (
                f"is {abs(off):.0f} s {where}: the clock of {process} (boot id {boot}) is not comparable"
            )
            found.append(Damage(name, "t_ns", row, problem))
    rules = [_tasks(trial, entry), _roles(trial, entry)]
    # records that were in flight in a checkpoint of another run are older than the trial
    if not entry.options.text(STATE_RECOVERY):
        rules.insert(0, _lags(trial, last - first))
    return found + first_of_each(*rules)


def _lags(trial: Trial, longest: int) -> Iterator[Damage]:
    """Yield lags that are longer than the trial."""
    table = trial.table("tasks")
    if sound(table, "lag_ns"):
        lag = ints(table, "lag_ns")
        problem = "is {1:g} s, which is longer than the trial"
        yield from _first("tasks", table, "lag_ns", lag > longest, problem, lag / NS)


def _tasks(trial: Trial, entry: TrialEntry) -> Iterator[Damage]:
    """Yield samples of a task that the job in the manifest does not have, and samples with another vertex than that of their task."""
    known, found = entry.tasks, distinct(trial.table("tasks"), "task", "vertex")
    for row, r in found if known else ():
        # the head of an iteration has a synchronisation task
        if r["task"] not in known and not vertex_of(r["task"]).endswith(SYNC_SUFFIX):
            yield Damage("tasks", "task", row, f"is {r['task'][:60]!r}, which the job does not have")
    for row, r in found if known else ():
        if r["vertex"] != vertex_of(r["task"]):
            yield Damage("tasks", "vertex", row, f"is {r['vertex'][:60]!r}, but the task is {r['task']}")


def _roles(trial: Trial, entry: TrialEntry) -> Iterator[Damage]:
    """Yield samples of a task in another role than that of its vertex in the manifest."""
    roles = {vertex.name: vertex.role for vertex in entry.job.vertices if vertex.role}
    for row, r in distinct(trial.table("tasks"), "vertex", "role"):
        if r["role"] != roles.get(r["vertex"], r["role"]):
            problem = f"is {r['role'][:60]!r}, but {r['vertex']} is a {roles[r['vertex']]} (manifest)"
            yield Damage("tasks", "role", row, problem)
