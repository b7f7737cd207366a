"""The limits of the rules for records between tasks: the smallest damage is found, and the largest value that is none is not."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.history.contradictions.exchange import check_exchange
from testbed_runtime.history.schema import Trial
from tests.checking.written import (
    JM,
    Row,
    Written,
    checked,
    edited,
    event,
    job,
    sample,
    state,
    texts,
    wrote,
)
from tests.manifests import trial_entry

TM = "tm-0-1"


def measured(
    task: str, role: str, t: float, into: tuple[int, int], out: tuple[int, int], **more: Any
) -> Written:
    """A sample with (records, bytes) in and out."""
    row = {"records_in": into[0], "bytes_in": into[1], "records_out": out[0], "bytes_out": out[1]}
    return sample(task, t, role=role, **row | more)


HEALTHY: list[Written] = [
    measured("a-0", "source", 1, (0, 0), (300, 15600)),  # 0
    measured("a-0", "source", 2, (0, 0), (500, 30000)),
    measured("b-0", "sink", 1, (300, 15600), (0, 0)),
    measured("b-0", "sink", 2, (500, 30000), (0, 0)),
    event("note", process=TM),
    ("delivery", {"process": JM, "task": "b-0", "source": "a-0", "weight": 200}),  # 5
    ("delivery", {"process": JM, "task": "b-0", "source": "a-0", "weight": 300}),
    state("a-0", "RUNNING", "FINISHED", 3),
    state("b-0", "RUNNING", "FINISHED", 3),
    job("FINISHED", 4),
]
VERTICES = [
    {"name": "a", "parallelism": 1, "kind": "generated", "recordBytes": 48},
    {"name": "b", "parallelism": 1, "kind": "ledger"},
]
EDGE = {"from": "a", "to": "b"}
ENTRY: Row = {"drained": True, "job": {"vertices": VERTICES, "edges": [EDGE]}}
OPEN: dict[int, Any] = {5: None, 6: None, 7: None, 8: None, 9: None}
"""A job that goes on."""


def found(changes: dict[int, Any], entry: Row = ENTRY) -> list[str]:
    return texts(check_exchange(checked(edited(HEALTHY, changes), entry)))


def entry_of(*vertices: Row, edges: Any = (EDGE,), **more: Any) -> Row:
    return {**ENTRY, "job": {"vertices": list(vertices or VERTICES), "edges": list(edges)}, **more}


def tasks(column: str, row: int, problem: str) -> list[str]:
    return [f"tasks.parquet, column {column}, row {row}: {problem}"]


def test_records_that_arrived_and_were_committed_have_no_finding():
    """So each finding below follows from a change."""
    assert found({}) == found(OPEN) == []


FRAMED = 52
"""The smallest record, of 48 bytes, has a length of 4 bytes."""


@pytest.mark.parametrize(
    ("records", "size", "expected"),
    [
        (10, 10 * FRAMED, []),
        (10, 10 * FRAMED - 1, tasks("records_in", 2, "is 10, too many for 519 bytes (bytes_in)")),
        (1, 51, tasks("records_in", 2, "is 1, too many for 51 bytes (bytes_in)")),
        (0, 0, []),
    ],
)
def test_records_fit_into_their_bytes(records: int, size: int, expected: list[str]):
    """Each takes at least its length and its number."""
    changes = {2: {"records_in": records, "bytes_in": size}, 3: {"records_in": 600, "bytes_in": 31200}}
    assert found(OPEN | changes) == expected


def full(records: int, channels: int = 2, many: int = 1) -> int:
    """The most bytes of so many records of 48 bytes and their lengths: twice as much as they have, and a record in each channel."""
    return 2 * many * 52 * (records + channels)


MORE = "is {}, too many for 500 records ({})"


@pytest.mark.parametrize(
    ("changes", "entry", "expected"),
    [
        ({0: {"bytes_out": full(500)}, 1: {"bytes_out": full(500) + 9}}, ENTRY, []),
        ({0: {"bytes_out": full(500) + 1}, 1: {"bytes_out": full(500) + 9}}, ENTRY, tasks("bytes_out", 0, MORE.format(full(500) + 1, "records_out"))),
        ({0: {"bytes_out": full(500) + 1}, 1: {"bytes_out": full(500) + 1}}, ENTRY, []),
        ({2: {"bytes_in": full(500)}, 3: {"bytes_in": full(500) + 9}}, ENTRY, []),
        ({2: {"bytes_in": full(500) + 1}, 3: {"bytes_in": full(500) + 9}}, ENTRY, tasks("bytes_in", 2, MORE.format(full(500) + 1, "records_in"))),
        ({2: {"bytes_in": full(500) + 1}, 3: {"bytes_in": full(500) + 9}}, entry_of(configuration={"headgate.flow-control": "pid"}), []),
        ({2: {"bytes_in": full(500) + 1}, 3: {"bytes_in": full(500) + 9}}, entry_of(configuration={"metrics.latency.interval": "1 s"}), []),
        ({2: {"bytes_in": full(500) + 1}, 3: {"bytes_in": full(500) + 9}}, entry_of(VERTICES[0], VERTICES[1] | {"kind": "window"}), []),
        ({0: {"bytes_out": full(500, 2, 2)}, 1: {"bytes_out": 10**9}}, entry_of(edges=[EDGE, EDGE]), []),
        ({0: {"bytes_out": full(500, 2, 2) + 1}, 1: {"bytes_out": 10**9}}, entry_of(edges=[EDGE, EDGE]), tasks("bytes_out", 0, MORE.format(full(500, 2, 2) + 1, "records_out"))),
        ({0: {"bytes_out": full(500, 4, 3)}, 1: {"bytes_out": 10**9}}, entry_of(VERTICES[0], VERTICES[1] | {"parallelism": 3}, edges=[EDGE | {"partitioning": "broadcast"}]), []),
        ({0: {"bytes_out": full(500, 4, 3) + 1}, 1: {"bytes_out": 10**9}}, entry_of(VERTICES[0], VERTICES[1] | {"parallelism": 3}, edges=[EDGE | {"partitioning": "broadcast"}]), tasks("bytes_out", 0, MORE.format(full(500, 4, 3) + 1, "records_out"))),
        ({0: {"bytes_out": full(500) + 1}, 1: {"bytes_out": 10**9}}, entry_of(edges=[]), tasks("bytes_out", 0, MORE.format(full(500) + 1, "records_out"))),
        ({0: {"bytes_out": full(500) + 1, "attempt": 1}}, ENTRY, []),
        ({0: {"bytes_out": full(500, 3, 2)}, 1: {"bytes_out": 10**9}}, entry_of(*VERTICES, {"name": "c", "kind": "ledger"}, edges=[EDGE, EDGE, {"from": "b", "to": "c"}]), []),
    ],
)  # fmt: skip
def test_bytes_are_not_many_more_than_their_records(changes: dict[int, Any], entry: Row, expected: list[str]):
    """But for the last sample, whose records may be in a buffer still. Latency markers and windows have sizes of their own."""
    assert found(OPEN | changes, entry) == expected


SUM = "adds up to {} for b, but a sent {} ({})"


def received(count: int, **columns: int) -> dict[int, Any]:
    """The sink received so many records, in as many bytes as they need, and committed them."""
    return {
        2: {"records_in": 0, "bytes_in": 0},
        3: {"records_in": count, **columns},
        5: None,
        6: {"weight": count},
    }


@pytest.mark.parametrize(
    ("changes", "entry", "expected"),
    [
        (received(200), ENTRY, []),
        (received(199), ENTRY, tasks("records_in", 3, SUM.format(199, 500, "records_out"))),
        (received(1100, bytes_in=57200), ENTRY, []),
        (received(1101, bytes_in=57252), ENTRY, tasks("records_in", 3, SUM.format(1101, 500, "records_out"))),
        (received(500, bytes_in=60100), ENTRY, []),
        (received(500, bytes_in=60101), ENTRY, tasks("bytes_in", 3, SUM.format(60101, 30000, "bytes_out"))),
        (received(199), entry_of(edges=[EDGE | {"result": "blocking"}]), []),
        (received(199), entry_of(edges=[EDGE | {"result": "blocking"}, EDGE]), []),
        (received(199), entry_of(configuration={"metrics.latency.interval": "1 s"}), []),
        ({**received(199), 4: [HEALTHY[4], ("checkpoints", {"process": JM, "persisted_bytes": 1})]}, ENTRY, []),
        ({**received(199), 4: [HEALTHY[4], ("checkpoints", {"process": JM, "persisted_bytes": 0})]}, ENTRY, tasks("records_in", 3, SUM.format(199, 500, "records_out"))),
        ({**received(199), 4: [HEALTHY[4], event("job.restored", "job", checkpoint=1)]}, ENTRY, []),
        ({**received(199), 4: [HEALTHY[4], event("receive-queue.closed", "b-0", attempt=0)]}, ENTRY, []),
        ({**received(199), 7: None}, ENTRY, []),
        ({**received(199), 8: None}, ENTRY, []),
        ({**received(199), 8: state("b-0", "RUNNING", "FINISHED", attempt=1)[1]}, ENTRY, []),
        ({**received(199), 4: None}, ENTRY, []),
        (received(900, bytes_in=46800), entry_of(edges=[EDGE, EDGE]), []),
        (received(449, bytes_in=30000), entry_of(edges=[EDGE, EDGE]), tasks("records_in", 3, "adds up to 449 for b, but a, a sent 1000 (records_out)")),
    ],
)  # fmt: skip
def test_a_vertex_receives_about_what_was_sent_to_it(
    changes: dict[int, Any], entry: Row, expected: list[str]
):
    """Twice as much or half of it, and a hundred more: fewer are lost or duplicated. Both sides finished."""
    reported = [text for text in found(changes, entry) if "adds up" in text and "delivery" not in text]
    assert reported == expected


def several() -> list[Written]:
    """Two sources, of which one sends to two sinks: the shared sink receives half of its bytes, and its own all of them."""
    rows = [
        measured("a-0", "source", 1, (0, 0), (400, 20800)), measured("c-0", "source", 1, (0, 0), (300, 31200)), measured("c-1", "source", 1, (0, 0), (300, 31200)),
        measured("b-0", "sink", 1, (1000, 52000), (0, 0)), measured("d-0", "sink", 1, (600, 31200), (0, 0)),
        event("note", process=TM),
    ]  # fmt: skip
    return [*rows, *(state(t, "RUNNING", "FINISHED", 3) for t in ("a-0", "b-0", "c-0", "c-1", "d-0"))]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"records_in": 450, "bytes_in": 25950}, []),
        (
            {"records_in": 450, "bytes_in": 25949},
            tasks("bytes_in", 3, "adds up to 25949 for b, but a, c sent 52000 (bytes_out)"),
        ),
        (
            {"records_in": 449},
            tasks("records_in", 3, "adds up to 449 for b, but a, c sent 1000 (records_out)"),
        ),
        ({"bytes_in": 104100}, []),
        (
            {"bytes_in": 104101},
            tasks("bytes_in", 3, "adds up to 104101 for b, but a, c sent 52000 (bytes_out)"),
        ),
    ],
)
def test_the_bytes_of_a_vertex_are_shared_by_its_edges(change: Row, expected: list[str]):
    """Its records are not: each edge carries all of them."""
    names = [{"name": n, "parallelism": 2 if n == "c" else 1, "kind": "map"} for n in "acbd"]
    edges = [{"from": s, "to": t} for s, t in ("ab", "cb", "cd")]
    entry = trial_entry({"job": {"vertices": names, "edges": edges}})
    assert texts(check_exchange(checked(edited(several(), {3: change}), entry))) == expected


WEIGHT = "delivery.parquet, column weight: adds up to {} for b-0, which received 500 records and finished (records_in in tasks)"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({6: {"weight": 299}}, []),
        ({6: {"weight": 301}}, []),
        ({6: {"weight": 900}}, []),
        ({6: {"weight": 901}}, [WEIGHT.format(1101)]),
        ({6: {"weight": 299}, 9: None}, []),
        ({6: {"weight": 299}, 8: None}, []),
        ({5: None, 6: None}, [WEIGHT.format(0)]),
        ({6: {"attempt": 1}}, []),
        ({6: {"attempt": 1}, 5: {"weight": 199}}, [WEIGHT.format(199)]),
        *(({5: None, 6: None, 4: [HEALTHY[4], event(kind, "b-0", attempt=0)]}, []) for kind in ("receive-queue.closed", "stale.rejected", "function.dropped")),
        ({5: None, 6: None, 4: [HEALTHY[4], event("stale.rejected", "b-0", attempt=0, what="record")]}, []),
        ({5: None, 6: None, 4: [HEALTHY[4], event("stale.rejected", "b-0", attempt=0, what="acknowledgement")]}, [WEIGHT.format(0)]),
    ],
)  # fmt: skip
def test_a_sink_that_finished_committed_what_it_received(changes: dict[int, Any], expected: list[str]):
    """At least half of it without a hundred, and at most twice as much and a hundred. Dropped and rejected records are not committed."""
    assert [text for text in found(changes) if "delivery" in text] == expected
    assert [text for text in found(changes, {**ENTRY, "drained": False}) if "weight" in text] == []


@pytest.mark.parametrize(("weights", "is_damaged"), [((1, 0), False), ((0, 0), True), ((9000, 0), False)])
def test_a_sink_behind_a_window_committed_something(weights: tuple[int, int], is_damaged: bool):
    """A record of a window stands for several."""
    entry = entry_of(VERTICES[0], VERTICES[1] | {"kind": "window"})
    changes = {5: {"weight": weights[0]}, 6: {"weight": weights[1]}}
    assert found(changes, entry) == ([WEIGHT.format(0)] if is_damaged else [])
    nothing = {
        2: {"records_in": 0},
        3: {"records_in": 0, "bytes_in": 0},
        0: {"records_out": 0},
        1: {"records_out": 0, "bytes_out": 0},
    }
    assert [text for text in found(changes | nothing, entry) if "weight" in text] == []


def test_commits_that_were_not_read_are_not_missed():
    """A trial that is read in parts has some tables only."""
    trial = edited(HEALTHY, {5: None, 6: None})
    tables = {name: table for name, table in trial.tables.items() if name != "delivery"}
    assert check_exchange(checked(Trial("r", "t", tables), ENTRY)) == []


@pytest.mark.parametrize(
    ("change", "column", "expected"),
    [
        ({}, "", ""),
        ({"source": "b-0"}, "source", "is 'b-0', which sends no records"),
        ({"source": "a-1"}, "source", "is 'a-1', which sends no records"),
        ({"task": "a-0"}, "task", "is 'a-0', which is not a sink"),
        ({"task": "b-1"}, "task", "is 'b-1', which is not a sink"),
    ],
)
def test_a_commit_is_by_a_sink_and_of_a_source(change: Row, column: str, expected: str):
    """Both are subtasks of the job."""
    reported = [text for text in found({6: change}) if "which is no" in text or "which sends" in text]
    assert reported == ([f"delivery.parquet, column {column}, row 1: {expected}"] if expected else [])


def test_a_job_with_an_unknown_vertex_is_not_compared():
    """Nor one of which the manifest says nothing, or that has no samples."""
    damaged = {6: {"source": "b-0"}}
    assert found(damaged) != []
    assert found(damaged, entry_of(VERTICES[0] | {"kind": ""}, VERTICES[1])) == []
    assert found(damaged, {}) == []
    assert check_exchange(checked(wrote(*HEALTHY[4:]), ENTRY)) == []


@pytest.mark.parametrize("kind", ["iteration", "synchronization"])
def test_an_iteration_exchanges_records_without_bytes(kind: str):
    """Its feedback. The records that the other vertices exchange are compared, and the commits of its sinks."""
    looped = entry_of(VERTICES[0] | {"kind": kind}, VERTICES[1])
    more: dict[int, Any] = {3: {"records_in": 1500}}
    assert found(more, looped) == []
    assert found({6: {"source": "b-0"}}, looped) != []
    beside = entry_of(*VERTICES, {"name": "c", "parallelism": 1, "kind": kind})
    (text,) = found(more, beside)
    assert text.startswith("tasks.parquet, column records_in, row 3: adds up to 1500 for b, but a sent 500")
    assert [t for t in found({5: None, 6: None}, beside) if "column weight" in t] != []
    inner = entry_of(
        VERTICES[0], VERTICES[1] | {"role": "operator"}, {"name": "c", "parallelism": 1, "kind": kind}
    )
    assert found({5: None, 6: None}, inner) == []
