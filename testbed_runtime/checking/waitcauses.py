"""Say what each wait was for: the cause in words, and the fault that prolonged it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from testbed_runtime.checking.common import busiest, job_shape, task_series
from testbed_runtime.checking.faults import ON_THE_EXCHANGE, FaultEffect, targets_of
from testbed_runtime.core.faults.links import ANYBODY, split_link
from testbed_runtime.core.ids import JOBMANAGER, is_task_manager
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import JOBMASTER_NAME, KINDS, Outcome, Wait
from testbed_runtime.history.columns import vertex_of
from testbed_runtime.history.schema import Trial

SLOW_NS = 250_000_000
"""A shorter wait is not blamed on a fault that was active, unless it expired."""
_SERVICE_TIMES = {
    "headgate.jobmanager.service-time": (
        "jobmanager",
        "cancellation",
        "slot",
        "deployment",
        "failure-report",
    ),
    "headgate.taskmanager.service-time": ("cancellation", "slot", "deployment"),
}
"""The option of each component's service time, with the kinds of waits that it prolongs."""
_HOLDS_UP = {
    "registration": ("partition",),
    "store": ("restore", "checkpoint", "completion", "leadership"),
    "rpc": ("deployment", "failure-report", "cancellation", "registration", "slot", "jobmanager"),
    "network": ("restore", "partition", "first-record", "connection"),
    "frames": ("partition", "first-record"),
    "jobmanager": ("failure-report", "cancellation", "slot", "deployment"),
}
"""Families of faults, with the kinds of waits that they prolong. A network fault on the RPC plane acts like the
family rpc."""
_ON_BOTH_PLANES = ("restore", "partition")
"""A network fault on the RPC plane alone prolongs these too: a consumer asks the JobMaster for the state of its
producer."""
SUBMISSION = "runner/submission"
"""The id of the wait for the job to be created."""
_UNFLUSHED = (
    "a full buffer or a checkpoint, which alone send records without execution.buffer-timeout.enabled"
)
_BUFFER_TIMEOUT = "execution.buffer-timeout.interval"
_FLUSHED_BEFORE = "records in buffers that are not full, which {} had not flushed yet"
_ANSWER = "the answer of a channel's producer"
_NO_SLOT = "no TaskManager had a free slot"
_IN_VAIN = (Outcome.EXPIRED, Outcome.OPEN)


def busy_texts(entry: TrialEntry) -> dict[str, str]:
    """Map each kind of wait that a busy component prolongs to the text of its option. The longest service time
    counts. Empty if all are 0."""
    chosen = entry.options
    found: dict[str, str] = {}
    for key, kinds in sorted(_SERVICE_TIMES.items(), key=lambda item: chosen.duration(item[0])):
        if chosen.duration(key) > 0:
            found |= dict.fromkeys(kinds, f"{key} = {chosen.text(key)}")
    return found


def named(wait: Wait, effects: Iterable[FaultEffect], busy: Mapping[str, str]) -> Wait:
    """Return the wait with its cause: what was waited for, and the fault that prolonged it. Of several faults, prefer
    one on exactly what was waited for, then the one that was active longest during the wait, then the last one."""
    most = (False, 0)
    at_jobmaster = (wait.kind, wait.what) == ("registration", JOBMASTER_NAME)
    text, fault = busy.get("jobmanager" if at_jobmaster else wait.kind) or _waited_for(wait), ""
    for effect in effects:
        family, begun, ended = effect.group, effect.injected_ns, effect.ended_ns
        during = begun is not None and begun < wait.end_ns and (ended is None or ended > wait.start_ns)
        short = wait.end_ns - wait.start_ns < SLOW_NS and wait.outcome is not Outcome.EXPIRED
        if not during or short:
            continue
        if family == "registration" and wait.producer_ran:
            continue  # the partition was there
        if not _is_between(wait, effect):
            continue
        overlap = min(ended or wait.end_ns, wait.end_ns) - max(begun or 0, wait.start_ns)
        # a fault that does not delay all traffic is preferred if it covers at least half of the wait
        rank = family not in ON_THE_EXCHANGE and 2 * overlap >= wait.end_ns - wait.start_ns, overlap
        stopped = stopped_kind(effect) and any(ordinal(wait.who) == t for t in targets_of(effect))
        if stopped and wait.kind == "stalled":
            text, fault = stopped_words(effect, ordinal(wait.who)), effect.fault
        elif wait.kind == stopped_kind(effect) == "jobmanager":
            text, fault = stopped_words(effect, JOBMANAGER), effect.fault
        elif rank >= most and (
            wait.kind in _held_kinds(effect)
            or (wait.wait, family) == (SUBMISSION, "store")  # the JobManager writes the job to the store
        ):
            most = rank
            text, fault = _held_up(wait, effect), effect.fault
    lacking = wait.kind == "slot" and wait.outcome in _IN_VAIN and text == KINDS["slot"].doc
    return replace(wait, cause=text, fault=fault, detail=_NO_SLOT if lacking else "")


def _is_between(wait: Wait, effect: FaultEffect) -> bool:
    """Return whether the fault acts on one of the two processes of a TaskManager's wait for the JobManager, or on the link between them. True
    for all other waits."""
    name, targets = ordinal(wait.who), targets_of(effect)
    if wait.kind not in ("jobmanager", "registration") or not is_task_manager(name) or not targets:
        return True
    ends = {name, JOBMANAGER, ANYBODY, ""}
    return any(ends.issuperset(split_link(target)) for target in targets)


def _held_kinds(effect: FaultEffect) -> tuple[str, ...]:
    """Return the kinds of waits that the fault makes longer."""
    own = _HOLDS_UP.get(effect.group, ())
    if effect.group != "network" or effect.on_data_alone:
        return own
    return (*_HOLDS_UP["rpc"], *(_ON_BOTH_PLANES if effect.on_rpc_alone else own))


