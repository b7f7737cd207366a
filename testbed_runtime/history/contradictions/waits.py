"""Compare waits with the order in which their process wrote its rows, with their own limits and the options of the job, with the
edges and checkpoints that they are for, and with the events that follow from their end."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from testbed_runtime.core.job.restart import RESTART_STRATEGY, settings_in_effect
from testbed_runtime.core.options import BY_KEY, OWN_PREFIX
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import (
    GROWN,
    JOBMASTER_NAME,
    OWN_PARTITION,
    PRODUCT,
    RM_NAME,
    Outcome,
    named_today,
)
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import (
    JOB_PROCESSES,
    OWN_CLOCK,
    ROUNDING_NS,
    Owned,
    attempt_of,
    ints,
    numbered,
    sound,
    vertex_of,
)
from testbed_runtime.history.damage import Damage, first_of_each, no_row
from testbed_runtime.history.waits import INT64_MAX

ENDS_EARLIER = frozenset(("partition", "credit", "lease"))
"""Kinds of waits that may be recorded after they have ended."""
EXACT = frozenset(("heartbeat", "restart-delay", "replacement"))
"""Kinds of waits that last as long as their option says, if it decides them."""
USUAL_MIN = 3
"""Minimum waits that are out of order. Fewer may have ended just between two rows that were written at once."""
EXACT_SHARE, TIMEOUT_SHARE = 0.95, 0.45
"""A buffer timeout may have begun before the wait for the first record."""
OWN_BUDGET = frozenset(("partition", "credit"))
"""Kinds of waits whose budget follows from several requests, or that have none."""
NUMBER = r"checkpoint (\d+)"
LOST = "taskmanager.lost"
ENDING = ("failover.failure", "failover.started", LOST)
"""Events with the kind of the wait that they ended."""
BY_JOBMANAGER = frozenset(("heartbeat", "checkpoint", "deployment"))
"""Those that the JobManager records itself, before the event. A TaskManager that is killed loses its last ones."""


def check_waits(trial: CheckedTrial) -> list[Damage]:
    """Return the contradictions of waits, at most one for each rule."""
    return first_of_each(_written(trial), _budgets(trial), _options(trial)) if trial.waits() else []


def _written(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield waits that ended after the next row of their process was written, or before its previous row. A few may, if their process did not
    run for some time."""
    off: list[Damage] = []
    waits, keys = trial.table("waits"), ("process", "boot_id")
    others = [t for n in OWN_CLOCK if sound(t := trial.table(n), *keys, "seq", "t_ns")]
    tables = [table.select([*keys, "seq", "t_ns"]) for table in (waits, *others)]
    owned = Owned.of(numbered(tables, keys), np.concatenate([ints(t, "seq") for t in tables]))
    t_ns = np.concatenate([ints(t, "t_ns") for t in tables])[owned.order]
    waiting = owned.order < len(waits)
    before, after = owned.neighbours(~waiting)
    kinds, processes = (waits.column(name).to_pylist() for name in ("kind", "process"))
    for at in np.flatnonzero(waiting).tolist():
        row = int(owned.order[at])
        if not (process := processes[row]).startswith(JOB_PROCESSES):
            continue
        late = int(t_ns[at] - t_ns[after[at]]) if after[at] >= 0 else 0
        early = int(t_ns[before[at]] - t_ns[at]) if before[at] >= 0 and kinds[row] not in ENDS_EARLIER else 0
        if max(late, early) <= ROUNDING_NS:
            continue
        where = (
            "after the row that {} wrote next" if late > early else "before the row that {} wrote before it"
        )
        problem = f"is {max(late, early) / NS:.2f} s {where.format(process)}"
        off.append(Damage("waits", "t_ns", row, problem))
        if max(late, early) > trial.tolerance_ns(process, int(t_ns[at])):
            yield off[-1]
    yield from off if len(off) >= USUAL_MIN else ()


