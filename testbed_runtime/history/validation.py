"""Validate the tables of a sealed trial when they are opened, so that damaged rows never reach a metric.

The seal compares row counts and the recorder compares sequence numbers as they arrive. This module finds what both cannot
see: wrong types, nulls, rows of another trial, repeated rows, counters that decrease, clocks that differ. Each finding
names the table, the column and the row (from 0, as stored).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.messages import CHUNK_RECORDS
from testbed_runtime.core.waits import KINDS, Outcome
from testbed_runtime.history.schema import (
    ADDED_LATER,
    EVENT_KINDS,
    LATENCY_BOUNDS_NS,
    TABLES,
    Trial,
    arrow_schema,
)

NS = 1_000_000_000
BEFORE_NS = 1800 * NS
"""Rows may precede the trial's first phase by this much: processes start, images are pulled."""
AFTER_NS = 600 * NS
"""Rows may follow the trial's last phase by this much: processes stop, the recorder seals."""
TOLERANCE_NS = NS
"""Difference between two clocks, or between an event and its row, that is no sign of damage."""
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
    ("waits", "kind"): frozenset(KINDS),
    ("waits", "outcome"): frozenset(Outcome),
}
_MAY_BE_NEGATIVE = {
    "attempt": -1, "checkpoint": -1, "budget_ns": -1, "credit": None, "lag_ns": None, "max_ns": None,
}  # fmt: skip
"""Least value of the integer columns that are not counters; None for no limit. All others are at least 0."""
COUNTERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tasks": (
        ("process", "task", "attempt"),
        ("records_in", "records_out", "bytes_in", "bytes_out", "busy_ns", "backpressured_ns", "idle_ns", "t_ns"),
    ),
}  # fmt: skip
"""Columns that never decrease, in the order of `seq`, and what identifies their owner. The sampler's clock is one of them."""
JSON_COLUMNS = {"events": ("data",), "faults": ("targets", "asked", "measured")}
_NOT_FINITE = re.compile(r"\b(NaN|-?Infinity)\b")

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Damage:
    """One finding. `row` is -1 if the whole column is meant."""

    table: str
    column: str
    row: int
    problem: str

    def __str__(self) -> str:
        row = f", row {self.row}" if self.row >= 0 else ""
        return f"{self.table}.parquet, column {self.column}{row}: {self.problem}"


class DamagedHistory(UserError):
    """The history of a trial cannot be judged."""

    def __init__(self, where: str, found: list[Damage]) -> None:
        self.found = tuple(found)
        more = f" (and {len(found) - SHOWN_MAX} more)" if len(found) > SHOWN_MAX else ""
        shown = "; ".join(str(d) for d in found[:SHOWN_MAX])
        super().__init__(
            where, f"the history is damaged: {shown}{more}", "restore it, or run the scenario again"
        )


def check_schema(table: str, schema: pa.Schema) -> list[Damage]:
    """Return the columns that are missing or have another type than in `history.schema`."""
    found = []
    for field in arrow_schema(table):
        index = schema.get_field_index(field.name)
        if index < 0 and (table, field.name) in ADDED_LATER:
            continue
        if index < 0:
            found.append(
                Damage(table, field.name, -1, "is missing; another version of Headgate wrote the file")
            )
        elif schema.field(index).type != field.type:
            kind = schema.field(index).type
            found.append(Damage(table, field.name, -1, f"has the type {kind} instead of {field.type}"))
    return found


def check_trial(trial: Trial, entry: Mapping[str, Any] | None = None) -> list[Damage]:
    """Return everything that is wrong with the tables of a trial, at most one finding per column and rule.

    `entry` is the trial's entry in the manifest; without it the time range is not checked."""
    found = [
        d for name in TABLES for d in check_table(name, trial.table(name), run=trial.run, trial=trial.trial)
    ]
    if any(check_schema(name, trial.table(name).schema) for name in TABLES):
        return found
    found += check_repeated(trial) + check_causality(trial)
    return found + (check_times(trial, entry) if entry is not None else [])


