"""Compare waits with the order in which their process wrote its rows, with their own limits and the options of the job, with the
edges and checkpoints that they are for, and with the events that follow from their end."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from testbed_runtime.core.job.restart import RESTART_STRATEGY, settings_in_effect
from testbed_runtime.core.options import BY_KEY
from testbed_runtime.core.waits import GROWN, JOBMASTER_NAME, PRODUCT, RM_NAME, Outcome, named_today
from testbed_runtime.history.columns import (
    JOB_PROCESSES,
    NS,
    OWN_CLOCK,
    ROUNDING_NS,
    Owned,
    Waits,
    deployments,
    distinct,
    events,
    ints,
    numbered,
    parsed,
    sound,
    tolerance_ns,
    waits_of,
)
from testbed_runtime.history.contradictions.executions import recorded_to_its_end
from testbed_runtime.history.damage import Damage, first_of_each, no_row
from testbed_runtime.history.manifest import edges, options_of
from testbed_runtime.history.schema import Trial
from testbed_runtime.history.waits import INT64_MAX

ENDS_EARLIER = frozenset(("partition", "credit", "lease"))
"""Kinds of waits that may be recorded after they have ended."""
EXACT = frozenset(("heartbeat", "restart-delay", "replacement"))
"""Kinds of waits that last as long as their option says, if it decides them."""
EXACT_SHARE, TIMEOUT_SHARE = 0.95, 0.45
"""A buffer timeout may have begun before the wait for the first record."""
OWN_BUDGET = frozenset(("partition", "credit"))
"""Kinds of waits whose budget follows from several requests, or that have none."""
COLUMNS = ("kind", "outcome", "option", "value", "budget_ns", "start_ns", "t_ns")
NUMBER = r"checkpoint (\d+)"
OWN = "its own"
"""A task waits for its own partition before it may use it."""
LOST = "taskmanager.lost"
ENDING = ("failover.failure", "failover.started", LOST)
"""Events with the kind of the wait that they ended."""
BY_JOBMANAGER = frozenset(("heartbeat", "checkpoint", "deployment"))
"""Those that the JobManager records itself, before the event. A TaskManager that is killed loses its last ones."""


def check_waits(trial: Trial, entry: Mapping[str, Any]) -> list[Damage]:
    """Return the contradictions of waits, at most one for each rule."""
    table = trial.table("waits")
    if not sound(table, "process", "boot_id", "seq", *COLUMNS):
        return []
    rows = table.select(COLUMNS).to_pylist()
    rules = (_written(trial), _budgets(rows), _options(rows, entry))
    return first_of_each(rules)


def _written(trial: Trial) -> Iterator[Damage]:
    """Yield waits that ended after the next row of their process was written, or before the one before."""
    waits = trial.table("waits")
    keys = ("process", "boot_id")
    others = [t for n in OWN_CLOCK if sound(t := trial.table(n), *keys, "seq", "t_ns")]
    if not others:
        return
    tables = [waits.select([*keys, "seq", "t_ns"]), *(t.select([*keys, "seq", "t_ns"]) for t in others)]
    owned = Owned.of(numbered(tables, keys), np.concatenate([ints(t, "seq") for t in tables]))
    t_ns = np.concatenate([ints(t, "t_ns") for t in tables])[owned.order]
    waiting, places = owned.order < len(waits), np.arange(len(owned.order))
    before = np.maximum.accumulate(np.where(waiting, -1, places))
    after = np.minimum.accumulate(np.where(waiting, len(places), places)[::-1])[::-1]
    kinds = waits.column("kind").to_pylist()
    processes = waits.column("process").to_pylist()
    first, last = owned.spread(owned.starts), owned.spread(owned.ends)
    for at in np.flatnonzero(waiting).tolist():
        row = int(owned.order[at])
        if not processes[row].startswith(JOB_PROCESSES):
            continue
        allowed = tolerance_ns(trial, processes[row], int(t_ns[at]))
        if after[at] <= last[at] and t_ns[at] > t_ns[after[at]] + allowed:
            off = (t_ns[at] - t_ns[after[at]]) / NS
            yield Damage(
                "waits", "t_ns", row, f"is {off:.1f} s after the row that {processes[row]} wrote next"
            )
        elif (
            before[at] >= first[at]
            and t_ns[at] < t_ns[before[at]] - allowed
            and kinds[row] not in ENDS_EARLIER
        ):
            off = (t_ns[before[at]] - t_ns[at]) / NS
            yield Damage(
                "waits", "t_ns", row, f"is {off:.1f} s before the row that {processes[row]} wrote before it"
            )


def _budgets(rows: list[dict[str, Any]]) -> Iterator[Damage]:
    """Yield waits that their option decided, and that were shorter or had no option."""
    for row, r in enumerate(rows):
        if not Outcome(r["outcome"]).belongs_to_option:
            continue
        if not r["option"]:
            yield Damage(
                "waits", "outcome", row, f"is {r['outcome']!r}, but no option limits this {r['kind']} wait"
            )
        elif r["budget_ns"] >= 0 and r["t_ns"] - r["start_ns"] < _share(r) * r["budget_ns"] - ROUNDING_NS:
            took, budget = (r["t_ns"] - r["start_ns"]) / NS, r["budget_ns"] / NS
            problem = f"of this {r['kind']} wait is {took:g} s before its end, but {r['option']} let it wait for {budget:g} s ({r['outcome']})"
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


def _options(rows: list[dict[str, Any]], entry: Mapping[str, Any]) -> Iterator[Damage]:
    """Yield values of options that are not those of the manifest, and budgets that do not follow from them. Those of a restart strategy
    that Flink ignores are not read."""
    asked = options_of(entry)
    in_effect = settings_in_effect(asked)
    for row, r in enumerate(rows):
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
            and not r["option"].startswith("headgate.")
        ):
            allowed = min(int(math.prod(options.number(key) for key in keys) * NS), INT64_MAX)
            if r["budget_ns"] != (allowed if allowed > 0 else r["budget_ns"]):
                problem = f"is {r['budget_ns'] / NS:g} s, but {r['option']} allows {allowed / NS:g} s (configuration in the manifest)"
                yield Damage("waits", "budget_ns", row, problem)


def check_awaited(trial: Trial, entry: Mapping[str, Any]) -> list[Damage]:
    """Return waits for something that the job does not have, at most one for each rule, if the JobManager recorded the whole job."""
    if not deployments(trial) or not recorded_to_its_end(trial):
        return []
    rules = (_producers(trial, entry), _checkpoints(trial))
    return first_of_each(rules)


def _producers(trial: Trial, entry: Mapping[str, Any]) -> Iterator[Damage]:
    """Yield a wait for the partition of a task that sends nothing to the one that waits."""
    known = {(source, target) for source, target, _ in edges(entry)}
    for row, r in distinct(trial, "waits", "kind", "who", "what"):
        ends = r["what"].rpartition("-")[0], r["who"].rpartition("-")[0]
        if r["kind"] == "partition" and r["what"] != OWN and known and ends not in known:
            yield Damage(
                "waits", "what", row, f"is {r['what'][:60]!r}, which sends nothing to {r['who']} (manifest)"
            )


def _checkpoints(trial: Trial) -> Iterator[Damage]:
    """Yield a wait for another checkpoint than the one that the task restored, and for the barriers of one that was not triggered."""
    restored = {(e["subject"], e["attempt"]): e["checkpoint"] for _, e in events(trial, "task.restored")}
    table, waits = trial.table("checkpoints"), trial.table("waits")
    columns = ("kind", "who", "what", "attempt")
    triggered = set(table.column("checkpoint").to_pylist()) if sound(table, "checkpoint") else set()
    for row, r in enumerate(waits.select(columns).to_pylist() if sound(waits, *columns) else ()):
        found = re.fullmatch(NUMBER, r["what"])
        number = found and int(found[1])
        if r["kind"] == "restore" and number != restored.get((r["who"], r["attempt"]), number):
            problem = f"is {r['what']!r}, but {r['who']} restored checkpoint {restored[r['who'], r['attempt']]} (task.restored in events)"
            yield Damage("waits", "what", row, problem)
        elif r["kind"] == "alignment" and number not in triggered:
            yield Damage("waits", "what", row, f"is {r['what']!r}, which was not triggered (checkpoints)")


def check_ended(trial: Trial) -> list[Damage]:
    """Return the events whose wait is missing, at most one for each rule. A JobManager that was killed loses its last rows."""
    waits = waits_of(trial)
    if not deployments(trial) or not waits or not recorded_to_its_end(trial):
        return []
    return first_of_each((_ended(trial, waits), _delayed(trial, waits)))


def _ended(trial: Trial, waits: Waits) -> Iterator[Damage]:
    """Yield an event that ended a wait of a kind of which none ended then. A busy JobMaster hears late of a loss that the ResourceManager
    noticed."""
    ends: dict[str, list[int]] = {}
    for _, r in waits:
        ends.setdefault(r["kind"], []).append(r["t_ns"])
    for _, event in events(trial, *ENDING):
        data = parsed(event["data"])
        kind = str(data.get("wait"))
        detectors = (JOBMASTER_NAME, RM_NAME) if event["kind"] == LOST else (JOBMASTER_NAME,)
        if kind not in BY_JOBMANAGER or data.get("detector") not in detectors:
            continue
        allowed = tolerance_ns(trial, event["process"], event["t_ns"])
        if not any(abs(t_ns - event["t_ns"]) <= allowed for t_ns in ends.get(kind, ())):
            problem = f"has no {kind} that ended with {event['kind']} of {event['subject']} (data in events)"
            yield no_row("waits", problem)


def _delayed(trial: Trial, waits: Waits) -> Iterator[Damage]:
    """Yield a restart that the restart strategy delayed, and that did not wait."""
    delayed = {
        str(r["attempt"]) for _, r in waits if r["kind"] == "restart-delay" and r["who"] == JOBMASTER_NAME
    }
    for _, event in events(trial, "failover.started"):
        data = parsed(event["data"])
        seconds = data.get("delay_s")
        if isinstance(seconds, int | float) and seconds > 0 and event["subject"] not in delayed:
            problem = f"has no restart-delay of restart {event['subject']}, which was delayed by {seconds:g} s (failover.started in events)"
            yield no_row("waits", problem)
