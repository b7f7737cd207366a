"""Retrying registration."""

import pytest

from testbed_runtime.core.errors import OptionRefused
from testbed_runtime.core.job.registration import Attempt, RegistrationConfig, RetryingRegistration
from testbed_runtime.core.options import Options

CONFIG = RegistrationConfig(initial_timeout_s=0.02, max_timeout_s=0.1, error_delay_s=10, refused_delay_s=30)


def test_J_04_two_timeouts_cost_at_least_three_initial_timeouts():
    """20 ms, then 40 ms, both at once after the one before."""
    registration = RetryingRegistration(CONFIG)
    waits = [registration.first(), registration.on_timeout(), registration.on_timeout()]
    assert [a.delay_s for a in waits] == [0, 0, 0]
    assert sum(a.timeout_s for a in waits[:2]) >= 0.06 - 1e-9


def test_J_05_a_refusal_waits_and_starts_again_at_the_initial_timeout():
    """Timeout, refusal, timeout."""
    registration = RetryingRegistration(CONFIG)
    registration.first()
    registration.on_timeout()
    assert registration.on_refused() == Attempt(30, 0.02)
    assert registration.on_timeout() == Attempt(0, 0.04)


def test_the_timeout_stops_doubling_at_its_maximum():
    """And an error starts again."""
    registration = RetryingRegistration(CONFIG)
    registration.first()
    assert [registration.on_timeout().timeout_s for _ in range(4)] == [0.04, 0.08, 0.1, 0.1]
    assert registration.on_error() == Attempt(10, 0.02)


def test_the_defaults_are_flinks():
    """100 ms, 30 s, 10 s, 30 s."""
    assert RegistrationConfig.of(Options({})) == RegistrationConfig(0.1, 30, 10, 30)


def test_J_04_an_initial_timeout_above_the_maximum_is_used_once():
    """Flink takes the smaller one only when it doubles."""
    registration = RetryingRegistration(RegistrationConfig(initial_timeout_s=30, max_timeout_s=10))
    assert [a.timeout_s for a in (registration.first(), registration.on_timeout())] == [30, 10]
    assert registration.on_refused().timeout_s == 30


@pytest.mark.parametrize(("key", "which"), [("initial-timeout", "initial"), ("max-timeout", "maximum")])
def test_J_04_a_timeout_of_zero_is_refused(key, which):
    """RetryingRegistrationConfiguration; a delay may be zero."""
    key = f"cluster.registration.{key}"
    with pytest.raises(
        OptionRefused, match=f"{which} registration timeout must be greater than zero"
    ) as found:
        RegistrationConfig.of(Options({key: "0 ms"}))
    assert found.value.key == key
    assert RegistrationConfig.of(Options({"cluster.registration.error-delay": "0 ms"})).error_delay_s == 0
    assert RegistrationConfig.of(Options({key: "1 ms"})) != CONFIG


@pytest.mark.parametrize(
    ("key", "when"), [("error-delay", "error"), ("refused-registration-delay", "refused registration")]
)
def test_J_04_a_negative_delay_is_refused(key, when):
    """The delays are whole numbers until 1.19, so they can be negative."""
    key = f"cluster.registration.{key}"
    with pytest.raises(OptionRefused, match=f"delay on {when} must be non-negative") as found:
        RegistrationConfig.of(Options({key: "-1"}, flink_version="1.19"))
    assert found.value.key == key
