"""The measurements of a TaskManager's tasks: counters, latencies, back-pressure samples, waits for credit."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from testbed_runtime.core.exchange.credit import ChannelStats
from testbed_runtime.core.options import Options
from testbed_runtime.history.schema import LATENCY_WINDOW_NS, by_column
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.backpressure_samples import BackPressureSampler
from testbed_runtime.taskmanager.credit_waits import CreditWaits
from testbed_runtime.taskmanager.meter import BACKPRESSURED, BUSY, IDLE, TaskMeter
from testbed_runtime.taskmanager.waiting import ServiceTime

MS = 1_000_000
RECORD = np.dtype([("due_ns", "<i8")])


class Sink:
    """A HistorySink that keeps its rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def append(self, table: str, **row: Any) -> None:
        self.rows.append({"table": table, **row})

    def put(self, table: str, values: tuple[Any, ...]) -> None:
        self.append(table, **by_column(table, values))

    async def flush(self) -> bool:
        return True

    def take(self, *columns: str, table: str | None = None) -> list[tuple[Any, ...]]:
        """Return these columns of the rows (of a table) since the last call."""
        found, self.rows = [r for r in self.rows if table in (None, r["table"])], []
        return [tuple(row[column] for column in columns) for row in found]


class At:
    """A clock that is set by hand."""

    boot_id = "boot"

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def now(self) -> float:
        return self.now_s


def meter_at(clock: At, sink: Sink, *, source: Any = None, out: Any = None, subtask: int = 2) -> TaskMeter:
    descriptor: Any = SimpleNamespace(
        vertex=SimpleNamespace(name="map", source=source, sink=out), subtask=subtask, attempt_number=3
    )
    return TaskMeter(descriptor, clock, sink)


def due(*times_ns: int) -> Any:
    return np.array([(t,) for t in times_ns], dtype=RECORD)


# ---- counters


def test_the_time_of_a_task_is_busy_idle_or_backpressured():
    """Each second counts once, in the mode that the task was in; a sample has the time up to now."""
    clock, sink = At(100.0), Sink()
    meter = meter_at(clock, sink)
    columns = ("busy_ns", "backpressured_ns", "idle_ns")
    steps: list[tuple[float, int | None, tuple[float, float, float]]] = [
        (101.0, None, (1, 0, 0)),
        (103.0, IDLE, (3, 0, 0)),
        (103.5, None, (3, 0, 0.5)),
        (104.0, BACKPRESSURED, (3, 0, 1)),
        (108.0, BUSY, (3, 4, 1)),
        (109.0, BUSY, (4, 4, 1)),
        (110.0, None, (5, 4, 1)),
    ]
    for now_s, mode, expected in steps:
        clock.now_s = now_s
        if mode is not None:
            meter.enter(mode)
            assert meter.mode == mode
        meter.sample()
        assert sink.take(*columns) == [tuple(int(s * 1e9) for s in expected)]


def test_a_sample_is_a_row_of_the_task_with_its_counters_and_its_lag():
    """The lag is that of the newest batch; a source replaces it."""
    clock, sink = At(10.0), Sink()
    meter = meter_at(clock, sink)
    meter.records_in, meter.records_out, meter.bytes_in, meter.bytes_out = 1, 2, 3, 4
    meter.sample()
    names = ("table", "task", "vertex", "role", "attempt")
    counters = ("records_in", "records_out", "bytes_in", "bytes_out", "lag_ns")
    assert sink.take(*names, *counters) == [("tasks", "map-2", "map", "operator", 3, 1, 2, 3, 4, 0)]
    for times, lag in (((9_000, 9_500), 500), ((9_900,), 100), ((10_100,), 0)):
        meter.received(due(*(t * MS for t in times)), 10.0)
        meter.sample()
        assert sink.take("lag_ns", table="tasks") == [(lag * MS,)]
    meter.lag_at = lambda now_ns: now_ns - 7_000 * MS
    meter.sample()
    assert sink.take("lag_ns") == [(3_000 * MS,)]


@pytest.mark.parametrize(
    ("source", "sink", "role"), [("s", None, "source"), (None, "s", "sink"), (None, None, "operator")]
)
def test_a_task_is_a_source_a_sink_or_an_operator(source: Any, sink: Any, role: str):
    """Its vertex says it."""
    assert meter_at(At(), Sink(), source=source, out=sink).role == role


def test_input_was_last_seen_by_the_sample_that_found_new_bytes():
    """A lost producer counts as silent from then on."""
    clock = At(5.0)
    meter = meter_at(clock, Sink())
    for now_s, read, seen in ((6.0, 0, 5.0), (7.0, 10, 7.0), (8.0, 0, 7.0), (9.0, 1, 9.0)):
        clock.now_s = now_s
        meter.bytes_in += read
        meter.sample()
        assert meter.input_at == seen


# ---- latencies


