"""Read the waits of a trial: those that processes recorded, and those that follow only from faults and events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from testbed_runtime.checking.common import data, events
from testbed_runtime.checking.criticalpath import EPSILON_NS
from testbed_runtime.checking.faults import FaultEffect, held_times, targets_of
from testbed_runtime.checking.heldmessages import held_messages, keeps_silent, relayed_losses
from testbed_runtime.checking.iterations import held_supersteps
from testbed_runtime.checking.unrecorded import expired_slot_requests, lost_waits, with_expired_attempts
from testbed_runtime.checking.waitcauses import (
    SLOW_NS,
    SUBMISSION,
    behind_its_input,
    busy_texts,
    named,
    ordinal,
    replayed,
    stopped_kind,
    stopped_words,
    windows_before_sinks,
    worked_for,
)
from testbed_runtime.core.faults.kinds import KINDS as FAULTS
from testbed_runtime.core.faults.links import ANYBODY, split_link
from testbed_runtime.core.faults.retransmission import connects_at
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.job.limits import replacement_limit
from testbed_runtime.core.job.splits import NEXT_SPLIT
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.trial.plan import parse_replace_lost
from testbed_runtime.core.values import NS
from testbed_runtime.core.versions import REQUESTS_WAIT_AT_PRODUCER, has
from testbed_runtime.core.waits import (
    EVERYTHING,
    JOBMASTER_NAME,
    POD_STEPS,
    PRODUCT,
    Limit,
    Outcome,
    Wait,
)
from testbed_runtime.history.schema import Trial

ANSWERED_NS = 20_000_000
"""A running producer answers a request within this time, unless it has no data yet."""
_AT_ONCE = 50
"""A producer that was running after 1/_AT_ONCE of a wait counts as running for the whole wait: the tasks of one
deployment start about 0.1 s apart on a busy machine."""
SILENT = (
    "network.partition", "network.half-open", "network.reset", "network.stall", "network.bandwidth", "frames.withhold-credit",
)  # fmt: skip
"""The kinds of faults against which more credit would not help."""
LOSSES = ("process.kill", "pod.delete", "pod.evict")
"""The kinds of faults that end a process for good."""


def read_waits(trial: Trial, entry: TrialEntry, effects: Sequence[FaultEffect], end_ns: int) -> list[Wait]:
    """Return all waits of the trial, ordered by their end. `cause` says in words what was waited for. The waits that
    a paused or dead process did not record are derived from the faults and from the exits of processes."""
    busy = busy_texts(entry)
    recorded = _without_idle(trial, [Wait.from_row(row) for row in trial.rows("waits")])
    if (submission := submission_wait(trial)) is not None:
        recorded.append(submission)
    recorded += [*expired_slot_requests(trial, entry), *relayed_losses(trial)]
    recorded = _until_reported(trial, recorded)
    requests = [w for w in recorded if (w.kind, w.who) == ("slot", JOBMASTER_NAME)]
    recorded = [_rejoining(_answering(trial, w), effects, requests) for w in _joined_delays(recorded)]
    closing = _closing(effects)
    restarts = [e["t_ns"] for e in events(trial, "failover.started")]
    recorded = [_since_its_fault(trial, w, closing, restarts) for w in recorded]
    killed = [e for e in closing if e.kind in LOSSES]
    recorded = list(_since_calls_fail(recorded, killed, [e for e in effects if e.hides_link]))
    silent = {e.fault for e in effects if _is_silent(e)}
    found = [_unheard(named(w, effects, busy), silent) for w in recorded]
    found += held_supersteps(trial, found, effects)
    if has(entry.options.flink_version, REQUESTS_WAIT_AT_PRODUCER):
        found = _until_found(trial, found, {e.fault for e in effects if e.kind.startswith("registration.")})
    restored = {(e["subject"], e["attempt"]): e["checkpoint"] for e in events(trial, "task.restored")}
    windows = windows_before_sinks(entry)
    found = [worked_for(trial, replayed(trial, w, restored, entry), windows, entry) for w in found]
    found = [behind_its_input(trial, w) for w in found]
    for effect in effects:
        if effect.injected_ns is not None:
            found += _stop_waits(effect, effect.injected_ns, end_ns, killed)
    found = _since_their_exits(_with_replacements(trial, entry, effects, found, end_ns), effects)
    others = [e for e in effects if stopped_kind(e) != "jobmanager"]
    lost = [w if w.cause else named(w, others, busy) for w in lost_waits(trial, entry, end_ns)]
    found += [w for w in lost if w.kind != "deployment" or w.fault or busy]  # else its tasks were at work
    methods = {fault.name: str(fault.params.get("method") or "") for fault in entry.faults}
    found += held_messages(found, effects, held_times(trial, entry), methods)
    found = [*_with_repeated_requests(with_expired_attempts(found, entry, effects), effects)]
    return sorted(found, key=lambda w: (w.end_ns, w.start_ns, w.wait))


def _unheard(wait: Wait, silent: Collection[str]) -> Wait:
    """Return a wait for a partition without its limit if a fault that lets nothing pass kept the request from
    arriving. The limit counts only from the producer's answer, or at the producer."""
    late = (wait.kind, wait.outcome) == ("partition", Outcome.COMPLETED) and wait.fault in silent
    return replace(wait, option="", value="", budget_ns=-1) if late else wait


