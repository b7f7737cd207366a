"""The Spark pipeline: histories in, judged trials out.

A trial that fits into one piece is read, reduced and judged by one task. A larger one takes three steps, so that no worker
holds all its rows:

    scan      each task reads the row groups of one piece with the columns that are needed, and reduces them
    combine   per (trial, bucket): the channels of a bucket are judged, numbers and latencies are merged
    judge     per trial: the pure functions of `checking` on what is left

Between the steps, tables travel as Arrow streams, so a shuffle moves a few rows instead of every sample.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec import Struct, to_builtins

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.credit import CREDIT, by_channel
from testbed_runtime.checking.latency import merge_sinks
from testbed_runtime.checking.metrics import trial_metrics
from testbed_runtime.checking.reduced import assemble, channel_buckets, reduce_rows
from testbed_runtime.checking.timeseries import trial_timeseries
from testbed_runtime.checking.unjudged import described, unjudged
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.evaluation import splits
from testbed_runtime.evaluation.splits import Split
from testbed_runtime.evaluation.tables import TrialFiles
from testbed_runtime.history.schema import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ERROR = "error"
"""The kind of a part that holds the message of a HeadgateError."""
UNJUDGED = "unjudged"
"""The kind of a part that holds the text of `described` for any other exception."""
REST = -1
"""The bucket of everything but channels."""
TRIALS_PER_TASK = 16

Parts = dict[str, list[pa.Table]]


class Part(Struct, frozen=True):
    """A piece of a result that one step passes to the next."""

    trial: int
    """Its place among the trials."""
    bucket: int
    piece: int
    kind: str
    """ERROR, UNJUDGED or the name of a table."""
    payload: bytes


class JudgedTrial(Struct, frozen=True, kw_only=True):
    """The result of a trial, or the `error` that says why its history cannot be read."""

    trial: int
    rows: list[MetricRow] = []
    series: str = ""
    """JSON, as in timeseries.json. Empty if it could not be judged."""
    answer: str = ""
    """JSON, as in recovery.json."""
    error: str = ""


def judged(spark: SparkSession, trials: Sequence[TrialFiles]) -> list[JudgedTrial]:
    """Return what `judge_whole` returns for each trial, in their order.

    RDDs instead of data frames: the work is in Python functions, and Spark SQL takes seconds of processor time to start."""
    pieces = splits.plan(trials)
    context = spark.sparkContext
    small = [p for p in pieces if p.whole]
    large = [p for p in pieces if not p.whole]
    found: list[JudgedTrial] = []
    if small:
        tasks = max(min(len(small), context.defaultParallelism), -(-len(small) // TRIALS_PER_TASK))
        found += context.parallelize(small, tasks).map(lambda piece: judge_whole(piece, trials)).collect()
    if large:
        scanned = context.parallelize(list(enumerate(large)), len(large)).flatMap(
            lambda numbered: scan(*numbered, trials)
        )
        combined = scanned.groupBy(lambda part: (part.trial, part.bucket)).flatMap(
            lambda grouped: combine(list(grouped[1]))
        )
        of_trial = combined.groupBy(lambda part: part.trial)
        found += of_trial.map(lambda grouped: judge(list(grouped[1]), trials)).collect()
    return sorted(found, key=lambda one: one.trial)


def judge_whole(piece: Split, trials: Sequence[TrialFiles]) -> JudgedTrial:
    """Read and judge a trial that is one piece."""

    def read() -> Trial:
        rows = reduce_rows(splits.read(piece, trials[piece.trial]))
        return _assembled(piece.trial, {name: [table] for name, table in rows.items()}, trials)

    return _judge(piece.trial, read, trials)


def scan(number: int, piece: Split, trials: Sequence[TrialFiles]) -> Iterator[Part]:
    """Yield the parts of one piece of a large trial."""
    try:
        parts = reduce_rows(splits.read(piece, trials[piece.trial]))
    except Exception as error:
        known = isinstance(error, HeadgateError)
        kind, text = (ERROR, str(error)) if known else (UNJUDGED, described(error))
        yield Part(piece.trial, REST, number, kind, text.encode())
        return
    channels = parts.pop("channels", None)
    for name, table in parts.items():
        yield Part(piece.trial, REST, number, name, packed(table))
    if channels is not None:
        for bucket, rows in enumerate(channel_buckets(channels, piece.buckets)):
            yield Part(piece.trial, bucket, number, "channels", packed(rows))


def combine(parts: Sequence[Part]) -> Iterator[Part]:
    """Yield fewer parts that mean the same, from all parts of one bucket of one trial."""
    try:
        yield from _combined(parts)
    except Exception as error:
        yield Part(parts[0].trial, parts[0].bucket, 0, UNJUDGED, described(error).encode())


def _combined(parts: Sequence[Part]) -> Iterator[Part]:
    trial, bucket = parts[0].trial, parts[0].bucket
    of_kind: Parts = {}
    for part in parts:
        if part.kind in ("channels", "latency"):
            of_kind.setdefault(part.kind, []).append(unpacked(part.payload))
        else:
            yield part
    if "channels" in of_kind:
        yield Part(trial, bucket, 0, CREDIT, packed(by_channel(_concat(of_kind["channels"]))))
    if "latency" in of_kind:
        yield Part(trial, bucket, 0, "latency", packed(merge_sinks(_concat(of_kind["latency"]))))


def judge(parts: Sequence[Part], trials: Sequence[TrialFiles]) -> JudgedTrial:
    """Judge a trial from all its parts."""
    index = parts[0].trial
    if errors := _texts(parts, ERROR):
        return JudgedTrial(trial=index, error=errors[0])
    if errors := _texts(parts, UNJUDGED):
        return _unjudged(index, trials, errors[0])
    in_order = sorted(parts, key=lambda p: p.piece)  # rows in the order of the files
    of_kind = grouped((part.kind, unpacked(part.payload)) for part in in_order)

    def checked() -> Trial:
        assembled = _assembled(index, of_kind, trials)
        splits.check_assembled(assembled, trials[index].entry)
        return assembled

    return _judge(index, checked, trials)


def _texts(parts: Sequence[Part], kind: str) -> list[str]:
    return sorted(p.payload.decode() for p in parts if p.kind == kind)


def _assembled(index: int, parts: Parts, trials: Sequence[TrialFiles]) -> Trial:
    return assemble(trials[index].run, trials[index].trial, parts, trials[index].problems)


def _judge(index: int, read: Callable[[], Trial], trials: Sequence[TrialFiles]) -> JudgedTrial:
    """Return the result of a trial, or why it cannot be read or judged."""
    entry = trials[index].entry
    try:
        trial = read()
        answer = trial_recovery(trial, entry)
        rows, series = trial_metrics(trial, entry, recovery=answer), trial_timeseries(trial, entry)
        texts = [json.dumps(found, allow_nan=False) for found in (to_builtins(series), answer.to_json())]
    except HeadgateError as error:
        return JudgedTrial(trial=index, error=str(error))
    except Exception as error:
        return _unjudged(index, trials, described(error))
    return JudgedTrial(trial=index, rows=rows, series=texts[0], answer=texts[1])


def _unjudged(index: int, trials: Sequence[TrialFiles], text: str) -> JudgedTrial:
    """Return what is known of a trial for which a checker raised an exception."""
    return JudgedTrial(trial=index, rows=unjudged(trials[index].run, trials[index].trial, text))


def packed(table: pa.Table) -> bytes:
    """Return a table as a compressed Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def unpacked(payload: bytes) -> pa.Table:
    with pa.ipc.open_stream(payload) as stream:
        return stream.read_all()


def _concat(tables: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive")
