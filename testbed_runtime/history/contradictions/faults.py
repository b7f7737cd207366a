"""Compare the rows of faults and of the runner with the manifest, and with the processes that a fault ended."""

from __future__ import annotations

from collections.abc import Iterator

from testbed_runtime.core.trial.manifest import FaultEntry
from testbed_runtime.core.values import NS
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import TOLERANCE_NS, Row, ended_process, targets_in
from testbed_runtime.history.damage import Damage, first_of_each

TOOK_EFFECT = frozenset(("injected", "verified"))
"""States of a fault that has targets, if the manifest has some."""
KILLS = frozenset(("process.kill", "jobmanager.kill"))


def check_faults(trial: CheckedTrial) -> list[Damage]:
    """Return the contradictions of faults and phases, at most one for each rule."""
    rules = [_phases(trial), _planned(trial), _unasked(trial)]
    return first_of_each(*rules, *([_begun(trial), _killed(trial)] if trial.one_clock else ()))


def _name(row: Row) -> str:
    """Return the name of a fault in the manifest."""
    return str(row["fault"].rpartition("/")[2])


def _phases(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a phase that the runner entered before it began according to the manifest, or phases that it all entered later. Ending
    a fault may delay one of them."""
    starts = trial.starts
    phases = [(row, e) for row, e in trial.events("trial.phase") if e["subject"] in starts]
    entered = [(row, e, e["t_ns"] - starts[e["subject"]]) for row, e in phases]
    for row, event, late in entered:
        if late < -TOLERANCE_NS or min(late for _, _, late in entered) > TOLERANCE_NS:
            problem = f"of {event['subject']} is {abs(late) / NS:.1f} s {'after' if late > 0 else 'before'} its start in the manifest"
            yield Damage("events", "t_ns", row, problem)


def _planned(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield faults that the manifest does not have, or has with another kind or other targets."""
    for row, r in trial.rows("faults"):
        fault, found = trial.faults.get(_name(r)), targets_in(r["targets"])
        asked = () if fault is None else fault.targets
        on = f"but {r['fault']} is on {', '.join(map(str, asked))} (manifest)"
        if fault is None:
            yield Damage("faults", "fault", row, f"is {r['fault'][:60]!r}, which the manifest does not have")
        elif r["kind"] != fault.kind:
            problem = f"is {r['kind'][:60]!r}, but {r['fault']} is {fault.kind} (manifest)"
            yield Damage("faults", "kind", row, problem)
        elif found is None:
            yield Damage("faults", "targets", row, f"is not a list: {r['targets'][:60]!r}")
        elif asked and not found and r["state"] in TOOK_EFFECT:
            yield Damage("faults", "targets", row, f"is empty, {on}")
        elif asked and (more := set(found) - set(asked)):
            yield Damage("faults", "targets", row, f"has {min(more)}, {on}")


def _unasked(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield faults of the manifest without a row, in a trial that ran to its end. A job that finished by itself ends the schedule
    before the faults that were due later."""
    zero, end = trial.starts.get("fault"), trial.starts.get("drain", 0)
    due = {name for name, fault in trial.faults.items() if fault.before_submit}
    if zero is not None:
        due |= {name for name, fault in trial.faults.items() if zero + _offset_ns(fault) < end - TOLERANCE_NS}
    missing = sorted(due - {_name(r) for _, r in trial.rows("faults")})
    if missing and trial.drained and trial.deployed:
        yield Damage("faults", "fault", -1, f"lacks {missing[0]}, which the manifest has")


def _offset_ns(fault: FaultEntry) -> float:
    """Return when a fault of the manifest is due, after the end of the baseline."""
    return fault.at_s * NS


def _begun(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield faults that were injected before their time or after the end of the trial, and those from before the job is submitted that
    were injected after that."""
    start, submitted = trial.starts.get("fault"), [e["t_ns"] for _, e in trial.events("job.state")]
    ends = [phase.end_ns for phase in trial.phases]
    begun: set[str] = set()
    for row, r in trial.rows("faults"):
        fault = trial.faults.get(_name(r))
        if r["state"] != "injected" or not fault:
            continue
        again = r["fault"] in begun
        begun.add(r["fault"])
        if fault.before_submit:
            late = r["t_ns"] - min(submitted, default=r["t_ns"])
            if late > TOLERANCE_NS and not again:
                problem = f"says that {r['fault']} was injected {late / NS:.1f} s after the job was submitted (job.state in events)"
                yield Damage("faults", "t_ns", row, problem)
        elif start is not None:
            early = start + _offset_ns(fault) - r["t_ns"]
            late = r["t_ns"] - max(ends, default=r["t_ns"])
            if max(early, late) > TOLERANCE_NS:
                when = "before its time" if early > 0 else "after the end of the trial"
                problem = f"says that {r['fault']} was injected {max(early, late) / NS:.1f} s {when}"
                yield Damage("faults", "t_ns", row, problem)


def _killed(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield kills that took effect although no target ended after they began."""
    rows = trial.rows("faults")
    exits = [(ended_process(e), e["t_ns"]) for _, e in trial.events("process.exit")]
    verified = {r["fault"] for _, r in rows if r["state"] == "verified"}
    for row, r in rows:
        if r["state"] != "injected" or r["kind"] not in KILLS or r["fault"] not in verified:
            continue
        names = targets_in(r["targets"]) or []
        own = tuple(f"{name}-" for name in names)
        ended = [t for name, t in exits if name in names or name.startswith(own)]
        if ended and max(ended) < r["t_ns"] - TOLERANCE_NS:
            off = (r["t_ns"] - max(ended)) / NS
            problem = f"says that {r['fault']} was injected {off:.1f} s after its targets ended (process.exit in events)"
            yield Damage("faults", "t_ns", row, problem)
