"""Waits that no process recorded, derived from events and other waits: those of a killed JobManager, slot requests that timed out, and
registration attempts that timed out on a slow network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from testbed_runtime.checking.common import data, events
from testbed_runtime.checking.faults import FaultEffect, round_trip_delays
from testbed_runtime.core.job.limits import option_limit, restart_delay
from testbed_runtime.core.job.messages import RequestSlot
from testbed_runtime.core.job.registration import RegistrationConfig, RetryingRegistration
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import JOBMASTER_NAME, RM_NAME, Outcome, Wait
from testbed_runtime.history.schema import Trial

_AFTER = {"failover.started": "cancellation", "failover.cancelled": "fencing", "failover.slots": "deployment"}
"""The kind of wait that follows each milestone of a restart. The tasks are SCHEDULED when slots are
requested."""
_TIMEOUT = "cluster.registration.initial-timeout"


def lost_waits(trial: Trial, entry: TrialEntry, end_ns: int) -> list[Wait]:
    """Return the waits of restarts during which the JobManager was killed, until the next JobManager recovers
    the job. Only a wait for a restart delay has a `cause`."""
    exits = {e["subject"]: e["t_ns"] for e in events(trial, "process.exit")}
    started = events(trial, "failover.started")
    complete = {(e["process"], e["subject"]) for e in events(trial, "failover.deployed")}
    found = []
    for number, one in enumerate(started):
        process = one["process"]
        if process not in exits or (process, one["subject"]) in complete:
            continue
        region = _region(one)
        later = [e for e in started[number + 1 :] if e["process"] == process]
        if later and region.issubset(task for e in later for task in _region(e)):
            continue  # later restarts have taken its tasks
        following = (e["t_ns"] for e in started if e["t_ns"] >= exits[process])
        found.append(_interrupted(trial, entry, one, next(following, end_ns)))
    return found


def _region(started: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(data(started).get("region") or ())


def _interrupted(trial: Trial, entry: TrialEntry, started: Mapping[str, Any], end_ns: int) -> Wait:
    """Return what this restart waited for when its JobManager was killed."""
    process, number, region = started["process"], started["subject"], _region(started)
    own = [e for e in events(trial, *_AFTER, "task.state") if e["process"] == process]
    mine = [e for e in own if e["subject"] == number or _requests_slots(e, region)]
    mine = mine[next(n for n, e in enumerate(mine) if e["kind"] == "failover.started") :]
    last = mine[-1]
    kind = _AFTER.get(last["kind"], "slot")
    start_ns, cause, budget_ns = last["t_ns"], "", -1
    if kind == "fencing" and (delay := _restart_delay(entry, data(started))):
        kind, start_ns, cause = "restart-delay", started["t_ns"], delay
        budget_ns = round(data(started)["delay_s"] * NS)
    return Wait(
        wait=f"{process}/{kind}-{number}",
        kind=kind,
        who=JOBMASTER_NAME,
        what="",
        outcome=Outcome.CANCELLED,
        start_ns=start_ns,
        end_ns=end_ns,
        budget_ns=budget_ns,
        cause=cause,
    )


def _requests_slots(event: Mapping[str, Any], region: frozenset[str]) -> bool:
    scheduled = event["kind"] == "task.state" and data(event).get("to") == "SCHEDULED"
    return scheduled and event["subject"] in region


def _restart_delay(entry: TrialEntry, started: Mapping[str, Any]) -> str:
    """Return the option that delayed this restart, with its value and the delay in force. Empty if there was
    no delay."""
    option, seconds = str(started.get("delay_option") or ""), float(started.get("delay_s") or 0)
    return f"{option} = {restart_delay(entry.options, option, seconds).value}" if seconds > 0 else ""


def expired_slot_requests(trial: Trial, entry: TrialEntry) -> list[Wait]:
    """Return a wait for each slot request of the ResourceManager that its TaskManager did not answer in time.
    The next request follows, at the same TaskManager or another one."""
    limit = option_limit(entry.options, "pekko.ask.timeout")
    found = []
    for number, event in enumerate(events(trial, "rpc.timeout")):
        asked = data(event)
        if asked.get("method") != RequestSlot.__name__:
            continue
        budget_ns, end_ns = round(float(asked.get("timeout_s") or 0) * NS), event["t_ns"]
        wait = Wait(
            wait=f"{event['process']}/slot-request/{number}",
            kind="slot",
            who=RM_NAME,
            what=str(asked.get("peer", "")),
            start_ns=end_ns - budget_ns,
            end_ns=end_ns,
            option=limit.option,
            value=limit.value,
            budget_ns=budget_ns,
            outcome=Outcome.EXPIRED,
        )
        found.append(wait)
    return found


def is_slot_request(wait: Wait) -> bool:
    """Whether a wait is for the answer to one slot request, not a job's wait for all its slots."""
    return (wait.kind, wait.who) == ("slot", RM_NAME)


def with_expired_attempts(
    waits: Iterable[Wait], entry: TrialEntry, effects: Iterable[FaultEffect]
) -> list[Wait]:
    """Return the waits, with each registration during a fault that slows messages down split in two: the
    attempts that timed out although the JobManager answered each one, and the last attempt. Other faults are
    left out: a fault that lets nothing pass or keeps the JobManager busy would also have delayed an attempt
    with a longer timeout."""
    delays = round_trip_delays(entry)
    round_trips = {e.fault: delays.get(e.fault, 0) for e in effects if _slows_down(e)}
    found: list[Wait] = []
    for wait in waits:
        expired_ns = 0
        if wait.kind == "registration" and wait.outcome is Outcome.COMPLETED and wait.fault in round_trips:
            config = RegistrationConfig.of(entry.options)
            expired_ns = expired_attempts_ns(wait.end_ns - wait.start_ns, config, round_trips[wait.fault])
        if expired_ns:
            limit = option_limit(entry.options, _TIMEOUT)
            expired = replace(
                wait,
                wait=f"{wait.wait}-expired",
                end_ns=wait.start_ns + expired_ns,
                option=limit.option,
                value=limit.value,
                budget_ns=expired_ns,
                outcome=Outcome.EXPIRED,
            )
            found.append(expired)
            wait = replace(wait, start_ns=expired.end_ns, after=(expired.wait,))  # noqa: PLW2901
        found.append(wait)
    return found


def _slows_down(effect: FaultEffect) -> bool:
    return effect.kind.startswith("network.") and not effect.hides_link


def expired_attempts_ns(lasted_ns: int, config: RegistrationConfig, round_trip_ns: int) -> int:
    """Return how long the attempts took that timed out within the round trip that a fault adds. 0 if the
    remaining time was shorter than the longest attempt, because then something other than the network had
    delayed them."""
    registration = RetryingRegistration(config)
    attempt, spent, longest = registration.first(), 0, 0
    while (timeout := round(attempt.timeout_s * NS)) < round_trip_ns and spent + timeout <= lasted_ns:
        spent, longest, attempt = spent + timeout, timeout, registration.on_timeout()
    return spent if lasted_ns - spent > longest else 0