def _with_repeated_requests(waits: Iterable[Wait], effects: Iterable[FaultEffect]) -> Iterator[Wait]:
    """Yield the waits. A wait for a partition whose consumer could connect only when TCP repeated its request ends with the fault that let
    nothing pass. The rest is a wait of its own."""
    ends = {e.fault: e.ended_ns - e.sent_again_ns for e in effects if e.hides_link and e.ended_ns is not None}
    for wait in waits:
        passes = ends.get(wait.fault, 0)
        cut_off = (wait.kind, wait.outcome) == ("partition", Outcome.COMPLETED) and wait.start_ns < passes
        again_s = connects_at(0.0, (passes - wait.start_ns) / NS) if cut_off else 0.0
        late = wait.end_ns - passes >= SLOW_NS and abs(wait.seconds - again_s) * NS <= SLOW_NS
        if not (cut_off and late):
            yield wait
            continue
        before = replace(wait, wait=f"{wait.wait}-cut-off", end_ns=passes)
        cause = f"TCP to repeat the request for a connection, after the fault `{wait.fault}`"
        yield from (before, replace(wait, start_ns=passes, cause=cause, fault="", after=(before.wait,)))


def _until_reported(trial: Trial, waits: Sequence[Wait]) -> list[Wait]:
    """Extend each failure report that timed out until the time at which the JobMaster handled the failure. A failure after the next restart
    of the task is a different one."""
    reported = [e for e in events(trial, "failover.failure") if data(e).get("detector") == "Task"]
    failures = [(e["t_ns"], str(data(e).get("task"))) for e in reported]
    restarts = [(e["t_ns"], data(e).get("region")) for e in events(trial, "failover.started")]

    def until_handled(wait: Wait) -> Wait:
        if (wait.kind, wait.outcome) != ("failure-report", Outcome.EXPIRED):
            return wait
        at = next((t for t, task in failures if task == wait.who and t > wait.end_ns), None)
        restarted = (t for t, region in restarts if isinstance(region, list) and wait.who in region)
        if at is None or any(wait.end_ns < t < at for t in restarted):
            return wait
        return replace(wait, end_ns=at, outcome=Outcome.COMPLETED, option="", value="", budget_ns=-1)

    return [until_handled(w) for w in waits]


def _without_idle(trial: Trial, waits: Iterable[Wait]) -> list[Wait]:
    """Drop the waits for the first record of sinks that received nothing in the whole trial, if another sink received
    its first record during the wait. No key belongs to such a sink, so it waited for nothing."""
    first = [(str(e["subject"]), e["t_ns"]) for e in events(trial, "sink.first-record")]
    ever = {task for task, _ in first}

    def idle(wait: Wait) -> bool:
        cut_short = (wait.kind, wait.outcome) == ("first-record", Outcome.CANCELLED) and wait.who not in ever
        return cut_short and any(wait.start_ns <= t <= wait.end_ns for _, t in first)

    return [w for w in waits if not idle(w)]


def _closing(effects: Iterable[FaultEffect]) -> list[FaultEffect]:
    """Return the faults that close a data connection or let nothing pass on it, ordered by their beginning."""
    found = [e for e in effects if e.kind in LOSSES or (e.hides_link and not e.on_rpc_alone)]
    return sorted(found, key=lambda e: e.begun_ns)


