"""Outages and their rounds: from the effect of a fault over every failed deployment until the job has caught up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.checking.catchup import EPSILON_S, CatchUp
from testbed_runtime.checking.common import Window, data, events
from testbed_runtime.checking.criticalpath import NEAR_NS
from testbed_runtime.checking.executions import places
from testbed_runtime.checking.failovers import TOGETHER_NS, Cause, round_causes
from testbed_runtime.checking.faults import FaultEffect, targets_of
from testbed_runtime.checking.progress import LAST_NS, raw_rate, sinks_of
from testbed_runtime.checking.waits import LOSSES, created_ns, submission_wait
from testbed_runtime.core.faults.links import any_matches, flows_of, logical_name
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.core.job.causes import RECOVERED
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import Outcome
from testbed_runtime.history.columns import vertex_of
from testbed_runtime.history.schema import Trial
from testbed_runtime.history.waits import INT64_MAX

EXPLAINS = {"registration": ("partition",), "store": ("checkpoint", "failure-report", "lease")}
"""The kinds of failures that faults of a group can cause (`Cause.kind`). Other groups can cause any failure."""
_ON_DATA = ("partition", "checkpoint", "failure-report", "connection")
"""The failures that faults on the exchange alone can cause."""
_CLOSES_NONE = ("network.latency", "network.bandwidth", "network.duplicate", "network.reorder")
"""The kinds of network faults that only delay what passes. They close no connection."""
REFUSING = ("network.reset", "network.half-open")
"""The kinds of faults that close connections and refuse new ones, so that a job on such a link does not start before they end."""


TOLERATED_NS = round(EPSILON_S * NS)
"""A first record that arrives within this time of another one does not count as later: each waits for its own
flushes."""
_ONLY = {"checkpoint": "store", "lease": "store"}
"""The kinds of failures that are attributed to an active fault of a group rather than to any later fault."""
_EXPLAINED_BY = {"checkpoint": "store", "lease": "store", "heartbeat": "rpc"}
"""The groups of faults that cost a running job nothing before the given kind of failed wait begins."""
_FAILED = (Outcome.FAILED, Outcome.EXPIRED)
_HOLDS_NO_RECORD = ("store", "heartbeats")
"""The groups of faults that delay no record of a running job: snapshots are stored beside the tasks."""
LOST = (*LOSSES, "jobmanager.kill")
"""The kinds of faults that end a process. Its loss is noticed later."""


class RoundSpan(Struct, frozen=True):
    """One deployment. It begins with `cause` (None: the submission, or a fault without a failover) and ends with `failure`, or when the job
    runs."""

    start: int
    end: int
    cause: Cause | None = None
    failure: Cause | None = None
    running: int | None = None
    """When the last affected sink received its first new record, even if the job failed later."""
    unnoticed: Cause | None = None
    """The failure to which the deployment led after the end of the record."""


class Outage(Struct, frozen=True):
    """One outage as spans. `fault` is None if no fault caused it."""

    fault: FaultEffect | None
    effect: int
    end: int
    rounds: tuple[RoundSpan, ...]
    recovered: bool
    caught_up: int | None = None
    first: bool = False
    """Whether this is the first start."""
    earlier: tuple[FaultEffect, ...] = ()
    """The faults of an outage that several faults without a failover began, each before the job had recovered from
    the previous one. `fault` is the first of them."""
    shared: tuple[FaultEffect, ...] = ()
    """Every other fault that took effect before the job had recovered, and that began no outage of its own."""
    joined: int | None = None
    """In an outage that `earlier` faults began, when the fault that caused the failover took effect."""

    @property
    def running(self) -> int | None:
        last = self.rounds[-1]
        return last.running if last.failure is None else None


class FirstRecord(Struct, frozen=True):
    """The first record of a sink: when it arrived, and its latency. Without a latency, it was due since the start of
    the trial."""

    t_ns: int
    latency_ns: int | None

    @property
    def due_ns(self) -> int:
        return 0 if self.latency_ns is None else self.t_ns - self.latency_ns


def last_due_arrival(
    found: Collection[FirstRecord], missing: Sequence[FirstRecord | None], begun: int, until: int
) -> int | None:
    """Return when the last sink received its first record. First records count if they were due at `begun`, or were clearly later than all of
    those. `missing`: for each sink without a record by `until`, its first record after that, or None. If any of these sinks should have had a
    record by `until`, return None."""
    due = [one for one in found if one.due_ns <= begun]
    usual = max(one.latency_ns or 0 for one in due)
    if any(one is None or one.due_ns + usual < until for one in missing):
        return None
    return max(one.t_ns for one in found if one in due or one.t_ns - one.due_ns > usual + TOLERATED_NS)


class _Record(Struct, frozen=True):
    trial: Trial
    effects: Sequence[FaultEffect]
    catch_up: CatchUp
    end: int
    windowed: Collection[str] = ()
    """The sink vertices that get no record before a window has ended."""

    def first_records(self, since: int, until: int) -> int | None:
        """Return when the last affected sink received its first new record. None if one of them received none. A sink that had already
        received all records counts when it has received them again. A sink is affected if a record was due for it when every task ran and the
        first sink had received one, or if its record was later than those of such sinks. A sink behind a window is not affected if its first
        record was as punctual as usual."""
        first = events(self.trial, "sink.first-record")
        ever = {e["subject"] for e in first}
        again = [e for e in events(self.trial, "sink.end") if e["subject"] in ever and e["attempt"] > 0]
        rows = sorted([*first, *again], key=lambda e: e["t_ns"])
        states = [e for e in events(self.trial, "task.state") if since <= e["t_ns"] < until]
        affected = {e["subject"] for e in states if data(e).get("to") != "FINISHED"}
        ran: dict[str, int] = {e["subject"]: e["t_ns"] for e in states if data(e).get("to") == "RUNNING"}
        found: dict[str, FirstRecord] = {}
        later: dict[str, FirstRecord] = {}
        for row in rows:
            if (t_ns := row["t_ns"]) >= since:
                arrival = FirstRecord(t_ns, data(row).get("latency_ns"))
                (found if t_ns < until else later).setdefault(row["subject"], arrival)
        missing = (ever & affected) - set(found)
        if not found or (missing and affected - set(ran)):
            return None
        begun = max([min(one.t_ns for one in found.values()), *ran.values()])
        last = last_due_arrival(found.values(), [later.get(task) for task in missing], begun, until)
        if last is None or not (self.windowed and ran):
            return last
        waited = [one.t_ns for task, one in found.items() if not self._punctual(task, one)]
        return min(last, max([*ran.values(), *waited]))

    def _punctual(self, task: str, first: FirstRecord) -> bool:
        """Whether the first record of a sink behind a window was as punctual as usual."""
        return vertex_of(task) in self.windowed and self.catch_up.punctual(task, first.latency_ns)

    def stands_still(self, since: int) -> bool:
        """Return whether a subtask is behind until the end of the record, and no sink received a record meanwhile."""
        behind = self.catch_up.behind_since(since)
        if behind is None or self.end - behind < LAST_NS:
            return False
        return raw_rate(sinks_of(self.trial), Window(behind, self.end)) == 0

    def rounds(self, start: int, causes: Sequence[Cause | None], begins: Sequence[int]) -> list[RoundSpan]:
        """Return the rounds that these causes began. The last one is cut by the caller."""
        found = []
        for index, cause in enumerate(causes):
            following = causes[index + 1] if index + 1 < len(causes) else None
            end = following.t_ns if following is not None else self.end
            since = begins[index]
            running = self.first_records(since, end + 1 if following is None else end)
            found.append(RoundSpan(start if index == 0 else since, end, cause, following, running))
        return found


def start_of(trial: Trial, end: int, effects: Sequence[FaultEffect] = ()) -> Outage | None:
    """Return the first start: from the submission until every sink has received a record. Each failure in it ends a round. That includes a
    failed report of a starting task, even if a busy JobMaster handles it late."""
    submitted = _submitted(trial, effects)
    if submitted is None:
        return None
    record = _Record(trial, (), CatchUp((), end), end)
    failed = [c for c in round_causes(trial) if c.t_ns >= submitted]
    causes: list[Cause | None] = [None]
    for cause in failed:
        begun = submitted if causes[-1] is None else causes[-1].t_ns
        if not cause.report_expired and record.first_records(begun, cause.t_ns) is not None:
            record = replace(record, end=cause.t_ns - 1)  # what a sink received later is no part of the start
            break
        causes.append(cause)
        if cause.terminal:
            break
    return replace(_closed(record, submitted, causes, None, caught_up=False), first=True)


def _submitted(trial: Trial, effects: Sequence[FaultEffect]) -> int | None:
    """Return when the job was submitted. If a fault had stopped the JobManager before that, return the time of that
    fault: the runner waits for its effect before it submits the job."""
    created = created_ns(trial)
    if created is None:
        return None
    since = max((e["t_ns"] for e in events(trial, "trial.phase") if e["t_ns"] <= created), default=0)
    submission = submission_wait(trial)
    asked = created if submission is None else submission.start_ns
    stopped = [e for e in effects if _stops_jobmanager(e) and e.injected_ns is not None]
    before = [e for e in stopped if since <= e.begun_ns and e.ended_ns is not None and e.ended_ns <= created]
    return min((e.begun_ns for e in before), default=asked)


def outages_of(
    trial: Trial,
    effects: Sequence[FaultEffect],
    catch_up: CatchUp,
    end: int,
    *,
    windowed: Collection[str] = (),
) -> list[Outage]:
    """Return the outages in order: those with failovers, and those of faults that cost none. `windowed`: the sink vertices
    that get no record before a window has ended."""
    record = _Record(trial, effects, catch_up, end, windowed)
    first = start_of(trial, end, effects)
    found: list[Outage] = []
    rest = [c for c in round_causes(trial) if c.t_ns <= end]
    injected = [e for e in effects if e.injected_ns is not None]
    early = [e for e in injected if first is not None and e.begun_ns <= first.end]
    if first is not None:
        started = {c.t_ns for r in first.rounds for c in (r.cause, r.failure) if c is not None}
        rest = [c for c in rest if c.t_ns not in started]
        if early:
            fault = min(early, key=lambda e: e.begun_ns)
            outage, used = _as_outage(record, first, fault, rest)
            found.append(_since(outage, fault.begun_ns))
            rest = rest[used:]
    while rest:
        outage, used = _with_failovers(record, rest, injected, found)
        found.append(outage)
        rest = rest[used:]
    taken = {o.fault.fault for o in found if o.fault is not None} | {e.fault for e in early}
    unnoticed = next((c for c in round_causes(trial) if c.t_ns > end), None)
    blamed = None if unnoticed is None else responsible(injected, unnoticed)
    found += [
        _without_failover(record, effect, found, unnoticed if effect is blamed else None)
        for effect in injected
        if effect.fault not in taken and not any(o.effect <= effect.begun_ns <= o.end for o in found)
    ]
    found = _joined(record, sorted(found, key=lambda o: o.effect))
    cut = [replace(o, end=min(o.end, later.effect)) if o.recovered else o for o, later in pairwise(found)]
    found = _shared(_absorb_idle([*cut, *found[-1:]]), injected)
    return [*_with_relapses(record, found, injected)]


def _with_relapses(
    record: _Record, found: Sequence[Outage], injected: Sequence[FaultEffect]
) -> Iterator[Outage]:
    """Yield the outages. A fault on the exchange that outlasts a failover may hold the job up once more before it ends: the first records
    pass, for example, and then the credit is used up."""
    following = [*(o.effect for o in found[1:]), record.end]
    # `following` has an item even if there is no outage
    for outage, until in zip(found, following, strict=False):
        yield outage
        if not (outage.recovered and _fails(outage)):
            continue
        lasting = [e for e in injected if e.on_exchange and e.begun_ns <= outage.end]
        lasting = [e for e in lasting if e.ended_ns is None or e.ended_ns > outage.end]
        ended = max((e.ended_ns or until for e in lasting), default=0)
        effect = record.catch_up.falls_behind(outage.end, min(ended, until)) if lasting else None
        if effect is not None:
            span, faults = RoundSpan(effect, effect), tuple(lasting)
            again = Outage(lasting[0], effect, effect, (span,), True, earlier=faults, shared=faults[1:])
            again = _until_all_ended(record, again)
            if again.end < until or until == record.end:  # otherwise it led to the next outage
                yield again


def _absorb_idle(found: Sequence[Outage]) -> list[Outage]:
    """Merge each fault without costs so far into the outage of a later fault, if it was still active then and the job
    was behind until it ended."""
    idle = [o.fault for o in found if o.fault is not None and o.effect == o.end]
    idle = [f for f in idle if f.group not in _HOLDS_NO_RECORD]
    taken: list[FaultEffect] = []
    joined = []
    for outage in found:
        more: list[FaultEffect] = []
        if outage.fault is not None and outage.recovered and not _fails(outage):
            more = [f for f in idle if f.ended_ns is not None and outage.effect < f.ended_ns <= outage.end]
        taken += more
        joined.append(replace(outage, earlier=(*begun_by(outage), *more)) if more else outage)
    return [o for o in joined if o.fault not in taken]


def begun_by(outage: Outage) -> tuple[FaultEffect, ...]:
    """Return the faults that began an outage without a failover."""
    return outage.earlier or ((outage.fault,) if outage.fault is not None else ())


def _shared(found: Sequence[Outage], injected: Sequence[FaultEffect]) -> list[Outage]:
    """Add each fault that began no outage to the first outage in which it took effect."""
    rest = {e.fault: e for e in injected if e.fault not in {o.fault.fault for o in found if o.fault}}
    several = []
    for outage in found:
        joined = {e.fault for e in outage.earlier}
        mine = [e for e in rest.values() if e.fault in joined or _took_effect_in(e, outage)]
        rest = {name: e for name, e in rest.items() if e not in mine}
        several.append(replace(outage, shared=tuple(sorted(mine, key=lambda e: e.begun_ns))))
    return several


def _took_effect_in(effect: FaultEffect, outage: Outage) -> bool:
    """Whether a fault took effect in an outage. In a first start, faults that were injected before the submission also count."""
    return effect.begun_ns <= outage.end and (outage.first or outage.effect <= effect.begun_ns)


def _as_outage(
    record: _Record, first: Outage, fault: FaultEffect, failed: Sequence[Cause]
) -> tuple[Outage, int]:
    """Return the first start as the outage of a fault that was active before the job ran, and the number of later failures that belong to it:
    those before the job had caught up."""
    if not first.recovered:
        return replace(first, fault=fault), 0
    used, running = 0, first.running
    while used < len(failed) and not _caught_up_before(record, running, failed[used].t_ns):
        used += 1
        following = failed[used].t_ns if used < len(failed) else record.end + 1
        running = record.first_records(failed[used - 1].t_ns, following)
    if used:
        record = replace(record, end=failed[used].t_ns - 1) if used < len(failed) else record
        causes = [*(r.cause for r in first.rounds), *failed[:used]]
        return replace(_closed(record, first.effect, causes, fault, caught_up=True), first=True), used
    caught_up = record.catch_up.since(first.end, fault_end=first.end)
    end = first.end if caught_up is None else caught_up
    rounds = (*first.rounds[:-1], replace(first.rounds[-1], end=end))
    return replace(first, fault=fault, end=end, rounds=rounds, caught_up=caught_up), 0


def _since(outage: Outage, begun_ns: int) -> Outage:
    """Return the part of a first start after the effect of its fault, if the job had been submitted before. A round that ended with a failure
    right at that effect is dropped."""
    if begun_ns <= outage.effect:
        return outage
    first, *rest = [r for r in outage.rounds if r.end > begun_ns] or outage.rounds[-1:]
    if rest and first.end - begun_ns < NEAR_NS:
        first, *rest = rest
        first = replace(first, start=begun_ns)
    return replace(outage, effect=begun_ns, rounds=(replace(first, start=max(first.start, begun_ns)), *rest))


def _caught_up_before(record: _Record, running: int | None, failed_ns: int) -> bool:
    """Whether the job that ran since `running` had caught up when it failed, or whether that cannot be known."""
    if running is None:
        return False
    caught_up = record.catch_up.since(running)
    return bool(record.catch_up.reason) or (caught_up is not None and caught_up < failed_ns)


def _with_failovers(
    record: _Record, failed: Sequence[Cause], injected: Sequence[FaultEffect], before: Sequence[Outage]
) -> tuple[Outage, int]:
    """Return the outage that the first failure began, and the number of failures that belong to it. It begins after the end of the last outage
    in `before`, because the job had recovered from that one."""
    since = before[-1].end if before else 0
    began = {o.fault.fault for o in before if o.fault is not None}
    known = began | {e.fault for e in injected if any(_took_effect_in(e, o) for o in before)}
    at = failed[0].t_ns
    behind = bool(before) and not record.catch_up.good_between(since, at)
    lost = [e for e in injected if e.kind in LOST]
    missed = {e.fault for e in lost if since <= e.begun_ns or (behind and e.fault not in began)}
    lasting = missed | {e.fault for e in injected if e.ended_ns is None or e.ended_ns > since}
    rest = [e for e in injected if e.fault in lasting or e.fault not in known]
    fault = responsible(rest if _any_active(rest, missed, at) else injected, failed[0])
    effect = failed[0].t_ns
    if fault is not None and fault.begun_ns >= since:
        effect = _first_effect(record.trial, fault, failed[0])
    elif fault is not None and fault.fault in lasting - began and (_stops(fault) or _stops_jobmanager(fault)):
        # it stopped a part of the job shortly before that had recovered from the outage before
        effect = since
    elif fault is not None and fault.fault in lasting and failed[0].kind in _EXPLAINED_BY:
        effect = _first_failed(record.trial, failed[0], since, effect)
    else:
        effect = _suspended(record.trial, since, effect)
        gone = fault is not None and fault.fault in lasting and _stops_jobmanager(fault)
        if before and (failed[0].report_expired or gone):  # the JobMaster heard of it late
            effect = min(effect, record.catch_up.behind_until(at, since))
    used = 1
    while not failed[used - 1].terminal and used < len(failed):
        running = record.first_records(failed[used - 1].t_ns, failed[used].t_ns)
        if _caught_up_before(record, running, failed[used].t_ns):
            record = replace(record, end=failed[used].t_ns - 1)
            break
        used += 1
    return _closed(record, effect, failed[:used], fault, caught_up=True), used


def _first_effect(trial: Trial, fault: FaultEffect, failure: Cause) -> int:
    """Return when a fault took effect. If the job runs, a fault on the store takes effect with the first checkpoint that failed, and a fault
    that delays messages with the last heartbeat before the missing ones."""
    begun = fault.begun_ns
    if _EXPLAINED_BY.get(failure.kind) != fault.group:
        return begun
    return _first_failed(trial, failure, begun, begun)


def _first_failed(trial: Trial, failure: Cause, since: int, otherwise: int) -> int:
    """Return when the first wait of this failure's kind, and for its TaskManager, that failed after `since` began, or `since` if it had
    begun before. Return `otherwise` if none was recorded."""
    rows = [r for r in trial.rows("waits") if r["kind"] == failure.kind and r["outcome"] in _FAILED]
    rows = [r for r in rows if failure.taskmanager in ("", r["who"], r["what"])]
    failed = [r["start_ns"] for r in rows if since < r["t_ns"] <= failure.t_ns]
    return max(since, min(failed, default=otherwise))


def _any_active(effects: Iterable[FaultEffect], missed: Collection[str], at: int) -> bool:
    """Whether one of the faults was active at that time. A fault in `missed` counts as active also after its end."""
    return any(e.begun_ns <= at and (e.fault in missed or at <= (e.ended_ns or at)) for e in effects)


def _suspended(trial: Trial, since: int, failed_ns: int) -> int:
    """Return when the job was suspended, if the next leader reported this failure. Otherwise return the time of the failure."""
    states = [e for e in events(trial, "job.state") if since < e["t_ns"] <= failed_ns]
    return min((e["t_ns"] for e in states if data(e).get("to") == "SUSPENDED"), default=failed_ns)


def _closed(
    record: _Record,
    effect: int,
    causes: Sequence[Cause | None],
    fault: FaultEffect | None,
    *,
    caught_up: bool,
) -> Outage:
    """Return the outage with these failures, ended where the job had caught up, or had received its first records."""
    terminal = causes[-1] if causes[-1] is not None and causes[-1].terminal else None
    begins = [effect if c is None else c.t_ns for c in causes]
    if terminal is not None and len(causes) == 1:  # the job did not restart at all
        span = RoundSpan(effect, terminal.t_ns, terminal, terminal)
        return Outage(fault, effect, terminal.t_ns, (span,), False)
    rounds = record.rounds(effect, causes[:-1] if terminal else causes, begins)
    if terminal is not None:
        rounds[-1] = replace(rounds[-1], end=terminal.t_ns, failure=terminal)
        return Outage(fault, effect, terminal.t_ns, tuple(rounds), False)
    running = rounds[-1].running
    end = running
    moment = None
    if caught_up and running is not None and not record.catch_up.reason:
        end = moment = record.catch_up.since(running)
    rounds[-1] = replace(rounds[-1], end=record.end if end is None else end)
    return Outage(fault, effect, rounds[-1].end, tuple(rounds), end is not None, moment)


def _without_failover(
    record: _Record, fault: FaultEffect, others: Sequence[Outage], unnoticed: Cause | None
) -> Outage:
    """Return the outage of a fault that caused no failover. It lasts from the effect of the fault until no task is behind any more. If no task
    was behind before the next fault or outage (`others`), it ends there at the latest. `unnoticed`: the failure that the fault caused after
    the end of the record, if any."""
    effect = fault.begun_ns
    ended = fault.ended_ns if fault.ended_ns is not None else effect
    if record.catch_up.reason:
        return Outage(fault, effect, effect, (RoundSpan(effect, effect),), False)
    later = [e.begun_ns for e in record.effects if e.injected_ns is not None] + [o.effect for o in others]
    following = min((t for t in later if t > effect), default=record.end)
    idle = following < ended and not _holds_up_at_once(record.trial, fault)
    idle = idle and record.catch_up.good_between(effect, following)
    if idle or (fault.group in _HOLDS_NO_RECORD and unnoticed is None):
        return Outage(fault, effect, effect, (RoundSpan(effect, effect),), True, effect)
    moment = record.catch_up.since(effect, fault_end=ended)
    if following == record.end and record.stands_still(effect):
        moment = None  # it shows late: the buffers that a fault cost are missed once the others are used
    end = max(record.end, effect) if moment is None else moment
    span = RoundSpan(effect, end, unnoticed=unnoticed if moment is None else None)
    return Outage(fault, effect, end, (span,), moment is not None, moment)


def _stops(fault: FaultEffect) -> bool:
    """Whether the fault stops processes."""
    return fault.group in ("process", "pod")


def _holds_up_at_once(trial: Trial, fault: FaultEffect) -> bool:
    """Whether the fault stops the JobManager or a process that runs tasks, or cuts a connection between two such processes. The job is behind
    from then on, even if its lag does not show it yet."""
    if _stops(fault):
        ran = places(trial, fault.begun_ns).values()
        return not {JOBMANAGER, *ran}.isdisjoint(targets_of(fault))
    return bool(cut_off(trial, fault))


def cut_off(trial: Trial, fault: FaultEffect) -> frozenset[str]:
    """Return the tasks that had requested a partition over a data connection that this fault cuts."""
    if not fault.hides_link or fault.on_rpc_alone:
        return frozenset()
    cut = flows_of(targets_of(fault), "both")
    found = set[str]()
    for event in events(trial, "partition.request"):
        producer = str(data(event).get("connection") or "").partition("/")[0]
        ends = logical_name(producer), logical_name(str(event["process"]))
        if producer and event["t_ns"] < fault.begun_ns and any_matches(cut, *ends):
            found.add(str(event["subject"]))
    return frozenset(found)


def _stops_jobmanager(fault: FaultEffect) -> bool:
    return fault.group in ("process", "pod", JOBMANAGER) and JOBMANAGER in targets_of(fault)


def _joined(record: _Record, found: Sequence[Outage]) -> list[Outage]:
    """Return the outages. Each is joined with the earlier outages that caused no failover and had not ended when it
    began."""
    joined: list[Outage] = []
    for outage in found:
        before = joined[-1] if joined else None
        if before is None or before.fault is None or _fails(before) or outage.effect >= before.end:
            joined.append(outage)
            continue
        earlier = (*begun_by(before), *((outage.fault,) if outage.fault else ()))
        rounds = (replace(outage.rounds[0], start=before.effect), *outage.rounds[1:])
        one = replace(outage, fault=before.fault, effect=before.effect, rounds=rounds, earlier=earlier)
        joined[-1] = replace(one, joined=outage.effect) if _fails(outage) else _until_all_ended(record, one)
    return joined


def _fails(outage: Outage) -> bool:
    return outage.first or outage.rounds[0].cause is not None


def _until_all_ended(record: _Record, outage: Outage) -> Outage:
    """Return the outage of several faults without a failover. It lasts until no task is behind any more after the end
    of the last fault."""
    moment = record.catch_up.since(outage.effect, fault_end=max(e.ended_ns or 0 for e in outage.earlier))
    end = record.end if moment is None else moment
    rounds = (replace(outage.rounds[0], end=end),)
    return replace(outage, end=end, rounds=rounds, recovered=moment is not None, caught_up=moment)


def responsible(injected: Sequence[FaultEffect], cause: Cause) -> FaultEffect | None:
    """Return the fault that caused a failure: the last fault on the TaskManager that the failure names, otherwise the
    last fault before it. A fault on that TaskManager that had ended before another fault stopped the JobManager does
    not count, unless it ended a process. None for an error of a function, which no fault explains, unless a stopped
    JobManager learned of it late."""
    stops = [e for e in injected if _stops_jobmanager(e) and e.begun_ns <= cause.t_ns]
    stops = [e for e in stops if e.ended_ns is None or cause.t_ns <= e.ended_ns + TOGETHER_NS]
    if cause.own:
        return max(stops, key=lambda e: e.begun_ns, default=None)
    before = [e for e in injected if e.begun_ns <= cause.t_ns]
    before.sort(key=lambda e: e.begun_ns)
    before = [e for e in before if _explains(e, cause)] or before
    if cause.cause_class == RECOVERED:
        stopped = [e for e in before if _stops_jobmanager(e)]
        before = [e for e in stopped if not e.kind.endswith(".pause")] or stopped or before
    if cause.kind in _ONLY:
        own = [e for e in before if e.group == _ONLY[cause.kind]]
        active = [e for e in own if e.ended_ns is None or e.ended_ns >= cause.t_ns]
        if cause.kind == "lease":  # the next leader reports it, maybe after the fault
            own = [e for e in before if e in own or _stops_jobmanager(e)]
            active = active or own
        before = active or before
    ordinal = cause.taskmanager.rpartition("-")[0]
    hit = [e for e in before if ordinal and ordinal in targets_of(e)]
    died = max((e.begun_ns for e in hit if e.kind in LOSSES), default=-1)
    closing = [e for e in before if e.kind in REFUSING and cause.t_ns - e.begun_ns <= NEAR_NS]
    if cause.kind == "connection" and closing and closing[-1].begun_ns > died:
        return closing[-1]  # others on that TaskManager may only be silent
    hit = [
        e for e in hit if e.kind in LOSSES or not any((e.ended_ns or INT64_MAX) < s.begun_ns for s in stops)
    ]
    candidates = hit or before
    found = candidates[-1] if candidates else None
    for earlier in reversed(before):
        if found and _is_one_pause(earlier, found, injected):
            found = earlier
    return found


def _is_one_pause(earlier: FaultEffect, fault: FaultEffect, injected: Iterable[FaultEffect]) -> bool:
    """Whether a pause began while an `earlier` one of the same processes lasted, so that they are one. A process that was killed between
    them was replaced by one that the earlier pause does not concern."""
    pauses = all(e.kind.endswith(".pause") for e in (earlier, fault))
    overlap = earlier.begun_ns < fault.begun_ns < (earlier.ended_ns or INT64_MAX)
    own = set(targets_of(fault))
    kills = [e for e in injected if e.kind in LOST and earlier.begun_ns < e.begun_ns <= fault.begun_ns]
    replaced = any(not own.isdisjoint(targets_of(e)) for e in kills)
    return pauses and overlap and set(targets_of(earlier)) >= own > set() and not replaced


def _explains(fault: FaultEffect, cause: Cause) -> bool:
    """Whether a fault of this kind can cause such a failure."""
    if fault.on_data_alone and cause.kind not in _ON_DATA:
        return False
    if cause.kind == "connection" and (fault.group == "frames" or fault.kind in _CLOSES_NONE):
        return False
    return cause.kind in EXPLAINS.get(fault.group, (cause.kind,))
