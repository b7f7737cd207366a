"""The answer of one trial: its recoveries as rounds, the owner of every second, prices and margins.

`trial_recovery(trial, entry)` is pure. Spark, the simulator and the metrics use it alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise

from msgspec.structs import replace

from testbed_runtime.checking.apart import (
    Hit,
    awaited_by,
    downtime_s,
    hits_of,
    lost_in,
    ran_before,
    stalled_taskmanager,
    until_each_has_recovered,
)
from testbed_runtime.checking.avoidable import is_of, until_refusals_end, with_enough
from testbed_runtime.checking.backlog import backlog_words
from testbed_runtime.checking.catchup import FEW, CatchUp
from testbed_runtime.checking.common import (
    TaskSeries,
    Windows,
    busiest,
    data,
    events,
    job_shape,
    task_series,
    windows,
    without_spans,
)
from testbed_runtime.checking.criticalpath import DELAY_CATCH_UP, EPSILON_NS, NEAR_NS, attribute
from testbed_runtime.checking.executions import places, used_in
from testbed_runtime.checking.failovers import Cause, counted
from testbed_runtime.checking.faults import (
    ON_THE_EXCHANGE,
    FaultEffect,
    added_delays,
    check_faults,
)
from testbed_runtime.checking.lasting import (
    HELD_BACK,
    after_cut_delay,
    dead_slots,
    lasting_wait,
    needless_restarts,
    share_slack,
    since_earlier_fault,
    unnoticed_loss,
    until_faults_end,
    with_delays_avoided,
    without_outrun,
)
from testbed_runtime.checking.limiting import (
    FaultSizes,
    carried_bytes,
    limiting_fault,
    places_of_behind,
)
from testbed_runtime.checking.prices import margins, prices
from testbed_runtime.checking.progress import (
    LAST_NS,
    SAMPLE_NS,
    ended_tasks,
    last_arrival,
    sinks_of,
)
from testbed_runtime.checking.rounds import Outage, RoundSpan, begun_by, outages_of, start_of
from testbed_runtime.checking.steps import (
    blocking_producers,
    detection,
    failing_at_once,
    next_checkpoints,
    steps,
)
from testbed_runtime.checking.unrecorded import is_slot_request
from testbed_runtime.checking.waitcauses import busy_texts, window_text, windows_before_sinks
from testbed_runtime.checking.waits import (
    SILENT,
    fault_wait,
    lasts_until,
    read_waits,
    starved_words,
    without_splits,
)
from testbed_runtime.core.job.messages import TERMINAL_JOB_STATES
from testbed_runtime.core.job.restart import restart_limit
from testbed_runtime.core.judgement.metrics import JOB_FAILED, NOT_RECOVERED
from testbed_runtime.core.judgement.recovery import (
    UNATTRIBUTED,
    Margin,
    Recovery,
    Round,
    SharedFault,
    TrialRecovery,
)
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import KINDS, Outcome, Wait
from testbed_runtime.history.columns import vertex_of
from testbed_runtime.history.schema import Trial
from testbed_runtime.history.waits import INT64_MAX

FAILED_NS = NS // 4
"""A wait whose failure ended a round ended at most this long before the JobMaster learned of the failure."""
_STANDS_STILL = "a job that stands still: no record arrives at its sinks, and no wait was recorded"
_HOLDING_UP = (*ON_THE_EXCHANGE, "rpc", "process")
"""Groups of faults that can stop a task while the job runs. Late messages can, because a task waits for barriers."""
_LASTING = (Outcome.COMPLETED, Outcome.OPEN)
"""The outcomes of waits that did not end the task: they completed, or had not ended."""
_WAITED_FOR = ("slot", "input", "cancellation", "restart-delay", "fencing", "jobmanager", "leadership", "stalled")  # fmt: skip
"""The kinds of waits of a job that is not running, in addition to those that precede the first record."""
_FAILING = frozenset({"partition", "deployment", "slot", "checkpoint", "heartbeat", "restore", "open", "cancellation"})  # fmt: skip


def trial_recovery(trial: Trial, entry: TrialEntry) -> TrialRecovery:
    """Return every recovery of the trial and its first start. `entry` is its entry in manifest.json. Never raises for an
    empty or truncated history."""
    spans = windows(trial, entry)
    effects = sorted(check_faults(trial, entry), key=lambda e: (e.begun_ns, e.fault))
    path = _Paths(trial, entry, read_waits(trial, entry, effects, spans.end), spans)
    held = [(w.start_ns, w.end_ns) for w in path.waits if w.kind in DELAY_CATCH_UP and w.outcome in _LASTING]
    catch_up = CatchUp.read(trial, entry, spans, spans.end, held=held)
    path.catch_up, path.effects = catch_up, effects
    first = start_of(trial, spans.end, effects)
    outages = outages_of(trial, effects, catch_up, spans.end, windowed=path.windowed)
    found = [path.recovery(outage, catch_up.reason) for outage in outages]
    start = None if first is None else path.recovery(first, "")
    recoveries = tuple(_marked_again(_with_prolonging_faults(found, effects, path.waits)))
    return TrialRecovery(trial=trial.trial, start=start, recoveries=recoveries)


def _marked_again(found: Sequence[Recovery]) -> Iterator[Recovery]:
    """Yield the recoveries. A recovery from a fault that already has an earlier recovery is marked as such."""
    for number, one in enumerate(found):
        before = {fault for earlier in found[:number] if earlier.total_s > 0 for fault in earlier.faults}
        yield replace(one, again=one.fault in before)


def _with_prolonging_faults(
    found: Sequence[Recovery], effects: Iterable[FaultEffect], waits: Sequence[Wait] = ()
) -> list[Recovery]:
    """Add to each recovery the faults that cost nothing by themselves but prolonged it: its prices name them, or its
    `waits` expired because of them. Drop the recoveries that have only such a fault."""
    idle = {r.fault for r in found if r.recovered and r.total_s == 0}
    rest, costly = [], set[str]()
    for recovery in found:
        blamed = idle & ({price.fault for price in recovery.prices} | _behind_expired(recovery, waits))
        idle, costly = idle - blamed, costly | blamed
        named = (e for e in effects if e.fault in blamed and e.fault not in recovery.faults)
        lasting = (_shared(e, recovery.effect_ns) for e in named)
        rest.append(replace(recovery, shared=(*lasting, *recovery.shared)))
    costly |= {s.fault for r in rest for s in r.shared}
    return [r for r in rest if r.total_s > 0 or not r.recovered or r.fault not in costly]


def _shared(fault: FaultEffect, effect_ns: int) -> SharedFault:
    return SharedFault(fault=fault.fault, effect_ns=effect_ns, ended_ns=fault.ended_ns)


def _behind_expired(recovery: Recovery, waits: Sequence[Wait]) -> set[str]:
    """Return the faults behind the expired waits that a recovery attributes to options."""
    segments = [s for r in recovery.rounds for s in r.segments if s.option]
    expired = [w for w in waits if w.fault and w.outcome is Outcome.EXPIRED]
    return {w.fault for w in expired if any(is_of(s, w) for s in segments)}


class _Paths:
    """Attributes outages of one trial."""

    def __init__(self, trial: Trial, entry: TrialEntry, waits: Sequence[Wait], spans: Windows) -> None:
        self.trial, self.entry, self.spans = trial, entry, spans
        self.busy = busy_texts(entry)
        self.producers = blocking_producers(entry)
        self.options = entry.options.of_job(batch=bool(self.producers))
        self.fenced = self.options.boolean("headgate.restart.fence-dead-slots")
        self.whole = self.options.string("jobmanager.execution.failover-strategy") == "full"
        self.restarts = [e for e in events(trial, "failover.started") if counted(e)]
        self.waits = waits
        self.delays = added_delays(entry)
        self.windowed = windows_before_sinks(entry)
        direct = frozenset(job_shape(entry).sinks) - self.windowed.keys()
        self.windows = () if direct else sorted({w for windows in self.windowed.values() for w in windows})
        """The window vertices before the sinks. Empty if a sink gets records directly."""
        self.effects: Sequence[FaultEffect] = ()
        self.outage_fault = ""
        """The fault of the outage that is being attributed."""
        self.lost: dict[str, int] = {}
        self.awaited: Callable[[str], dict[str, int]] = lambda _: {}
        """The TaskManagers that were lost in that outage, and those for which the job waits, or would wait without the waits for an option."""
        self.felt = waits
        """The waits without those in which TaskManagers that the job did not use in that outage were paused or waited for the JobManager."""
        self.hits: Sequence[Hit] = ()
        """The faults that stopped a part of the job in that outage."""
        self.catch_up: CatchUp | None = None
        """The lag of the subtasks, if it is known."""

    def recovery(self, outage: Outage, unknown: str) -> Recovery:
        self.outage_fault = "" if outage.fault is None else outage.fault.fault
        span = outage.effect, outage.end
        self.lost = lost_in(self.effects, self.waits, *span)
        self.awaited = cache(partial(awaited_by, self.entry, self.lost, self.waits, span))
        used = self.awaited("").keys() | used_in(self.trial, *span)
        self.felt = [w for w in self.waits if (name := stalled_taskmanager(w)) is None or name in used]
        shape, faults = job_shape(self.entry), _faults_of(outage)
        self.hits = hits_of(self.trial, shape, faults, outage.effect, whole=self.whole)
        rounds = self._rounds(outage)
        segments = [s for r in rounds for s in r.segments]
        reason = "" if outage.recovered else NOT_RECOVERED
        if any(r.failure is not None and r.failure.terminal for r in outage.rounds):
            reason = JOB_FAILED
        elif outage.recovered or outage.rounds[-1].cause is None:
            reason = unknown or reason
        return Recovery(
            fault=self.outage_fault,
            effect_ns=outage.effect,
            end_ns=outage.end,
            recovered=outage.recovered,
            reason=reason,
            ended="" if outage.recovered else self._ended(outage, reason),
            restarts=sum(outage.effect <= e["t_ns"] <= outage.end for e in self.restarts),
            limit=restart_limit(self.options) if reason == JOB_FAILED else "",
            downtime_s=downtime_s(self.trial, self.hits, shape.sinks, outage),
            rounds=rounds,
            prices=prices(segments),
            margins=self._margins(outage),
            unattributed_s=sum(s.seconds for s in segments if s.kind == UNATTRIBUTED),
            from_events_s=sum(s.seconds for s in segments if s.from_events),
            shared=tuple(_shared(e, max(e.begun_ns, outage.effect)) for e in outage.shared),
        )

    def _margins(self, outage: Outage) -> tuple[Margin, ...]:
        """Return the margins of the waits that ended in the outage. If there was no outage, return those of the waits that the fault may have
        prolonged."""
        if outage.fault is None or outage.end > outage.effect:
            return margins(self.waits, outage.effect, outage.end)
        until = outage.fault.ended_ns or self.spans.end
        return margins((w for w in self.waits if w.start_ns < until), outage.effect, self.spans.end)

    def _ended(self, outage: Outage, reason: str) -> str:
        """Return the state in which the job ended during the outage. A busy JobManager records it late. Empty if the job went on."""
        until = INT64_MAX if reason == JOB_FAILED else min(outage.end + EPSILON_NS, self.spans.end)
        states = [e for e in events(self.trial, "job.state") if e["t_ns"] <= until]
        last = data(states[-1]).get("to") if states else ""
        return str(last) if last in TERMINAL_JOB_STATES else ""

    def _rounds(self, outage: Outage) -> tuple[Round, ...]:
        """Return the rounds, computed from the last to the first: the path of a round may begin with a wait from the round before."""
        found: list[Round] = []
        lasting: Wait | None = None
        for number, span in reversed(list(enumerate(outage.rounds, start=1))):
            lasting = lasting or unnoticed_loss(self.waits, span.cause, span.failure)
            found.insert(0, self._round(outage, number, span, lasting))
            lasting = lasting_wait(self.waits, found[0].segments, span.cause)
        known = self.waits, self.effects
        needless = needless_restarts([r.cause for r in outage.rounds], self.waits)
        shared = share_slack(without_outrun(found, *known), needless)
        cut = [after_cut_delay(r, self.waits) for r in shared]
        shared = until_faults_end(cut, self.effects, self.delays, self.waits)
        causes = [c for r in outage.rounds for c in (r.cause, r.failure) if c is not None]
        held_back = [e for e in self.effects if e.kind in HELD_BACK]
        shared = with_delays_avoided(shared, [e for e in self.effects if e.kind not in HELD_BACK])
        if len(_faults_of(outage)) > 1:
            shared = until_each_has_recovered(shared, self.hits, causes, *known, awaited=self.awaited)
        # a message that is held back after a refusal is avoided by a restart between them
        shared = with_delays_avoided(until_refusals_end(shared, causes, *known), held_back)
        return with_enough(shared, causes, *known, self.entry, places=partial(places, self.trial))

    def _round(self, outage: Outage, number: int, span: RoundSpan, lasting: Wait | None) -> Round:
        end = min(span.end, outage.end)
        since = span.start if span.cause is None else span.cause.t_ns
        failing = failing_at_once(self.trial, since, end) if span.cause is not None else []
        stepped = steps(
            self.trial,
            since=failing[0].end_ns if failing else since,
            until=end,
            restart=span.cause is not None,
            running_ns=span.running,
            producers=self.producers,
        )
        stepped += failing
        if span.cause is None and not outage.first and outage.running is None and span.failure is None:
            stepped = []  # a fault without a failover deploys nothing
        stepped = [replace(s, cause=self.busy.get(s.kind, s.cause)) for s in stepped]
        begun = outage.joined if number == 1 and outage.joined is not None else span.start
        if span.cause is not None and begun < span.cause.t_ns:
            stepped = [*detection(span.cause, begun), *stepped]
            if span.cause.kind == "checkpoint":
                stepped += next_checkpoints(self.trial, self.entry, begun, span.cause.t_ns)
        waits, ended = self._last(outage, span, stepped, end)
        last = lasting or ended
        unanswered = self.busy.get("jobmanager", "")
        if lasting is None and unanswered and span.failure is not None and span.failure.report_expired:
            after = replace(last, start_ns=last.end_ns, end_ns=end, outcome=Outcome.COMPLETED)
            unheard = replace(after, cause=unanswered, fault="", detail="")
            stepped = [*(s for s in stepped if s.start_ns < last.end_ns), unheard]
        segments = attribute(
            waits,
            stepped,
            start=begun,
            end=end,
            last=last,
            detected=since,
            terminal=span.failure is not None and span.failure.terminal,
            awaited=self.awaited,
            known=span.cause is not None,
            lasts=lasting is not None,
            ran=partial(ran_before, self.hits, self.awaited, outage.effect),
        )
        if begun > span.start and segments:
            earlier = [fault for fault in outage.earlier if fault.begun_ns < begun]
            segments = since_earlier_fault(self.waits, segments, earlier, outage.effect)
            begun = segments[0].start_ns
        if begun > span.start:
            lasted = self._lasted(outage, begun)
            before = attribute(lasted, (), start=span.start, end=begun, last=lasted[-1], detected=begun)
            segments = (*before, *segments)
        cause, failure = span.cause, span.failure or span.unnoticed
        return Round(
            number=number,
            start_ns=span.start,
            end_ns=end,
            cause="" if cause is None else cause.text,
            segments=segments,
            cause_class="" if cause is None else cause.cause_class,
            failure="" if failure is None else failure.text,
            ended_by="failure" if span.failure else "running" if outage.recovered else "open",
        )

    def _last(
        self, outage: Outage, span: RoundSpan, stepped: Sequence[Wait], end: int
    ) -> tuple[list[Wait], Wait]:
        """Return the waits of a round, and the wait that ended it."""
        waits = list(self.felt)
        if span.failure is not None:
            if span.running is not None and span.running < end:  # the failure interrupted the catch-up
                until, backlog = end + EPSILON_NS, self._backlog(outage, span.running)
                waits.append(self._catch_up(span.running, until, Outcome.CANCELLED, backlog=backlog))
            since = span.start if span.cause is None else span.cause.t_ns
            return waits, self._failing(span.failure, since, end) or _nothing("failure-report", end)
        if not self.fenced:
            waits += dead_slots(self.waits, span.cause, end, self.lost)
        if span.running is None and outage.rounds[0].cause is None and not outage.first:
            return self._survived(outage, waits, end)
        if span.running is None:
            return waits, self._open(span, stepped, end)
        if outage.caught_up is None and outage.recovered:
            return waits, _nothing("catch-up", end)
        ended = Outcome.COMPLETED if outage.recovered else Outcome.OPEN
        if outage.recovered and (held := self._holding(span.running, end)) is not None:
            until = min((held.ended_ns or end) + self._delay_of(held), end)
            # it replaces the first part of the catch-up, so it follows the same waits
            waiting = replace(fault_wait(held, span.running, until, self.waits), kind="catch-up")
            rest = self._catch_up(until, end, ended, backlog=self._backlog(outage, span.running))
            return [*waits, waiting], replace(rest, after=(waiting.wait,))
        *first, last = self._stopped_catch_up(outage, span.running, end, ended)
        return [*waits, *first], last

    def _stopped_catch_up(self, outage: Outage, start: int, end: int, outcome: Outcome) -> list[Wait]:
        """Return the waits of a catch-up, one after the other: it also waits for the end of each fault that stops a part of the job."""
        backlog, at = self._backlog(outage, start), start
        found: list[Wait] = []
        for fault, (since, ended) in self._stopping(outage, start, end):
            begun = max(at, since)
            if begun < ended:
                found += [self._catch_up(at, begun, Outcome.COMPLETED, backlog=backlog)] if at < begun else []
                missed = outage.joined is not None  # as before the failover
                waiting = fault_wait(fault, begun, ended, self.waits, missed=missed)
                found.append(replace(waiting, kind="catch-up"))
                at = ended
        if at < end or not found:
            found += self._catch_ups(at, end, outcome, backlog=backlog)
        return [found[0], *(replace(w, after=(b.wait,)) for b, w in pairwise(found))]

    def _stopping(self, outage: Outage, start: int, end: int) -> list[tuple[FaultEffect, tuple[int, int]]]:
        """Return the faults that starved a task during a part of the span, ordered by their beginning, and when they
        did. A fault is judged by the time in which no other one was active, if that is at least 1 s, otherwise by its
        whole time. If no task was starved then, it is judged by the end of that time, when no vertex was busy: the
        job had worked off its queued records."""
        lasting = []
        for fault in sorted(_faults_of(outage), key=lambda f: f.begun_ns):
            span = max(fault.begun_ns, start), min(fault.ended_ns or end, end)
            if fault.group in _HOLDING_UP and span[1] - span[0] >= NS:
                lasting.append((fault, span))
        found = []
        for fault, span in lasting:
            alone = without_spans(span, [other for one, other in lasting if one is not fault])
            last = alone[-1] if alone else (span[1], span[1])
            since, until = self._idle_since(*last), last[1]
            if self._starved(alone if sum(b - a for a, b in alone) >= NS else [span]):
                found.append((fault, (self._fed_until(*span), span[1])))
            elif until - since >= NS and self._starved([(since, until)]):
                found.append((fault, (since, until)))
        return found

    def _idle_since(self, start: int, end: int) -> int:
        """Return the time since which no vertex was busy for half of the time, up to the end of a span."""
        step, at = NS // 2, end
        while at - step >= start and 2 * busiest(self.trial, at - step, at)[1] < step:
            at -= step
        return at

    def _fed_until(self, start: int, end: int) -> int:
        """Return the time until which no task was starved, from the start of a span on. At first, tasks process their
        queued records."""
        while start + NS < end and not self._starved([(start, start + NS)]):
            start += NS
        return start

    def _starved(self, spans: Sequence[tuple[int, int]]) -> bool:
        """Return whether a task received less than half of the records that it receives in the baseline. Sources,
        tasks behind a window, which often get none for a long time, and tasks that have ended do not count."""
        baseline = self.spans.baseline
        if baseline is None:
            return False
        shape, ended = job_shape(self.entry), ended_tasks(self.trial)
        rare = {*shape.sources, *(v for v in shape.parallelism if shape.windows_before(v))}
        seconds, end = sum(b - a for a, b in spans), max(b for _, b in spans)
        usual, received = defaultdict[str, float](float), defaultdict[str, float](float)
        for one in task_series(self.trial):
            if vertex_of(one.task) not in rare and ended.get(one.task, end + 1) > end:
                before = one.received_until(baseline.end) - one.received_until(baseline.start)
                rate = before / (baseline.end - baseline.start)
                usual[one.task] += rate * seconds
                received[one.task] += sum(
                    one.received_until(b, rate) - one.received_until(a) for a, b in spans
                )
        return any(2 * received[task] < records for task, records in usual.items() if records >= FEW)

    def _survived(self, outage: Outage, waits: list[Wait], end: int) -> tuple[list[Wait], Wait]:
        """Return the waits of an outage without a failover, and its last wait. This is for the end of a fault or for
        the backlog, or it is the detection of a failure that came too late for the record."""
        failure = outage.rounds[0].unnoticed
        found = None if failure is None else self._failing(failure, outage.effect, failure.t_ns)
        if found is not None and found.start_ns < end:
            return waits, replace(found, end_ns=end)
        leaderless = [w for w in waits if w.kind == "leadership" and w.start_ns < end < w.end_ns]
        if failure is not None and leaderless:  # the next JobManager learns of the failure when it leads
            return waits, replace(leaderless[0], end_ns=end)
        lasted = self._lasted(outage, end)
        return lasted, lasted[-1]

    def _lasted(self, outage: Outage, end: int) -> list[Wait]:
        """Return the waits of a job that survives the faults of an outage, until `end` and without overlaps. The job
        waits for the faults that began in the outage, one after the other, and for its backlog between them. Then it
        waits for the active faults from before the outage, and at last for its backlog. A killed process counts as an
        active fault until the failover."""
        missed = outage.joined is not None or not outage.recovered
        found: list[Wait] = []
        at = outage.effect
        for fault in sorted(begun_by(outage), key=lambda f: (f.begun_ns < outage.effect, f.begun_ns)):
            begun = max(at, fault.begun_ns)
            ended = min(lasts_until(fault, end, missed=missed) + self._delay_of(fault), end)
            if begun < ended:
                found += [self._catch_up(at, begun, Outcome.COMPLETED)] if at < begun else []
                found.append(fault_wait(fault, begun, ended, self.waits, missed=missed))
                at = ended
        if at < end or not found:
            silent = end if outage.recovered else max(at, last_arrival(sinks_of(self.trial), end))
            if silent > at and end - silent < LAST_NS:
                silent = end
            if at < silent or not found:
                found += self._catch_ups(at, silent, Outcome.COMPLETED)
            if silent < end:
                rest = self._catch_up(silent, end, Outcome.COMPLETED)
                found.append(replace(rest, what="", cause=_STANDS_STILL, fault=""))
        return [found[0], *(replace(w, after=(b.wait,)) for b, w in pairwise(found))]

    def _delay_of(self, fault: FaultEffect) -> int:
        """Return how long after the end of a fault on the exchange the last records that it delayed arrive."""
        return self.delays.get(fault.fault, 0) if fault.on_exchange else 0

    def _holding(self, running: int, end: int) -> FaultEffect | None:
        """Return the fault on the exchange whose end ended the catch-up. The last records that it delayed arrive later by its delay."""
        found = [(f.ended_ns, f) for f in self.effects if f.on_exchange and f.ended_ns]
        held = [
            (at, f)
            for at, f in found
            if 0 < f.begun_ns < running < at <= end <= at + self._delay_of(f) + NEAR_NS
        ]
        return max(held, key=lambda pair: pair[0], default=(0, None))[1]

    def _backlog(self, outage: Outage, running: int) -> str:
        stored = bool(self.producers)
        return backlog_words(
            self.trial,
            outage,
            running,
            waits=self.waits,
            baseline=self.spans.baseline,
            stored=stored,
            windowed=self.windowed,
        )

    def _catch_ups(self, start: int, end: int, outcome: Outcome, *, backlog: str = "") -> list[Wait]:
        """Return the catch-up, in two parts if it ended with the first results of a window. After the last records
        before these results, the job had no backlog and only waited for the window."""
        windows, sinks = self._behind_windows(end)
        last = max(start, last_arrival(sinks, end - 2 * SAMPLE_NS))
        if not windows or end - last < FAILED_NS or 2 * busiest(self.trial, last, end)[1] >= end - last:
            return [self._catch_up(start, end, outcome, backlog=backlog)]
        waiting = self._catch_up(last, end, outcome, backlog=backlog)
        waiting = replace(waiting, what="", cause=window_text(windows), fault="", detail="")
        if start == last:
            return [waiting]
        first = self._catch_up(start, last, Outcome.COMPLETED, backlog=backlog)
        return [first, replace(waiting, after=(first.wait,))]

    def _behind_windows(self, end: int) -> tuple[Sequence[str], list[TaskSeries]]:
        """Return the windows that the last subtasks that were behind waited for, and the sinks among these subtasks.
        If some of the subtasks are not behind a window, return the windows before all sinks, and all sinks."""
        behind = self.catch_up.behind_before(end) if self.catch_up is not None else frozenset()
        vertices = set(map(vertex_of, behind))
        if not vertices or not vertices <= self.windowed.keys():
            return self.windows, sinks_of(self.trial)
        windows = sorted({window for vertex in vertices for window in self.windowed[vertex]})
        return windows, [one for one in sinks_of(self.trial) if one.task in behind]

    def _catch_up(self, start: int, end: int, outcome: Outcome, *, backlog: str = "") -> Wait:
        vertex, worked_ns = busiest(self.trial, start, end)
        limiting = None if 2 * worked_ns >= end - start else self._limiting(start, end)
        starved = "" if vertex or end - start < LAST_NS else starved_words(self.waits, start, end)
        cause = f"spare capacity of {f'`{vertex}`' if vertex else 'the job'}"
        if limiting is not None:
            starved = "" if limiting.kind in SILENT else starved
            vertex, cause = "", f"spare capacity of the job, during the fault `{limiting.fault}`"
        asking = without_splits(self.waits, start, end)
        fault = asking.fault if asking else limiting.fault if limiting and not starved else ""
        cause = asking.cause if asking else f"too little credit: {starved}" if starved else cause
        return Wait(
            wait=f"catch-up/{start}",
            kind="catch-up",
            who="job",
            what=vertex,
            start_ns=start,
            end_ns=end,
            outcome=outcome,
            cause=cause,
            fault=fault,
            detail=backlog,
        )

    def _limiting(self, start: int, end: int) -> FaultEffect | None:
        """Return the fault on the exchange that explains a catch-up in which no vertex was busy. It was active for at
        least half of the catch-up and hit a TaskManager whose subtasks were behind."""
        if not (effects := [e for e in self.effects if e.on_exchange]):
            return None
        behind = self.catch_up.behind_before(end) if self.catch_up is not None else ()
        places = places_of_behind(self.trial, self.entry, (start, end), behind)
        starved = bool(starved_words(self.waits, start, end))
        carried = carried_bytes(self.trial, (start, end), places)
        size = FaultSizes(
            {fault.name: fault.params for fault in self.entry.faults}, self.delays, starved, carried
        )
        return limiting_fault(effects, (start, end), places, size=size, own=self.outage_fault)

    def _failing(self, failure: Cause, start: int, end: int) -> Wait | None:
        """Return the wait that ended with this failure. It is a wait of the failure's kind, if possible a failed one;
        otherwise a failed wait of any kind that can fail a job. Of several, the one that began first counts. A busy
        JobManager learns late that an ask to it timed out, so the first such ask counts, whenever it ended."""
        if failure.report_expired:
            asked = [w for w in self.waits if w.kind == failure.kind and start < w.end_ns <= end]
            if expired := [w for w in asked if w.outcome is Outcome.EXPIRED]:
                return min(expired, key=lambda w: (w.end_ns, w.start_ns, w.wait))
        near = [w for w in self.waits if end - FAILED_NS <= w.end_ns <= end + FAILED_NS // 10]
        near = [w for w in near if w.end_ns > w.start_ns and w.end_ns > start and not is_slot_request(w)]
        near = [w for w in near if w.kind != "heartbeat" or failure.taskmanager in ("", w.who, w.what)]
        named = [w for w in near if w.kind == failure.kind and w.outcome is not Outcome.CANCELLED]
        any_kind = [w for w in near if w.kind in _FAILING]
        failed = [w for w in named or any_kind if w.outcome in (Outcome.EXPIRED, Outcome.FAILED)]
        return min(failed or named, key=lambda w: (w.start_ns, w.wait), default=None)

    def _open(self, span: RoundSpan, stepped: Sequence[Wait], end: int) -> Wait:
        """Return what the job still waits for at the end of the record."""
        lasting = [w for w in self.waits if span.start - EPSILON_NS <= w.start_ns < end <= w.end_ns]
        waited = [w for w in lasting if w.kind in KINDS["first-record"].after + _WAITED_FOR]
        waited = waited or [w for w in lasting if w.kind == "first-record"]
        steps_on = [s for s in stepped if s.end_ns >= end]
        return min(waited or steps_on, key=lambda w: w.start_ns, default=_nothing("failure-report", end))


def _faults_of(outage: Outage) -> list[FaultEffect]:
    every = (*((outage.fault,) if outage.fault else ()), *outage.earlier, *outage.shared)
    return [*{e.fault: e for e in every}.values()]


def _nothing(kind: str, at: int) -> Wait:
    """Return a wait of 0 s, which only names the kind of step from which the walk begins."""
    return Wait(wait="", kind=kind, who="", what="", start_ns=at, end_ns=at)
