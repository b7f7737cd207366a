"""PipelinedSubpartition and its view: random data, events, flushes and reads, beside Flink's."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import astuple

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.subpartition import PipelinedSubpartition
from tests.interop.sequences import BARRIERS, COUNTS, SEGMENT_BYTES, Writer, compare, draw

pytestmark = pytest.mark.processes


def a_sequence(chance: random.Random) -> list[str]:
    """A writer, a flusher and a reader that interrupt each other."""
    lines, barriers, timeoutable = [f"new {chance.choice([0, 2, 2])}"], 0, [0]
    kinds = ["data", "append", "finish", "barrier", "time-out", "end", "flush", "resume", "release", "poll"]
    weights = [22, 6, 4, 13, 3, 1, 11, 8, 1.5, 31]
    for kind in chance.choices(kinds, weights, k=chance.randint(3, 40)):
        match kind:
            case "data":
                size, end = (
                    chance.choice([0, 1, 3, SEGMENT_BYTES]),
                    chance.choice(["open", "open", "finished"]),
                )
                lines.append(f"data {size} {end}")
            case "append":
                lines.append(f"append {chance.randint(1, 4)}")
            case "barrier":
                barriers += 1
                alignment = chance.choice(BARRIERS)
                if alignment == "timeoutable":
                    timeoutable.append(barriers)
                lines.append(f"barrier {alignment} {barriers}")
            case "time-out":
                lines.append(f"time-out {chance.choice(timeoutable)}")
            case _:
                lines.append(kind)
    return lines


class _Owner:
    failure_cause: FlinkError | None = None

    def on_all_data_processed(self, index: int) -> None:
        """Nothing waits for it."""

    def on_consumed(self, index: int) -> None:
        """Nothing waits for it."""

    def on_barrier_sent(self, index: int) -> None:
        """Nothing waits for it."""

    def release(self, cause: FlinkError | None = None) -> None:
        """The sequence releases the subpartition itself."""


class Subpartition:
    """A subpartition, its writer and its reader."""

    passes_block = True

    def __init__(self) -> None:
        self._exclude(2)

    def _exclude(self, exclusive: int) -> None:
        self._notified = False
        self._subpartition = PipelinedSubpartition(0, _Owner(), exclusive=exclusive)
        self._subpartition.priority_passes_block = self.passes_block
        self._view = self._subpartition.create_view(self._notify)
        self._writer = Writer(self._subpartition)

    def _notify(self) -> None:
        self._notified = True

    def step(self, words: list[str]) -> str:
        writer, subpartition = self._writer, self._subpartition
        match words:
            case "new", exclusive:
                self._exclude(int(exclusive))
            case "data", size, end:
                writer.data(int(size), finished=end == "finished")
            case "append", size:
                writer.append(int(size))
            case "finish", *_:
                writer.finish()
            case "barrier", kind, number:
                writer.barrier(kind, int(number))
            case "time-out", number:
                subpartition.overtake(int(number))
            case "end", *_:
                writer.end()
            case "flush", *_:
                subpartition.flush()
            case "resume", *_:
                self._view.resume_consumption()
            case "release", *_:
                writer.finish()
                subpartition.release()
            case "poll", *_:
                return self._polled()
        return ""

    def _polled(self) -> str:
        polled = self._view.poll()
        if polled is None:
            return "none"
        buffer, backlog, next_type, sequence = astuple(polled)
        size = buffer.size if buffer.is_buffer else 0
        text = f"{buffer.data_type.name} {size} {backlog} {next_type.name} {sequence}"
        buffer.recycle()
        return text

    def state(self) -> str:
        available, backlog = self._view.availability(credit=True)
        without_credit, _ = self._view.availability(credit=False)
        notified, self._notified = self._notified, False
        flags = [
            available,
            backlog,
            without_credit,
            len(self._subpartition),
            self._view.is_released,
            notified,
        ]
        return " ; " + " ".join(str(flag).lower() for flag in flags)


@pytest.mark.parametrize("count", COUNTS)
def test_random_sequences_on_subpartitions_are_flinks(flink, count, monkeypatch):
    """Elements, backlog, next type, availability and notifications after every command of each sequence."""
    monkeypatch.setattr(Subpartition, "passes_block", flink.name == "2.x")
    compare(flink, "subpartitions", Subpartition, draw(2, count, a_sequence))
