"""The answer in a few lines: how long each trial was down, which wait cost each second, and how close other waits came to their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import ceil
from statistics import mean, median
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement import quantities
from testbed_runtime.core.judgement.comparison import SEED, with_interval
from testbed_runtime.core.judgement.metrics import JOB_FAILED
from testbed_runtime.core.judgement.quantities import counted
from testbed_runtime.core.judgement.recovery import (
    UNATTRIBUTED,
    Margin,
    Price,
    Recovery,
    Segment,
    TrialRecovery,
    grown_together,
)
from testbed_runtime.core.judgement.samplesize import CONFIDENCE
from testbed_runtime.core.judgement.statistics import mean_interval
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.waits import processes
from testbed_runtime.report import words

PRICES_SHOWN = 4
"""Maximum owners of seconds in one line. The others are summed up."""
SMALL_SHARE = 0.03
"""Owners with less than this share of the recovery are summed up too, and there is no line about what a lower value of them would save.
The tables of the report name them."""
NOTABLE_S = 0.001
"""Shorter waits are not mentioned."""
NOTABLE_SHARE = 0.0005
"""Waits with a smaller share of the recovery are not mentioned either: they are less than the rounding of its length."""
NOTABLE_SAVING_S = 0.05
"""A line says how much a lower value saves at most if it cannot save at least this many of the option's seconds."""
MARGINS_SHOWN = 2
CLOSE = 0.5
"""A margin is worth a line if the wait used more than this share of its budget."""
ONE_BY_ONE = 3
"""Maximum trials of a variant that are listed one by one. For more trials, the line shows medians."""
NOTABLE_START_S = 1.0
"""A first start without a failure is worth a line from this length on."""
_AGAIN = " again"
"""Words for a recovery from a fault that still lasted after the job had recovered from it once."""
NO_INTERVALS: Mapping[str, str] = MappingProxyType({})


def answer_lines(entries: Sequence[TrialEntry], recoveries: Mapping[str, TrialRecovery]) -> list[str]:
    """Return which wait cost each second of the recoveries of a manifest's fault trials: one by one, or as medians of a variant with
    many trials. Empty without any. A wait may be close to its limit in several of them."""
    judged = (entry for entry in entries if not entry.is_control and not entry.voided)
    named = ((entry.variant, entry.trial) for entry in judged)
    by_variant = grouped((variant, (name, recoveries[name])) for variant, name in named if name in recoveries)
    lines = (line for variant, trials in by_variant.items() for line in _of_variant(variant, trials))
    return list(dict.fromkeys(lines))


def _of_variant(variant: str, trials: Sequence[tuple[str, TrialRecovery]]) -> Iterator[str]:
    """Yield the lines of each trial, or of all trials together, by the fault that began their recoveries: the median downtime, and mean
    prices, which add up."""
    if len(trials) <= ONE_BY_ONE:
        for name, trial in trials:
            yield from _of_trial(name, trial)
        return
    for found in VariantAnswer(variant, tuple(trial for _, trial in trials)).by_fault:
        of_all = f" of {len(trials)}" if len(found.trials) < len(trials) else ""
        title = f"{len(found.trials)}{of_all} trials{found.after}{_median_words(found)}"
        yield from _lines(variant, title, found, found.intervals)


def _of_trial(name: str, trial: TrialRecovery) -> Iterator[str]:
    notable_s = float("inf") if trial.recoveries else NOTABLE_START_S
    for recovery, title in in_words(trial, notable_s):
        yield from _lines(name, title, recovery)
        yield from (f"{name}: {line}" for line in savings(recovery))


def in_words(trial: TrialRecovery, notable_start_s: float = 0.0) -> list[tuple[Recovery, str]]:
    """Return the recoveries of a trial with their headlines, after its first start, if that failed at first or took that long."""

    def is_notable(start: Recovery) -> bool:
        return len(start.rounds) > 1 or not start.recovered or start.total_s >= notable_start_s

    start = trial.own_start
    return [
        *([(start, start_words(start))] if start and is_notable(start) else []),
        *with_headlines(trial.recoveries),
    ]


