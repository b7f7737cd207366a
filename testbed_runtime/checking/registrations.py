"""The attempts to register that expired although the JobManager answered each one: their timeouts were shorter than the way there and back."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from testbed_runtime.checking.common import NS, Entry, options
from testbed_runtime.checking.faults import FaultEffect, added_delays
from testbed_runtime.core.job.limits import option_limit
from testbed_runtime.core.job.registration import RegistrationConfig, RetryingRegistration
from testbed_runtime.core.waits import Outcome, Wait

_TIMEOUT = "cluster.registration.initial-timeout"


def with_expired_attempts(waits: Iterable[Wait], entry: Entry, effects: Iterable[FaultEffect]) -> list[Wait]:
    """Return the waits, each registration during a fault that slows messages down as two: for the attempts that expired, and for the last
    one. What lets nothing pass, or keeps the JobManager busy, would have delayed an attempt with a longer timeout as well."""
    delays = added_delays(entry)
    round_trips = {e.fault: 2 * delays.get(e.fault, 0) for e in effects if _slows_down(e)}
    found: list[Wait] = []
    for wait in waits:
        expired_ns = 0
        if wait.kind == "registration" and wait.outcome is Outcome.COMPLETED and wait.fault in round_trips:
            config = RegistrationConfig.of(options(entry))
            expired_ns = expired_attempts_ns(wait.end_ns - wait.start_ns, config, round_trips[wait.fault])
        if expired_ns:
            limit = option_limit(options(entry), _TIMEOUT)
            expired = replace(
                wait, wait=f"{wait.wait}-expired", end_ns=wait.start_ns + expired_ns, option=limit.option,
                value=limit.value, budget_ns=expired_ns, outcome=Outcome.EXPIRED,
            )  # fmt: skip
            found.append(expired)
            wait = replace(wait, start_ns=expired.end_ns, after=(expired.wait,))  # noqa: PLW2901
        found.append(wait)
    return found


def _slows_down(effect: FaultEffect) -> bool:
    return effect.kind.startswith("network.") and not effect.hides_link


def expired_attempts_ns(lasted_ns: int, config: RegistrationConfig, round_trip_ns: int) -> int:
    """Return how long the attempts took that expired within the round trip that a fault adds. 0 if the rest was shorter than one of them:
    then something else than the way had delayed them."""
    registration = RetryingRegistration(config)
    attempt, spent, longest = registration.first(), 0, 0
    while (timeout := round(attempt.timeout_s * NS)) < round_trip_ns and spent + timeout <= lasted_ns:
        spent, longest, attempt = spent + timeout, timeout, registration.on_timeout()
    return spent if lasted_ns - spent > longest else 0