def _held_up(wait: Wait, effect: FaultEffect) -> str:
    """Describe what was waited for during a fault. A buffer that the fault dropped is still missing after the
    fault."""
    dropped = effect.kind == "frames.drop" and wait.kind == "partition"
    if dropped and effect.ended_ns is not None and wait.end_ns - effect.ended_ns > SLOW_NS:
        return f"{_waited_for(wait)}, which the fault `{effect.fault}` has dropped"
    return f"{_waited_for(wait)}, during the fault `{effect.fault}`"


def _waited_for(wait: Wait) -> str:
    if wait.wait == SUBMISSION:
        return "the JobManager to create the job"
    if wait.producer_ran:
        return _ANSWER
    if wait.kind == "restart-delay" and wait.outcome is Outcome.CANCELLED and wait.option:
        return f"{wait.option} = {wait.value}"  # the next failure cut it short
    if wait.kind == "input":
        return f"the {wait.what}, with which its consumers are deployed"
    return KINDS[wait.kind].doc


def stopped_kind(effect: FaultEffect) -> str:
    """Return the kind of the wait for a process that this fault stops. Empty if it stops no process."""
    if effect.kind.startswith(f"{JOBMANAGER}."):
        return "jobmanager"
    return "stalled" if effect.kind == "process.pause" and targets_of(effect) else ""


def stopped_words(effect: FaultEffect, target: str) -> str:
    target = "the JobManager" if target == JOBMANAGER else target
    verb = "killed" if effect.kind.endswith(".kill") else "paused"
    return f"{target}'s return ({verb} by the fault `{effect.fault}`)"


def ordinal(process: str) -> str:
    """Return `tm-0` of `tm-0-1` or `tm-0`, and `jobmanager` of `jobmanager-1`."""
    of_role = process.count("-") < (1 if process.startswith(JOBMANAGER) else 2)
    return process if of_role else process.rpartition("-")[0]


def replayed(trial: Trial, wait: Wait, restored: Mapping[tuple[str, int], int], entry: TrialEntry) -> Wait:
    """Attribute a wait for the first new record to the replay since the restored checkpoint. The wait is returned
    unchanged if a fault delayed the records, or if the sink received nothing before the end of the wait."""
    slow = wait.outcome is Outcome.COMPLETED and wait.end_ns - wait.start_ns >= SLOW_NS
    if wait.fault or wait.kind != "first-record" or not slow or (wait.who, wait.attempt) not in restored:
        return wait
    sinks = trial.kept("sinks", lambda: {(s.task, s.attempt): s for s in task_series(trial, "sink")})
    own = sinks.get((wait.who, wait.attempt))
    if own is not None and len(before := own.records_in[own.t_ns < wait.end_ns]) and before[-1] == 0:
        return wait
    key = "execution.checkpointing.interval"
    text = f"replay since checkpoint {restored[wait.who, wait.attempt]}"
    return replace(wait, cause=text, detail=f"{key} = {entry.options.text(key)}")


def windows_before_sinks(entry: TrialEntry) -> dict[str, tuple[str, ...]]:
    """Map each sink vertex that gets no record before the end of a window to the window vertices upstream."""
    shape = job_shape(entry)
    found = {sink: shape.windows_before(sink) for sink in shape.sinks}
    return {sink: windows for sink, windows in found.items() if windows}


def window_text(vertices: Sequence[str]) -> str:
    """Say what a sink downstream of these window vertices waits for."""
    return f"the end of a window of {' or '.join(f'`{vertex}`' for vertex in vertices)}"


def worked_for(trial: Trial, wait: Wait, windows: Mapping[str, Sequence[str]], entry: TrialEntry) -> Wait:
    """Return a wait for the first new record with its most likely cause. This is the vertex that worked for at least
    half of it, otherwise a window that had not ended, otherwise buffers that were not flushed. The wait may have
    ended with a failure."""
    ended = wait.outcome in (Outcome.COMPLETED, Outcome.CANCELLED)
    slow = ended and wait.end_ns - wait.start_ns >= SLOW_NS
    if wait.kind != "first-record" or not slow or wait.cause != KINDS[wait.kind].doc:
        return wait
    vertex, worked_ns = busiest(trial, wait.start_ns, wait.end_ns)
    if 2 * worked_ns < wait.end_ns - wait.start_ns:
        before = windows.get(vertex_of(wait.who))
        chosen = entry.options
        unflushed = wait if chosen.buffer_timeout_s >= 0 else replace(wait, cause=_UNFLUSHED)
        if wait.end_ns - wait.start_ns < chosen.buffer_timeout_s * NS:
            setting = f"{chosen.name_of(_BUFFER_TIMEOUT)} = {chosen.shown(_BUFFER_TIMEOUT)}"
            unflushed = replace(wait, cause=_FLUSHED_BEFORE.format(setting))
        return replace(wait, cause=window_text(before)) if before else unflushed
    return replace(wait, cause=f"the work of `{vertex}` before the first new record at a sink")


def behind_its_input(trial: Trial, wait: Wait) -> Wait:
    """Return a wait for the close of a connection with the consumer's work as its cause, if the consumer worked for at least half of it. A
    task first processes what it had received before, and notices the close only then."""
    lasted_ns = wait.end_ns - wait.start_ns
    if wait.kind != "connection" or wait.fault or wait.option or lasted_ns < SLOW_NS:
        return wait
    vertex, worked_ns = busiest(trial, wait.start_ns, wait.end_ns)
    if vertex != vertex_of(wait.who) or 2 * worked_ns < lasted_ns:
        return wait
    return replace(
        wait, cause=f"the work of `{vertex}` on its input, before it notices the close of a connection"
    )
