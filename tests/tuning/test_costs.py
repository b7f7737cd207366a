"""The cost of an option in a study, from the answers of its trials."""

from __future__ import annotations

from testbed_runtime.core.judgement.recovery import Price, Recovery, TrialRecovery
from testbed_runtime.tuning.score import costs

BACKOFF = "taskmanager.network.request-backoff.max"
S = 1_000_000_000


def outage(fault: str, start: int, end: int) -> Recovery:
    price = Price(
        text=f"{BACKOFF} = 10 s", seconds=22.7, kind="partition", option=BACKOFF, value="10 s", count=1
    )
    return Recovery(fault=fault, effect_ns=start * S, end_ns=end * S, prices=(price,))


def test_the_first_start_is_not_counted_twice_and_the_control_trial_does_not_halve_the_cost():
    """A fault at deploy has the first start as its recovery; a control trial recovers from nothing."""
    fault = TrialRecovery(trial="main-1", start=outage("", 1, 30), recoveries=(outage("late", 1, 31),))
    control = TrialRecovery(trial="main-control-1", start=Recovery(fault="", effect_ns=S, end_ns=2 * S))
    run = {t.trial: t.to_json() for t in (control, fault)}
    found = costs([BACKOFF], [run])[BACKOFF]
    assert (found.price_s, found.expired) == (22.7, 1)


def test_a_scenario_without_a_recovery_counts_beside_one_with_recoveries():
    """Its first start spent the budget. It is no control trial of the other scenario's run."""
    start = TrialRecovery(trial="main-1", start=outage("", 1, 30))
    fault = TrialRecovery(trial="main-1", recoveries=(outage("late", 1, 31),))
    found = costs([BACKOFF], [{"main-1": start.to_json()}, {"main-1": fault.to_json()}])[BACKOFF]
    assert (found.price_s, found.expired) == (22.7, 2)
