"""Damaged samples of frames: each belongs to a channel of the TaskManager that receives its data, and follows the one before it."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.core.faults.links import channel_id
from testbed_runtime.history.contradictions.frames import COUNTED_CHANNELS, TAPPED_MIN, check_frames
from tests.checking.recorded import recorded
from tests.checking.written import Row, Written, checked, edited, texts, wrote

ONE, TWO = (channel_id(1, bytes([n]) * 12).hex() for n in (1, 2))
"""Two channels of tm-1, which receives their buffers from tm-0."""
FOREIGN = "ff" * 16


def frame(kind: str, number: int, *, side: str = "sent", channel: str = ONE, **more: Any) -> Written:
    """A frame of the channel, tapped at tm-0, which sends the buffers."""
    back = kind in ("credit", "request")
    link = "tm-1->tm-0" if back else "tm-0->tm-1"
    row = {
        "frame_class": kind,
        "number": number,
        "side": "received" if back else side,
        "channel": channel,
        "link": link,
    }
    return "frames", row | more  # fmt: skip


HEALTHY = [
    frame("request", 0),
    frame("buffer", 0, size=100),
    frame("event", 1, size=24),
    frame("credit", 0),
    frame("credit", 1),
    frame("buffer", 5, size=90),  # 5: some in between were not sampled
    frame("buffer", 0, channel=TWO, size=1),
    frame("barrier", 6, size=24),
    frame("backlog", 0),
    frame("backlog", 1),
    frame("other", 0, channel=""),
    frame("buffer", 0, process="tm-1-1", side="received", size=100),
    frame("buffer", 1, channel=FOREIGN, size=0),
    frame("credit", 4),
]


def found(changes: dict[int, Any]) -> list[str]:
    return [
        t.removeprefix("frames.parquet, column ")
        for t in texts(check_frames(checked(edited(HEALTHY, changes), one_clock=True)))
    ]


def fell(row: int, number: int, before: int, kind: str, process: str = "tm-0-1") -> str:
    return f"number, row {row}: is {number}, but {process} had recorded {before} of this channel before this {kind} frame"


def of_another(row: int, kind: str, link: str) -> str:
    return (
        f"frame_class, row {row}: is {kind!r} on {link}, but the channel is one of tm-1, which sends credit and requests "
        "and receives the others (channel)"
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        # sequence numbers go on over the classes of buffers
        ({5: {"number": 2}}, []),
        ({5: {"number": 1}}, [fell(5, 1, 1, "buffer")]),
        ({5: {"number": 7}}, [fell(7, 6, 7, "barrier")]),
        ({2: {"number": 0}}, [fell(2, 0, 0, "event")]),
        ({4: {"number": 0}}, [fell(4, 0, 0, "credit")]),
        ({9: {"number": 0}}, [fell(9, 0, 0, "backlog")]),
        ({13: {"number": 1}}, [fell(13, 1, 1, "credit")]),
        ({5: {"number": 1, "channel": FOREIGN}}, [fell(12, 1, 1, "buffer")]),
        # a class that goes the other way
        ({1: {"frame_class": "credit", "size": 0}}, [of_another(1, "credit", "tm-0->tm-1")]),
        ({3: {"frame_class": "buffer"}}, [of_another(3, "buffer", "tm-1->tm-0")]),
        ({8: {"frame_class": "request"}}, [of_another(8, "request", "tm-0->tm-1")]),
        ({0: {"link": "tm-2->tm-0"}}, [of_another(0, "request", "tm-2->tm-0")]),
        # a class with a size, or without one
        ({9: {"size": 90}}, ["size, row 9: is 90, but a frame of the class backlog carries no buffer"]),
        ({10: {"size": 1}}, ["size, row 10: is 1, but a frame of the class other carries no buffer"]),
        # what is no channel
        ({5: {"channel": ONE[:-1]}}, [f"channel, row 5: is {ONE[:-1]!r}, which is not the id of a channel"]),
        ({5: {"channel": ONE[:-2]}}, [f"channel, row 5: is {ONE[:-2]!r}, which is not the id of a channel"]),
        ({12: {"channel": FOREIGN.upper()}}, [f"channel, row 12: is {FOREIGN.upper()!r}, which is not the id of a channel"]),
        ({5: {"channel": ""}}, ["channel, row 5: is '', which is not the id of a channel"]),
        ({5: {"channel": "x" * 99}}, [f"channel, row 5: is {'x' * 60!r}, which is not the id of a channel"]),
    ],
)  # fmt: skip
def test_a_frame_belongs_to_its_channel_and_follows_the_one_before_it(
    changes: dict[int, Any], expected: list[str]
):
    """The frames of other processes, sides and channels are counted by themselves."""
    assert found(changes) == expected


@pytest.mark.parametrize(("number", "is_damaged"), [(COUNTED_CHANNELS, True), (COUNTED_CHANNELS + 1, False)])
def test_a_process_with_many_channels_may_count_the_frames_of_one_anew(number: int, is_damaged: bool):
    """Sequence numbers are of the channel itself, and go on."""
    ids = [channel_id(1, n.to_bytes(12, "big")).hex() for n in range(number)]
    first = [frame("backlog", 3, channel=one) for one in ids]
    again = texts(check_frames(checked(wrote(*first, frame("backlog", 3, channel=ids[0])), one_clock=True)))
    assert bool(again) == is_damaged
    buffers = [*first, *(frame("buffer", 3, channel=ids[0], size=1) for _ in range(2))]
    assert len(texts(check_frames(checked(wrote(*buffers), one_clock=True)))) == 1


def test_frames_of_a_trial_that_was_read_in_parts_are_not_judged():
    """Nor are there any in a job on one TaskManager."""
    trial = edited(HEALTHY, {5: {"number": 0}})
    parts = {**trial.tables, "frames": trial.table("frames").drop_columns(["channel"])}
    assert check_frames(checked(type(trial)(trial.run, trial.trial, parts), one_clock=True)) == []
    assert check_frames(checked(wrote(), one_clock=True)) == []


def test_the_channels_of_a_recorded_history_name_their_consumers():
    """Otherwise no frame would be compared with its link."""
    frames: list[Row] = recorded().trial.table("frames").to_pylist()
    assert {r["channel"][:4] for r in frames if r["frame_class"] == "buffer"} == {"4847"}
    assert check_frames(checked(recorded().trial, one_clock=True)) == []


@pytest.mark.parametrize(
    ("received", "one_clock", "is_damaged"),
    [(1.0, True, False), (0.96, True, False), (0.94, True, True), (0.94, False, False)],
)
def test_a_frame_is_received_after_it_was_sent(received: float, one_clock: bool, is_damaged: bool):
    """A little earlier is the exactness of the clock. On several clocks, the times are not compared."""
    sent = [frame("buffer", 0, t=t) for t in (1.0, 1.5)]
    trial = wrote(*sent, frame("buffer", 0, process="tm-1-1", side="received", t=received))
    problem = (
        "frames.parquet, column t_ns, row 2: is 0.060 s before the frame was sent on tm-0->tm-1: the clock of tm-1-1, or that of the "
        "sender, is not comparable"
    )
    found = [t for t in texts(check_frames(checked(trial, one_clock=one_clock))) if "column t_ns" in t]
    assert found == ([problem] if is_damaged else [])


@pytest.mark.parametrize(("more", "is_damaged"), [(0, True), (-1, False)])
def test_frames_are_recorded_at_both_ends(more: int, is_damaged: bool):
    """A few frames may all be lost on their way."""
    rows = [frame("buffer", n) for n in range(TAPPED_MIN + more)]
    problem = "frames.parquet, column side: is 'sent' in all 1000 rows: no frame was received"
    assert texts(check_frames(checked(wrote(*rows), one_clock=True))) == ([problem] if is_damaged else [])
