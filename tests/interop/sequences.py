"""Random sequences of commands, run on Flink's own class and on Headgate's: what can be seen after each command must be equal.

The drivers on Flink's side are `java/*Sequence.java`. A sequence begins with `new …`, and a line of text answers each command.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from typing import Protocol

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import (
    NO_TIMEOUT_MS,
    AlignmentType,
    CheckpointBarrier,
    EndOfPartition,
    Event,
    data_type_of,
    encode_event,
)
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.memory import Buffer, BufferBuilder, MemorySegment
from testbed_runtime.core.exchange.subpartition import PipelinedSubpartition
from tests.interop.flink import LIMIT_S, Flink

SEGMENT_BYTES = 8
BARRIER_TIMEOUT_MS = 10
SHOWN = 3
SEQUENCE_LIMIT_S = 0.01
"""Ten times what Flink needs for a sequence on an idle machine."""
ALIGNMENTS = {
    "aligned": AlignmentType.ALIGNED,
    "timeoutable": AlignmentType.ALIGNED,
    "unaligned": AlignmentType.UNALIGNED,
    "at-least-once": AlignmentType.AT_LEAST_ONCE,
}
BARRIERS = tuple(ALIGNMENTS)
COUNTS = [1_000, pytest.param(20_000, marks=pytest.mark.soak)]
"""How many sequences are drawn."""


class Sequence(Protocol):
    """Headgate's object of one sequence."""

    def step(self, words: list[str]) -> str:
        """Act on a command and return its visible result. A FlinkError counts as its class name."""

    def state(self) -> str:
        """Return the visible state after a command."""


def never(answer: str) -> bool:
    """No answer is special."""
    del answer
    return False


def compare(
    flink: Flink,
    driver: str,
    make: Callable[[], Sequence],
    drawn: list[list[str]],
    *,
    is_last: Callable[[str], bool] = never,
    is_undefined: Callable[[str], bool] = never,
    normal: Callable[[str], str] = str,
) -> None:
    """Run the sequences on both sides. Fail with those that differ, up to their first difference. Of a sequence, nothing after an
    answer of Flink that `is_last` is compared, and not that answer either if it `is_undefined`. Answers with the same `normal` form
    are equal."""
    done = subprocess.run(
        flink.java("sequences", driver),
        input="\n".join(line for lines in drawn for line in lines) + "\n",
        capture_output=True,
        text=True,
        timeout=LIMIT_S + len(drawn) * SEQUENCE_LIMIT_S,
        check=True,
    )
    theirs, found = iter(done.stdout.splitlines()), []
    for number, lines in enumerate(drawn):
        answers = [next(theirs) for _ in lines]
        said, made = [], make()
        for line, answer in zip(lines, answers, strict=True):
            if is_undefined(answer):
                break
            ours = _answer(made, line.split())
            said.append(f"  {line}\n    Headgate {ours}\n    Flink    {answer}")
            if normal(ours) != normal(answer):
                found.append("\n".join([f"sequence {number}", *said]))
                break
            if is_last(answer):
                break
    assert next(theirs, None) is None
    assert not found, f"{len(found)} of {len(drawn)} sequences differ\n" + "\n\n".join(found[:SHOWN])


def _answer(made: Sequence, words: list[str]) -> str:
    try:
        result = made.step(words)
    except FlinkError as error:
        result = error.class_name
    return result + made.state()


def draw(seed: int, count: int, one: Callable[[random.Random], list[str]]) -> list[list[str]]:
    """Draw `count` sequences."""
    return [one(random.Random(f"{seed}/{number}")) for number in range(count)]


class Nowhere:
    """The home of segments that belong to no pool."""

    def recycle(self, segment: MemorySegment) -> None:
        """Forget it."""

    def recycle_all(self, segments: list[MemorySegment]) -> None:
        """Forget them."""


class Writer:
    """Writes into a subpartition as a task does: data in segments, and events."""

    def __init__(self, subpartition: PipelinedSubpartition) -> None:
        self.subpartition = subpartition
        self._open: BufferBuilder | None = None

    def data(self, size: int, *, finished: bool) -> None:
        """Add data. A whole segment goes into the queue as it does when it is filled at once."""
        self.finish()
        segment = MemorySegment(SEGMENT_BYTES)
        if finished and size == SEGMENT_BYTES:
            self.subpartition.add_run([Buffer(segment.view, DataType.DATA_BUFFER, segment, Nowhere())])
            return
        builder = BufferBuilder(segment, Nowhere())
        builder.append(memoryview(bytes(size)))
        if finished:
            builder.finish()
        else:
            self._open = builder
        self.subpartition.add(builder)

    def append(self, size: int) -> None:
        """Append to the last buffer, if it is not finished."""
        if self._open is not None:
            self._open.append(memoryview(bytes(size)))

    def finish(self) -> None:
        """Finish the last buffer."""
        if self._open is not None:
            self._open.finish()
            self._open = None

    def barrier(self, kind: str, number: int) -> None:
        """Add a checkpoint barrier of one of BARRIERS."""
        timeout = BARRIER_TIMEOUT_MS if kind == "timeoutable" else NO_TIMEOUT_MS
        self.event(CheckpointBarrier(number, 0, ALIGNMENTS[kind], timeout))

    def event(self, event: Event) -> None:
        """Add an event."""
        self.finish()
        self.subpartition.add(BufferBuilder.of_event(encode_event(event), data_type_of(event)))

    def end(self) -> None:
        """Add END_OF_PARTITION."""
        self.finish()
        event = BufferBuilder.of_event(encode_event(EndOfPartition()), DataType.END_OF_PARTITION)
        self.subpartition.add(event, last=True)