def require_sound(trial: Trial, where: str, entry: Mapping[str, Any] | None = None) -> Trial:
    """Return the trial. Raises DamagedHistory if `check_trial` finds anything."""
    found = check_trial(trial, entry)
    if found:
        raise DamagedHistory(where, found)
    return trial


def check_table(name: str, table: pa.Table, *, run: str, trial: str) -> list[Damage]:
    """Return what is wrong with one table, by itself."""
    return check_schema(name, table.schema) or check_rows(name, table, run=run, trial=trial)


def check_rows(name: str, table: pa.Table, *, run: str, trial: str) -> list[Damage]:
    """Return what is wrong with rows of a table whose schema is sound. Columns of which nothing depends may be left out."""
    found = list(_nulls(name, table))
    if found or not len(table):
        return found
    rules = (_identity(name, table, run, trial), _ranges(name, table), _words(name, table), _json(name, table),
             check_counters(name, table), _latency(name, table), _delivery(name, table))  # fmt: skip
    return [damage for rule in rules for damage in rule]


def _nulls(name: str, table: pa.Table) -> Iterator[Damage]:
    for field in table.schema:
        column = table.column(field.name)
        if column.null_count:
            yield Damage(name, field.name, _first(pc.is_null(column)), "is null")
        elif pa.types.is_list(field.type) and pc.list_flatten(column).null_count:
            yield Damage(name, field.name, -1, "contains a null")


def _first(mask: Any) -> int:
    """Return the first true position of a boolean array."""
    return int(pc.index(mask, True).as_py())


def _identity(name: str, table: pa.Table, run: str, trial: str) -> Iterator[Damage]:
    for column, expected in (("run", run), ("trial", trial)):
        other = pc.not_equal(table.column(column), expected)
        if (row := _first(other)) >= 0:
            yield Damage(
                name, column, row, f"is {table.column(column)[row].as_py()!r} instead of {expected!r}"
            )
    for column in ("process", "boot_id"):
        if (row := _first(pc.equal(table.column(column), ""))) >= 0:
            yield Damage(name, column, row, "is empty")


def _ranges(name: str, table: pa.Table) -> Iterator[Damage]:
    """Yield integers below their least value. Every count, time and number is at least 0."""
    for field in table.schema:
        least = _MAY_BE_NEGATIVE.get(field.name, 0)
        if not pa.types.is_integer(field.type) or least is None:
            continue
        column = table.column(field.name)
        if pc.min(column).as_py() < least:
            row = _first(pc.less(column, least))
            yield Damage(name, field.name, row, f"is {column[row].as_py()}, which is below {least}")


def _words(name: str, table: pa.Table) -> Iterator[Damage]:
    for (owner, column), words in VOCABULARY.items():
        if owner != name:
            continue
        known = pc.is_in(table.column(column), pa.array(sorted(words)))
        if (row := _first(pc.invert(known))) >= 0:
            yield Damage(
                name, column, row, f"is {table.column(column)[row].as_py()!r}, which is not in the schema"
            )


def _json(name: str, table: pa.Table) -> Iterator[Damage]:
    """Yield texts that should be JSON and are not. NaN and Infinity are no JSON."""
    for column in JSON_COLUMNS.get(name, ()):
        encoded = table.column(column).combine_chunks().dictionary_encode()
        for code, text in enumerate(encoded.dictionary.to_pylist()):
            if problem := _json_problem(text):
                yield Damage(name, column, _first(pc.equal(encoded.indices, code)), problem)
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


