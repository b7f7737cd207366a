"""Cases of PipelinedSubpartitionWithReadViewTest: what is notified, available and reported as backlog, element by element."""

from __future__ import annotations

import pytest
from exchange_model import barrier
from test_subpartition import DATA, NONE, Bench

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import AlignmentType, EndOfPartition, encode_event
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.memory import BufferBuilder

EVENT, BLOCKING = DataType.EVENT_BUFFER, DataType.ALIGNED_CHECKPOINT_BARRIER


class Reader(Bench):
    """A bench that checks the element that it reads against what the view says afterwards."""

    def read(self, size: int, *, more: DataType = NONE, backlog: int = 0) -> None:
        """Read an element of this size. `more` is the type of the next one that may be sent."""
        polled = self.view.poll()
        assert polled is not None
        assert (polled.buffer.size, polled.next_type, polled.backlog) == (size, more, backlog)
        assert self.view.availability(credit=True)[0] is (more is not NONE)
        assert self.view.availability(credit=False)[0] is more.is_event
        polled.buffer.recycle()

    def add(self, data_type: DataType, size: int = 8, *, last: bool = False) -> None:
        self.subpartition.add(BufferBuilder.of_event(b"e" * size, data_type), last=last)

    def block(self) -> None:
        self.add(BLOCKING)
        assert self.notified == 1
        self.read(8)


def test_F_71_an_empty_buffer_is_skipped_when_it_is_finished() -> None:
    """The next one notifies, although there is nothing to read."""
    reader = Reader()
    builder = reader.data(b"", finished=False)
    assert reader.notified == 0
    assert reader.view.poll() is None
    builder.finish()
    reader.data(b"", finished=False)
    assert (reader.subpartition.backlog, reader.notified) == (1, 1)
    assert reader.view.poll() is None
    assert reader.subpartition.backlog == 0


def test_F_72_a_buffer_that_still_grows_can_be_read_but_is_not_reported() -> None:
    """Alone, and behind a finished one."""
    reader = Reader()
    reader.data(b"x" * 4, finished=False)
    assert (reader.notified, reader.subpartition.backlog) == (0, 0)
    reader.read(4)
    reader = Reader()
    reader.data(b"x" * 5)
    reader.data(b"x" * 4, finished=False)
    assert (reader.notified, reader.subpartition.backlog) == (1, 1)
    reader.read(5)
    reader.read(4)
    assert reader.view.poll() is None


def test_F_88_a_buffer_that_still_grows_is_never_ahead_of_another() -> None:
    """It would be sent in pieces, with the other one's data after the first of them."""
    reader = Reader()
    reader.data(b"", finished=False)
    reader.data(b"", finished=False)
    with pytest.raises(FlinkError, match="an unfinished bufferConsumer can not be at the head"):
        reader.view.poll()


def test_F_73_a_flush_reports_the_buffer_that_still_grows() -> None:
    """It notifies only if that buffer is alone, and only once."""
    reader = Reader()
    reader.subpartition.flush()
    reader.data(b"x" * 5)
    reader.data(b"x" * 4, finished=False)
    reader.subpartition.flush()
    assert (reader.notified, reader.subpartition.backlog) == (1, 2)
    reader.read(5, more=DATA, backlog=1)
    reader.read(4)
    assert reader.view.poll() is None
    reader = Reader()
    reader.data(b"x" * 5)
    reader.data(b"x" * 4, finished=False)
    reader.read(5)
    for _ in range(2):
        reader.subpartition.flush()
        assert (reader.notified, reader.subpartition.backlog) == (2, 1)
    reader.read(4)
    assert reader.view.poll() is None


def test_F_74_several_empty_buffers_are_skipped_at_once() -> None:
    """The second one notifies, and none after it."""
    reader = Reader()
    notified = []
    for size in (0, 0, 0, 8):
        reader.data(b"x" * size)
        notified.append(reader.notified)
    assert notified == [0, 1, 1, 1]
    reader.read(8)


