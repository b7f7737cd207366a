"""The limits of the rules for samples of tasks: the smallest damage is found, and the largest value that is no damage is not."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.history.columns import has_one_clock
from testbed_runtime.history.contradictions.clocks import check_clocks
from testbed_runtime.history.contradictions.counters import check_counters_across
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS
from tests.checking.written import NS, Row, Written, checked, event, sample, state, texts, wait, wrote

MS = NS // 1000
BUCKETS = len(LATENCY_BOUNDS_NS) + 1


def found(*rows: Written, **entry: Any) -> list[str]:
    prefix = "tasks.parquet, column "
    return [text.removeprefix(prefix) for text in texts(check_counters_across(checked(wrote(*rows), entry)))]


def spending(*seconds: tuple[float, float, float], task: str = "a-0") -> list[Written]:
    """Samples at each whole second, with these times."""
    names = ("busy_ns", "backpressured_ns", "idle_ns")
    return [sample(task, t, **{n: round(s * NS) for n, s in zip(names, row, strict=True)}) for t, row in enumerate(seconds, 1)]  # fmt: skip


EVEN = [(0.5 * t, 0.25 * t, 0.25 * t) for t in range(1, 8)]


def off(number: int, by: float, part: int = 0) -> list[tuple[float, float, float]]:
    """Change one part of the time spent in the last samples."""
    rows = [list(row) for row in EVEN]
    for row in rows[len(rows) - number :]:
        row[part] += by
    return [(a, b, c) for a, b, c in rows]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (EVEN, []),
        (off(3, 0.1), []),
        (off(3, 0.101), ["busy_ns, row 6: makes a-0 spend 6.1 s in 6.0 s (busy, back-pressured and idle time together)"]),
        (off(3, -1.4), ["busy_ns, row 6: makes a-0 spend 4.6 s in 6.0 s (busy, back-pressured and idle time together)"]),
        (off(3, 2.5, 1), ["backpressured_ns, row 6: makes a-0 spend 8.5 s in 6.0 s (busy, back-pressured and idle time together)"]),
        (off(3, 2.5, 2), ["idle_ns, row 6: makes a-0 spend 8.5 s in 6.0 s (busy, back-pressured and idle time together)"]),
        (off(2, 2.5), []),
    ],
)  # fmt: skip
def test_the_time_that_a_task_spends_passes_as_fast_as_the_clock(seconds: list[Any], expected: list[str]):
    """To 0.1 s, and in all but two samples: a process may be paused while it takes one."""
    assert found(*spending(*seconds)) == expected
    other = spending(*EVEN[:5], task="0-0")
    assert found(*other, *spending(*seconds)) == [e.replace("row 6", "row 11") for e in expected]


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ((1, 2, 3, 4, 4, 5, 5), ""),  # two of seven
        ((1, 2, 3, 3, 4, 5, 5, 6, 6), ""),  # three of nine
        ((1, 2, 3, 3, 4, 5, 5, 5), "seq, row 3: is of a second sample of a-0 at one time, as many are"),
        ((1, 1, 1, 1, 1), ""),
        ((1, 2, 3, 3, 3, 3), "seq, row 3: is of a second sample of a-0 at one time, as many are"),
    ],
)
def test_samples_are_taken_at_different_times(moments: tuple[float, ...], expected: str):
    """But for a third of them, of at least six. The first sample of another task may be at the time of the last one."""
    rows = [sample("a-0", t, idle_ns=round(t * NS)) for t in moments]
    assert found(*rows) == ([expected] if expected else [])
    before = [sample("0-0", moments[0], idle_ns=NS), *rows]
    assert found(*before) == ([expected.replace("row 3", "row 4")] if expected else [])


def ended(following: Any, attempt: int = 0) -> Written:
    return event("source.end", "a-0", 5, attempt=attempt, process="tm-0-1", next=following)


def source(t: float, records_out: int, **more: Any) -> Written:
    row = {"role": "source", "records_out": records_out, "idle_ns": round(t * NS)}
    return sample("a-0", t, **row | more)


GENERATED = {"job": {"vertices": [{"name": "a", "parallelism": 1, "kind": "generated"}]}}
RESTORED = event("task.restored", "a-0", attempt=0, checkpoint=1)
EMITTED = "records_out, row {}: is {}, but a-0 emitted 100 records (source.end in events)"


@pytest.mark.parametrize(
    ("rows", "entry", "expected"),
    [
        ([source(1, 100), ended(100), source(6, 100)], GENERATED, ""),
        ([source(1, 101), ended(100)], GENERATED, EMITTED.format(0, 101)),
        ([source(1, 101), ended(100)], {}, EMITTED.format(0, 101)),
        ([source(1, 101), ended(100, attempt=1)], GENERATED, ""),
        ([source(1, 99), ended(100)], GENERATED, ""),
        ([source(1, 99), ended(100), source(6, 99)], GENERATED, EMITTED.format(1, 99)),
        ([source(1, 99), ended(100), source(6, 99)], {}, ""),
        ([source(1, 99), ended(100), source(6, 99), RESTORED], GENERATED, ""),
        ([source(1, 99), ended(100), source(6, 99), event("job.restored", "job", checkpoint=1, next={})], GENERATED, ""),
        ([source(1, 99), ended(100), source(6, 99, process="tm-1-1")], GENERATED, ""),
        ([source(1, 101), ended("100")], GENERATED, ""),
        ([source(1, 101), event("source.end", "b-0", attempt=0, next=1), ended(100)], GENERATED, EMITTED.format(0, 101)),
    ],
)  # fmt: skip
def test_a_source_ends_with_the_number_of_its_records(rows: list[Written], entry: Row, expected: str):
    """A later sample may have fewer only if its attempt began with a checkpoint, or reads from elsewhere."""
    assert found(*rows, **entry) == ([expected] if expected else [])


RATE = {"job": {"vertices": [{"name": "a", "parallelism": 2, "kind": "generated", "recordsPerSecond": 200}]}}
"""Each of two sources emits 100 records a second."""


def scheduled(wrong: dict[int, Row]) -> list[Written]:
    """Samples of each second, of which some have other values. The last one came after the last record."""
    rows = [source(t, **{"records_out": 100 * min(t, 9)} | wrong.get(t, {})) for t in range(11)]
    return [*rows, *(sample("b-0", t, records_out=5 * t * t, idle_ns=t * NS) for t in range(11))]


OFF = "records_out, row {}: is {}, which a-0 cannot have emitted by then at 100 records/s (lag_ns, and recordsPerSecond in the manifest)"
"""A second, two records, and 5 % of the time since the first sample may pass: 1.16 s at second 4."""


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({}, ""),
        ({4: {"lag_ns": 1165 * MS}, 5: {"lag_ns": 1220 * MS}, 6: {"lag_ns": 1270 * MS}}, OFF.format(4, 400)),
        ({4: {"lag_ns": 1150 * MS}, 5: {"lag_ns": 1200 * MS}, 6: {"lag_ns": 1250 * MS}}, ""),
        ({4: {"lag_ns": 5 * NS}, 5: {"lag_ns": 5 * NS}}, ""),
        ({0: {"lag_ns": -5 * NS}, 1: {"lag_ns": -5 * NS}, 2: {"lag_ns": -5 * NS}}, OFF.format(0, 0)),
        ({4: {"lag_ns": 5 * NS}, 5: {"lag_ns": 5 * NS}, 7: {"lag_ns": 5 * NS}}, ""),
        ({4: {"lag_ns": -5 * NS}, 5: {"lag_ns": -5 * NS}, 6: {"lag_ns": -5 * NS}}, OFF.format(4, 400)),
        ({5: {"records_out": 800}, 6: {"records_out": 850}, 7: {"records_out": 860}}, OFF.format(5, 800)),
    ],
)
def test_a_source_follows_its_schedule(wrong: dict[int, Row], expected: str):
    """Three samples in a row are off, by more than may be deferred. What its operators emit has no schedule."""
    rows = scheduled(wrong)
    assert found(*rows, **RATE) == ([expected] if expected else [])
    vertex = RATE["job"]["vertices"][0]
    for none in ({"kind": "file"}, {"recordsPerSecond": 0}, {"recordsPerSecond": None}, {"name": "c"}):
        assert found(*rows, job={"vertices": [vertex | none]}) == []
    second = {"job": {"vertices": [{"name": "0", "kind": "map"}, vertex]}}
    assert found(*rows, **second) == ([expected] if expected else [])
    assert found(*rows, event("input-split", "a-0", split=1), **RATE) == []
    for value, known in (("1 s", True), ("1001 ms", False), ("0 ms", True)):
        configuration = {"execution.buffer-timeout.interval": value}
        assert found(*rows, configuration=configuration, **RATE) == ([expected] if expected and known else [])
    assert found(*rows, configuration={"execution.buffer-timeout.enabled": "false"}, **RATE) == []


def test_each_source_has_a_schedule_of_its_own():
    """Another subtask began five seconds later; a slow one emits a record every two seconds."""
    later = [("tasks", row | {"task": "a-1", "t": row["t"] + 5}) for _, row in scheduled({})[:11]]
    assert found(*scheduled({}), *later, **RATE) == []
    slow = {"job": {"vertices": [RATE["job"]["vertices"][0] | {"recordsPerSecond": 1}]}}
    rows = [source(10 * t, 5 * t, lag_ns=60 * NS if t in (3, 4, 5) else 0) for t in range(11)]
    assert found(*rows, **slow) == [OFF.format(3, 15).replace("100 records/s", "0.5 records/s")]


def test_two_samples_of_a_source_are_no_schedule():
    """Three are, of those before its last record."""
    few = [source(0, 0), source(1, 100), source(2, 900), source(3, 950)]
    assert found(*few[:3], **RATE) == []
    wrong = [source(0, 0), source(10, 900, lag_ns=9 * NS), source(20, 950, lag_ns=19 * NS), source(30, 960)]
    assert found(*wrong, **RATE) == []


def window(start: float, counts: dict[int, int], t: float | None = None, **more: Any) -> Written:
    buckets = [counts.get(number, 0) for number in range(BUCKETS)]
    most = LATENCY_BOUNDS_NS[max(counts)] if counts else 0
    row = {
        "task": "b-0",
        "count": sum(counts.values()),
        "buckets": buckets,
        "max_ns": most,
        "window_ns": NS // 4,
    }
    return "latency", row | {"window_start": start, "t": start + 0.25 if t is None else t} | more


def sink(t: float, received: int, lag_ns: int = LATENCY_BOUNDS_NS[40], **more: Any) -> Written:
    row = sample("b-0", t, role="sink", records_in=received, lag_ns=lag_ns, idle_ns=round(t * NS))[1]
    return "tasks", row | more


B = LATENCY_BOUNDS_NS
TEN = {40: 10}
RECEIVING: list[Written] = [
    sink(0.2, 0), window(0.25, TEN), sink(0.6, 10), window(0.5, TEN), sink(0.9, 20), window(0.75, TEN), sink(1.2, 30),
]  # fmt: skip


def receiving(changes: dict[int, Row | None], *more: Written) -> list[str]:
    rows = [
        (t, r | (changes.get(n) or {}))
        for n, (t, r) in enumerate(RECEIVING)
        if changes.get(n, {}) is not None
    ]
    return found(*rows, *more)


MEASURED = "records_in, row {}: is {}, but b-0 measured {} latencies (count in latency)"


@pytest.mark.parametrize(
    ("changes", "more", "expected"),
    [
        ({}, [], []),
        ({4: {"records_in": 19}}, [], [MEASURED.format(2, 19, 20)]),
        ({4: {"records_in": 21}}, [], []),
        ({4: {"records_in": 40}, 6: {"records_in": 99}}, [], []),
        ({2: {"records_in": 31}, 4: {"records_in": 40}, 6: {"records_in": 50}}, [], []),
        ({2: {"records_in": 31}, 4: {"records_in": 40}, 6: {"records_in": 50}}, [sink(1.4, 50)], []),
        ({2: {"records_in": 31}, 4: {"records_in": 40}, 6: {"records_in": 50}}, [sink(1.4, 50), sink(1.6, 50)], [MEASURED.format(1, 31, 30)]),
        ({2: {"records_in": 30}, 4: {"records_in": 40}, 6: {"records_in": 50}}, [sink(1.4, 50), sink(1.6, 50)], []),
        ({0: {"records_in": 31}, 2: {"records_in": 35}, 4: {"records_in": 40}, 6: {"records_in": 50}}, [sink(1.4, 50)], [MEASURED.format(0, 31, 30)]),
        ({2: {"records_in": 31}, 4: {"records_in": 40}, 6: {"records_in": 50}}, [sink(1.4, 50), window(1.0, {40: 1}), sink(1.6, 50)], []),
        ({0: {"records_in": 31}, 2: {"records_in": 31}, 4: {"records_in": 40}, 6: None}, [], []),
        ({4: {"records_in": 19, "attempt": 1}, 6: {"attempt": 1}}, [], []),
    ],
)  # fmt: skip
def test_a_sink_measures_the_latency_of_each_record(
    changes: dict[int, Any], more: list[Written], expected: list[str]
):
    """The last two windows may not be written yet, nor the records of the last batch."""
    assert receiving(changes, *more) == expected
    assert found(*[r for r in RECEIVING if r[0] == "tasks"]) == []
    others = [(t, r | {"task": name}) for name in ("c-0", "d-0") for t, r in RECEIVING[:5]]
    assert receiving(changes, *more, *others) == expected


LATE = "lag_ns, row {}: is {:g} s, but the records of b-0 were {:g} to {:g} s late (buckets and max_ns in latency)"
LEAST = B[39] + 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({2: {"lag_ns": LEAST}}, []),
        ({2: {"lag_ns": LEAST - 1}}, [LATE.format(1, (LEAST - 1) / NS, LEAST / NS, B[40] / NS)]),
        ({2: {"lag_ns": B[40]}}, []),
        ({2: {"lag_ns": B[40] + 1}}, [LATE.format(1, (B[40] + 1) / NS, LEAST / NS, B[40] / NS)]),
        ({0: None, 2: {"lag_ns": B[60]}}, [LATE.format(0, B[60] / NS, LEAST / NS, B[40] / NS)]),
        ({6: None, 4: {"lag_ns": B[60]}}, [LATE.format(2, B[60] / NS, LEAST / NS, B[40] / NS)]),
        ({0: {"lag_ns": B[60]}, 6: {"lag_ns": B[60]}}, []),  # no window before, none after
        ({1: {**window(0.25, {38: 10})[1]}, 2: {"lag_ns": B[37] + 1}}, []),
        ({1: {**window(0.25, {38: 5, 42: 5})[1]}, 2: {"lag_ns": B[37]}}, [LATE.format(1, B[37] / NS, (B[37] + 1) / NS, B[42] / NS)]),
        ({1: {**window(0.25, {0: 10})[1]}, 2: {"lag_ns": 0}}, []),
        ({1: {**window(0.25, {42: 10})[1]}, 2: {"lag_ns": B[42]}}, []),
        ({1: {**window(0.25, {0: 10}, max_ns=-7)[1]}, 2: {"lag_ns": -1}}, [LATE.format(1, -1e-9, 0, B[40] / NS)]),
        ({1: {"attempt": 1}, 2: {"lag_ns": B[60]}}, []),
        ({3: {"attempt": 1}, 5: {"attempt": 1}, 2: {"lag_ns": B[60]}}, []),
    ],
)  # fmt: skip
def test_the_lag_of_a_sink_is_among_the_latencies_of_the_windows_around_it(
    changes: dict[int, Any], expected: list[str]
):
    """Before its first window and after its last one, nothing is known. A latency below 0 counts as 0."""
    assert receiving(changes) == expected


WINDOW = "latency.parquet, column window_start_ns, row {}: is the start of a window that ended {} s before the window before it was written"


@pytest.mark.parametrize(
    ("start", "expected"),
    [(-0.5, []), (-0.501, [WINDOW.format(2, "1.0")]), (-2.5, [WINDOW.format(2, "3.0")]), (0.5, [])],
)
def test_a_window_had_not_ended_when_the_one_before_was_written(start: float, expected: list[str]):
    """To a second: the one before was written at 0.75 s, and windows take 0.25 s."""
    assert [t for t in receiving({5: {"window_start": start}}) if "the start" in t] == expected
    earlier = receiving({3: {"window_start": start - 0.25}})  # the one before it was written at 0.5 s
    assert [t for t in earlier if "the start" in t] == [t.replace("row 2", "row 1") for t in expected]
    other = {n: {"attempt": 1} for n in (1, 3)}
    assert not [t for t in receiving({**other, 5: {"window_start": start}}) if "the start" in t]


GONE = "latency.parquet, column window_start_ns, row 2: is of a window that had ended {} s before b-0 was sampled, but that was written later"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({5: {"window_start": 0.35}}, []),
        ({5: {"window_start": 0.25}}, [GONE.format("0.1")]),
        ({5: {"window_start": 0.05}}, [GONE.format("0.3")]),
        ({2: None, 5: {"window_start": 0.05}}, []),
        ({2: {"attempt": 1}, 5: {"window_start": 0.05}}, []),
        ({4: {"attempt": 1}, 5: {"window_start": 0.05}}, []),
    ],
)
def test_a_window_is_written_by_the_second_sample_after_its_end(
    changes: dict[int, Row | None], expected: list[str]
):
    """The samples before the last window were taken at 0.2, 0.6 and 0.9 s. Another attempt has windows of its own."""
    assert [t for t in receiving(changes) if "was written later" in t] == expected


def test_a_sink_that_finished_has_measured_every_record():
    """Its last window is written before its last sample, and the process wrote rows after that."""
    ended = [state("b-0", "RUNNING", "FINISHED", 2), event("note", process="tm-0-1")]
    more = {6: {"records_in": 31}}
    assert receiving(more) == receiving(more, ended[0]) == receiving(more, ended[1]) == []
    assert receiving(more, *ended) == [MEASURED.format(3, 31, 30)]
    assert receiving({}, *ended) == []
    assert receiving(more | {0: None, 2: None, 4: None}, *ended) != []


def first(latency_ns: Any, attempt: int = 0) -> Written:
    return event("sink.first-record", "b-0", attempt=attempt, process="tm-0-1", latency_ns=latency_ns)


def test_a_first_record_is_not_later_than_every_record_of_its_window():
    """To 10 ms."""
    rows = [*RECEIVING, window(1.0, {50: 1})]
    assert found(*rows, sink(1.3, 31, B[50]), first(B[40] + 10 * MS)) == []
    late = B[40] + 10 * MS + 1
    problem = f"of sink.first-record has a latency of {late / NS:g} s, the window with it at most {B[40] / NS:g} s (latency)"
    assert found(*rows, sink(1.3, 31, B[50]), first(late)) == [
        f"events.parquet, column data, row 0: {problem}"
    ]
    assert found(*RECEIVING, first(late, attempt=1)) == []
    assert found(*RECEIVING, first("9")) == []
    early = [("latency", RECEIVING[1][1] | {"max_ns": -5, "buckets": [10], "count": 10}), *RECEIVING[3:4]]
    assert any("at most 0 s" in text for text in found(sink(0, 0), *early, first(10 * MS + 1)))


# ---- times of one clock


def one_clock(*rows: Written) -> list[str]:
    return texts(check_clocks(checked(wrote(*rows))))


@pytest.mark.parametrize(
    ("samples", "most", "lag", "is_damaged"),
    [(20, 10 * MS, 0, True), (19, 10 * MS, 0, False), (20, 10 * MS - 1, 0, False), (20, 10 * MS, 1, False)],
)
def test_a_sink_whose_records_were_late_has_a_lag(samples: int, most: int, lag: int, is_damaged: bool):
    """In 20 samples, and if half of its windows have a record that was 10 ms late."""
    rows = [sink(0, 0, 0), *(sink(t / 10, 1, 0) for t in range(samples - 1)), sink(9, 1, lag)]
    windows = [window(0, TEN, max_ns=most) for _ in range(3)] + [window(0, TEN, max_ns=0) for _ in range(2)]
    problem = "tasks.parquet, column lag_ns, row 1: is 0 in every sample of b-0, whose records were 0.010 s late (max_ns in latency)"
    assert one_clock(*rows, *windows) == ([problem] if is_damaged else [])
    operators = [("tasks", row | {"role": "operator"}) for _, row in rows]
    assert one_clock(*operators, *windows) == []
    assert one_clock(*rows, *windows, window(0, TEN, task="a-0")) == ([problem] if is_damaged else [])
    assert one_clock(*rows) == []


def ended_at(t: float, name: str = "tm-0") -> Written:
    return event("process.exit", name, t, process="runner", incarnation=1, signal="SIGKILL")


@pytest.mark.parametrize(("t", "is_damaged"), [(5.05, False), (5.051, True), (7, True)])
def test_a_process_writes_nothing_after_it_ended(t: float, is_damaged: bool):
    """Its last sample may be 0.05 s later. A wait has the time at which it ended."""
    problem = (
        f"tasks.parquet, column t_ns, row 1: is {t - 5:.1f} s after tm-0-1 ended (process.exit in events)"
    )
    assert one_clock(sample("a-0", 1), sample("a-0", t), ended_at(5)) == ([problem] if is_damaged else [])
    assert one_clock(sample("a-0", t), ended_at(5, "tm-1")) == []
    assert one_clock(wait("slot", t=t, process="tm-0-1"), ended_at(5)) == []
    assert one_clock(sample("a-0", t), event("process.exit", "tm-0-1", 5)) == [p.replace("row 1", "row 0") for p in ([problem] if is_damaged else [])]  # fmt: skip


STARTED = event("failover.started", "2", 3)


@pytest.mark.parametrize(
    ("row", "early"),
    [
        (wait("restore", "a-0", start=1, attempt=0), ""),
        (wait("restore", "a-0", start=0.999, attempt=0), "restore wait is 1.0 s before attempt 0 of a-0 began"),
        (wait("restore", "a-0", start=0.999, attempt=1), ""),
        (wait("restore", "a-0", start=0, attempt=0), "restore wait is 2.0 s before attempt 0 of a-0 began"),
        (wait("deployment", what="a-0", start=0.5, attempt=0), "deployment wait is 1.5 s before attempt 0 of a-0 began"),
        (wait("deployment", what="a-1", start=0.5, attempt=0), ""),
        (wait("restart-delay", start=2, attempt=2), ""),
        (wait("restart-delay", start=1.5, attempt=2), "restart-delay wait is 1.5 s before attempt 2 of JobMaster began"),
        (wait("cancellation", start=1.5, attempt=2), "cancellation wait is 1.5 s before attempt 2 of JobMaster began"),
        (wait("slot", start=1.5, attempt=2), ""),
        (wait("restart-delay", start=1.5, attempt=3), ""),
        (wait("restart-delay", start=1.5, attempt=2, outcome="open"), "restart-delay wait is 1.5 s before attempt 2 of JobMaster began"),
    ],
)  # fmt: skip
def test_a_wait_of_an_attempt_begins_when_that_is_scheduled(row: Written, early: str):
    """To a second. The first scheduling and the first start of a restart count; the JobMaster's other waits may begin earlier."""
    states = [
        state("a-0", "CREATED", "SCHEDULED", 2),
        state("a-0", "CREATED", "SCHEDULED", 9),
        state("a-1", "SCHEDULED", "DEPLOYING", 9),
    ]
    rows = [
        wait("slot", start=0),
        row,
        *states,
        STARTED,
        event("failover.started", "2", 9),
        event("failover.started", "x", 9),
    ]
    assert one_clock(*rows) == ([f"waits.parquet, column start_ns, row 1: of this {early}"] if early else [])


def test_rows_of_one_boot_id_share_a_clock():
    """The rows of all tables count. A trial without rows has none."""
    assert has_one_clock(wrote(sample("a-0"), event("note")))
    assert not has_one_clock(wrote(sample("a-0"), ("events", event("note")[1] | {"boot_id": "c"})))
    assert not has_one_clock(wrote())


def test_a_trial_without_samples_has_no_counters():
    """Nothing ran."""
    assert check_counters_across(checked(wrote(event("note")), {})) == []