def check_counters(name: str, table: pa.Table) -> Iterator[Damage]:
    """Yield counters that decrease from one sample of their owner to the next."""
    if name not in COUNTERS:
        return
    keys, counters = COUNTERS[name]
    order, owner = _by_owner(table, keys)
    same = np.diff(owner[order]) == 0
    for column in (c for c in counters if c in table.column_names):
        values = _ints(table, column)[order]
        fell = np.flatnonzero(same & (np.diff(values) < 0))
        if len(fell):
            row = int(order[fell + 1].min())
            at = int(np.flatnonzero(order == row)[0])
            what = ", ".join(str(table.column(k)[row].as_py()) for k in keys)
            problem = f"decreases from {values[at - 1]} to {values[at]} ({what})"
            yield Damage(name, column, row, problem)


def _by_owner(table: pa.Table, keys: tuple[str, ...]) -> tuple[Ints, Ints]:
    """Return the rows in order of owner and sequence number, and the owner's number of each row."""
    owner = np.zeros(len(table), dtype=np.int64)
    for key in keys:
        encoded = table.column(key).combine_chunks().dictionary_encode()
        owner = owner * max(1, len(encoded.dictionary)) + np.asarray(encoded.indices, dtype=np.int64)
    return np.lexsort((_ints(table, "seq"), owner)).astype(np.int64), owner


def _ints(table: pa.Table, column: str) -> Ints:
    return np.asarray(table.column(column).to_numpy(zero_copy_only=False), dtype=np.int64)


def _latency(name: str, table: pa.Table) -> Iterator[Damage]:
    """Yield histograms whose buckets do not add up to their count."""
    if name != "latency":
        return
    column = table.column("buckets").combine_chunks()
    lengths = np.asarray(pc.list_value_length(column), dtype=np.int64)
    if (lengths > len(LATENCY_BOUNDS_NS) + 1).any():
        row = int(np.flatnonzero(lengths > len(LATENCY_BOUNDS_NS) + 1)[0])
        yield Damage(
            name, "buckets", row, f"has {lengths[row]} buckets, the schema {len(LATENCY_BOUNDS_NS) + 1}"
        )
    counts = np.asarray(pc.list_flatten(column), dtype=np.int64)
    ends = np.cumsum(lengths)
    sums = np.concatenate([[0], np.cumsum(counts)])
    total = sums[ends] - sums[ends - lengths]
    wrong = np.flatnonzero(total != _ints(table, "count"))
    if len(counts) and counts.min() < 0:
        row = int(np.searchsorted(ends, np.flatnonzero(counts < 0)[0], side="right"))
        yield Damage(name, "buckets", row, "contains a negative count")
    elif len(wrong):
        row = int(wrong[0])
        stated = table.column("count")[row].as_py()
        yield Damage(name, "buckets", row, f"adds up to {total[row]}, but count is {stated}")


