"""The prices of work in virtual time: arithmetic on what a task has done."""

from __future__ import annotations

import pytest

from testbed_runtime.core.job.cost import CALIBRATIONS, CORES, COST, Prices, Work, cores, prices
from testbed_runtime.core.options import BY_KEY, Options

PRICES = Prices(
    record_out_s=1e-6,
    record_in_s=2e-6,
    buffer_in_s=30e-6,
    shared_in_s=20e-6,
    flushed_s=4e-6,
    flush_s=50e-6,
    flush_record_s=0.5e-6,
    network_buffer_s=6e-6,
    network_shared_s=2e-6,
    network_byte_s=1e-9,
)


@pytest.mark.parametrize(
    ("work", "task_us", "flusher_us"),
    [
        (Work(), 0, 0),
        (Work(records_out=10), 10, 0),
        (Work(records_in=10), 20, 0),
        (Work(buffers_in=2), 60, 0),
        (Work(flushed=5), 0, 20),
        (Work(flushes=3), 0, 150),
        (Work(records_out=10, records_flushed=10), 15, 0),
        (Work(records_out=1, records_in=1, buffers_in=1, flushed=1, flushes=1), 33, 54),
    ],
)
def test_work_costs_the_sum_of_its_prices(work, task_us, flusher_us):
    """The task's own thread pays for records and buffers, the flusher's for its runs and what it lets go."""
    assert PRICES.of_task(work, shared=False) == pytest.approx(task_us * 1e-6)
    assert PRICES.of_flusher(work) == pytest.approx(flusher_us * 1e-6)


def test_a_network_thread_pays_for_the_buffer_and_for_its_bytes():
    """An empty buffer costs its fixed part, a full one 32 KiB more."""
    assert PRICES.of_network(0, shared=False) == pytest.approx(6e-6)
    assert PRICES.of_network(32_768, shared=False) == pytest.approx(6e-6 + 32.768e-6)


def test_a_buffer_costs_less_while_threads_wait_for_cores():
    """Records and bytes cost the same: what is shared is finding and waking the thread."""
    work = Work(records_in=10, buffers_in=2)
    assert PRICES.of_task(work, shared=False) - PRICES.of_task(work, shared=True) == pytest.approx(20e-6)
    assert PRICES.of_network(100, shared=True) == pytest.approx(2e-6 + 0.1e-6)


def test_only_new_work_is_paid():
    """The difference of two counts has every field."""
    before, after = Work(1, 2, 3, 4, 5, 6), Work(11, 22, 33, 44, 55, 66)
    assert after.since(before) == Work(10, 20, 30, 40, 50, 60)


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [({}, 3.0), ({CORES: "1.5"}, 1.5), ({CORES: "8"}, 8.0)],
)
def test_a_taskmanager_has_one_core_per_slot_unless_it_says_otherwise(configuration, expected):
    """Flink's default of taskmanager.cpu.cores is the number of slots."""
    assert cores(Options(configuration), slots=3) == expected


def test_work_costs_nothing_by_default():
    """Without a calibration there are no prices, and each choice of the option has one."""
    assert prices(Options({})) is None
    assert {"none", *CALIBRATIONS} == set(BY_KEY[COST].choices)
    assert prices(Options({COST: "flink-2.3"})) is CALIBRATIONS["flink-2.3"]
