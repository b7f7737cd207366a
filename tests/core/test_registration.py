"""Retrying registration."""

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
