"""The Spark pipeline: histories in, one judged row per trial out.

A trial that fits into one piece is read, reduced and judged by one task. A larger one takes three steps, so that no worker
holds all its rows:

    scan      each task reads the row groups of one piece with the columns that are needed, and reduces them
    combine   per (trial, bucket): the channels of a bucket are judged, numbers and latencies are merged
    judge     per trial: the pure functions of `checking` on what is left

Between the steps, tables travel as Arrow streams in a binary column, so a shuffle moves a few rows instead of every sample.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.credit import CREDIT, by_channel
from testbed_runtime.checking.latency import merge_sinks
from testbed_runtime.checking.metrics import trial_metrics
from testbed_runtime.checking.reduced import assemble, channel_buckets, reduce_rows
from testbed_runtime.checking.timeseries import trial_timeseries
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.metrics import METRIC_FIELDS
from testbed_runtime.evaluation import splits
from testbed_runtime.evaluation.splits import Split
from testbed_runtime.evaluation.tables import TrialFiles
from testbed_runtime.history.schema import Trial

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_DDL = ", ".join(f"{name} {kind}" for name, kind in METRIC_FIELDS)
"""A metric row."""
JUDGED_DDL = f"trial int, rows array<struct<{ROW_DDL}>>, series string, answer string, error string"
PARTS_DDL = "array<struct<trial: int, bucket: int, piece: int, kind: string, payload: binary>>"
ERROR = "error"
"""The kind of a part that holds the message of a HeadgateError."""
REST = -1
"""The bucket of everything but channels."""
TRIALS_PER_TASK = 16

Parts = dict[str, list[pa.Table]]


def judged(spark: SparkSession, trials: Sequence[TrialFiles]) -> DataFrame:
    """Return a row for each trial (JUDGED_DDL), in no order. `trial` is its index in `trials`.

    A trial whose history is damaged has an error instead of results."""
    pieces = splits.plan(trials)
    small = [p for p in pieces if p.whole]
    large = [p for p in pieces if not p.whole]
    frames = [_judged_whole(spark, trials, small)] if small else []
    frames += [_judged_in_parts(spark, trials, large)] if large else []
    found = frames[0]
    for other in frames[1:]:
        found = found.unionAll(other)
    return found


def _judged_whole(spark: SparkSession, trials: Sequence[TrialFiles], pieces: Sequence[Split]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - its name in every Spark program
    from pyspark.sql.pandas.functions import arrow_udf

    def read_and_judge(ids: pa.Array) -> pa.Array:
        return pa.array([judge_whole(pieces[i], trials) for i in ids.to_pylist()], _arrow_type())

    step = arrow_udf(read_and_judge, f"struct<{JUDGED_DDL}>")  # type: ignore[call-overload]
    tasks = max(min(len(pieces), spark.sparkContext.defaultParallelism), -(-len(pieces) // TRIALS_PER_TASK))
    return spark.range(0, len(pieces), 1, tasks).select(step(F.col("id")).alias("j")).select("j.*")


def _judged_in_parts(spark: SparkSession, trials: Sequence[TrialFiles], pieces: Sequence[Split]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - its name in every Spark program
    from pyspark.sql.pandas.functions import arrow_udf

    kind = _parts_type()

    def scan_pieces(ids: pa.Array) -> pa.Array:
        return pa.array([list(scan(i, pieces[i], trials)) for i in ids.to_pylist()], kind)

    def combine_parts(rows: pa.Array) -> Any:  # these hints make it a grouped aggregate
        return list(combine(rows.to_pylist()))

    def judge_parts(rows: pa.Array) -> Any:
        return judge(rows.to_pylist(), trials)

    scanning = arrow_udf(scan_pieces, PARTS_DDL)  # type: ignore[call-overload]
    combining = arrow_udf(combine_parts, PARTS_DDL)  # type: ignore[call-overload]
    judging = arrow_udf(judge_parts, f"struct<{JUDGED_DDL}>")  # type: ignore[call-overload]
    part = F.struct("trial", "bucket", "piece", "kind", "payload")
    scanned = spark.range(0, len(pieces), 1, len(pieces)).select(F.inline(scanning(F.col("id"))))
    combined = scanned.groupBy("trial", "bucket").agg(combining(part).alias("p")).select(F.inline("p"))
    return combined.groupBy("trial").agg(judging(part).alias("j")).select("j.*")


def judge_whole(piece: Split, trials: Sequence[TrialFiles]) -> dict[str, Any]:
    """Read and judge a trial that is one piece."""
    try:
        rows = reduce_rows(splits.read(piece, trials[piece.trial]))
    except HeadgateError as error:
        return _failed(piece.trial, str(error))
    trial = _assembled(piece.trial, {name: [table] for name, table in rows.items()}, trials)
    return _judge(piece.trial, trial, trials)


def scan(number: int, piece: Split, trials: Sequence[TrialFiles]) -> Iterator[dict[str, Any]]:
    """Yield the parts of one piece of a large trial: rows of PARTS_DDL."""
    try:
        parts = reduce_rows(splits.read(piece, trials[piece.trial]))
    except HeadgateError as error:
        yield _part(piece.trial, REST, number, ERROR, str(error).encode())
        return
    channels = parts.pop("channels", None)
    for name, table in parts.items():
        yield _part(piece.trial, REST, number, name, packed(table))
    if channels is not None:
        for bucket, rows in enumerate(channel_buckets(channels, piece.buckets)):
            yield _part(piece.trial, bucket, number, "channels", packed(rows))


def combine(parts: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield fewer parts that mean the same, from all parts of one bucket of one trial."""
    trial, bucket = parts[0]["trial"], parts[0]["bucket"]
    of_kind: Parts = {}
    for part in parts:
        if part["kind"] in ("channels", "latency"):
            of_kind.setdefault(part["kind"], []).append(unpacked(part["payload"]))
        else:
            yield dict(part)
    if "channels" in of_kind:
        yield _part(trial, bucket, 0, CREDIT, packed(by_channel(_concat(of_kind["channels"]))))
    if "latency" in of_kind:
        yield _part(trial, bucket, 0, "latency", packed(merge_sinks(_concat(of_kind["latency"]))))