def with_headlines(recoveries: Iterable[Recovery]) -> list[tuple[Recovery, str]]:
    """Return the recoveries with their headlines. Recoveries from one fault that are too short to be mentioned are shown as one: the longest
    of them."""
    # a recovery that is not short is the only one with its number
    groups = grouped(((r.fault, -1 if _is_short(r) else number), r) for number, r in enumerate(recoveries))
    longest = ((max(group, key=lambda r: r.total_s), len(group)) for group in groups.values())
    least = quantities.seconds(NOTABLE_S)
    more = ", the longest of {} recoveries that took less than {}"
    return [(r, headline(r) + (more.format(count, least) if count > 1 else "")) for r, count in longest]


def _is_short(recovery: Recovery) -> bool:
    return recovery.recovered and 0 < recovery.total_s < NOTABLE_S


def _lines(
    where: str, title: str, found: Recovery | VariantAnswer, intervals: Mapping[str, str] = NO_INTERVALS
) -> Iterator[str]:
    """Yield the prices in one line, and one line for each margin that is close. `where` names the trial or the variant."""
    costs = ", ".join(cost_words(found.prices, found.unattributed_s, found.from_events_s, intervals))
    yield f"{where}: {title}" + (f": {costs}" if costs else "")
    for margin in close_margins(found):
        yield f"{where}: close to its limit: {margin_words(margin)}"


def costly(recoveries: Iterable[Recovery]) -> tuple[Recovery, ...]:
    """Return the recoveries in which the job was behind, which count for means; all of them if it never was. A fault
    may delay nothing by itself."""
    known = tuple(recoveries)
    return tuple(r for r in known if r.total_s > 0 or not r.recovered) or known


def headline(recovery: Recovery) -> str:
    """Return ``down for 1.76 s after `dead-consumer`, caught up after 2.00 s, 3 rounds``, with the names of the faults in backticks. Without a
    fault it is `after` the failure, by its class."""
    again = _AGAIN if recovery.again else ""
    after = f" after {' and '.join(map(words.named, recovery.faults))}" if recovery.faults else ""
    if recovery.recovered and recovery.total_s == 0:
        return f"no outage{after}"
    if recovery.reason == JOB_FAILED:
        return _failed(recovery, after)
    first = recovery.rounds[0].cause_class if recovery.rounds else ""
    after = after or (f" after {first}" if first else "")
    down = (
        f"down for {quantities.seconds(recovery.downtime_s)}" if recovery.downtime_s is not None else "outage"
    )
    total = quantities.seconds(recovery.total_s)
    end = f"caught up after {total}" if recovery.recovered else f"not recovered after {total}{_end(recovery)}"
    return f"{down}{again}{after}, {end}{_rounds(recovery)}"


def start_words(start: Recovery) -> str:
    """Return how soon the job started, or why it did not: `started after 2.30 s in 2 rounds`."""
    if start.reason == JOB_FAILED:
        return _failed(start, " after its submission")
    rounds = f" in {len(start.rounds)} rounds" if len(start.rounds) > 1 else ""
    total = quantities.seconds(start.total_s)
    if start.recovered:
        return f"started after {total}{rounds}"
    return f"not started after {total}{_end(start)}{rounds}"


def _failed(recovery: Recovery, after: str) -> str:
    """Return after how long the job failed for good, counted from the fault or, without one, from its first failure.
    No wait explains a recovery without a length, so the first sentence of the failure follows. Such a job failed "at once" only after its
    submission: a fault may have lasted for some time before."""
    limit = _restarts(recovery)
    if recovery.total_s >= NOTABLE_S:
        again, begun = _AGAIN if recovery.again else "", after or " after its first failure"
        total = quantities.seconds(recovery.total_s)
        return f"the job failed{again} {total}{begun}{limit or _rounds(recovery)}"
    why = recovery.rounds[-1].failure.partition(". ")[0].rstrip(".") if recovery.rounds else ""
    begun = _AGAIN if recovery.again else " at once" if after and not recovery.faults else ""
    return f"the job failed{begun}{after}{limit}{f': {why}' if why else ''}"


def _restarts(recovery: Recovery) -> str:
    """Return how many restarts did not help, and the option that allowed no more."""
    if not recovery.limit:
        return ""
    done = f", after {counted(recovery.restarts, 'restart')}"
    return f"{done if recovery.restarts else ''} ({recovery.limit} allows no more restarts)"


