"""Flow control other than by the network: queue, rate limiter, PID estimator, watermarks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.job.flowcontrol import (
    UNLIMITED,
    Coordinator,
    FlowControl,
    Mode,
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


@pytest.mark.parametrize(
    ("mode", "queued", "coordinated"),
    [
        ("network", False, False),
        ("tcp", False, False),
        ("none", True, False),
        ("pid", True, True),
        ("watermark", True, True),
    ],
)
def test_the_mode_decides_about_queues_and_a_coordinator(mode: str, queued: bool, coordinated: bool):
    """Only the modes that change rates report the queue to a coordinator."""
    assert (flow(mode).queued, flow(mode).coordinated) == (queued, coordinated)


def test_the_options_of_flow_control_are_read():
    """An interval is at least 10 ms, and a full queue fails the task unless it may drop records."""
    assert flow("pid") == FlowControl(Mode.PID, 0.0, 5 * 1024**2, drops=False, interval_s=1.0)
    written = {"": "none", ".rate": "50", ".queue": "1 kb", ".overflow": "drop", ".interval": "9 ms"}
    options = Options({f"headgate.flow-control{key}": value for key, value in written.items()})
    assert FlowControl.read(options) == FlowControl(Mode.NONE, 50.0, 1024, drops=True, interval_s=0.01)


@given(st.lists(st.tuples(st.sampled_from("ptd"), st.integers(1, 400)), max_size=30))
def test_a_queue_does_what_two_lists_do(steps: list[tuple[str, int]]):
    """One list of waiting items, and one of sizes that are being processed. It may be fuller than its limit, and then has no room."""
    queue: ReceiveQueue[int] = ReceiveQueue(1000)
    waiting: list[tuple[int, int, float]] = []
    taken: list[int] = []
    largest = 0
    for now, (kind, size) in enumerate(steps):
        if kind == "p":
            queue.put(now, size, float(now))
            waiting.append((now, size, float(now)))
        elif kind == "t" and waiting:
            item, its_size, since = waiting.pop(0)
            assert queue.take(now + 0.5) == (item, its_size, now + 0.5 - since)
            taken.append(its_size)
        elif kind == "d" and taken:
            queue.done(taken.pop())
        used = sum(item[1] for item in waiting) + sum(taken)
        largest = max(largest, used)
        assert (len(queue), queue.bytes, queue.largest_bytes) == (len(waiting), used, largest)
        assert queue.room(size) == max(0, 1000 - used) // size


def test_a_slow_source_saves_one_record_and_waits_for_the_next_one():
    """4 records/s: a burst of 50 ms would be less than a record. A rate that begins later counts from then on."""
    limiter = RateLimiter(4.0)
    assert limiter.grant(1.0, 9) == 0
    assert limiter.next_time(1.0) == 1.25
    assert limiter.grant(9.0, 9) == 1
    assert limiter.next_time(9.0) == 9.0
    limiter.spend(1)
    assert limiter.next_time(9.0) == 9.25
    limiter.limit(8.0, 9.125)
    assert limiter.next_time(9.125) == 9.1875
    limiter.limit(0.0, 9.25)
    assert (limiter.grant(99.0, 9), limiter.next_time(99.0)) == (0, None)
    limiter.limit(8.0, 99.0)
    assert [limiter.grant(99.0, most) for most in (0, 9)] == [0, 1]


def test_a_rate_limiter_frees_what_it_grants_only_when_it_is_spent():
    """400 records/s save 20. Records of a source without a limit are not counted against a later limit."""
    limiter = RateLimiter(UNLIMITED)
    limiter.spend(50)
    assert (limiter.grant(1.0, 7), limiter.next_time(1.0)) == (7, 1.0)
    limiter.limit(400.0, 1.0)
    assert [limiter.grant(now, 100) for now in (1.0, 1.025, 1.025, 1.05, 1.1)] == [0, 10, 10, 20, 20]
    limiter.spend(15)
    assert [limiter.grant(1.1, most) for most in (100, 3)] == [5, 3]
    assert limiter.next_time(1.1) == 1.1


def test_a_rate_limiter_saves_up_no_more_than_a_burst():
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


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(-1, 4), st.integers(0, 9)), min_size=1, max_size=12),
    st.sampled_from([0.5, 1.0, 4.0]),
)
def test_the_pid_estimator_has_sparks_formula(batches: list[tuple[int, int, int]], interval_s: float):
    """PIDRateEstimator.compute: nothing for a batch without records or time, or that is not newer than the last one; the first batch
    only sets the rate."""
    estimator, rate, at = PidEstimator(interval_s), None, -1
    for number, (processed, spent, waited) in enumerate(batches):
        now = number // 2  # every second batch is no newer than the one before
        found = estimator.compute(report(processed=processed, spent=spent, waited=waited), now)
        if not processed or spent <= 0 or now <= at:
            assert found is None
            continue
        speed, before = processed / spent, rate
        if before is None:
            rate = speed
            assert found is None
        else:
            rate = max(before - 1.0 * (before - speed) - 0.2 * (waited * speed / interval_s), 100.0)
            assert found == pytest.approx(rate)
        at = now


def test_the_pid_rates_of_several_receivers_add_up_when_all_have_one():
    """Each receiver gets a part of the records: 1000/s and 500/s are 1500/s."""
    coordinator = Coordinator(flow("pid"))
    assert coordinator.report("a", report(), 1.0) is None
    assert coordinator.report("b", report(processed=500), 1.0) is None
    assert coordinator.report("a", report(), 2.0) is None
    assert coordinator.report("b", report(processed=500), 2.0) == pytest.approx(1500.0)
    assert coordinator.report("a", report(), 3.0) is None  # it does not change
    coordinator.retain(["b"])
    assert coordinator.report("b", report(processed=600), 3.0) == pytest.approx(600.0)


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
