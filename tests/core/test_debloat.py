"""Buffer debloating."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import FlinkError, OptionRefused
from testbed_runtime.core.exchange.debloat import (
    BufferDebloater,
    BufferSizeEMA,
    ThroughputCalculator,
    check_debloating,
)
from testbed_runtime.core.options import Options


def run(ema: BufferSizeEMA, *samples: tuple[int, int]) -> list[int]:
    return [ema.calculate(*sample) for sample in samples]


def test_H_01_and_H_02_the_size_follows_what_is_desired() -> None:
    """Down by the average, up at most twofold an instant."""
    ema = BufferSizeEMA(200, 10, 3)
    shrinking = run(ema, (111, 13), *[(107, 7)] * 5, *[(107, 13)] * 3)
    assert shrinking == [104, 60, 38, 26, 21, 18, 13, 11, 10]
    assert run(ema, *[(333, 1)] * 6) == [15, 23, 34, 51, 76, 114]


def test_until_1_20_the_average_is_an_integer_and_small_changes_are_lost() -> None:
    """The samples of H-01, H-02 and H-05 with the class of Flink 1.20.3."""
    ema = BufferSizeEMA(200, 10, 3, whole=True)
    shrinking = run(ema, (111, 13), *[(107, 7)] * 5, *[(107, 13)] * 3)
    assert shrinking == [104, 59, 37, 26, 20, 17, 12, 10, 10]
    assert run(ema, *[(333, 1)] * 6) == [15, 22, 33, 49, 73, 109]
    stuck = BufferSizeEMA(32 * 1024, 16, 10_000, start=16, whole=True)
    assert run(stuck, *[(20_000, 10)] * 100)[-1] == 16


def test_H_03_the_size_stops_at_the_least() -> None:
    """10 is the bound."""
    assert run(BufferSizeEMA(200, 10, 3), *[(0, 1)] * 6) == [100, 50, 25, 13, 10, 10]


def test_H_04_the_size_stops_at_the_largest() -> None:
    """200 is the bound."""
    ema = BufferSizeEMA(200, 10, 3)
    assert run(ema, (0, 1), *[(1000, 1)] * 3) == [100, 150, 200, 200]


def test_H_05_small_changes_are_never_stuck() -> None:
    """Rounding must not swallow growth."""
    ema = BufferSizeEMA(32 * 1024, 16, 10_000, start=16)
    assert run(ema, *[(20_000, 10)] * 10_000)[-1] > 16


@pytest.mark.parametrize(
    ("target_ms", "least", "largest", "throughput", "in_use", "expected"),
    [
        pytest.param(1000, 50, 2400, 1200, 0, 1200, id="H-06"),
        pytest.param(1200, 50, 1100, 3333, 16, 250, id="H-07"),
        pytest.param(1200, 250, 1100, 3333, 16, 250, id="H-08"),
        pytest.param(1200, 50, 1100, 0, 16, 50, id="H-09"),
        pytest.param(7, 50, 1100, 3333, 16, 50, id="H-10"),
        pytest.param(1200, 50, 248, 3333, 16, None, id="H-11-bound"),
        pytest.param(1200, 50, 250, 3333, 16, None, id="H-11-same"),
    ],
)
def test_H_06_to_H_11_the_debloater_announces_a_size(
    target_ms: int, least: int, largest: int, throughput: int, in_use: int, expected: int | None
) -> None:
    """None: nothing worth announcing."""
    debloater = BufferDebloater(target_ms=target_ms, least=least, largest=largest, samples=1)
    assert debloater.recalculate(throughput, in_use) == expected


@pytest.mark.parametrize(
    ("throughputs", "announced"),
    [((500, 1000, 2000, 2000), [500, 1000, 1100, None]), ((60, 40, 40), [60, 50, None])],
)
def test_H_19_H_20_the_largest_and_the_least_size_are_announced_once_however_near(
    throughputs: tuple[int, ...], announced: list[int | None]
) -> None:
    """The change is below the threshold of 25 %."""
    debloater = BufferDebloater(target_ms=1000, largest=1100, least=50, samples=1)
    assert [debloater.recalculate(throughput, 1) for throughput in throughputs] == announced


def test_H_21_a_change_of_exactly_the_threshold_is_announced() -> None:
    """30 % of 16,384 bytes, cut to whole bytes, and one byte less."""

    def announces(size: int) -> bool:
        debloater = BufferDebloater(
            target_ms=1000, largest=32_768, least=256, samples=1, threshold_percent=30
        )
        assert debloater.recalculate(16_384, 1) == 16_384
        return debloater.recalculate(size, 1) == size

    assert [announces(16_384 + change) for change in (-4915, -4914, 0, 4914, 4915)] == [
        True,
        False,
        False,
        False,
        True,
    ]


def test_H_14_a_negative_size_and_no_buffers_are_refused() -> None:
    """A negative size could only be an overflow."""
    for size, buffers, text in ((-1, 1, "non negative"), (1, 0, "should be positive")):
        with pytest.raises(FlinkError, match=text) as refused:
            BufferSizeEMA(200, 100, 2).calculate(size, buffers)
        assert refused.value.class_name == "IllegalArgumentException"


def test_H_15_throughput_is_bytes_over_time() -> None:
    """Whatever the arrival times in between."""
    calculator = ThroughputCalculator()
    for size, at in ((6666, 0), (3333, 1), (1, 34)):
        calculator.incoming(size, at)
    assert calculator.calculate(100) == 100_000


def test_H_16_a_calculation_starts_over() -> None:
    """Without elapsed time the value stays; afterwards the throughput is 0."""
    calculator = ThroughputCalculator()
    calculator.incoming(666, 0)
    assert [calculator.calculate(at) for at in (100, 100, 101)] == [6660, 6660, 0]


def test_a_throughput_is_rounded_as_flink_rounds_it() -> None:
    """The division comes first: 1001 bytes in 1000 ms are 1000 bytes a second."""
    calculator = ThroughputCalculator()
    calculator.incoming(1001, 0)
    assert calculator.calculate(1000) == 1000


def test_H_17_idle_time_does_not_count() -> None:
    """2 ms of 11."""
    calculator = ThroughputCalculator()
    calculator.incoming(7, 0)
    calculator.pause(1)
    calculator.resume(10)
    calculator.incoming(3, 10)
    assert calculator.calculate(11) == 5000


def test_H_18_a_calculation_while_idle_uses_the_busy_time() -> None:
    """1 ms of 10."""
    calculator = ThroughputCalculator()
    calculator.incoming(10, 0)
    calculator.pause(1)
    assert calculator.calculate(10) == 10_000


def test_the_time_to_consume_is_in_whole_milliseconds():
    """BufferDebloater.recalculateBufferSize divides longs: 16 buffers of 250 bytes at 3333 B/s are 1200.12 ms."""
    debloater = BufferDebloater(target_ms=1200, largest=1100, least=50, samples=1, threshold_percent=25)
    debloater.recalculate(3333, 16)
    assert (debloater.size, debloater.time_to_consume_ms) == (250, 1200)


@pytest.mark.parametrize(
    ("throughput", "buffers", "size", "time_ms"),
    [(100, 0, 100, 1000), (100, 1, 100, 1000), (100, 2, 50, 1000), (1, 1, 50, 50_000), (0, 2, 50, 100_000)],
)
def test_no_buffers_count_as_one_and_no_throughput_as_a_byte_each_second(
    throughput: int, buffers: int, size: int, time_ms: int
):
    """BufferDebloater.recalculateBufferSize: neither is 0 in its divisions."""
    debloater = BufferDebloater(target_ms=1000, largest=1100, least=50, samples=1)
    assert (debloater.recalculate(throughput, buffers), debloater.time_to_consume_ms) == (size, time_ms)


def test_H_07_the_time_to_consume_wraps_at_2_to_the_31_bytes_in_flight():
    """65,536 buffers of 32 KiB: BufferDebloater multiplies two ints. One buffer less fits."""
    times = []
    for buffers in (65_535, 65_536, 131_073):
        debloater = BufferDebloater(target_ms=10_000, largest=32_768, least=256, samples=1)
        assert debloater.recalculate(10**9, buffers) is None
        times.append(debloater.time_to_consume_ms)
    assert times == [2147, -2147, 0]


def test_H_07_a_desired_size_that_no_longer_fits_a_long_is_refused():
    """Throughput × target wraps to a negative number of bytes; half of it fits."""
    debloater = BufferDebloater(target_ms=2, largest=32_768, least=256, samples=1)
    with pytest.raises(FlinkError, match="Size of buffer should be non negative"):
        debloater.recalculate(2**62, 1)
    assert debloater.recalculate(2**61, 1) is None


MEMORY, DEBLOAT = "taskmanager.memory.", "taskmanager.network.memory.buffer-debloat."


@pytest.mark.parametrize(
    ("version", "configuration", "refused"),
    [
        ("2.x", {}, ""),
        ("2.x", {MEMORY + "segment-size": "1 kb"}, ""),
        ("2.x", {MEMORY + "segment-size": "512 b"}, MEMORY + "starting-segment-size"),
        ("2.x", {MEMORY + "min-segment-size": "2 kb"}, MEMORY + "starting-segment-size"),
        ("1.20", {MEMORY + "segment-size": "512 b"}, ""),
        ("1.20", {MEMORY + "min-segment-size": "2 kb"}, ""),
        ("1.20", {MEMORY + "min-segment-size": "64 kb"}, MEMORY + "min-segment-size"),
        ("1.15", {MEMORY + "segment-size": "128 b"}, MEMORY + "min-segment-size"),
        ("1.14", {MEMORY + "segment-size": "512 b"}, ""),
        (
            "1.14",
            {MEMORY + "segment-size": "512 b", DEBLOAT + "enabled": "true"},
            MEMORY + "min-segment-size",
        ),
        ("1.13", {MEMORY + "segment-size": "512 b", DEBLOAT + "enabled": "true"}, ""),
        ("2.x", {MEMORY + "min-segment-size": "0 b"}, MEMORY + "min-segment-size"),
        ("2.x", {DEBLOAT + "samples": "0"}, DEBLOAT + "samples"),
        ("1.15", {DEBLOAT + "samples": "0"}, DEBLOAT + "samples"),
        ("1.14", {DEBLOAT + "samples": "0", DEBLOAT + "enabled": "true"}, ""),
        ("1.14", {DEBLOAT + "samples": "-1", DEBLOAT + "enabled": "true"}, ""),
        ("2.x", {DEBLOAT + "target": "0 s"}, DEBLOAT + "target"),
        ("2.x", {DEBLOAT + "target": "1 ms"}, ""),
    ],
)
def test_H_12_H_13_sizes_that_contradict_each_other_are_refused(
    version: str, configuration: dict[str, str], refused: str
) -> None:
    """Flink's TaskManager does not start with them, whether debloating is on or off. In 1.14, a task fails if it is on."""
    options = Options(configuration, flink_version=version)
    if not refused:
        check_debloating(options)
        return
    with pytest.raises(OptionRefused) as error:
        check_debloating(options)
    assert error.value.key == refused