def _is_silent(effect: FaultEffect) -> bool:
    """Return whether the fault lets nothing pass but leaves connections open."""
    return effect.kind in FAULTS and FAULTS[effect.kind].silent


def _since_its_fault(
    trial: Trial, wait: Wait, closing: Sequence[FaultEffect], restarts: Sequence[int]
) -> Wait:
    """Return a wait for the close of a connection, beginning with the fault that closed it. This is the newest fault
    at one end of the connection. The recorded wait begins when the task last received something. That may be long
    before the fault, if the task is behind. It may also be after the fault, because bytes that were sent before can
    still arrive. A fault before a restart does not count, because the restart opened a new connection."""
    if wait.kind != "connection" or wait.option:
        return wait
    ends = {ordinal(wait.wait.partition("/")[0]), ordinal(wait.what), ANYBODY, ""}

    def decided(fault: FaultEffect) -> bool:
        if wait.start_ns < fault.begun_ns:
            return fault.begun_ns <= wait.end_ns
        lasted = _is_silent(fault) and wait.start_ns < (fault.ended_ns or wait.end_ns)
        if fault.kind in LOSSES:
            states = [state for t_ns, state in _states(trial).get(wait.who, ()) if t_ns <= fault.begun_ns]
            lasted = states[-1:] == ["RUNNING"]
        return lasted and not any(fault.begun_ns < t_ns <= wait.start_ns for t_ns in restarts)

    here = [e for e in closing if any(ends.issuperset(split_link(one)) for one in targets_of(e) or ("",))]
    before = [e.begun_ns for e in here if decided(e)]
    return replace(wait, start_ns=before[-1]) if before else wait


def _since_calls_fail(
    waits: Sequence[Wait], killed: Sequence[FaultEffect], hiding: Sequence[FaultEffect]
) -> Iterator[Wait]:
    """Yield the waits. The part of a wait for failing calls before the TaskManager was killed is left out, or becomes a
    wait of its own without a limit: no call failed until then. A cancellation may end with several losses. A fault
    that lets nothing pass hides the kill, so such waits stay as they are."""
    lost = [w for w in waits if w.kind == "heartbeat" and PRODUCT in w.option]

    def dead_ns(process: str, wait: Wait) -> int:
        before = replace(wait, what=process)
        silences = [e for e in hiding if keeps_silent(e, before)]
        hidden = [(e.begun_ns, e.ended_ns or wait.end_ns) for e in silences]
        ends = [e.begun_ns for e in killed if ordinal(process) in targets_of(e)]
        noticed = (t for t in ends if t < wait.end_ns and not any(a < t < b for a, b in hidden))
        return max(noticed, default=wait.start_ns)

    for wait in waits:
        names = [wait.what]
        if wait.kind == "cancellation":
            names = [w.what for w in lost if abs(w.end_ns - wait.end_ns) <= EPSILON_NS]
        at = min((dead_ns(name, wait) for name in names), default=0) if PRODUCT in wait.option else 0
        if at <= wait.start_ns + EPSILON_NS:
            yield wait
            continue
        if wait.kind != "heartbeat":
            yield replace(wait, wait=f"{wait.wait}/before", end_ns=at, outcome=Outcome.COMPLETED, option="", value="", budget_ns=-1)  # fmt: skip
        yield replace(wait, start_ns=at)


def created_ns(trial: Trial) -> int | None:
    """Return when the JobManager created the job. None if it did not."""
    found = (e["t_ns"] for e in events(trial, "job.state") if data(e).get("from") == "CREATED")
    return next(found, None)


def submission_wait(trial: Trial) -> Wait | None:
    """Return the runner's wait for the JobManager to create the submitted job. None if the job was created at
    once."""
    created = created_ns(trial)
    asked = [e["t_ns"] for e in events(trial, "job.submitted")]
    if created is None or not asked or created - asked[0] < SLOW_NS:
        return None
    return Wait(
        wait=SUBMISSION,
        kind="jobmanager",
        who="runner",
        what="Dispatcher",
        start_ns=asked[0],
        end_ns=created,
    )