def _rounds(recovery: Recovery) -> str:
    return f", {len(recovery.rounds)} rounds" if len(recovery.rounds) > 1 else ""


def _end(recovery: Recovery) -> str:
    """Return how the job ended if that ended the observation of an outage; empty otherwise."""
    ends = {"CANCELED": "was canceled", "FAILED": "failed"}
    return f", when the job {ends.get(recovery.ended, 'finished')}" if recovery.ended else ""


def cost_words(
    prices: Iterable[Price],
    unattributed_s: float,
    from_events_s: float = 0.0,
    intervals: Mapping[str, str] = NO_INTERVALS,
) -> Iterator[str]:
    """Yield `1.72 s heartbeat.interval × … = 1 s × 2` for the largest prices, then the sum of the others, and the
    share that no recorded wait covers. `intervals`: owner → `1.72 [1.70, 1.74] s`."""
    known = list(prices)
    total_s = sum(p.seconds for p in known) + unattributed_s
    least = max(NOTABLE_S, NOTABLE_SHARE * total_s)
    notable = [p for p in known if p.seconds >= least]
    shown = [p for p in notable if p.seconds >= SMALL_SHARE * total_s][:PRICES_SHOWN]
    if len(notable) == len(shown) + 1:
        shown = notable  # a single owner is named instead of summed up
    for price in shown:
        seconds = intervals.get(price.text) or quantities.seconds(price.seconds)
        yield f"{seconds} {price.words}{price.times}"
    rest_s = sum(p.seconds for p in known) - sum(p.seconds for p in shown)
    if rest_s >= least:
        yield f"{quantities.seconds(rest_s)} in {counted(len(known) - len(shown), 'other wait')}"
    if unattributed_s >= least:
        yield f"{quantities.seconds(unattributed_s)} {UNATTRIBUTED}"
    if from_events_s >= least:
        yield from_events_words(from_events_s)


def from_events_words(seconds: float) -> str:
    """Say how many of the attributed seconds were inferred from events, without a recorded wait."""
    return f"{quantities.seconds(seconds)} of these inferred from events"


def close_margins(found: Recovery | VariantAnswer) -> tuple[Margin, ...]:
    """Return the margins that are worth a line. An option that cost seconds of the recovery has none: its waits reached the limit."""
    recoveries = (found,) if isinstance(found, Recovery) else found.recoveries
    near = _closest(
        margin
        for recovery in recoveries
        for margin in recovery.margins
        if margin.waited_s > CLOSE * margin.budget_s > 0
        and margin.option not in {p.option for p in recovery.prices}
    )
    return tuple(sorted(near, key=lambda m: -m.waited_s / m.budget_s)[:MARGINS_SHOWN])


def _closest(margins: Iterable[Margin]) -> Iterable[Margin]:
    """Return the smallest margin of each option."""
    by_option = grouped((margin.option, margin) for margin in margins)
    return [min(found, key=lambda m: m.left_s) for found in by_option.values()]


def savings(recovery: Recovery) -> Iterator[str]:
    """Yield lines about the values of options that would have helped. One kind of line says how much a lower value saves at most, for an
    option whose seconds cannot all be saved because another wait was in progress at the same time, or whose lower value also saves other
    waits. The other kind says which higher value would have avoided the failovers that were caused by expired waits, if the history shows
    that."""
    owned = grouped((s.owner, s) for r in recovery.rounds for s in r.segments if s.option)
    for segment in (s for r in recovery.rounds for s in r.segments if s.expired):
        yield f"{segment.expired}: {_avoided([segment])}"
    for owner, segments in owned.items():
        expired = [s for s in segments if s.enough_ns >= 0]
        early = [s for s in expired if not any(_same_loss(before, s) for before in expired)]
        if early:
            yield f"{owner}: {_avoided(early)}"
        if not recovery.recovered and recovery.downtime_s is None:
            continue  # with a lower value, the job would only have failed earlier, or more often
        shorter = [s for s in segments if not s.gave_up]
        saved = sum(s.seconds if s.slack_ns < 0 else s.slack_ns / 1e9 for s in shorter)
        lasted = sum(s.seconds for s in shorter)
        if lasted < SMALL_SHARE * recovery.total_s:
            continue
        more = [s for s in shorter if s.more]
        if more and saved - lasted >= NOTABLE_SAVING_S:
            then = max(more, key=lambda s: s.slack_ns - (s.end_ns - s.start_ns)).more
            most, own = quantities.apart(saved, lasted)
            yield f"{owner}: a lower value saves at most {most}, more than these {own}: the job then {then}"
        elif lasted - saved >= NOTABLE_SAVING_S:
            following = max(
                (s for s in shorter if s.slack_ns >= 0), key=lambda s: s.end_ns - s.start_ns - s.slack_ns
            ).next
            most = (
                f" at most {quantities.seconds(saved)}, then the job"
                if saved >= NOTABLE_S
                else " nothing: the job then"
            )
            yield f"{owner}: a lower value saves{most} waits for {following}"