def test_H_24_the_clock_of_the_throughput_is_not_started_twice() -> None:
    """testMultiplyIdleEnd: 10 bytes in 10 ms, although input was reported three times meanwhile."""
    calculator = ThroughputCalculator()
    calculator.incoming(10, 0)
    for at in (3, 6, 9):
        calculator.resume(at)
    assert calculator.calculate(10) == 1000


def test_H_25_a_calculation_does_not_start_the_clock() -> None:
    """testNotRestartTimerOnCalculationDuringIdleTime: 9 ms after it, 10 bytes come within 1 ms."""
    calculator = ThroughputCalculator()
    calculator.pause(0)
    calculator.calculate(0)
    calculator.incoming(10, 9)
    assert calculator.calculate(10) == 10_000


@pytest.mark.parametrize(
    ("samples", "arrived", "throughputs"),
    [
        (5, [(100, 33), (200, 33), (100, 9)], [3030, 4040, 6397]),
        (2, [(100, 33), (200, 33)], [3030, 5050]),
        (2, [(100, 33), (200, 0)], [3030, 3030]),
        (
            3,
            [(100, 33), (200, 33), *[(100, 10)] * 7, *[(10, 10)] * 3],
            [3030, 4545, 7272, 8636, 9318, 9659, 9829, 9914, 9957, 5478, 3239, 2119],
        ),
    ],
)
def test_H_26_in_1_14_the_throughput_is_averaged(
    samples: int, arrived: list[tuple[int, int]], throughputs: list[int]
) -> None:
    """ThroughputEMATest of Flink 1.14: the first value counts as it is."""
    calculator = ThroughputCalculator(samples)
    found, now = [], 0
    for size, milliseconds in arrived:
        calculator.resume(now)
        now += milliseconds
        calculator.incoming(size, now)
        found.append(calculator.calculate(now))
    assert found == throughputs


MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("samples", "throughputs"),
    [
        (0, [1000, 3000, -3000, 7000]),
        (-2, [1000, -1000, -3000, -13_000]),
        (-1, [1000, MOST, -MOST - 1, MOST]),
    ],
)
def test_in_1_14_less_than_one_sample_overshoots(samples: int, throughputs: list[int]) -> None:
    """ThroughputEMA of 1.14 does not check the number. A cast to a long keeps what does not fit at its bound."""
    calculator = ThroughputCalculator(samples)
    found = []
    for second, size in enumerate((1000, 2000, 0, 2000), start=1):
        calculator.resume((second - 1) * 1000)
        calculator.incoming(size, second * 1000)
        found.append(calculator.calculate(second * 1000))
    assert found == throughputs


def test_in_1_14_no_change_with_minus_one_samples_is_no_throughput() -> None:
    """Infinity times 0 is NaN, whose cast to a long is 0. The next value counts as it is."""
    calculator = ThroughputCalculator(-1)
    found = []
    for second in (1, 2, 3):
        calculator.resume((second - 1) * 1000)
        calculator.incoming(1000, second * 1000)
        found.append(calculator.calculate(second * 1000))
    assert found == [1000, 0, 1000]


def test_in_1_14_a_size_is_not_averaged() -> None:
    """BufferDebloater of 1.14: it changes at once, by any factor."""
    debloater = BufferDebloater(target_ms=1000, largest=32_768, least=256, averages=False)
    found = [debloater.recalculate(throughput, 4) for throughput in (4000, 100_000, 1 << 20, 0)]
    assert found == [1000, 25_000, 32_768, 256]
