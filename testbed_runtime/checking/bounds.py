"""Find which option or resource bounded a phase of a recovery: "which timeout cost me this second?"

An answer is an option with its value, such as `heartbeat.timeout = 5 s`, or a resource in plain words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from testbed_runtime.checking.common import NS, Entry, data, events
from testbed_runtime.checking.failovers import Cause, cause_of
from testbed_runtime.core.options import Options, parse_duration
from testbed_runtime.history.schema import Trial

NEAR_NS = NS // 4
"""A phase waited for an event that happened this close to its end."""
MOST = 0.8
"""A delay bounded a phase if it makes up at least this share of it."""

_BY_TEXT: tuple[tuple[tuple[str, ...], str], ...] = (
    (("no longer reachable",), "unreachable"),
    (("eartbeat of",), "heartbeat"),
    (("PartitionNotFound", "not found"), "partition"),
    (("Invocation of", "Ask timed out", "AskTimeout"), "ask"),
    (("checkpoint tolerable failure threshold",), "checkpoint"),
    (("NoResourceAvailable", "Slot request bulk"), "slot"),
    (("Connection unexpectedly closed", "Lost connection", "RemoteTransport", "LocalTransport", "Connection reset", "Sending the partition request", "ConnectionClosed", "RecipientUnreachable"), "connection"),
)  # fmt: skip
"""The first match in `class: text` wins, so more specific entries come first."""


def kind_of_cause(cause: Cause) -> str:
    """Return `unreachable`, `heartbeat`, `partition`, `ask`, `checkpoint`, `slot`, `connection` or `task`."""
    text = f"{cause.cause_class}: {cause.text}"
    return next((kind for parts, kind in _BY_TEXT if any(p in text for p in parts)), "task")


def setting(options: Options, key: str) -> str:
    """Return `key = value` with the value in effect."""
    return f"{key} = {options.text(key)}"


def detect_bound(cause: Cause, options: Options) -> str:
    """Return what bounded the detection of this cause."""
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
    """Return what limits partition requests: the backoff in Flink 1.12, the wait at the producer from 1.19 on."""
    if not options.requests_wait_at_producer:
        return setting(options, "taskmanager.network.request-backoff.max")
    timeout = options.duration("taskmanager.network.partition-request-timeout")
    most = options.duration("taskmanager.network.request-backoff.max")
    # retriggers continue while their sum is below twice the maximum backoff; otherwise the wait itself decides
    if most > timeout:
        return setting(options, "taskmanager.network.request-backoff.max")
    return setting(options, "taskmanager.network.partition-request-timeout")


@dataclass(frozen=True, slots=True)
class Span:
    """The time span of a phase, in nanoseconds."""

    start: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / NS


def cancel_bound(trial: Trial, span: Span, options: Options) -> str:
    """Return what bounded `cancel`: failed restarts before the last one, or the time until a dead TaskManager was marked
    as lost."""
    begun = _within(trial, span, "failover.started")
    if len(begun) > 1 and int(begun[-1]["t_ns"]) - span.start >= (span.end - span.start) / 2:
        why = detect_bound(cause_of(begun[-1]), options)
        return f"{len(begun) - 1} failed restarts, the last due to {why}"
    lost = _ended_by(trial, span, "taskmanager.lost")
    return detect_bound(lost, options) if lost else "cancellation of the tasks"


def slots_bound(trial: Trial, span: Span, options: Options, entry: Entry) -> str:
    """Return what bounded `slots`: the restart delay, the loss or the arrival of a TaskManager, or slot allocation."""
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
    """Return what bounded the wait for a new TaskManager: the delay before its start, or the start itself."""
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
    """Return the delay option of the restart strategy in use. Empty for `none`."""
    keys = {
        "fixed-delay": "restart-strategy.fixed-delay.delay",
        "failure-rate": "restart-strategy.failure-rate.delay",
        "exponential-delay": "restart-strategy.exponential-delay.initial-backoff",
    }
    return keys.get(options.string("restart-strategy.type"), "")


def deploy_bound(trial: Trial, span: Span, options: Options) -> str:
    """Return what bounded `deploy`: ask timeouts, repeated deployments, the JobMaster's service time, or deployment."""
    attempts = sum(1 for e in events(trial, "failover.attempt") if span.start <= int(e["t_ns"]) <= span.end)
    if _within(trial, span, "rpc.timeout"):
        return f"{options.ask_timeout_key()} = {options.text('pekko.ask.timeout')}"
    if attempts > 1:
        return f"{attempts} deployment attempts, all but the last failed"
    if options.duration("headgate.jobmanager.service-time") > 0:
        return setting(options, "headgate.jobmanager.service-time")
    return "deployment of the tasks"


def reconnect_bound(trial: Trial, span: Span, options: Options) -> str:
    """Return what bounded `reconnect`: the options, if requests were repeated, otherwise just the connections."""
    repeated = [e for e in _within(trial, span, "partition.request") if int(data(e).get("request", 1)) > 1]
    return request_bound(options) if repeated else "connections and partition requests"


def catch_up_bound(behind_s: float | None, replayed_s: float | None, options: Options) -> str:
    """Return what bounded `catch-up`: the replay since the restored checkpoint, or the backlog of the downtime."""
    if replayed_s is None:
        return "spare capacity of the job"
    if behind_s is None or replayed_s > behind_s:
        return f"{setting(options, 'execution.checkpointing.interval')} (replay of {replayed_s:.1f} s)"
    return f"spare capacity of the job (backlog of {behind_s + replayed_s:.1f} s)"


def _within(trial: Trial, span: Span, kind: str) -> list[dict[str, Any]]:
    return [e for e in events(trial, kind) if span.start <= int(e["t_ns"]) <= span.end]


def _ended_by(trial: Trial, span: Span, kind: str) -> Cause | None:
    """Return the cause in the newest event of that kind, if the phase ended with it."""
    found = [e for e in events(trial, kind) if _near_end(int(e["t_ns"]), span)]
    return cause_of(found[-1]) if found else None


def _near_end(t_ns: int, span: Span) -> bool:
    """Whether the time is within NEAR_NS of the span's end, and after its start (the previous phase's milestone)."""
    return max(span.start + 1, span.end - NEAR_NS) <= t_ns <= span.end
