"""Which option or resource bounded a phase of a recovery: the product's question, "which timeout cost me this second".

Answers look like `heartbeat.timeout = 5 s` (an option and its value), or name a resource in plain words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from testbed_runtime.checking.common import NS, Entry, data, events
from testbed_runtime.checking.failovers import Cause, cause_of
from testbed_runtime.core.options import Options, parse_duration
from testbed_runtime.history.schema import Trial

NEAR_NS = NS // 4
"""An event this close before the end of a phase is what the phase waited for."""
MOST = 0.8
"""A delay that fills so much of a phase is what bounded it."""

_BY_TEXT: tuple[tuple[tuple[str, ...], str], ...] = (
    (("no longer reachable",), "unreachable"),
    (("eartbeat of",), "heartbeat"),
    (("PartitionNotFound", "not found"), "partition"),
    (("Invocation of", "Ask timed out", "AskTimeout"), "ask"),
    (("checkpoint tolerable failure threshold",), "checkpoint"),
    (("NoResourceAvailable", "Slot request bulk"), "slot"),
    (("Connection unexpectedly closed", "Lost connection", "RemoteTransport", "LocalTransport", "Connection reset", "Sending the partition request", "ConnectionClosed", "RecipientUnreachable"), "connection"),
)  # fmt: skip
"""First match in `class: text` wins, so the more special ones come first."""


def kind_of_cause(cause: Cause) -> str:
    """`unreachable`, `heartbeat`, `partition`, `ask`, `checkpoint`, `slot`, `connection` or `task`."""
    told = f"{cause.cause_class}: {cause.text}"
    return next((kind for parts, kind in _BY_TEXT if any(p in told for p in parts)), "task")


def setting(options: Options, key: str) -> str:
    """`key = value`, as it was in effect."""
    return f"{key} = {options.text(key)}"


def detect_bound(cause: Cause, options: Options) -> str:
    """What made the JobManager know."""
    kind = kind_of_cause(cause)
    if kind == "unreachable":
        interval = options.text("heartbeat.interval")
        return f"heartbeat.interval × heartbeat.rpc-failure-threshold = {interval} × {options.text('heartbeat.rpc-failure-threshold')}"
    if kind == "partition":
        return request_bound(options)
    if kind == "checkpoint":
        return setting(options, "execution.checkpointing.tolerable-failed-checkpoints")
    if kind == "ask":
        return f"{options.ask_timeout_key()} = {options.text('pekko.ask.timeout')}"
    if kind == "heartbeat":
        return setting(options, "heartbeat.timeout")
    if kind == "slot":
        return setting(options, "slot.request.timeout")
    return "close of the TCP connection" if kind == "connection" else "failure reported by a task"


def request_bound(options: Options) -> str:
    """The budget of partition requests, by generation: backoff in 1.12, the wait at the producer from 1.19 on."""
    if not options.requests_wait_at_producer:
        return setting(options, "taskmanager.network.request-backoff.max")
    timeout = options.duration("taskmanager.network.partition-request-timeout")
    most = options.duration("taskmanager.network.request-backoff.max")
    # retriggers go on while their sum stays below twice the largest backoff: below that the wait itself decides
    if most > timeout:
        return setting(options, "taskmanager.network.request-backoff.max")
    return setting(options, "taskmanager.network.partition-request-timeout")


@dataclass(frozen=True, slots=True)
class Span:
    """A phase, in nanoseconds."""

    start: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / NS


def cancel_bound(trial: Trial, span: Span, options: Options) -> str:
    """Restarts that failed come before the one that counts; tasks on a dead TaskManager end when it is given up."""
    begun = _within(trial, span, "failover.started")
    if len(begun) > 1 and int(begun[-1]["t_ns"]) - span.start >= (span.end - span.start) / 2:
        why = detect_bound(cause_of(begun[-1]), options)
        return f"{len(begun) - 1} restarts that failed, the last by {why}"
    lost = _ended_by(trial, span, "taskmanager.lost")
    return detect_bound(lost, options) if lost else "cancellation of the tasks"


def slots_bound(trial: Trial, span: Span, options: Options, entry: Entry) -> str:
    """The restart delay, a TaskManager that had to be given up first, one that had to come, or nothing but messages."""
    key = restart_delay_key(options)
    if key and (delay := options.duration(key)) > 0 and delay >= MOST * span.seconds:
        return setting(options, key)
    arrived = [e for e in events(trial, "taskmanager.registered") if _near_end(int(e["t_ns"]), span)]
    if arrived:
        return _replacement_bound(trial, arrived[-1], entry)
    lost = _ended_by(trial, span, "taskmanager.lost")
    if lost:
        return f"{detect_bound(lost, options)} (headgate.restart.fence-dead-slots)"
    if key and options.duration(key) > 0:
        return setting(options, key)
    return "allocation of slots"


def _replacement_bound(trial: Trial, arrived: dict[str, Any], entry: Entry) -> str:
    """Of a TaskManager that had to come: the delay before it is started, or its start, whichever is longer."""
    start = f"start and registration of TaskManager {arrived['subject']}"
    asked = str(((entry.get("job") or {}).get("taskManagers") or {}).get("replaceLost") or "Never")
    try:
        delay = parse_duration(asked)
    except ValueError:  # Never
        return start
    name = str(arrived["subject"]).rpartition("-")[0]
    ended = [
        int(e["t_ns"])
        for e in events(trial, "process.exit")
        if e["subject"] == name and int(e["t_ns"]) <= int(arrived["t_ns"])
    ]
    if ended and delay >= (int(arrived["t_ns"]) - ended[-1]) / NS / 2:
        return f"taskManagers.replaceLost = {asked} (then {start})"
    return start


def restart_delay_key(options: Options) -> str:
    """The delay of the restart strategy in use; empty for `none`."""
    keys = {
        "fixed-delay": "restart-strategy.fixed-delay.delay",
        "failure-rate": "restart-strategy.failure-rate.delay",
        "exponential-delay": "restart-strategy.exponential-delay.initial-backoff",
    }
    return keys.get(options.string("restart-strategy.type"), "")


def deploy_bound(trial: Trial, span: Span, options: Options) -> str:
    """Repeated deployments, asks that timed out, the JobMaster's own pace, or nothing but messages."""
    attempts = sum(1 for e in events(trial, "failover.attempt") if span.start <= int(e["t_ns"]) <= span.end)
    if _within(trial, span, "rpc.timeout"):
        return f"{options.ask_timeout_key()} = {options.text('pekko.ask.timeout')}"
    if attempts > 1:
        return f"{attempts} deployments, of which all but the last failed"
    if options.duration("headgate.jobmanager.service-time") > 0:
        return setting(options, "headgate.jobmanager.service-time")
    return "deployment of the tasks"