def _delivery(name: str, table: pa.Table) -> Iterator[Damage]:
    """Yield bitmaps of another length, and chunks that begin elsewhere than at a multiple of it."""
    if name != "delivery":
        return
    lengths = np.asarray(pc.binary_length(table.column("bitmap")), dtype=np.int64)
    too_long = np.flatnonzero(lengths > CHUNK_RECORDS // 8)
    if len(too_long):
        row = int(too_long[0])
        yield Damage(
            name, "bitmap", row, f"has {lengths[row]} bytes, at most {CHUNK_RECORDS // 8} are possible"
        )
    off = np.flatnonzero(_ints(table, "base") % CHUNK_RECORDS)
    if len(off):
        row = int(off[0])
        base = table.column("base")[row].as_py()
        yield Damage(name, "base", row, f"is {base}, which is not a multiple of {CHUNK_RECORDS}")


def check_repeated(trial: Trial) -> list[Damage]:
    """Return one finding per table with rows that repeat a sequence number of their process."""
    parts = [(name, table) for name in TABLES if len(table := trial.table(name))]
    together = (
        pa.concat_tables([t.select(["process", "boot_id", "seq"]) for _, t in parts]) if parts else None
    )
    if together is None or any(c.null_count for c in together.columns):
        return []
    order, owner = _by_owner(together, ("process", "boot_id"))
    seq = _ints(together, "seq")
    again = order[1:][(np.diff(owner[order]) == 0) & (np.diff(seq[order]) == 0)]
    starts = np.cumsum([0, *(len(t) for _, t in parts)])
    found = []
    for number, (name, table) in enumerate(parts):
        mine = again[(again >= starts[number]) & (again < starts[number + 1])]
        if len(mine):
            row = int(mine.min() - starts[number])
            process = table.column("process")[row].as_py()
            problem = f"{seq[mine.min()]} of {process} is there more than once ({len(mine)} repeated rows)"
            found.append(Damage(name, "seq", row, problem))
    return found


def check_causality(trial: Trial) -> list[Damage]:
    """Return the first sample that a task took before the JobManager scheduled it, or after it had reported its end."""
    tasks, log = trial.table("tasks"), trial.table("events")
    states = log.filter(pc.equal(log.column("kind"), "task.state"))
    if not len(tasks) or tasks.column("t_ns").null_count or not len(states):
        return []
    names = {name: number for number, name in enumerate(pc.unique(tasks.column("task")).to_pylist())}
    begun: dict[tuple[int, int], int] = {}
    ended: dict[tuple[int, int], int] = {}
    for row in states.select(["subject", "attempt", "t_ns", "data"]).to_pylist():
        state = _json_state(row["data"])
        if row["subject"] in names and state in ("SCHEDULED", "FINISHED"):
            into = begun if state == "SCHEDULED" else ended
            into[names[row["subject"]], row["attempt"]] = row["t_ns"]
    order, owner = _by_owner(tasks, ("task", "attempt"))
    t_ns = _ints(tasks, "t_ns")
    groups = np.split(order, np.flatnonzero(np.diff(owner[order])) + 1)
    for rows in groups:
        task, attempt = (
            tasks.column("task")[int(rows[0])].as_py(),
            tasks.column("attempt")[int(rows[0])].as_py(),
        )
        key = (names[task], attempt)
        early = rows[t_ns[rows] < begun.get(key, 0) - TOLERANCE_NS]
        late = rows[t_ns[rows] > ended.get(key, int(t_ns.max())) + TOLERANCE_NS]
        if len(early) or len(late):
            row = int(early[0] if len(early) else late[0])
            off = abs(int(t_ns[row]) - (begun if len(early) else ended)[key]) / NS
            what = "before the JobManager scheduled it" if len(early) else "after it reported its end"
            problem = (
                f"{task} took this sample {off:.1f} s {what}: the clock of its process is not comparable"
            )
            return [Damage("tasks", "t_ns", row, problem)]
    return []


def _json_state(text: str | None) -> str:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return ""
    return str(value.get("to", "")) if isinstance(value, dict) else ""


def check_times(trial: Trial, entry: Mapping[str, Any]) -> list[Damage]:
    """Return one finding per table with rows outside the time of the trial: the clock of their process is another one."""
    moments = [int(p[k]) for p in entry.get("phases") or () for k in ("start_ns", "end_ns") if p.get(k)]
    if not moments:
        return []
    first, last = min(moments) - BEFORE_NS, max(moments) + AFTER_NS
    found = []
    for name in TABLES:
        table = trial.table(name)
        if not len(table) or table.column("t_ns").null_count:
            continue
        t_ns = _ints(table, "t_ns")
        outside = np.flatnonzero((t_ns < first) | (t_ns > last))
        if len(outside):
            row = int(outside[0])
            off = (t_ns[row] - (max(moments) if t_ns[row] > last else min(moments))) / NS
            process, boot = table.column("process")[row].as_py(), table.column("boot_id")[row].as_py()
            where = "after the trial's end" if off > 0 else "before the trial's start"
            problem = (
                f"is {abs(off):.0f} s {where}: the clock of {process} (boot id {boot}) is not comparable"
            )
            found.append(Damage(name, "t_ns", row, problem))
    return found
