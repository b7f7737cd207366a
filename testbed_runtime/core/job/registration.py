"""Registration with retries: the next attempt after each outcome (Flink's RetryingRegistration)."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct

from testbed_runtime.core.errors import require_option
from testbed_runtime.core.options import Options

ERROR_DELAY = "cluster.registration.error-delay"
REFUSED_DELAY = "cluster.registration.refused-registration-delay"


class RegistrationConfig(Struct, frozen=True):
    """Seconds."""

    initial_timeout_s: float = 0.1
    max_timeout_s: float = 30.0
    error_delay_s: float = 10.0
    refused_delay_s: float = 30.0

    def __post_init__(self) -> None:
        """Raise OptionRefused as Flink's RetryingRegistrationConfiguration does. An initial timeout above the maximum is allowed."""
        for seconds, which, key in (
            (self.initial_timeout_s, "initial", "initial-timeout"),
            (self.max_timeout_s, "maximum", "max-timeout"),
        ):
            text = f"{which} registration timeout must be greater than zero"
            require_option(seconds >= 0.001, text, f"cluster.registration.{key}")
        for seconds, when, key in (
            (self.error_delay_s, "error", ERROR_DELAY),
            (self.refused_delay_s, "refused registration", REFUSED_DELAY),
        ):
            require_option(seconds >= 0, f"delay on {when} must be non-negative", key, "write at least 0")

    @classmethod
    def of(cls, options: Options) -> RegistrationConfig:
        return cls(
            initial_timeout_s=options.duration("cluster.registration.initial-timeout"),
            max_timeout_s=options.duration("cluster.registration.max-timeout"),
            error_delay_s=options.duration(ERROR_DELAY),
            refused_delay_s=options.duration(REFUSED_DELAY),
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: wait `delay_s`, then register with a timeout of `timeout_s`."""

    delay_s: float
    timeout_s: float
    option: str = field(default="", compare=False)
    """Key of the option that sets the delay."""


class RetryingRegistration:
    """`first()` returns the first attempt, each `on_*` the next one. A rejection is terminal."""

    def __init__(self, config: RegistrationConfig) -> None:
        self._config = config
        self._timeout_s = config.initial_timeout_s

    def first(self) -> Attempt:
        return self._restart(0.0)

    def on_timeout(self) -> Attempt:
        """Try again immediately, with the doubled timeout up to the maximum."""
        self._timeout_s = min(2 * self._timeout_s, self._config.max_timeout_s)
        return Attempt(0.0, self._timeout_s)

    def on_error(self) -> Attempt:
        """Try again after a delay: the call failed, or the address could not be connected."""
        return self._restart(self._config.error_delay_s, ERROR_DELAY)

    def on_refused(self) -> Attempt:
        """Try again after a longer delay: the answer was `failure`."""
        return self._restart(self._config.refused_delay_s, REFUSED_DELAY)

    def _restart(self, delay_s: float, option: str = "") -> Attempt:
        self._timeout_s = self._config.initial_timeout_s
        return Attempt(delay_s, self._timeout_s, option)