def _answering(trial: Trial, wait: Wait) -> Wait:
    """Set `producer_ran` in a wait for a partition if the producer was running when the wait began."""
    if wait.kind != "partition" or wait.cause:
        return wait
    by = wait.start_ns + max(ANSWERED_NS, (wait.end_ns - wait.start_ns) // _AT_ONCE)
    states = [state for t, state in _states(trial).get(wait.what, ()) if t <= by]
    return replace(wait, producer_ran=states[-1:] == ["RUNNING"])


def _states(trial: Trial) -> Mapping[str, Sequence[tuple[int, str]]]:
    """Map each task to the states of its attempts, with their times."""
    return trial.kept(
        "states",
        lambda: grouped(
            (e["subject"], (e["t_ns"], data(e).get("to", ""))) for e in events(trial, "task.state")
        ),
    )


def _joined_delays(waits: Iterable[Wait]) -> list[Wait]:
    """Join the parts of a restart delay. A failure that the restart strategy merges into a restart ends the wait for its delay, and the next
    wait has the rest of the delay."""
    found: list[Wait] = []
    parts: dict[tuple[str, int], int] = {}
    for wait in waits:
        key = wait.wait.partition("/")[0], wait.attempt
        if wait.kind != "restart-delay":
            found.append(wait)
        elif key in parts:
            first = found[parts[key]]
            found[parts[key]] = replace(first, end_ns=wait.end_ns, outcome=wait.outcome)
        else:
            parts[key] = len(found)
            found.append(wait)
    return found


def _stop_waits(
    effect: FaultEffect, start_ns: int, end_ns: int, killed: Sequence[FaultEffect]
) -> Iterator[Wait]:
    """Yield the waits for the processes that a fault stops while it lasts: paused processes, or the JobManager. A
    paused TaskManager that is killed does not return."""
    kind = stopped_kind(effect)
    ended, outcome = effect.ended_ns, Outcome.COMPLETED
    if ended is None:
        ended, outcome = end_ns, Outcome.OPEN
    for target in targets_of(effect) if kind else ():
        losses = [e.begun_ns for e in killed if target in targets_of(e) and start_ns < e.begun_ns < ended]
        yield Wait(
            wait=f"{effect.fault}/{target}", kind=kind, who=EVERYTHING, what=target, start_ns=start_ns, end_ns=min([ended, *losses]),
            outcome=Outcome.COMPLETED if losses else outcome, cause=stopped_words(effect, target), fault=effect.fault,
        )  # fmt: skip


def _with_replacements(
    trial: Trial, entry: TrialEntry, effects: Iterable[FaultEffect], waits: Sequence[Wait], end_ns: int
) -> list[Wait]:
    """Return the waits, with those for each replacement of a TaskManager: the delay of `replaceLost`, the steps of
    the pod, if there is one, and the start of the process. The start begins when the last step of the pod has ended,
    even if a start was recorded."""
    limit = _replacement_limit(entry)
    registering = {w.who: w.start_ns for w in waits if w.kind == "registration" and w.what != JOBMASTER_NAME}
    starts = {w.what: w for w in waits if w.kind == "start"}
    exits = _exits(trial, effects)
    steps: dict[str, list[Wait]] = {}
    for wait in sorted(waits, key=lambda w: (w.end_ns, w.kind != POD_STEPS[0])):
        if wait.kind in POD_STEPS:
            steps.setdefault(wait.what, []).append(wait)
    found: list[Wait] = []
    for event in events(trial, "taskmanager.registered"):
        incarnation, registered = str(event["subject"]), event["t_ns"]
        ended = [t for t in exits.get(incarnation.rpartition("-")[0], ()) if t < registered]
        if not (ended or incarnation in steps) or any(
            w.kind == "replacement" and w.start_ns <= registered and w.end_ns > max(ended, default=0)
            for w in waits
        ):
            continue  # the supervisor recorded it
        up = min(registering.get(incarnation, registered), registered)
        if ended:
            due = min(ended[-1] + round((limit.seconds or 0) * NS), registered)
            found.append(
                Wait(
                    wait=f"{incarnation}/replacement", kind="replacement", start_ns=ended[-1], end_ns=due,
                    option=limit.option, value=limit.value, outcome=Outcome.FIRED, who="supervisor", what=incarnation,
                )
            )  # fmt: skip
        else:
            due = steps[incarnation][0].start_ns
        own = _pod_steps(steps.pop(incarnation, ()), due, up)
        begun = own[-1].end_ns if own else due
        start = Wait(wait=f"{incarnation}/start", kind="start", start_ns=begun, end_ns=up, who="supervisor", what=incarnation)  # fmt: skip
        if own and incarnation in starts:
            start = replace(starts[incarnation], start_ns=begun)
        found += [*own, replace(start, cause=f"start of {incarnation}")]
    found += [wait for rest in steps.values() for wait in rest]
    recorded = {w.wait: w for w in waits if w.kind not in POD_STEPS}
    new = {w.wait: w for w in found if w.start_ns < w.end_ns <= end_ns}
    return list((recorded | new).values())


def _since_their_exits(waits: Sequence[Wait], effects: Iterable[FaultEffect]) -> list[Wait]:
    """Return the waits, with one before the replacement of each killed TaskManager until its supervisor noticed the exit. On a busy machine,
    that takes a while."""
    killed = [(t, e.begun_ns) for e in effects if e.kind == "process.kill" for t in targets_of(e)]
    found: list[Wait] = []
    until: dict[str, int] = {}
    for wait in sorted(waits, key=lambda w: w.start_ns):
        found.append(wait)
        if wait.kind != "replacement":
            continue
        name = ordinal(wait.what)
        exits = [
            t_ns for target, t_ns in killed if target == name and until.get(name, 0) < t_ns < wait.start_ns
        ]
        until[name] = wait.start_ns
        if exits and wait.start_ns - exits[-1] > EPSILON_NS:
            text = f"the supervisor to notice that {name} has ended"
            noticed = replace(wait, wait=f"{wait.wait}-exit", kind="start", start_ns=exits[-1], end_ns=wait.start_ns, cause=text, option="", value="", budget_ns=-1, outcome=Outcome.COMPLETED)  # fmt: skip
            found[-1:] = [noticed, replace(wait, after=(noticed.wait,))]
    return found


def _replacement_limit(entry: TrialEntry) -> Limit:
    """Return the limit that the `replaceLost` of a trial sets; without a delay if it is Never."""
    return replacement_limit(parse_replace_lost(entry.job.task_managers.replace_lost) or 0.0)


def _exits(trial: Trial, effects: Iterable[FaultEffect]) -> dict[str, list[int]]:
    """Map each process name to the times at which its incarnations ended. A pod that a fault removes records no exit,
    so the fault's time counts."""
    found: dict[str, list[int]] = {}
    for event in events(trial, "process.exit"):
        found.setdefault(ordinal(event["subject"]), []).append(event["t_ns"])
    for effect in effects:
        if effect.kind in ("pod.delete", "pod.evict") and effect.injected_ns is not None:
            for target in targets_of(effect):
                found.setdefault(target, []).append(effect.injected_ns)
    return {name: sorted(times) for name, times in found.items()}


def _pod_steps(steps: Iterable[Wait], due: int, up: int) -> list[Wait]:
    """Return the steps of a pod without overlaps, from the time at which the pod was due. Kubernetes reports whole
    seconds only."""
    found, at = [], due
    for step in steps:
        end = min(step.end_ns, up)
        if end > at:
            found.append(replace(step, start_ns=at, end_ns=end))
            at = end
    return found


def _until_found(trial: Trial, waits: Sequence[Wait], late: Collection[str]) -> list[Wait]:
    """End each wait for a partition when its producer began to run. A producer answers a waiting request with its
    first data, which may come much later. A wait that a fault delayed is kept, because the fault can delay the answer
    itself. `late`: the faults that delay only the registration of partitions. They change nothing, unless the
    producer ran before the wait began."""
    ran = {task: [t for t, state in states if state == "RUNNING"] for task, states in _states(trial).items()}
    again: dict[tuple[str, int], list[int]] = {}
    for event in events(trial, "partition.request"):
        if int(data(event).get("request", 1)) > 1:
            key = (str(event["subject"]), event["attempt"])
            again.setdefault(key, []).append(event["t_ns"])

    def shortened(wait: Wait) -> Wait:
        begun = [t for t in ran.get(wait.what, ()) if t <= wait.end_ns]
        delayed = wait.fault and (wait.fault not in late or begun[-1:] < [wait.start_ns])
        if wait.kind != "partition" or wait.outcome is not Outcome.COMPLETED or delayed or not begun:
            return wait
        repeated = [t for t in again.get((wait.who, wait.attempt), ()) if t <= wait.end_ns]
        end_ns = max(wait.start_ns, begun[-1], *repeated[-1:])
        return replace(wait, end_ns=end_ns) if wait.end_ns - end_ns >= ANSWERED_NS else wait

    return [shortened(wait) for wait in waits]


def _rejoining(wait: Wait, effects: Iterable[FaultEffect], requests: Sequence[Wait]) -> Wait:
    """Return a wait for the JobManager, or for a registration with it, shortened to the time after the fault that had
    stopped the JobManager. The time before is attributed to the fault. A TaskManager registers with the JobMaster only
    when it is asked for a slot, so that wait begins with the first of the job's `requests` that still waits for slots then.
    Requests for splits are unchanged: the source does not register."""
    if wait.kind not in ("jobmanager", "registration") or wait.what == NEXT_SPLIT:
        return wait
    ends = [e.ended_ns for e in effects if stopped_kind(e) == "jobmanager" and e.ended_ns is not None]
    during = [t_ns for t_ns in ends if wait.start_ns < t_ns < wait.end_ns]
    if not during:
        return wait
    asked = requests if wait.what == JOBMASTER_NAME else ()
    first_ns = min((w.start_ns for w in asked if w.start_ns <= wait.end_ns <= w.end_ns), default=0)
    return replace(wait, kind="registration", start_ns=max(*during, first_ns))


def lasts_until(effect: FaultEffect, end_ns: int, *, missed: bool) -> int:
    """Return when the fault stops causing waits. `missed`: the job waits until `end_ns` for a process that the fault
    killed."""
    if effect.ended_ns is None or (missed and effect.kind in LOSSES):
        return end_ns
    return effect.ended_ns


def fault_wait(
    effect: FaultEffect, start_ns: int, end_ns: int, waits: Iterable[Wait] = (), *, missed: bool = False
) -> Wait:
    """Return the wait for the end of a fault that the job survives. `waits`: all waits of the trial. `missed`: the
    job does not survive the fault, so it waits for the process that the fault stopped."""
    lost = missed and effect.kind in LOSSES
    stalled = lost or effect.kind in ("process.pause", "jobmanager.pause", "jobmanager.kill")
    cause = f"end of the fault `{effect.fault}`"
    silent = stalled or effect.kind in SILENT  # what stands still or lets nothing pass returns no credit
    starved = "" if silent else starved_words(waits, start_ns, end_ns)
    detail = f"{effect.kind}, {starved}" if starved else effect.kind
    if hit := targets_of(effect) if missed and stopped_kind(effect) else []:
        cause, detail = stopped_words(effect, hit[0]), ""
    elif lost:
        cause = f"the loss of {', '.join(targets_of(effect))} to be noticed"
        detail = f"fault `{effect.fault}`, {effect.kind}"
    return Wait(
        wait=f"{effect.fault}/lasts",
        kind="stalled" if stalled else "fault",
        who="job",
        what=effect.fault,
        start_ns=start_ns,
        end_ns=end_ns,
        cause=cause,
        fault=effect.fault,
        detail=detail,
    )


def starved_words(waits: Iterable[Wait], start_ns: int, end_ns: int) -> str:
    """Describe what limited the sender that waited longest for credit. Empty if no sender waited for half of the span."""
    waited: dict[tuple[str, str, str, str], int] = {}
    for wait in waits:
        if wait.kind == "credit":
            key = (wait.who, wait.what, wait.option, wait.value)
            inside = min(wait.end_ns, end_ns) - max(wait.start_ns, start_ns)
            waited[key] = waited.get(key, 0) + max(0, inside)
    most = max(waited, key=lambda key: waited[key], default=None)
    if most is None or waited[most] <= (end_ns - start_ns) / 2:
        return ""
    sender, receiver, option, value = most
    return f"{sender} waited for credit of {receiver}: {option} = {value}"


def without_splits(waits: Iterable[Wait], start_ns: int, end_ns: int) -> Wait | None:
    """Return the longest wait for an input split of the source that waited longest for splits. None if that was at
    most half of the span."""
    asked: dict[str, list[tuple[int, Wait]]] = {}
    for wait in waits:
        inside = min(wait.end_ns, end_ns) - max(wait.start_ns, start_ns)
        if wait.what == NEXT_SPLIT and inside > 0:
            asked.setdefault(wait.who, []).append((inside, wait))
    most = max(asked.values(), key=lambda found: sum(ns for ns, _ in found), default=[])
    if 2 * sum(ns for ns, _ in most) <= end_ns - start_ns:
        return None
    return max(most, key=lambda one: one[0])[1]