def test_F_75_data_alone_is_not_available_and_an_event_behind_it_makes_it_so() -> None:
    """A buffer, an event and a buffer: the event may be sent without credit once it is first."""
    reader = Reader()
    for _ in range(2):
        reader.data(b"x" * 8)
        assert not reader.view.availability(credit=False)[0]
        assert (reader.subpartition.backlog, reader.notified) == (0, 0)
        reader.read(8)
        assert reader.view.poll() is None
    reader.data(b"x" * 8)
    reader.add(EVENT)
    reader.data(b"x" * 8)
    assert not reader.view.availability(credit=False)[0]
    assert (reader.subpartition.backlog, reader.notified) == (1, 1)
    reader.read(8, more=EVENT)
    reader.read(8)
    reader.read(8)
    assert reader.view.poll() is None
    assert reader.notified == 1


def test_F_76_a_barrier_overtakes_data_and_events_and_notes_the_data() -> None:
    """Buffers of 1, 2 and 4 bytes with an event before the last: the barrier is read first."""
    reader = Reader()
    reader.data(b"x")
    reader.data(b"x" * 2)
    reader.add(EVENT)
    reader.data(b"x" * 4)
    assert reader.notified == 1
    overtaken = reader.subpartition.in_flight()
    reader.event(alignment=AlignmentType.UNALIGNED)
    assert reader.notified == 2
    assert [len(data) for data in overtaken] == [1, 2, 4]
    reader.read(len(encode_event(barrier(1, AlignmentType.UNALIGNED))), more=DATA, backlog=2)
    reader.read(1, more=DATA, backlog=1)
    reader.read(2, more=EVENT)
    reader.read(8)
    reader.read(4)
    assert reader.view.poll() is None


def test_F_77_data_behind_a_priority_event_notifies_once() -> None:
    """The first buffer does, the second does not."""
    reader = Reader()
    reader.event(alignment=AlignmentType.UNALIGNED)
    notified = reader.notified
    for size in (1, 2):
        reader.data(b"x" * size)
        assert reader.notified == notified + 1
    reader.read(len(encode_event(barrier(1, AlignmentType.UNALIGNED))), more=DATA, backlog=1)
    reader.read(1)
    reader.read(2)
    assert reader.view.poll() is None


@pytest.mark.parametrize(
    ("flushed", "finished"),
    [
        pytest.param(False, False, id="F-78"),
        pytest.param(True, False, id="F-79"),
        pytest.param(False, True, id="F-80"),
    ],
)
def test_F_78_to_F_80_the_backlog_is_the_number_of_buffers_that_can_be_read(
    flushed: bool, finished: bool
) -> None:
    """Five buffers, the last of which still grows unless the subpartition has ended."""
    reader = Reader()
    for number in range(5):
        reader.data(b"x" * 8, finished=number < 4 or finished)
    if flushed:
        reader.subpartition.flush()
    if finished:
        end = BufferBuilder.of_event(encode_event(EndOfPartition()), DataType.END_OF_PARTITION)
        reader.subpartition.add(end, last=True)
    backlog, readable = reader.subpartition.backlog, 0
    while reader.view.availability(credit=True)[0]:
        polled = reader.view.poll()
        assert polled is not None
        readable += polled.buffer.is_buffer
    assert readable == backlog


@pytest.mark.parametrize(
    ("added", "flushed", "available"),
    [
        pytest.param(["event"], False, True, id="F-81"),
        pytest.param(["data"], True, True, id="F-82"),
        pytest.param(["data"], False, False, id="F-83"),
        pytest.param(["data", "data"], False, True, id="F-84"),
        pytest.param([], False, False, id="F-85"),
    ],
)
def test_F_81_to_F_85_a_blocked_subpartition_is_available_when_its_reader_resumes(
    added: list[str], flushed: bool, available: bool
) -> None:
    """If something was complete or flushed meanwhile. Nothing notifies before that."""
    reader = Reader()
    reader.block()
    for what in added:
        if what == "event":
            reader.add(EVENT)
        else:
            reader.data(b"x" * 8)
    if flushed:
        reader.subpartition.flush()
    assert reader.notified == 1
    assert not reader.view.availability(credit=True)[0]
    assert reader.view.poll() is None
    reader.view.resume_consumption()
    assert reader.view.availability(credit="event" not in added)[0] is available
    for _ in added if available else ():
        reader.read(8)


def test_F_149_a_flush_of_nothing_notifies_no_reader() -> None:
    """Neither at first, nor when everything has been read."""
    reader = Reader()
    reader.subpartition.flush()
    assert reader.notified == 0
    reader.data(b"x" * 4)
    reader.subpartition.flush()
    assert reader.notified == 1
    reader.read(4)
    reader.subpartition.flush()
    assert reader.notified == 1
