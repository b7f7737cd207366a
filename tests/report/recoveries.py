"""Recoveries made by hand, in the format of recovery.json."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from testbed_runtime.checking.prices import prices
from testbed_runtime.core.judgement.recovery import (
    UNATTRIBUTED,
    Margin,
    Recovery,
    Round,
    Segment,
    TrialRecovery,
)
from testbed_runtime.core.waits import KINDS

NS = 1_000_000_000
BACKOFF = "taskmanager.network.request-backoff.max"
NOT_FOUND = "Partition a1#0 not found."
"""The message of a PartitionNotFoundException, as a history has it: the class is a column of its own."""


def segments(start_s: float, *parts: tuple[str, float, str, str]) -> tuple[Segment, ...]:
    """Segments without gaps: (kind, seconds, option = value or "", outcome)."""
    found, now = [], start_s
    for kind, seconds, owner, outcome in parts:
        option, _, value = owner.partition(" = ")
        decided = outcome in ("expired", "fired")
        found.append(
            Segment(
                kind=kind,
                phase=KINDS[kind].phase if kind != UNATTRIBUTED else "",
                start_ns=round(now * NS),
                end_ns=round((now + seconds) * NS),
                who="sink-1",
                what="tm-3",
                option=option if decided else "",
                value=value if decided else "",
                outcome=outcome,
                text=owner or (KINDS[kind].doc if kind in KINDS else ""),
            )
        )
        now += seconds
    return tuple(found)


def recovery(*rounds: tuple[Segment, ...], fault: str = "dead", down_s: float | None = None) -> Recovery:
    """One recovery of these rounds; all but the last one ended with a failure."""
    made = tuple(
        Round(
            number=number,
            start_ns=found[0].start_ns,
            end_ns=found[-1].end_ns,
            cause="tm-3 was killed" if number == 1 else NOT_FOUND,
            cause_class="" if number == 1 else "PartitionNotFoundException",
            ended_by="running" if number == len(rounds) else "failure",
            failure="" if number == len(rounds) else NOT_FOUND,
            segments=found,
        )
        for number, found in enumerate(rounds, 1)
    )
    assert all(a.end_ns == b.start_ns for a, b in pairwise(made))
    every = [s for r in made for s in r.segments]
    return Recovery(
        fault=fault,
        effect_ns=every[0].start_ns,
        end_ns=every[-1].end_ns,
        downtime_s=down_s,
        rounds=made,
        prices=prices(every),
        margins=(
            Margin(option="pekko.ask.timeout", value="10 s", kind="deployment", budget_s=10.0, waited_s=0.2, who="JobMaster", what="sink-1"),
            Margin(option=BACKOFF, value="10 s", kind="partition", budget_s=22.7, waited_s=22.0, who="sink-1", what="a1#0"),
        ),
        unattributed_s=sum(s.seconds for s in every if s.kind == UNATTRIBUTED),
    )  # fmt: skip


def killed(trial: str, *, at_s: float = 7.0, slower: float = 1.0) -> TrialRecovery:
    """A lost TaskManager: the heartbeat threshold decides. `slower` stretches every wait."""
    found = segments(
        at_s,
        ("heartbeat", 1.72 * slower, "heartbeat.interval × heartbeat.rpc-failure-threshold = 1 s × 2", "expired"),
        ("cancellation", 0.02 * slower, "", "completed"),
        ("restart-delay", 0.5 * slower, "restart-strategy.fixed-delay.delay = 500 ms", "fired"),
        ("deployment", 0.03 * slower, "", "completed"),
        ("first-record", 0.1 * slower, "execution.buffer-timeout.interval = 100 ms", "fired"),
        (UNATTRIBUTED, 0.01 * slower, "", ""),
        ("catch-up", 0.9 * slower, "", "completed"),
    )  # fmt: skip
    down = sum(s.seconds for s in found[:-2])
    return TrialRecovery(trial=trial, recoveries=(recovery(found, down_s=down),))


def late_producer(trial: str, *, at_s: float = 7.0) -> TrialRecovery:
    """The worked example: replaceLost 10 s, then three deployments that each spend the backoff budget."""
    backoff = ("partition", 22.7, f"{BACKOFF} = 10 s", "expired")
    again = (("cancellation", 0.05, "", "completed"), ("restart-delay", 1.0, "restart-strategy.fixed-delay.delay = 1 s", "fired"), ("deployment", 0.1, "", "completed"))  # fmt: skip
    rounds, now = [], at_s
    for parts in (
        (("connection", 0.02, "", "completed"), ("cancellation", 0.05, "", "completed"), ("replacement", 10.0, "replaceLost = 10 s", "fired"), ("deployment", 0.1, "", "completed"), backoff),
        (*again, backoff),
        (*again, backoff),
        (*again, ("partition", 6.0, "", "completed"), ("first-record", 0.1, "execution.buffer-timeout.interval = 100 ms", "fired"), ("catch-up", 3.0, "", "completed")),
    ):  # fmt: skip
        rounds.append(segments(now, *parts))
        now = rounds[-1][-1].end_ns / NS
    return TrialRecovery(trial=trial, recoveries=(recovery(*rounds, down_s=now - at_s - 3.0),))


def unfinished(known: TrialRecovery) -> TrialRecovery:
    """The same recoveries, still open at the end of the record."""
    found = tuple(replace(r, recovered=False, reason="NotRecovered") for r in known.recoveries)
    return replace(known, recoveries=found)
