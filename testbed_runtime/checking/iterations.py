"""The supersteps of a job's iterations, from the events of their synchronisation tasks, and the supersteps that a fault delayed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from testbed_runtime.checking.common import data, events
from testbed_runtime.checking.faults import ON_THE_EXCHANGE, FaultEffect
from testbed_runtime.core.job.jobgraph import SYNC_SUFFIX
from testbed_runtime.core.waits import EVERYTHING, KINDS, Wait
from testbed_runtime.history.columns import vertex_of
from testbed_runtime.history.schema import Trial

ITERATION = "iteration"
HELD_UP = 2
"""A superstep that takes this many times the usual time was delayed."""


def supersteps(trial: Trial) -> tuple[int | None, str]:
    """Return how many supersteps the last attempt of the iteration had (of several iterations: the most), and why each one
    ended. None if there was no iteration, or none has ended."""
    last: dict[str, tuple[int, int, str]] = {}
    for event in events(trial, "iteration.superstep"):
        found = data(event)
        row = (event["attempt"], int(found.get("superstep", 0)), str(found.get("ended", "")))
        last[event["subject"]] = max(row, last.get(event["subject"], row))
    ended = {subject: row for subject, row in sorted(last.items()) if row[2]}
    text = ", ".join(f"{subject}: {number} ({why})" for subject, (_, number, why) in ended.items())
    return max((number for _, number, _ in ended.values()), default=None), text


def held_supersteps(trial: Trial, waits: Iterable[Wait], effects: Iterable[FaultEffect]) -> list[Wait]:
    """Return, for each fault on the exchange, the waits of an iteration for the supersteps that the fault
    delayed. A wait begins with the fault and does not include the remaining work of its superstep. The time
    of other supersteps is attributed to no fault."""
    found: dict[tuple[str, int, int], Wait] = {}
    iterations = [w for w in waits if w.kind == ITERATION]
    moments: dict[str, list[int]] = defaultdict(list)
    for event in events(trial, "iteration.superstep") if iterations else ():
        moments[vertex_of(event["subject"]).removesuffix(SYNC_SUFFIX)].append(event["t_ns"])
    for effect in effects:
        if effect.injected_ns is None or effect.group not in ON_THE_EXCHANGE:
            continue
        for wait in iterations:
            span = effect.injected_ns, min(effect.ended_ns or wait.end_ns, wait.end_ns)
            for start, end in _held(moments[wait.what], wait, span):
                found[effect.fault, start, end] = Wait(
                    wait=f"{effect.fault}/supersteps/{start}", kind="fault", who=EVERYTHING, what=wait.what, start_ns=start, end_ns=end,
                    cause=f"{KINDS[ITERATION].doc}, during the fault `{effect.fault}`", fault=effect.fault,
                )  # fmt: skip
    return list(found.values())


def _held(moments: Sequence[int], wait: Wait, fault: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the spans in which a fault delayed supersteps of an iteration. `moments`: the ends of its
    supersteps."""
    begun, ended = fault
    ends = sorted({wait.start_ns, *(t for t in moments if wait.start_ns < t < wait.end_ns), wait.end_ns})
    steps = list(pairwise(ends))
    undisturbed = [b - a for a, b in steps if b <= begun or a >= ended]
    usual = round(median(undisturbed)) if undisturbed else 0
    found: list[tuple[int, int]] = []
    for start, end in steps:
        if end <= begun or start >= ended or end - start < HELD_UP * usual:
            continue
        since = max(start, begun)
        until = end - max(0, usual - (since - start))
        until = min(until, ended + (ended - begun))  # TCP retries at last after as long again
        if found and found[-1][1] >= start - usual:
            found[-1] = found[-1][0], until
        elif since < until:
            found.append((since, until))
    return found
