"""Prices and margins of a recovery: what each owner cost, and how close the other waits came to their limit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testbed_runtime.checking.criticalpath import EPSILON_NS
from testbed_runtime.checking.lasting import continues
from testbed_runtime.core.judgement.recovery import UNATTRIBUTED, Margin, Price, Segment, grown_together
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import JOBMASTER_NAME, Outcome, Wait, ended_by


def prices(segments: Iterable[Segment]) -> tuple[Price, ...]:
    """Return the price of each owner in seconds, the largest first. An owner is an option with its value, or
    a cause. The delays that grew from one option's value have one owner, however far they had grown."""
    groups: dict[tuple[str, str], list[Segment]] = {}
    for segment in segments:
        if segment.kind != UNATTRIBUTED:
            detail = "" if segment.fault else segment.detail  # whatever it held up, it is one fault
            groups.setdefault((segment.owner, detail), []).append(segment)
    found = []
    for group in groups.values():
        first = max(group, key=lambda s: (bool(s.option), s.seconds))
        seconds = sum(s.seconds for s in group)
        grown = grown_together(s.text for s in group)
        value = grown.removeprefix(f"{first.option} = ") if first.option else ""
        found.append(
            Price(text=grown, seconds=seconds, kind=first.kind, option=first.option, value=value, count=_count(group), detail=first.detail, fault=first.fault)
        )  # fmt: skip
    return tuple(sorted(found, key=lambda p: (-p.seconds, p.words)))


def _count(group: Sequence[Segment]) -> int:
    """Return the number of waits in the segments. A wait that continues over the end of a round counts once,
    and so do successive waits that one fault prolonged. Waits that are shorter than EPSILON_NS, by which
    clocks differ, do not count, unless there are no others. The waits for the end of a fault count once."""
    if all(s.fault and s.what == s.fault for s in group):
        return 1
    begun = [s for n, s in enumerate(group) if not n or not _goes_on(group[n - 1], s)]
    return sum(s.end_ns - s.start_ns >= EPSILON_NS for s in begun) or 1


def _goes_on(before: Segment, after: Segment) -> bool:
    adjacent = before.end_ns == after.start_ns
    held_up = after.fault and before.fault == after.fault
    lost = before.kind != after.kind and ended_by(after.kind) == before.kind
    return (adjacent and bool(held_up or lost)) or continues(before, after)


def margins(waits: Iterable[Wait], start: int, end: int) -> tuple[Margin, ...]:
    """Return how close the completed waits of a span came to the limits of their options: for each option,
    the closest wait. A wait for an answer of the JobManager may end after the span in which it began: a task
    runs before its JobMaster knows that."""
    closest: dict[str, Wait] = {}
    for wait in waits:
        done = wait.outcome is Outcome.COMPLETED and wait.option and wait.budget_ns > 0
        if wait.kind == "heartbeat" and wait.end_ns - wait.start_ns > wait.budget_ns:
            continue  # the waiting process itself had stopped, which extends its deadlines
        if wait.kind == "cancellation" and wait.who == JOBMASTER_NAME:
            continue  # each TaskManager counts its timeout from when it cancels a task
        within = wait.end_ns <= end + EPSILON_NS or (wait.kind == "jobmanager" and wait.start_ns <= end)
        if done and wait.end_ns > wait.start_ns and start < wait.end_ns and within:
            known = closest.get(wait.option)
            if known is None or wait.seconds / wait.budget_ns > known.seconds / known.budget_ns:
                closest[wait.option] = wait
    found = [
        Margin(
            option=w.option,
            value=w.value,
            kind=w.kind,
            budget_s=w.budget_ns / NS,
            waited_s=w.seconds,
            who=w.who,
            what=w.what,
        )
        for w in closest.values()
    ]
    return tuple(sorted(found, key=lambda m: (-m.waited_s / m.budget_s, m.option)))