def reconnect_bound(trial: Trial, span: Span, options: Options) -> str:
    """Requests that had to be repeated wait by the options, others only for a connection."""
    repeated = [e for e in _within(trial, span, "partition.request") if int(data(e).get("request", 1)) > 1]
    return request_bound(options) if repeated else "connections and partition requests"


def catch_up_bound(behind_s: float | None, replayed_s: float | None, options: Options) -> str:
    """What there was to catch up with: time since the restored checkpoint, or the time the job was down."""
    if replayed_s is None:
        return "spare capacity of the job"
    if behind_s is None or replayed_s > behind_s:
        return f"{setting(options, 'execution.checkpointing.interval')} (replay of {replayed_s:.1f} s)"
    return f"spare capacity of the job (backlog of {behind_s + replayed_s:.1f} s)"


def _within(trial: Trial, span: Span, kind: str) -> list[dict[str, Any]]:
    return [e for e in events(trial, kind) if span.start <= int(e["t_ns"]) <= span.end]


def _ended_by(trial: Trial, span: Span, kind: str) -> Cause | None:
    """The cause in the newest event of that kind, if the phase ended with it."""
    found = [e for e in events(trial, kind) if _near_end(int(e["t_ns"]), span)]
    return cause_of(found[-1]) if found else None


def _near_end(t_ns: int, span: Span) -> bool:
    """Later than the start, which is the milestone of the phase before."""
    return max(span.start + 1, span.end - NEAR_NS) <= t_ns <= span.end