def judge(parts: Sequence[Mapping[str, Any]], trials: Sequence[TrialFiles]) -> dict[str, Any]:
    """Judge a trial from all its parts."""
    index = int(parts[0]["trial"])
    errors = sorted(p["payload"].decode() for p in parts if p["kind"] == ERROR)
    if errors:
        return _failed(index, errors[0])
    of_kind: Parts = {}
    for part in sorted(parts, key=lambda p: int(p["piece"])):  # rows in the order of the files
        of_kind.setdefault(part["kind"], []).append(unpacked(part["payload"]))
    try:
        splits.check_assembled(assembled := _assembled(index, of_kind, trials))
    except HeadgateError as error:
        return _failed(index, str(error))
    return _judge(index, assembled, trials)


def _assembled(index: int, parts: Parts, trials: Sequence[TrialFiles]) -> Trial:
    return assemble(trials[index].run, trials[index].trial, parts, trials[index].problems)


def _judge(index: int, trial: Trial, trials: Sequence[TrialFiles]) -> dict[str, Any]:
    files = trials[index]
    answer = trial_recovery(trial, files.entry)
    return {
        "trial": index,
        "rows": trial_metrics(trial, files.entry, recovery=answer),
        "series": json.dumps(trial_timeseries(trial, files.entry), allow_nan=False),
        "answer": json.dumps(answer.to_json(), allow_nan=False),
        "error": "",
    }


def _failed(index: int, error: str) -> dict[str, Any]:
    return {"trial": index, "rows": [], "series": "", "answer": "", "error": error}


def _part(trial: int, bucket: int, piece: int, kind: str, payload: bytes) -> dict[str, Any]:
    return {"trial": trial, "bucket": bucket, "piece": piece, "kind": kind, "payload": payload}


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


def _parts_type() -> pa.DataType:
    numbers = [(name, pa.int32()) for name in ("trial", "bucket", "piece")]
    return pa.list_(pa.struct([*numbers, ("kind", pa.string()), ("payload", pa.binary())]))


def _arrow_type() -> pa.DataType:
    kinds = {"string": pa.string(), "double": pa.float64()}
    row = pa.struct([(name, kinds[kind]) for name, kind in METRIC_FIELDS])
    return pa.struct(
        [
            ("trial", pa.int32()),
            ("rows", pa.list_(row)),
            ("series", pa.string()),
            ("answer", pa.string()),
            ("error", pa.string()),
        ]
    )
