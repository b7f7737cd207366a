"""Flow control other than by the network: queue, rate limiter, PID estimator, watermarks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.job.flowcontrol import (
    UNLIMITED,
    Coordinator,
    FlowControl,
    PidEstimator,
    QueueReport,
    RateLimiter,
    ReceiveQueue,
)
from testbed_runtime.core.options import Options


def report(*, share: float = 0.0, processed: int = 1000, spent: float = 1.0, waited: float = 0.0) -> QueueReport:  # fmt: skip
    return QueueReport(share, processed, spent, waited)


def flow(mode: str) -> FlowControl:
    return FlowControl.read(Options({"headgate.flow-control": mode}))


def test_a_queue_has_room_until_its_limit_and_frees_it_when_the_work_is_done():
    """An item that is being processed still takes its room, and the wait is measured from its arrival."""
    queue: ReceiveQueue[str] = ReceiveQueue(1000)
    queue.put("a", 700, 1.0)
    assert (queue.room(100), len(queue)) == (3, 1)
    assert queue.take(3.5) == ("a", 700, 2.5)
    assert (queue.room(100), len(queue)) == (3, 0)
    queue.done(700)
    assert (queue.room(100), queue.largest_bytes) == (10, 700)


def test_a_rate_limiter_grants_its_rate_and_forfeits_what_is_not_used():
    """1000 records/s: 10 after 10 ms; after 10 s of rest not more than the 50 of a burst of 50 ms."""
    limiter = RateLimiter(1000.0)
    assert limiter.grant(0.0, 100) == 0
    assert limiter.grant(0.01, 100) == 10
    limiter.spend(10)
    assert limiter.next_time(0.01) == pytest.approx(0.011)
    assert limiter.grant(10.0, 100) == 50


@given(
    rate=st.integers(1, 100_000),
    start=st.integers(0, 10**6),
    pauses=st.lists(st.integers(1, 10), max_size=40),
)
def test_a_source_that_is_always_ready_emits_at_its_rate(rate: int, start: int, pauses: list[int]):
    """However its calls are spread, and whatever the time was when it began. It is called in less than a burst, in thousandths of a second."""
    limiter, emitted, now = RateLimiter(), 0, float(start)
    limiter.limit(rate, now)
    for pause in pauses:
        now += pause / 1000
        granted = limiter.grant(now, 10**6)
        limiter.spend(granted)
        emitted += granted
    assert 0 <= rate * (now - start) - emitted < 1 + 1e-4


def test_a_rate_of_zero_stops_a_source_and_a_negative_one_frees_it():
    """A stopped source waits for the next rate, not for a time."""
    limiter = RateLimiter()
    assert limiter.grant(0.0, 7) == 7
    limiter.limit(0.0, 1.0)
    assert (limiter.grant(2.0, 7), limiter.next_time(2.0)) == (0, None)
    limiter.limit(UNLIMITED, 3.0)
    assert limiter.grant(3.0, 7) == 7


def test_the_pid_estimator_has_sparks_arithmetic():
    """The first batch gives the rate 1000/s and no answer. Then 800 records in 1 s that waited 0.5 s: error 1000 − 800 = 200,
    historical error 0.5 × 800 / 1 = 400, rate 1000 − 1.0 × 200 − 0.2 × 400 = 720. The minimum is 100."""
    estimator = PidEstimator(interval_s=1.0)
    assert estimator.compute(report(), 1.0) is None
    assert estimator.compute(report(processed=800, waited=0.5), 2.0) == pytest.approx(720.0)
    assert estimator.compute(report(processed=0), 3.0) is None
    assert estimator.compute(report(processed=10, waited=500.0), 4.0) == 100.0


def test_the_pid_rates_of_several_receivers_add_up_when_all_have_one():
    """Each receiver gets a part of the records: 1000/s and 500/s are 1500/s."""
    coordinator = Coordinator(flow("pid"))
    assert coordinator.report("a", report(), 1.0) is None
    assert coordinator.report("b", report(processed=500), 1.0) is None
    assert coordinator.report("a", report(), 2.0) is None
    assert coordinator.report("b", report(processed=500), 2.0) == pytest.approx(1500.0)


def test_watermarks_stop_the_sources_above_nine_tenths_until_all_are_below_four():
    """Between the marks nothing changes, and one full queue is enough."""
    coordinator = Coordinator(flow("watermark"))
    said = [coordinator.report("a", report(share=share), 0.0) for share in (0.5, 0.9, 0.7, 0.4, 0.89)]
    assert said == [None, 0.0, None, UNLIMITED, None]
    assert coordinator.report("b", report(share=0.95), 0.0) == 0.0
    assert coordinator.report("a", report(share=0.1), 0.0) is None


def test_a_receiver_that_has_ended_holds_up_no_source():
    """It sends no report any more: its full queue and its rate are forgotten."""
    marks = Coordinator(flow("watermark"))
    assert marks.report("a", report(share=0.95), 0.0) == 0.0
    assert marks.report("b", report(share=0.1), 0.0) is None
    marks.retain({"b"})
    assert marks.report("b", report(share=0.1), 1.0) == UNLIMITED
