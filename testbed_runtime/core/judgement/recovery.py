"""The answer of a trial: recoveries as lists of rounds, every second attributed to the wait that caused it. Pure data.

`checking` computes it, `recovery.json` in the run's folder holds it (trial id → TrialRecovery), and report, CLI and tuning
read it. Segment, Price and Margin share no base class, because `option` means something else in each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, convert, to_builtins

from testbed_runtime.core.waits import GROWN, KINDS, Outcome

_BUSY = ".service-time = "
"""Part of the text of an owner that is a busy component."""
UP_TO = "up to "
"""Part of the text of an owner whose delays differ; the longest delay follows."""
UNATTRIBUTED = "unattributed"
"""The kind of a segment that no recorded wait or step covers."""


def with_detail(text: str, detail: str) -> str:
    """Return the text, with its detail in parentheses if there is one."""
    return f"{text} ({detail})" if detail else text


def owner_of(text: str, option: str) -> str:
    """Return an owner's text without its detail and without the length to which an option's delay has
    grown."""
    return text.partition(GROWN)[0] if option else text


def grown_together(texts: Iterable[str]) -> str:
    """Return the text of one owner from the texts of its waits. They differ if a delay grew from its option's
    value: `= 1 s, now up to 4 s`."""
    known = list(dict.fromkeys(texts))
    base = known[0].partition(GROWN)[0]
    grown = [t.partition(GROWN)[2].removeprefix(UP_TO) for t in known if GROWN in t]
    if len(known) == 1 or not grown:
        return known[0]
    return f"{base}{GROWN}{UP_TO}{max(grown, key=_delay_s)}"


def _delay_s(text: str) -> float:
    number = text.partition(" ")[0]
    return float(number) if number.replace(".", "", 1).isdigit() else 0.0


class Segment(Struct, frozen=True, kw_only=True):
    """A span of the critical path with its owner. Segments of a recovery have no gaps and do not overlap."""

    kind: str
    """A kind of core.waits.KINDS, or UNATTRIBUTED."""
    phase: str
    """The phase of RECOVERY_PHASES that its seconds count for; empty if unattributed."""
    start_ns: int
    end_ns: int
    who: str = ""
    what: str = ""
    option: str = ""
    """Set if the option's value decided the duration (expired, fired); empty otherwise."""
    value: str = ""
    outcome: str = ""
    text: str = ""
    """The owner in words: `taskmanager.network.request-backoff.max = 10 s`, `replacement of tm-3`."""
    detail: str = ""
    """The part of the owner that differs from trial to trial, such as the size of a backlog."""
    fault: str = ""
    """Name of the fault that the owner is; empty for any other owner."""
    from_events: bool = False
    """No wait was recorded. The owner is the step between two events of the failover."""
    slack_ns: int = -1
    """How much shorter the option can make the segment, until the wait in `next` decides when the step ends.
    -1 if no other wait would. More than the segment's length if that saves other waits too."""
    next: str = ""
    """The owner of the wait that decides then, in words."""
    more: str = ""
    """Why `slack_ns` is more than the segment's length: what the job then does, in words."""
    budget_ns: int = -1
    """With `enough_ns`: how long the option let the wait last."""
    enough_ns: int = -1
    """With an expired wait that caused a failover: how long it would have had to wait for what came later. -1
    if it caused no failover, or if the history does not show it."""
    enough_value: str = ""
    """With `enough_ns`, for an option whose value is not the limit itself: a value that sets a high enough limit."""
    expired: str = ""
    """With `enough_ns`, for a pause of the JobManager: the option that expired in it, and its value."""

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def owner(self) -> str:
        """The text that identifies the owner. All its waits have the same."""
        return owner_of(self.text, self.option)

    @property
    def gave_up(self) -> bool:
        """Whether the wait expired and gave up something that may only have been late. No lower value would
        have helped. Missing heartbeats show a loss, which a lower value would have shown earlier."""
        kind = KINDS.get(self.kind) if self.outcome == Outcome.EXPIRED else None
        given_up = kind is not None and kind.gives_up and kind.may_be_limited_by(self.option)
        return given_up and not KINDS["heartbeat"].may_be_limited_by(self.option)

    @property
    def words(self) -> str:
        """The owner with its detail."""
        return with_detail(self.text, self.detail)


class Round(Struct, frozen=True, kw_only=True):
    """A deployment and its end: from a failure (or the submission) until the job runs, or until the next
    failure."""

    number: int
    start_ns: int
    end_ns: int
    cause: str = ""
    """The failure that began it, in Flink's words."""
    cause_class: str = ""
    ended_by: str = "running"
    """`running`, `failure` or `open` (at the end of the record)."""
    failure: str = ""
    """With `failure`: what ended it, in Flink's words."""
    segments: tuple[Segment, ...] = ()

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def cause_words(self) -> str:
        """The failure that began it, as `class: text`."""
        return f"{self.cause_class}: {self.cause}" if self.cause_class else self.cause


