"""The records that an iteration keeps, and the operators of a delta iteration."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.jobgraph import OperatorConfig
from testbed_runtime.workload.iteration import SolutionSet, UpdateBuffer
from testbed_runtime.workload.keyedstate import SubtaskContext
from testbed_runtime.workload.operators import Criterion, Operator, SolutionSetJoin, make_operator
from testbed_runtime.workload.records import (
    RecordReader,
    Records,
    framed,
    intact,
    record_dtype,
    seal,
    text_of,
    with_text,
)

RECORD_BYTES = 100
CONTEXT = SubtaskContext(1, "step", 0, 1, 128, 0, ("source", "step"))
FUNCTIONS = """
from dataclasses import replace
def both(record):
    return [replace(record, key=record.key - 1), replace(record, key=record.key + 1, text="up")]
def none(record):
    return []
def number(record):
    return [7]
def smaller(candidate, current):
    return replace(current, text=candidate.text) if candidate.text < current.text else None
def elsewhere(candidate, current):
    return replace(current, key=current.key + 1)
def fails(candidate, current):
    raise ValueError("no")
def long(record):
    return len(record.text) > 1
"""


def records(keys: list[int], texts: list[str] | None = None) -> Records:
    """Records as a task reads them: each preceded by its length."""
    made = np.zeros(len(keys), record_dtype(RECORD_BYTES))
    made["key"], made["sequence"], made["count"] = keys, np.arange(len(keys)), 1
    with_text(made, [text.encode() for text in texts or [""] * len(keys)])
    read = RecordReader().feed([framed(seal(made))])
    assert read is not None
    return read


def operator(tmp_path: Path, kind: str, name: str) -> Operator:
    (tmp_path / "user.py").write_text(FUNCTIONS)
    return make_operator(OperatorConfig(kind, function=f"{tmp_path}/user.py:{name}"), CONTEXT)


@pytest.mark.parametrize("most_bytes", [0, 250, 1 << 20])
def test_a_result_comes_back_in_order_from_memory_and_from_a_file(most_bytes: int):
    """However much of it fits into memory. The file is opened only if it is needed, and disappears."""
    files: list[io.BytesIO] = []

    def opened() -> io.BytesIO:
        files.append(io.BytesIO())
        return files[-1]

    buffer = UpdateBuffer(opened, most_bytes=most_bytes)
    for start in range(0, 3000, 3):
        buffer.add(records([start, start + 1, start + 2]))
    found = np.concatenate(list(buffer.batches()))
    assert found["key"].tolist() == list(range(3000))
    assert intact(found).all()
    assert [bool(file.tell()) for file in files] == ([] if most_bytes == 1 << 20 else [True])
    buffer.close()
    buffer.close()
    assert all(file.closed for file in files)


def test_a_superstep_without_records_has_an_empty_result():
    """An empty workset ends a delta iteration, and nothing was ever opened for it."""
    assert list(UpdateBuffer(io.BytesIO).batches()) == []
    assert list(SolutionSet().batches()) == []


def test_a_solution_set_has_one_entry_for_each_key():
    """The last one counts. An updated record keeps its place and another one goes to the end, so records of a source stay in order."""
    solution = SolutionSet()
    assert solution.put(records([3, 1, 2], ["c", "a", "b"])) == 0
    assert solution.put(records([1], ["z"])) == 1  # sequence number 0 instead of 1
    assert solution.put(records([3], ["y"])) == 1  # sequence number 0, as before
    found = np.concatenate(list(solution.batches()))
    assert [(int(r["key"]), text_of(r)) for r in found] == [(3, "y"), (2, "b"), (1, "z")]
    assert solution.get(9) is None


def test_a_solution_set_is_limited():
    """An update needs no more memory."""
    solution = SolutionSet(most_bytes=2 * RECORD_BYTES)
    solution.put(records([1, 2]))
    solution.put(records([1, 2]))
    with pytest.raises(FlinkError, match="Memory ran out"):
        solution.put(records([3]))


def test_a_flat_map_makes_any_number_of_records(tmp_path: Path):
    """They keep the origin of the record, and have checksums of their own."""
    found = operator(tmp_path, "flat-map", "both").process(records([10, 20], ["a", "b"]))
    assert found is not None
    assert found["key"].tolist() == [9, 11, 19, 21]
    assert [text_of(r) for r in found] == ["a", "up", "b", "up"]
    assert found["sequence"].tolist() == [0, 0, 1, 1]
    assert intact(found).all()
    assert operator(tmp_path, "flat-map", "none").process(records([1])) is None
    with pytest.raises(FlinkError, match="returned int instead of any number of UserRecords"):
        operator(tmp_path, "flat-map", "number").process(records([1]))


def test_a_join_updates_the_solution_set_at_once(tmp_path: Path):
    """The second candidate of a key sees the update of the first. What is emitted is the entry, with its own origin. A
    candidate without an entry is ignored."""
    join = operator(tmp_path, "solution-set-join", "smaller")
    assert isinstance(join, SolutionSetJoin)
    join.solution.put(records([5, 6], ["m", "m"]))
    found = join.process(records([6, 6, 6, 8], ["k", "l", "b", "a"]))
    assert found is not None
    assert [(int(r["key"]), text_of(r), int(r["sequence"])) for r in found] == [(6, "k", 1), (6, "b", 1)]
    assert intact(found).all()
    entries = np.concatenate(list(join.solution.batches()))
    assert [text_of(r) for r in entries] == ["m", "b"]
    assert join.process(records([5], ["z"])) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("elsewhere", "instead of a UserRecord with the same key or None"),
        ("fails", "no (raised by user.py:fails on record 0 of source-0)"),
        ("both", "'both' in 'user.py' does not take 2 records"),
    ],
)
def test_a_wrong_join_says_what_is_wrong(tmp_path: Path, name: str, words: str):
    """With the function, and the record if there is one."""

    def call() -> None:
        join = operator(tmp_path, "solution-set-join", name)
        assert isinstance(join, SolutionSetJoin)
        join.solution.put(records([1]))
        join.process(records([1]))

    with pytest.raises(FlinkError) as caught:
        call()
    assert words in caught.value.message


def test_a_criterion_counts_the_records_for_which_it_is_true():
    """An exception in it fails the task with the record, like one in any function."""

    def fails(_: object) -> bool:
        raise ValueError("no")

    assert (
        Criterion(CONTEXT, lambda r: len(r.text) > 1, "f.py:f").count(records([1, 2, 3], ["a", "bb", "cc"]))
        == 2
    )
    with pytest.raises(FlinkError, match="no \\(raised by"):
        Criterion(CONTEXT, fails, "f.py:f").count(records([1]))
    with pytest.raises(FlinkError, match=r"ambiguous.*raised by"):  # neither true nor false
        Criterion(CONTEXT, lambda _: np.array([1, 2]), "f.py:f").count(records([1]))