def _same_loss(before: Segment, after: Segment) -> bool:
    """Return whether another wait ended with the loss that ended the first one: two components waited for the same peer, or
    the waits are between the same two processes."""
    adjacent = (before.kind, before.end_ns) == (after.kind, after.start_ns)
    if not adjacent or (before.who, before.what) == (after.who, after.what):
        return False
    return before.what == after.what or processes(before.who, before.what) == processes(after.who, after.what)


def _avoided(early: Sequence[Segment]) -> str:
    """Return the limit with which waits would have completed: `a limit above 7.2 s, instead of 5.00 s, would have avoided this failover`.
    With it, the loss of a peer that never returns is noticed later."""
    longest = max(early, key=lambda s: s.enough_ns)
    failovers = "this failover" if len(early) == 1 else f"these {len(early)} failovers"
    enough_s, budget_s = _rounded_up(longest.enough_ns / 1e9), longest.budget_ns / 1e9
    limit, later = quantities.seconds(budget_s), quantities.seconds(enough_s - budget_s)
    value = f" (set it to {longest.enough_value} or more)" if longest.enough_value else ""
    avoided = f"a limit above {enough_s:g} s, instead of {limit}, would have avoided {failovers}{value}"
    return f"{avoided}, but would notice a real loss {later} later"


def _rounded_up(seconds: float) -> float:
    """Return a duration in seconds, rounded up to a tenth."""
    return ceil(round(seconds * 10, 6)) / 10


def margin_words(margin: Margin) -> str:
    """Return `request-backoff.max = 10 s: waited 22.0 s of 22.7 s, 700 ms left`."""
    waited, budget = quantities.apart(margin.waited_s, margin.budget_s)
    if margin.exceeded:
        over = quantities.seconds(margin.waited_s - margin.budget_s)
        text = f"waited {waited}, {over} longer than the {budget} that are guaranteed: such a wait may also expire"
    else:
        text = f"waited {waited} of {budget}, {quantities.seconds(margin.left_s)} left"
    return f"{margin.option} = {margin.value}: {text}"


