"""The quality of the failure detector: the formulas against the heartbeat monitor itself."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from testbed_runtime.core.job.heartbeat import HeartbeatConfig, HeartbeatMonitor, HeartbeatState
from testbed_runtime.core.judgement.detector import Disturbance, quality

PAUSE = Disturbance(per_day=24, median_s=3, p99_s=30)
EVENTS = 4000


def lost_in(config: HeartbeatConfig, length: float, age: float, *, refused: bool) -> bool:
    """Drive a monitor through an event of this length, which begins `age` intervals after a heartbeat. Return whether the peer
    is marked as lost, although it answers again afterwards."""
    monitor = HeartbeatMonitor(config, 0.0)
    begin, call = config.interval_s * age, config.interval_s
    monitor.on_heartbeat(0.0)
    while call <= begin + length:
        if monitor.on_time(call):
            break
        if refused:
            monitor.on_unreachable()
        call += config.interval_s
    end = begin + length
    return monitor.state is not HeartbeatState.RUNNING or monitor.on_time(end)


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        (HeartbeatConfig(10, 50, 2), False),
        (HeartbeatConfig(2, 5, 2), False),
        (HeartbeatConfig(10, 50, 2), True),
        (HeartbeatConfig(2, 20, 7), True),
        (HeartbeatConfig(2, 10, -1), True),
    ],
)
def test_false_failovers_are_as_frequent_as_the_monitor_makes_them(config: HeartbeatConfig, refused: bool):
    """4,000 drawn events with drawn phases: the share that the monitor takes for a loss is the computed one, within 4 standard errors."""
    generator = np.random.default_rng(11)
    spread = math.log(PAUSE.p99_s / PAUSE.median_s) / 2.3263478740408408
    lengths = PAUSE.median_s * np.exp(spread * generator.standard_normal(EVENTS))
    ages = generator.uniform(0, 1, EVENTS)
    lost = sum(
        lost_in(config, float(length), float(age), refused=refused)
        for length, age in zip(lengths, ages, strict=True)
    )
    events = {"unreachable": PAUSE} if refused else {"pauses": PAUSE}
    found = quality(config, task_managers=1, **events)
    share = found.false_failovers_per_day / PAUSE.per_day
    assert abs(lost / EVENTS - share) < 4 * math.sqrt(share * (1 - share) / EVENTS) + 1e-3


@pytest.mark.parametrize(("median", "p99"), [(3, 30), (1, 2), (0.3, 8), (2, 2)])
@pytest.mark.parametrize("seconds", [0.5, 1.9, 2.0, 10.0])
def test_the_lengths_of_events_are_log_normal(median: float, p99: float, seconds: float):
    """20,000 equally likely lengths: how many are longer, and by how much on average. They may also all be equal."""
    normal, draws = NormalDist(), 20_000
    spread = math.log(p99 / median) / normal.inv_cdf(0.99)
    lengths = [median * math.exp(spread * normal.inv_cdf((n + 0.5) / draws)) for n in range(draws)]
    event = Disturbance(per_day=1, median_s=median, p99_s=p99)
    assert event.mean_s == pytest.approx(sum(lengths) / draws, rel=0.01)
    assert event.longer_than(seconds) == pytest.approx(sum(x > seconds for x in lengths) / draws, abs=1e-4)
    beyond = sum(max(0.0, x - seconds) for x in lengths) / draws
    assert event.excess(seconds) == pytest.approx(beyond, rel=0.02, abs=1e-4)


def test_detection_takes_half_an_interval_less_than_its_limit():
    """A dead process: threshold − ½ intervals; a silent machine: timeout − ½ interval; the timeout is the limit of both."""
    found = quality(HeartbeatConfig(1, 5, 2), task_managers=1)
    assert (found.dead_s, found.silent_s) == (pytest.approx(1.5), pytest.approx(4.5))
    assert quality(HeartbeatConfig(10, 50, 14), task_managers=1).dead_s == pytest.approx(45)
    assert quality(HeartbeatConfig(10, 50, -1), task_managers=1).dead_s == pytest.approx(45)
    assert found.false_failovers_per_day == 0


def test_frequent_heartbeats_beat_flinks_defaults_in_everything():
    """14 failed calls of 1 s instead of 2 of 10 s find a death sooner and with fewer mistakes, because the phase matters less."""
    events = {
        "pauses": Disturbance(per_day=24, median_s=0.3, p99_s=8),
        "unreachable": Disturbance(per_day=0.5, median_s=2, p99_s=20),
    }
    default = quality(HeartbeatConfig(10, 50, 2), task_managers=50, **events)
    better = quality(HeartbeatConfig(1, 45, 15), task_managers=50, **events)
    assert better.dead_s < default.dead_s
    assert better.silent_s < default.silent_s
    assert better.false_failovers_per_day < default.false_failovers_per_day
    assert better.accuracy > default.accuracy


def test_mistakes_last_as_long_as_the_event_goes_on():
    """Fixed lengths: a pause of 8 s is found after 4.5 s on average, so the mistake lasts 3.5 s, 24 times a day."""
    fixed = Disturbance(per_day=24, median_s=8, p99_s=8)
    found = quality(HeartbeatConfig(1, 5, 2), task_managers=1, pauses=fixed)
    assert found.false_failovers_per_day == 24
    assert found.mistake_s == pytest.approx(3.5)
    assert found.accuracy == pytest.approx(1 - 3.5 / 3600)
    assert quality(HeartbeatConfig(1, 9, 2), task_managers=1, pauses=fixed).false_failovers_per_day == 0


def test_the_share_and_the_excess_of_long_events_agree_with_drawn_ones():
    """Log-normal by median and 99th percentile."""
    drawn = PAUSE.median_s * np.exp(
        math.log(PAUSE.p99_s / PAUSE.median_s)
        / 2.3263478740408408
        * np.random.default_rng(2).standard_normal(400_000)
    )
    assert PAUSE.longer_than(30) == pytest.approx(0.01)
    assert PAUSE.longer_than(5) == pytest.approx(float((drawn > 5).mean()), rel=0.02)
    assert PAUSE.excess(5) == pytest.approx(float(np.maximum(drawn - 5, 0).mean()), rel=0.05)


def test_the_edges_of_the_lengths_of_events():
    """Half of the events are longer than their median. One of a fixed length does not last longer than that."""
    assert PAUSE.longer_than(3) == pytest.approx(0.5)
    fixed = Disturbance(per_day=1, median_s=8, p99_s=8)
    assert [fixed.longer_than(seconds) for seconds in (0.5, 7.9, 8, 9)] == [1.0, 1.0, 0.0, 0.0]
    assert [fixed.excess(seconds) for seconds in (0.5, 7, 8, 9)] == [7.5, 1.0, 0.0, 0.0]


def test_the_mistakes_of_a_cluster_add_up():
    """Per TaskManager: 24 pauses of 8 s found after 4.5 s, 12 cuts of 10 s found after 1.5 s, so 84 s and 102 s are wrong."""
    pauses = Disturbance(per_day=24, median_s=8, p99_s=8)
    cuts = Disturbance(per_day=12, median_s=10, p99_s=10)
    found = quality(HeartbeatConfig(1, 5, 2), task_managers=3, pauses=pauses, unreachable=cuts)
    assert found.false_failovers_per_day == 3 * 36
    assert found.mistake_s == pytest.approx((84 + 102) / 36)
    assert found.accuracy == pytest.approx(1 - 186 / 86_400)
    always = quality(
        HeartbeatConfig(1, 5, 2), task_managers=1, pauses=Disturbance(per_day=9e4, median_s=8, p99_s=8)
    )
    assert always.accuracy == 0.0
    none = quality(HeartbeatConfig(1, 5, 2), task_managers=1)
    assert (none.mistake_s, none.accuracy) == (0.0, 1.0)


def test_without_calls_that_fail_a_death_is_found_as_late_as_a_silence():
    """The threshold is off: both take the timeout without half an interval."""
    found = quality(HeartbeatConfig(5, 5, -1), task_managers=1)
    assert (found.silent_s, found.dead_s) == (pytest.approx(2.5), pytest.approx(2.5))