class Price(Struct, frozen=True, kw_only=True):
    """The seconds of one owner: the sum of its segments. `option` is empty when the owner is a cause or a resource."""

    text: str
    """The owner in words: an option, a cause or a resource."""
    seconds: float
    """Seconds of the recovery that belong to it."""
    kind: str
    """The kind of its waits, as in `trace.json`."""
    option: str = ""
    """The key of the option that limits its waits."""
    value: str = ""
    """The value of that option, with what multiplies it, as in `200 ms × 10`."""
    count: int = 1
    """Number of waits."""
    detail: str = ""
    """The part of the owner that differs from trial to trial, such as the size of a backlog."""
    fault: str = ""
    """Name of the fault that the owner is; empty for any other owner."""

    @property
    def owner(self) -> str:
        """The text that identifies the owner. All its waits have the same."""
        return owner_of(self.text, self.option)

    @property
    def words(self) -> str:
        """The owner with its detail."""
        return with_detail(self.text, self.detail)

    @property
    def waits(self) -> int | None:
        """The number of its waits. None for a busy component: one wait for it is for many messages, and the
        option's value is the time of one message."""
        return None if _BUSY in self.text else self.count

    @property
    def times(self) -> str:
        """The number of its waits in words, empty for one wait."""
        return f" ({self.waits} times)" if (self.waits or 0) > 1 else ""


ROUNDING_S = 0.001
"""Times are recorded in nanoseconds, options in milliseconds."""


class Margin(Struct, frozen=True, kw_only=True):
    """How close a wait that completed came to the limit of its option. The smallest margin of each option is
    kept.

    Some limits are only guaranteed minimums. For example, a partition request that waits at its producer
    expires after one to two timeouts. Such a wait may complete after its limit; its margin is then 0."""

    option: str
    value: str
    kind: str
    budget_s: float
    waited_s: float
    who: str = ""
    what: str = ""

    @property
    def left_s(self) -> float:
        """Seconds to the limit; 0 if the wait was longer than guaranteed."""
        return max(0.0, self.budget_s - self.waited_s)

    @property
    def exceeded(self) -> bool:
        """Whether the wait was longer than its option guarantees."""
        return self.waited_s > self.budget_s + ROUNDING_S


class SharedFault(Struct, frozen=True, kw_only=True):
    """A fault that took effect while the job had not recovered from another one, so that both have one recovery."""

    fault: str
    effect_ns: int
    """When the fault took effect, but not before the recovery that it belongs to."""
    ended_ns: int | None = None
    """None if the fault lasted until the end of the record."""


class Recovery(Struct, frozen=True, kw_only=True):
    """One outage, from the effect of its cause until the lag of every sink subtask is normal again."""

    fault: str
    """Name of the fault; empty if no fault caused it (a first start)."""
    effect_ns: int
    end_ns: int
    """End of the outage, or of the observation if it did not end."""
    recovered: bool = True
    reason: str = ""
    """A reason of core.judgement.metrics if it did not recover or cannot be measured."""
    ended: str = ""
    """State in which the job ended before it had recovered: FINISHED, FAILED or CANCELED. Empty if it kept running."""
    restarts: int = 0
    """Number of restarts during the recovery."""
    limit: str = ""
    """The option, with its value, that allowed no more restarts. Empty unless the job failed for good."""
    again: bool = False
    """Whether the job had recovered from the same fault before. The fault lasted, and made the job fail once
    more or held it up."""
    downtime_s: float | None = None
    """Seconds from the effect to the first new record at the last affected sink subtask."""
    rounds: tuple[Round, ...] = ()
    prices: tuple[Price, ...] = ()
    """Largest first; they add up to total_s − unattributed_s."""
    margins: tuple[Margin, ...] = ()
    """Closest to its limit first."""
    unattributed_s: float = 0.0
    from_events_s: float = 0.0
    """The part of the prices that only events of the failover show, and no recorded wait."""
    shared: tuple[SharedFault, ...] = ()
    """The other faults that this recovery belongs to, ordered by their effect."""

    @property
    def faults(self) -> tuple[str, ...]:
        """Every fault that this recovery belongs to. Empty for a first start without a fault."""
        return (*((self.fault,) if self.fault else ()), *(s.fault for s in self.shared))

    @property
    def total_s(self) -> float:
        return (self.end_ns - self.effect_ns) / 1e9


class TrialRecovery(Struct, frozen=True, kw_only=True):
    """Every recovery of a trial, in order, and its first start as rounds."""

    trial: str
    start: Recovery | None = None
    """The span from the submission until every sink receives records."""
    recoveries: tuple[Recovery, ...] = ()

    @property
    def own_start(self) -> Recovery | None:
        """The first start. None if a recovery contains it, because of a fault from before the submission."""
        start = self.start
        covered = start is not None and any(r.effect_ns <= start.end_ns <= r.end_ns for r in self.recoveries)
        return None if covered else start

    @property
    def with_start(self) -> tuple[Recovery, ...]:
        """The first start, unless a recovery contains it, and the recoveries."""
        return self.recoveries if self.own_start is None else (self.own_start, *self.recoveries)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = to_builtins(self)
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TrialRecovery:
        """Read what `to_json` wrote. Raises msgspec.ValidationError for anything else."""
        return convert(value, cls)
