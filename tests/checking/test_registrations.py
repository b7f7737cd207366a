"""Attempts to register that expired although each was answered, as the wait for the registration shows it."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.unrecorded import expired_attempts_ns, with_expired_attempts
from testbed_runtime.core.job.registration import RegistrationConfig
from testbed_runtime.core.waits import Outcome
from tests.checking.test_rules import NS, effect, waited
from tests.manifests import trial_entry


@pytest.mark.parametrize(
    ("lasted_s", "limits", "expired_s"),
    [
        (5.1, {}, 3.1),  # 0.1 + 0.2 + 0.4 + 0.8 + 1.6 s, then an answer after 2 s
        (0.09, {}, 0),
        (0.2, {}, 0),  # the second attempt, after exactly the timeout of the first
        (0.201, {}, 0.1),
        (3.1, {}, 0),  # the sixth attempt was answered at once
        (4.7, {}, 0),
        (4.701, {}, 3.1),
        (5.1, {"initial_timeout_s": 6}, 0),
        (5.1, {"max_timeout_s": 0.8}, 0),  # the last one is answered within 0.2 s, others expired after 0.8 s
    ],
)
def test_attempts_expire_before_one_whose_answer_took_longer_than_their_timeouts(
    lasted_s: float, limits: dict[str, float], expired_s: float
):
    """The timeout of 100 ms doubles. An answer that takes as long as the way would not have reached a shorter attempt either."""
    found = expired_attempts_ns(round(lasted_s * NS), RegistrationConfig(**limits), 4 * NS)
    assert found == round(expired_s * NS)


@pytest.mark.parametrize(
    ("round_trip_s", "expired_s"), [(2, 3.1), (1.6, 1.5), (0.11, 0.1), (0.1, 0), (0.01, 0)]
)
def test_only_attempts_that_are_shorter_than_the_way_there_and_back_expire_on_it(
    round_trip_s: float, expired_s: float
):
    """Others wait for a busy JobManager."""
    config = RegistrationConfig()
    assert expired_attempts_ns(round(5.1 * NS), config, round(round_trip_s * NS)) == round(expired_s * NS)


@pytest.mark.parametrize(
    ("kind", "more", "split"),
    [
        ("network.latency", {}, True),
        ("network.partition", {}, False),
        ("rpc.delay", {}, False),
        ("network.latency", {"fault": ""}, False),
        ("network.latency", {"kind": "partition"}, False),
        ("network.latency", {"outcome": Outcome.FIRED}, False),
    ],
)
def test_a_registration_on_a_slow_network_has_its_expired_attempts_as_a_wait(
    kind: str, more: dict[str, Any], *, split: bool
):
    """Whatever lets nothing pass or keeps the JobManager busy would have delayed any attempt."""
    wait = waited(**{"kind": "registration", "start": 1, "end": 6.1, "fault": "f", "cause": "c"} | more)
    entry = trial_entry({"faults": [{"name": "f", "params": {"latency_s": 1.0}}]})
    found = with_expired_attempts([wait], entry, [effect(kind, (0, 9))])
    if not split:
        assert found == [wait]
        return
    expired, last = found
    assert (expired.start_ns, expired.end_ns, last.start_ns, last.end_ns) == tuple(
        round(s * NS) for s in (1, 4.1, 4.1, 6.1)
    )
    assert (expired.option, expired.value, expired.outcome) == (
        "cluster.registration.initial-timeout",
        "100 ms",
        Outcome.EXPIRED,
    )
    assert (last.after, last.outcome, last.fault) == ((expired.wait,), Outcome.COMPLETED, "f")
