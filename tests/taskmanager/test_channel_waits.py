"""The waits of a task's channels for partitions, and for a producer that is gone: which rows they make."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.waits import Limit
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.taskmanager.channel_waits import MAX_LOOK, ChannelWaits
from tests.core.exchange_model import Consumer
from tests.taskmanager.rows import NamedRows

S = 1_000_000_000
LIMITS = (Limit("local", "", 1.0), Limit("remote", "", 2.0))
NOT_FOUND = FlinkError("PartitionNotFoundException", "partition not found")


class _Channel(SimpleNamespace):
    """A channel that may be a key."""

    __hash__ = object.__hash__


class Channels(NamedRows):
    """The waits of a task with channels to `map-0`, `map-1`, …; every answer is set by hand."""

    def __init__(self, count: int = 1, *, waits_at_producer: bool = True) -> None:
        self.now_s = 10.0
        self.rows: list[tuple[Any, ...]] = []
        self.options: list[str] = []
        self.causes: list[str] = []
        self.waits = ChannelWaits(WaitLog(self, "tm-0-1", lambda: self.now_s), "sink-0", 2, LIMITS)
        self.channels: list[Any] = [
            _Channel(
                requests=1,
                answered=False,
                error=None,
                partition=SimpleNamespace(producer=SimpleNamespace(subtask=number)),
                backoff=SimpleNamespace(waits_at_producer=waits_at_producer),
            )
            for number in range(count)
        ]
        gate: Any = SimpleNamespace(channels=self.channels)
        descriptor: Any = SimpleNamespace(source_vertex="map")
        self.waits.start([(gate, descriptor)])

    def append(self, table: str, **row: Any) -> None:
        assert (table, row["who"], row["attempt"]) == ("waits", "sink-0", 2)
        times = row["start_ns"] / S, row["t_ns"] / S
        self.rows.append((row["kind"], row["what"], row["outcome"], *times))
        self.options.append(row["option"])
        self.causes.append(row["cause"])

    def answer(self, *numbers: int, at: float, since: float | None = None) -> list[tuple[Any, ...]]:
        """The producers of these channels answer, and the task looks at this time. Return the new rows."""
        for number in numbers:
            self.channels[number].answered = True
        self.now_s = at
        self.waits.note_answers(at if since is None else since)
        return self.taken()

    def request_again(self, number: int, at: float) -> None:
        self.now_s = at
        self.channels[number].requests += 1
        self.waits.requested(self.channels[number])

    def taken(self) -> list[tuple[Any, ...]]:
        found, self.rows = self.rows, []
        return found


def completed(number: int, end_s: float) -> tuple[Any, ...]:
    return ("partition", f"map-{number}", "completed", 10.0, end_s)


def test_channels_that_were_answered_at_once_are_covered_by_the_last_one():
    """One row for all that needed one request; it ends when the task saw the answer."""
    made = Channels(3)
    assert made.answer(at=11.0) == []
    assert made.answer(1, at=12.0) == []
    assert made.answer(0, 2, at=13.0) == [completed(2, 13.0)]
    assert made.answer(at=14.0) == []


def test_a_channel_that_needed_several_requests_has_a_row_of_its_own():
    """The last one to answer too."""
    made = Channels(3)
    made.waits.requested(made.channels[0])
    made.request_again(1, 11.0)
    assert made.answer(0, 1, at=12.0) == [completed(1, 12.0)]
    assert made.answer(2, at=13.0) == [completed(2, 13.0)]


def test_a_wait_ends_before_the_task_worked_on_other_things():
    """But not before it began."""
    assert Channels().answer(0, at=15.0, since=12.0) == [completed(0, 12.0)]
    assert Channels().answer(0, at=15.0, since=9.0) == [completed(0, 10.0)]


def test_a_producer_that_refuses_at_once_was_found_with_the_last_request():
    """The first data may come later. So it was before Flink 1.19."""
    made = Channels(2, waits_at_producer=False)
    made.request_again(0, 12.0)
    assert made.answer(0, at=15.0) == [completed(0, 12.0)]
    assert made.answer(1, at=16.0) == [completed(1, 10.0)]


def test_the_answers_of_many_channels_are_found_a_part_at_a_time():
    """This runs in the task's loop; the last part is looked at first."""
    made = Channels(2 * MAX_LOOK)
    first, last = range(MAX_LOOK), range(MAX_LOOK, 2 * MAX_LOOK)
    assert made.answer(*first, at=11.0) == []
    assert made.answer(*last, at=12.0) == []
    assert made.answer(at=13.0) == [completed(MAX_LOOK - 1, 13.0)]


def test_an_attempt_has_a_limited_number_of_rows():
    """A large job may lose all its producers."""
    made = Channels(32)
    for channel in made.channels:
        channel.error = NOT_FOUND
    made.waits.end(None, 0.0)
    assert len(made.taken()) == 16


def test_the_limit_of_a_wait_is_that_of_its_kind_of_channel():
    """A local channel is asked for again by other options than a remote one."""
    made, consumer = Channels(), Consumer()
    made.answer(0, at=11.0)
    assert made.options == ["local"]
    gate: Any = consumer.gate
    made.waits.start([(gate, SimpleNamespace(source_vertex="map"))])  # type: ignore[list-item] - only its name is asked
    made.waits.end(FlinkError("Exception", "cancelled"), 0.0)
    assert made.options == ["local", "remote"]


def test_a_task_that_ends_has_a_row_for_each_failed_channel_and_one_for_the_others():
    """A partition that was not found has spent its budget; one that is waited for is cancelled, by what ended the task."""
    made = Channels(4)
    made.channels[0].error = NOT_FOUND
    made.channels[2].error = FlinkError("IOException", "the connection is gone")
    made.now_s = 12.0
    made.waits.end(FlinkError("Exception", "another task failed"), 11.0)
    assert made.taken() == [
        ("partition", "map-0", "expired", 10.0, 12.0),
        ("partition", "map-2", "failed", 10.0, 12.0),
        ("partition", "map-3", "cancelled", 10.0, 12.0),
    ]
    assert made.causes == ["partition not found", "the connection is gone", "another task failed"]
    made.waits.end(None, 11.0)
    assert made.taken() == [], "once"


def test_a_task_that_ends_without_a_failure_has_no_cause():
    """It was cancelled."""
    made = Channels()
    made.waits.end(None, 0.0)
    assert (made.taken(), made.causes) == ([("partition", "map-0", "cancelled", 10.0, 10.0)], [""])


@pytest.mark.parametrize(("input_at", "since"), [(11.5, 11.5), (9.0, 10.0)], ids=["input", "no input"])
def test_a_lost_producer_was_silent_since_its_last_input(input_at: float, since: float):
    """Or since the requests began."""
    made = Channels()
    made.answer(0, at=11.0)
    made.taken()
    made.now_s = 13.0
    made.waits.end(FlinkError("IOException", "reset", lost_taskmanager="tm-1-1"), input_at)
    assert made.taken() == [("connection", "tm-1-1", "completed", since, 13.0)]
    assert made.causes[-1] == "reset"