def latency_rows(sink: Sink) -> list[tuple[int, int, int, int]]:
    """The windows that were written: begin and width in ms, count, largest in ms."""
    rows = sink.take("window_start_ns", "window_ns", "count", "max_ns", table="latency")
    return [(start // MS, width // MS, count, most // MS) for start, width, count, most in rows]


def test_a_latency_window_is_written_when_a_record_comes_after_it():
    """Windows begin at multiples of their width; an empty batch belongs to none."""
    sink = Sink()
    meter, width = meter_at(At(), sink), LATENCY_WINDOW_NS // MS
    meter.received(due(), 10.2)
    meter.received(due(9_900 * MS, 9_990 * MS), 10.0)
    meter.received(due(10_100 * MS), 10.249)
    assert latency_rows(sink) == []
    meter.received(due(10_240 * MS), 10.25)
    assert latency_rows(sink) == [(10_000, width, 3, 149)]
    meter.flush_latency()
    assert latency_rows(sink) == [(10_250, width, 1, 10)]
    meter.flush_latency()
    assert latency_rows(sink) == []


def test_a_sample_writes_a_latency_window_that_has_passed():
    """Not one that may get more records."""
    clock, sink = At(10.0), Sink()
    meter = meter_at(clock, sink)
    meter.received(due(9_900 * MS), 10.0)
    for now_s, rows in ((10.2499, 0), (10.25, 1), (10.5, 0)):
        clock.now_s = now_s
        meter.sample()
        assert len(latency_rows(sink)) == rows


def test_latencies_of_markers_are_written_once_a_second_by_source():
    """A negative one (the clocks of two machines differ) is 0; a second without markers has no event."""
    clock, sink = At(10.0), Sink()
    meter = meter_at(clock, sink)
    meter.sample()
    for source, latency in (("a", 5), ("b", 7), ("a", -1)):
        meter.marked(source, latency)

    def events(now_s: float) -> list[Any]:
        clock.now_s = now_s
        meter.sample()
        return [json.loads(data) for (data,) in sink.take("data", table="events")]

    assert events(10.999) == []
    assert events(11.0) == [{"source": "a", "ns": [5, 0]}, {"source": "b", "ns": [7]}]
    assert events(12.0) == []
    meter.marked("a", 9)
    assert events(12.9) == []
    assert events(13.0) == [{"source": "a", "ns": [9]}]


def test_a_meter_that_is_closed_writes_what_it_has():
    """Its window, its markers, its last counters."""
    clock, sink = At(10.0), Sink()
    meter = meter_at(clock, sink)
    meter.received(due(9_900 * MS), 10.0)
    meter.marked("a", 5)
    meter.close()
    written = sink.rows[1]
    names = ("kind", "subject", "attempt", "checkpoint", "text")
    assert [written[name] for name in names] == ["latency.markers", "map-2", 3, -1, ""]
    assert [table for (table,) in sink.take("table")] == ["latency", "events", "tasks"]


# ---- service time


def spending(*steps: tuple[float, float]) -> list[float]:
    """Return what is spent at each step of (service time, seconds that the timer fires late), in ms."""
    clock, spent, late = At(), [0.0], [0.0]

    async def spend(seconds: float) -> None:
        spent[0] = seconds
        clock.now_s += seconds + late[0]

    async def main() -> list[float]:
        cpu: Any = SimpleNamespace(spend=spend)
        service, found = ServiceTime(cpu, clock), []
        for seconds, late[0] in steps:
            spent[0] = 0.0
            await service.spend(seconds)
            found.append(round(spent[0] * 1000, 6))
        return found

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("steps", "spent_ms"),
    [
        ([(0.0004, 0.0), (0.0004, 0.0), (0.0004, 0.0), (0.0004, 0.0)], [0, 0, 1.2, 0]),
        ([(0.001, 0.0)], [1]),
        ([(0.002, 0.003), (0.002, 0.0), (0.002, 0.0)], [2, 0, 1]),
        ([(0.002, 0.050), (0.010, 0.0), (0.001, 0.0)], [2, 0, 1]),
    ],
    ids=["small amounts add up", "a whole step", "oversleeping is paid", "10 ms of it at most"],
)
def test_service_time_is_spent_in_whole_milliseconds(steps: list[tuple[float, float]], spent_ms: list[float]):
    """Less than a millisecond is owed; a timer that fires late pays in advance."""
    assert spending(*steps) == spent_ms


# ---- samples of back-pressure

SAMPLED = {
    "web.backpressure.num-samples": "4",
    "web.backpressure.delay-between-samples": "50 ms",
    "web.backpressure.refresh-interval": "10 s",
}


class Sampled:
    """A sampler of named tasks, and the rounds that it has written with their times."""

    def __init__(self) -> None:
        self.meters: dict[int, TaskMeter] = {}
        self.rounds: list[tuple[float, str, int, int]] = []
        history: Any = SimpleNamespace(append=self._append)
        self.sampler = BackPressureSampler(self.meters.values, history, Options(SAMPLED))

    def enter(self, subtask: int, mode: int) -> None:
        """Let a task run in this mode from now on."""
        if subtask not in self.meters:
            self.meters[subtask] = meter_at(At(), Sink(), subtask=subtask)
        self.meters[subtask].enter(mode)

    def _append(self, table: str, **row: Any) -> None:
        assert (table, row["kind"], row["checkpoint"]) == ("events", "backpressure.sampled", -1)
        data, now_s = row["data"], asyncio.get_running_loop().time()
        self.rounds.append((round(now_s, 3), row["subject"], data["samples"], data["backpressured"]))


def rounds(*steps: Any) -> list[tuple[float, str, int, int]]:
    """The rounds of a sampler; each step is a function of the sampler, or seconds."""
    found: list[Any] = []

    async def main() -> None:
        sampled, begin = Sampled(), asyncio.get_running_loop().time()
        sampled.sampler.start()
        for step in steps:
            if callable(step):
                step(sampled)
            else:
                await asyncio.sleep(step)
        sampled.sampler.close()
        await asyncio.sleep(60.0)
        found.extend((round(at - begin, 3), *row) for at, *row in sampled.rounds)

    run_virtual(main())
    return found


def task(subtask: int, mode: int) -> Any:
    return lambda sampled: sampled.enter(subtask, mode)


def end(subtask: int) -> Any:
    return lambda sampled: sampled.meters.pop(subtask)


def test_a_round_of_samples_counts_in_how_many_a_task_was_backpressured():
    """The next round begins after the refresh interval; nothing is sampled after `close`."""
    steps = [task(0, BACKPRESSURED), task(1, IDLE), 0.12, task(0, BUSY)]
    first = [(0.2, "map-0", 4, 2), (0.2, "map-1", 4, 0)]
    assert rounds(*steps, 10.07) == first
    assert rounds(*steps, 10.09) == [*first, (10.2, "map-0", 4, 0), (10.2, "map-1", 4, 0)]


def test_a_task_that_starts_in_a_round_has_fewer_samples_and_one_that_ends_has_none():
    """As in Flink."""
    first, second = task(0, BACKPRESSURED), task(1, BACKPRESSURED)
    assert rounds(first, 0.12, second, 0.5) == [(0.2, "map-0", 4, 4), (0.2, "map-1", 2, 2)]
    assert rounds(first, second, 0.12, end(0), 0.5) == [(0.2, "map-1", 4, 4)]


def test_a_sampler_stops_when_no_task_runs_and_begins_a_new_round_when_it_is_started_again():
    """The samples of the broken round do not count; a second `start` of a running sampler changes nothing."""
    first, again = task(0, BACKPRESSURED), lambda sampled: sampled.sampler.start()
    assert rounds(first, 0.12, end(0), 1.0, task(0, IDLE), again, 0.3) == [(1.32, "map-0", 4, 0)]
    assert rounds(first, 0.12, again, 0.5) == [(0.2, "map-0", 4, 4)]
    assert rounds(5.0, first, 5.0) == []


# ---- waits for credit


def credit_waits(*samples: tuple[float, int, int]) -> tuple[list[tuple[Any, ...]], bool]:
    """The recorded waits after samples of (time, credit, backlog), and whether one is open."""
    clock, sink = At(), Sink()
    options = Options({"taskmanager.network.memory.buffers-per-channel": "3"})
    waits = CreditWaits(WaitLog(sink, "tm-0-1", clock.now), options)
    for clock.now_s, credit, backlog in samples:
        waits.sampled(("producer", "map-1", 2, "sink-0"), ChannelStats(credit, 0, 0, backlog, 0, 0, 0))
    open_ = waits.waiting
    columns = ("kind", "who", "what", "attempt", "start_ns", "t_ns", "option", "value")
    return sink.take(*columns), open_


OPTION = ("taskmanager.network.memory.buffers-per-channel", "3")


def test_a_channel_waits_for_credit_from_its_first_starved_sample_to_its_last():
    """Three samples in a row; the one that finds credit ends the wait, but is no part of it."""
    starved = [(1.0, 0, 4), (1.1, 0, 4), (1.25, 0, 5)]
    wait = ("credit", "map-1", "sink-0", 2, 1_000 * MS, 1_250 * MS, *OPTION)
    assert credit_waits(*starved) == ([], True)
    assert credit_waits(*starved, (1.5, 1, 5)) == ([wait], False)
    assert credit_waits(*starved, (1.5, 0, 0)) == ([wait], False), "nothing left to send"
    assert credit_waits(*starved[:2], (1.25, 1, 5)) == ([], False), "between two announcements"
    assert credit_waits((1.0, 1, 4), (1.1, 0, 0)) == ([], False)
    assert credit_waits(*starved, (1.5, 1, 5), *starved[:2], (2.0, 1, 0)) == ([wait], False), "counted anew"


def test_a_channel_that_is_not_sampled_any_more_waits_no_longer():
    """The others go on."""
    clock, sink = At(), Sink()
    waits = CreditWaits(WaitLog(sink, "tm-0-1", clock.now), Options({}))
    keys = [("producer", "map-1", 2, f"sink-{n}") for n in range(2)]
    for clock.now_s in (1.0, 2.0, 3.0):
        for key in keys:
            waits.sampled(key, ChannelStats(0, 0, 0, 1, 0, 0, 0))
    waits.end_others({keys[1]})
    assert (sink.take("what"), waits.waiting) == ([("sink-0",)], True)
    waits.end_others(())
    assert (sink.take("what"), waits.waiting) == ([("sink-1",)], False)