class VariantAnswer(Struct, frozen=True):
    """The recoveries of the fault trials of one variant, or those that one of its faults began, as means with their intervals."""

    variant: str
    trials: tuple[TrialRecovery, ...]
    fault: str | None = None
    """The fault that began all of these recoveries, if others of the variant have another one. Empty: they have none."""

    @property
    def after(self) -> str:
        """The fault (` after cut`, in backticks) if the variant has recoveries from several faults, otherwise empty. Faults that took
        effect during each of these outages are named too. ` again after`: the job had recovered from the fault once before."""
        if self.fault is None:
            return ""
        again = _AGAIN if self.fault and all(r.again for r in self.recoveries) else ""
        together = {r.faults for r in self.recoveries}
        names = together.pop() if len(together) == 1 else (self.fault,)
        return f"{again} after {' and '.join(map(words.named, names))}" if self.fault else " without a fault"

    @property
    def by_fault(self) -> tuple[VariantAnswer, ...]:
        """One answer for each fault that began a recovery, over the trials in which it did. A mean over recoveries from different faults
        would describe none of them."""
        faults = list(dict.fromkeys(r.fault for r in self.recoveries))
        if len(faults) == 1:
            return (self,)
        known = {id(r) for r in self.recoveries}
        found = []
        for fault in faults:
            mine = (
                (t, [r for r in t.recoveries if r.fault == fault and id(r) in known]) for t in self.trials
            )
            own = tuple(replace(t, recoveries=tuple(kept)) for t, kept in mine if kept)
            found.append(VariantAnswer(self.variant, own, fault))
        return tuple(found)

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        return costly(r for trial in self.trials for r in trial.recoveries)

    @property
    def total_s(self) -> float:
        """Mean length of a recovery, to which the mean prices and the unattributed seconds add up."""
        return mean(r.total_s for r in self.recoveries)

    @property
    def had_outage(self) -> bool:
        return any(r.total_s > 0 or not r.recovered for r in self.recoveries)

    @property
    def unattributed_s(self) -> float:
        return mean(r.unattributed_s for r in self.recoveries)

    @property
    def from_events_s(self) -> float:
        return mean(r.from_events_s for r in self.recoveries)

    @property
    def prices(self) -> tuple[Price, ...]:
        return typical_prices(self.recoveries)

    @property
    def margins(self) -> tuple[Margin, ...]:
        """The smallest margin of each option, closest to its limit first."""
        closest = _closest(m for r in self.recoveries for m in r.margins)
        return tuple(sorted(closest, key=lambda m: m.left_s))

    @property
    def intervals(self) -> dict[str, str]:
        """The mean prices that are worth a line and have an interval: owner → `1.91 [1.87, 1.94] s`."""
        notable = [p for p in self.prices if p.seconds >= NOTABLE_S]
        found = {p.text: self.interval(partial(_seconds_of, p)) for p in notable}
        return {owner: text for owner, text in found.items() if text}

    @property
    def total_interval(self) -> str:
        return self.interval(lambda r: r.total_s)

    def interval(self, seconds: Callable[[Recovery], float]) -> str:
        """Return a mean over the recoveries with its interval, or an empty string if there is no interval.

        Recoveries of one trial are not independent, so trials are resampled. There is none if the trials are too few or agree, if
        one did not recover (its seconds are a lower bound), or if some have more recoveries than others (the mean over the
        trials would be another one)."""
        known = {id(r) for r in self.recoveries}
        by_trial = [[r for r in trial.recoveries if id(r) in known] for trial in self.trials]
        by_trial = [found for found in by_trial if found]
        recovered = all(r.recovered for found in by_trial for r in found)
        if not recovered or len({len(found) for found in by_trial}) != 1:
            return ""
        return _mean_words(tuple(mean(seconds(r) for r in found) for found in by_trial))

    def spread(self, price: Price) -> tuple[float, float]:
        """Return the smallest and the largest seconds of an owner over the recoveries."""
        sums = [_seconds_of(price, r) for r in self.recoveries]
        return min(sums), max(sums)


def _seconds_of(price: Price, recovery: Recovery) -> float:
    """Return the seconds of the price's owner in one recovery."""
    return sum(p.seconds for p in recovery.prices if p.owner == price.owner)


@lru_cache(maxsize=256)
def _mean_words(values: tuple[float, ...]) -> str:
    found = mean_interval(values, confidence=CONFIDENCE, seed=SEED)
    if found is None:
        return ""
    value, low, high = (quantities.seconds(max(0.0, v)) for v in (found.value, found.low, found.high))
    return with_interval(value, low, high) if low != high else ""


def _median_words(found: VariantAnswer) -> str:
    whole = found.recoveries
    lost = sum(1 for recovery in whole if not recovery.recovered)
    downs = [r.downtime_s for r in whole if r.downtime_s is not None]
    text = ": outage" if found.prices else ""
    if downs:
        text = f": down for {quantities.seconds(median(downs))} (median; {quantities.seconds(min(downs))} to {quantities.seconds(max(downs))})"
    if lost:
        text += f", {lost} of {len(whole)} recoveries did not end"
    return text + ("; on average" if found.prices else ": no outage")


def typical_prices(recoveries: Sequence[Recovery]) -> tuple[Price, ...]:
    """Return the mean seconds of each owner over all recoveries, largest first, so that they still add up.

    Details, such as the size of a backlog, differ from trial to trial and are left out."""
    found = []
    for group in grouped((p.owner, p) for r in recoveries for p in r.prices).values():
        text, total = grown_together(p.text for p in group), sum(p.seconds for p in group)
        found.append(replace(group[0], text=text, seconds=total / len(recoveries), count=1, detail=""))
    return tuple(sorted(found, key=lambda p: -p.seconds))