def _budgets(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield waits that their option decided, and that were shorter or had no option."""
    for row, r in trial.waits():
        took, least = r["t_ns"] - r["start_ns"], _share(r) * r["budget_ns"] - ROUNDING_NS
        if not Outcome(r["outcome"]).belongs_to_option:
            continue
        if not r["option"]:
            problem = f"is {r['outcome']!r}, but no option limits this {r['kind']} wait"
            yield Damage("waits", "outcome", row, problem)
        elif r["budget_ns"] >= 0 and took < least:
            problem = f"of this {r['kind']} wait is {took / NS:g} s before its end, but {r['option']} let it wait for {r['budget_ns'] / NS:g} s ({r['outcome']})"
            yield Damage("waits", "start_ns", row, problem)


def _share(row: Mapping[str, Any]) -> float:
    """Return the least part of its budget that a wait lasted which its option decided. The first of several calls that fail may
    begin at once. The heartbeat that showed that a task is gone may follow another one or the task's deployment at once."""
    if row["kind"] == "first-record":
        return TIMEOUT_SHARE
    if row["kind"] not in EXACT or (row["kind"], row["outcome"]) == ("heartbeat", Outcome.FIRED):
        return 0.0
    times = row["value"].rpartition(PRODUCT)[2] if PRODUCT in row["value"] else ""
    return 1 - 2 / max(2, int(times)) if times.isdigit() else EXACT_SHARE


def _options(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield values of options that are not those of the manifest, and budgets that do not follow from them. Those of a restart strategy
    that Flink ignores are not read."""
    asked = trial.options
    in_effect = settings_in_effect(asked)
    for row, r in trial.waits():
        options = in_effect if r["option"].startswith(RESTART_STRATEGY) else asked
        keys = named_today(r["option"]).split(PRODUCT) if r["option"] else []
        if not all(key in BY_KEY for key in keys) or not keys:
            continue
        value = PRODUCT.join(options.shown(key) for key in keys)
        # versions that left out the unit of a bare number
        earlier = PRODUCT.join(options.text(key) for key in keys)
        if r["value"].partition(GROWN)[0] not in (value, earlier):
            problem = (
                f"is {r['value'][:60]!r}, but {r['option']} is {value!r} (configuration in the manifest)"
            )
            yield Damage("waits", "value", row, problem)
        elif (
            r["kind"] not in OWN_BUDGET
            and GROWN not in r["value"]
            and not r["option"].startswith(OWN_PREFIX)  # their budget may be another one
        ):
            allowed = min(int(math.prod(options.number(key) for key in keys) * NS), INT64_MAX)
            if 0 < allowed != r["budget_ns"]:
                problem = f"is {r['budget_ns'] / NS:g} s, but {r['option']} allows {allowed / NS:g} s (configuration in the manifest)"
                yield Damage("waits", "budget_ns", row, problem)


def check_awaited(trial: CheckedTrial) -> list[Damage]:
    """Return waits for something that the job does not have, and events whose wait is missing, at most one for each rule. A JobManager
    that was killed loses its last rows."""
    if not trial.deployed or not trial.waits() or not trial.recorded_to_its_end:
        return []
    return first_of_each(_producers(trial), _checkpoints(trial), _ended(trial), _delayed(trial))


def _producers(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a wait for the partition of a task that sends nothing to the one that waits."""
    known = {(source, target) for source, target, _ in trial.edges}
    for row, r in trial.distinct("waits", "kind", "who", "what"):
        edge = vertex_of(r["what"]), vertex_of(r["who"])
        if r["kind"] == "partition" and r["what"] != OWN_PARTITION and known and edge not in known:
            problem = f"is {r['what'][:60]!r}, which sends nothing to {r['who']} (manifest)"
            yield Damage("waits", "what", row, problem)


def _checkpoints(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a wait for another checkpoint than the one that the task restored, and for the barriers of one that was not triggered."""
    restored = {attempt_of(e): e["checkpoint"] for _, e in trial.events("task.restored")}
    triggered = {r["checkpoint"] for _, r in trial.rows("checkpoints")}
    for row, r in trial.waits("restore", "alignment"):
        found = re.fullmatch(NUMBER, r["what"])
        number = found and int(found[1])
        mine = restored.get((r["who"], r["attempt"]), number)
        if r["kind"] == "restore" and number != mine:
            problem = f"is {r['what']!r}, but {r['who']} restored checkpoint {mine} (task.restored in events)"
            yield Damage("waits", "what", row, problem)
        elif r["kind"] == "alignment" and number not in triggered:
            yield Damage("waits", "what", row, f"is {r['what']!r}, which was not triggered (checkpoints)")


def _ended(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield an event that ended a wait of a kind of which none ended then. A busy JobMaster hears late of a loss that the ResourceManager
    noticed."""
    ends = {kind: [r["t_ns"] for _, r in trial.waits(kind)] for kind in BY_JOBMANAGER}
    for _, event in trial.events(*ENDING):
        data = event["data"]
        kind = str(data.get("wait"))
        detectors = (JOBMASTER_NAME, RM_NAME) if event["kind"] == LOST else (JOBMASTER_NAME,)
        if kind not in BY_JOBMANAGER or data.get("detector") not in detectors:
            continue
        if not trial.happened(event["process"], event["t_ns"], ends[kind]):
            problem = f"has no {kind} that ended with {event['kind']} of {event['subject']} (data in events)"
            yield no_row("waits", problem)


def _delayed(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a restart that the restart strategy delayed, and that did not wait."""
    waited = [r for _, r in trial.waits("restart-delay") if r["who"] == JOBMASTER_NAME]
    delayed = {str(r["attempt"]) for r in waited}
    for _, event in trial.events("failover.started"):
        seconds = event["data"].get("delay_s")
        if isinstance(seconds, int | float) and seconds > 0 and event["subject"] not in delayed:
            problem = f"has no restart-delay of restart {event['subject']}, which was delayed by {seconds:g} s (failover.started in events)"
            yield no_row("waits", problem)
