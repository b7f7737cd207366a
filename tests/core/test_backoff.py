"""Backoff of partition requests, both generations."""

from __future__ import annotations

import pytest

from testbed_runtime.core.exchange.backoff import Backoff, RemoteBackoff, local_backoff, remote_backoff
from testbed_runtime.core.job.limits import BACKOFF_MAX, enough_backoff, partition_limit
from testbed_runtime.core.options import Options


def sequence(backoff: Backoff) -> list[float]:
    values = []
    while backoff.increase():
        values.append(backoff.current)
    return values


def test_B_01_backoff_doubles_up_to_the_maximum() -> None:
    """500, 1000, 2000, 4000, and then no more."""
    assert sequence(Backoff(500, 4000)) == [500, 1000, 2000, 4000]


def test_B_02_backoff_is_capped_at_the_maximum() -> None:
    """The last step is the maximum itself."""
    assert sequence(Backoff(500, 3000)) == [500, 1000, 2000, 3000]


def test_B_03_an_initial_backoff_equal_to_the_maximum_is_one_retry() -> None:
    """500, and then no more."""
    assert sequence(Backoff(500, 500)) == [500]


def test_B_04_no_backoff_means_no_retry() -> None:
    """0 disables retries."""
    assert sequence(Backoff(0, 0)) == []


def test_B_08_the_default_budget_is_22_7_seconds() -> None:
    """Eight waits before a local channel gives up."""
    waits = sequence(local_backoff(Options({})))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert sum(waits) == pytest.approx(22.7)


def test_a_remote_request_of_1_12_is_delayed_by_the_doubling_backoff() -> None:
    """Before 1.19 the consumer waits between its requests."""
    backoff = remote_backoff(Options({}, flink_version="1.12"))
    assert [backoff.retrigger() for _ in range(9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, None]


@pytest.mark.parametrize("version", ["1.20", "2.x"])
def test_by_default_a_remote_request_is_retriggered_once_and_at_once_from_1_19(version: str) -> None:
    """10 s are below twice the maximum, 20 s are not."""
    backoff = remote_backoff(Options({}, flink_version=version))
    assert [backoff.retrigger(), backoff.retrigger()] == [0.0, None]
    assert backoff.current == 20.0


def test_retriggers_are_counted_in_whole_milliseconds() -> None:
    """100 ms seven times stay below twice 400 ms; the eighth sum is 0.7999… in floating point."""
    backoff = RemoteBackoff(0.0, 0.4, listener_timeout=0.1)
    assert [backoff.retrigger() for _ in range(8)] == [0.0] * 7 + [None]


def test_without_a_listener_timeout_a_remote_request_is_never_retriggered() -> None:
    """No timer would report that it expired."""
    assert RemoteBackoff(100, 10_000, listener_timeout=0).retrigger() is None


LARGE = {
    "taskmanager.network.request-backoff.initial": "536870912 ms",
    "taskmanager.network.request-backoff.max": "2147483647 ms",
}


@pytest.mark.parametrize(
    ("version", "delays"),
    [
        ("1.12", [536870.912, 1073741.824, 0.0, None, None]),
        ("1.18", [536870.912, 1073741.824, 0.0, None, None]),
        ("1.19", [536870.912, 1073741.824, 0.0, 0.0, 536870.912]),
        ("2.x", [536870.912, 1073741.824, 0.0, 0.0, 536870.912]),
    ],
)
def test_a_doubled_delay_that_is_no_int_wraps(version: str, delays: list[float | None]) -> None:
    """2³⁰ · 2 is −2³¹ (InputChannel.increaseBackoff): the request is sent at once. Until 1.18, a negative delay is the last one;
    from 1.19 on it doubles to 0, and the first delay follows."""
    backoff = local_backoff(Options(LARGE, flink_version=version))
    assert [backoff.current if backoff.increase() else None for _ in delays] == delays
    assert local_backoff(Options(LARGE, flink_version=version)).budget() == (
        1610612.736 if None in delays else None
    )


def test_until_1_18_a_remote_request_whose_delay_wraps_is_the_last_one() -> None:
    """The same for a channel over a connection."""
    backoff = remote_backoff(Options(LARGE, flink_version="1.18"))
    assert [backoff.retrigger() for _ in range(4)] == [536870.912, 1073741.824, 0.0, None]
    assert backoff.budget() == 1610612.736


@pytest.mark.parametrize(
    ("largest_ms", "timeout_ms", "retriggers", "budget_s"),
    [
        (1_073_741_823, 1_000_000_000, [0.0, 0.0, 0.0, 0.0], None),
        (1_073_741_824, 10_000, [None], 10.0),
        (2_147_483_647, 10_000, [None], 10.0),
        (1_000_000_000, 1_900_000_000, [0.0, 0.0], None),
        (1_000_000_000, 1_000_000_000, [0.0, None], 2_000_000.0),
    ],
)
def test_twice_a_large_maximum_wraps_from_1_19(largest_ms, timeout_ms, retriggers, budget_s) -> None:
    """`currentBackoff < 2 * maxBackoff` in ints (RemoteInputChannel.increaseBackoff): from 2³⁰ ms on, the first request is the
    last one. The sum of the timeouts wraps too."""
    options = {
        "taskmanager.network.request-backoff.max": f"{largest_ms} ms",
        "taskmanager.network.partition-request-timeout": f"{timeout_ms} ms",
    }
    backoff = remote_backoff(Options(options))
    assert [backoff.retrigger() for _ in retriggers] == retriggers
    assert remote_backoff(Options(options)).budget() == budget_s


@pytest.mark.parametrize("version", ["1.17", "1.20", "2.3"])
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("needed_s", [22.8, 51.0, 82.02, 650.0])
def test_a_proposed_maximum_is_the_lowest_with_which_requests_last_long_enough(
    version: str, local: bool, needed_s: float
):
    """A tenth of a second less is not enough."""
    options = Options({BACKOFF_MAX: "10000"}, flink_version=version)

    def lasts_s(value: str) -> float:
        found = partition_limit(options.with_values({BACKOFF_MAX: value}), local=local).seconds
        assert found is not None
        return found

    value = enough_backoff(options, budget_s=lasts_s("10000"), needed_s=needed_s)
    assert value.endswith(" ms")
    millis = int(value.removesuffix(" ms"))
    assert lasts_s(str(millis)) > needed_s >= lasts_s(str(millis - 100))


def test_no_maximum_is_proposed_if_none_is_enough():
    """An initial backoff of 0 means that requests are not repeated."""
    values = {BACKOFF_MAX: "10000", "taskmanager.network.request-backoff.initial": "0"}
    assert not enough_backoff(Options(values, flink_version="1.17"), budget_s=0.0, needed_s=1.0)
