"""Find rows that carry another process or boot id than that of their writer: they have numbers that the writer's rows lack."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import numpy as np
import pyarrow as pa

from testbed_runtime.core.grouping import grouped
from testbed_runtime.history.columns import Ints, ints, places, sound
from testbed_runtime.history.damage import Damage
from testbed_runtime.history.numbers import KEY, by_key
from testbed_runtime.history.schema import TABLES, Trial

Numbers = Mapping[tuple[str, str], Ints]
"""The numbers of the rows of each process."""


def check_owners(trial: Trial) -> list[Damage]:
    """Return the first rows of a process that never wrote row 0, if they are all that another one lacks, alone or together with those of
    others that did not. Every process begins with 0."""
    strangers = _strangers(trial)
    found = _numbers(trial) if strangers else {}
    for one, other in permutations(found, 2):
        if not {one, other} & strangers or len(found[one]) > len(found[other]):
            continue
        if _gapless(found[one], found[other]):
            return [_named(trial, one, other)]
    for other in sorted(found.keys() - strangers):
        for several in ({o for o in strangers if o[0] == other[0]}, strangers):
            if len(several) > 1 and _gapless(found[other], *(found[one] for one in several)):
                return [_named(trial, min(several), other)]
    return []


def _gapless(*numbers: Ints) -> bool:
    together = np.sort(np.concatenate(numbers))
    return np.array_equal(together, np.arange(len(together)))


def _strangers(trial: Trial) -> set[tuple[str, str]]:
    """Return the processes that wrote rows, but not row 0."""
    first: dict[tuple[str, str], int] = {}
    for _, table in _tables(trial):
        for r in table.group_by(list(KEY)).aggregate([("seq", "min")]).to_pylist():
            owner = (r["process"], r["boot_id"])
            first[owner] = min(r["seq_min"], first.get(owner, r["seq_min"]))
    return {owner for owner, number in first.items() if number > 0}


def _tables(trial: Trial) -> list[tuple[str, pa.Table]]:
    return [(name, table) for name in TABLES if sound(table := trial.table(name), *KEY, "seq")]


def _numbers(trial: Trial) -> Numbers:
    parts = grouped(pair for _, table in _tables(trial) for pair in by_key(table))
    return {owner: np.concatenate(found) for owner, found in parts.items()}


def _named(trial: Trial, one: tuple[str, str], other: tuple[str, str]) -> Damage:
    """Return the finding for the rows of `one`, which `other` has written."""
    column = KEY.index("boot_id") if one[0] == other[0] else KEY.index("process")
    name, table = next((name, table) for name, table in _tables(trial) if one in places(table, *KEY))
    row = int(places(table, *KEY)[one][0])
    number = ints(table, "seq")[row]
    problem = f"is {one[column][:60]!r}, but {other[column][:60]!r} has no row {number} (seq)"
    return Damage(name, KEY[column], row, problem)
