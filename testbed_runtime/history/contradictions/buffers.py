"""Compare the events about the network buffers of a TaskManager with each other, and the samples of back-pressure with their number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import parsed
from testbed_runtime.history.damage import Damage, first_of_each

BUFFERS, POOLS, PRESSED = "network.buffers", "network.pools", "backpressure.sampled"
SIZES = {"in": ("required", "size", "channels", "exclusive"), "out": ("required", "size")}
"""The numbers that each pool of a side has. It may use more than its size for a while, after that was reduced."""


def check_buffers(trial: CheckedTrial) -> list[Damage]:
    """Return the first event whose numbers contradict each other."""
    return first_of_each(_buffers(trial))


def _buffers(trial: CheckedTrial) -> Iterator[Damage]:
    table = trial.table("events").select(["kind", "process", "data"])
    places = pc.indices_nonzero(pc.is_in(table.column("kind"), pa.array([BUFFERS, POOLS, PRESSED])))
    rows = list(zip(places.to_pylist(), table.take(places).to_pylist(), strict=True))
    totals: dict[str, int] = {}
    for row, r in rows:
        total = parsed(r["data"]).get("total") if r["kind"] == BUFFERS else None
        if isinstance(total, int) and total != (first := totals.setdefault(r["process"], total)):
            problem = f"of {BUFFERS} has {total} as total, but {r['process']} has {first} buffers"
            yield Damage("events", "data", row, problem)
    for row, r in rows:
        for problem in _problems(r["kind"], parsed(r["data"]), totals.get(r["process"])):
            yield Damage("events", "data", row, f"of {r['kind']} has {problem}")


def _problems(kind: str, found: Mapping[str, Any], total: int | None) -> Iterator[str]:
    if kind == PRESSED:
        yield from _beyond(found, "backpressured", found.get("samples"), "samples")
    elif kind == BUFFERS:
        yield from _beyond(found, "used", total, "buffers")
    elif isinstance(pools := found.get("pools"), list):
        for pool in pools:
            yield from _of_pool(pool if isinstance(pool, Mapping) else {})


def _beyond(found: Mapping[str, Any], name: str, most: Any, of: str) -> Iterator[str]:
    value = found.get(name)
    if isinstance(value, int) and isinstance(most, int) and not 0 <= value <= most:
        yield f"{value} as {name}, of {most} {of}"


def _of_pool(pool: Mapping[str, Any]) -> Iterator[str]:
    """Yield a pool that lacks a number, or has more buffers than it may have."""
    of = f"of the pool of {pool.get('task')} ({pool.get('side')}, {pool.get('peer')})"
    for name in SIZES.get(str(pool.get("side")), ("side",)):
        if not isinstance(pool.get(name), int):
            yield f"{pool.get(name)!r} as {name} {of}"
            return
    most, size = pool.get("most"), pool["size"]
    if not 0 <= pool["required"] <= size or (isinstance(most, int) and 0 <= most < size):
        yield f"{size} as size {of}, which requires {pool['required']} and may have {most}"
