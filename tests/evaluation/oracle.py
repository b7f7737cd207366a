"""The metrics once more, in DuckDB over the same Parquet files. Shares no code with `checking`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)

WINDOWS = """
    select name as phase, start_ns, end_ns from spans where name in ('baseline', 'fault', 'observation')
    union all
    select '', min(start_ns), max(end_ns) from spans where name in ('fault', 'observation')
"""

THROUGHPUT = f"""
    with windows as ({WINDOWS}), sinks as (select task, attempt, t_ns, records_in from tasks where role = 'sink'),
    edges as (select phase, start_ns as t, -1 as sign from windows union all select phase, end_ns, 1 from windows),
    series as (select distinct task, attempt from sinks),
    around as (
        select e.phase, e.sign, e.t, s.task, s.attempt,
               arg_max(x.t_ns, x.t_ns) filter (x.t_ns <= e.t) as t0, arg_max(x.records_in, x.t_ns) filter (x.t_ns <= e.t) as v0,
               arg_min(x.t_ns, x.t_ns) filter (x.t_ns > e.t) as t1, arg_min(x.records_in, x.t_ns) filter (x.t_ns > e.t) as v1
        from edges e cross join series s join sinks x on x.task = s.task and x.attempt = s.attempt
        group by all
    )
    select a.phase, sum(sign * case when t0 is null then 0.0 when t1 is null then v0
                                    else v0 + (v1 - v0) * (t - t0)::double / (t1 - t0) end)
                    / ((any_value(w.end_ns) - any_value(w.start_ns)) / 1e9)
    from around a join windows w on a.phase = w.phase group by a.phase
"""
"""Records per second at all sinks; the counter of each attempt is linear between two samples."""

LATENCY = f"""
    with windows as ({WINDOWS}), inside as (
        select phase, buckets, max_ns from latency join windows
          on window_start_ns + window_ns // 2 >= start_ns and window_start_ns + window_ns // 2 < end_ns
    ), counts as (
        select phase, i, sum(n) as n from (select phase, unnest(buckets) as n, generate_subscripts(buckets, 1) - 1 as i from inside)
        group by phase, i having sum(n) > 0
    ), running as (
        select phase, i, n, sum(n) over (partition by phase order by i) as upto, sum(n) over (partition by phase) as total
        from counts
    ), largest as (select phase, max(max_ns) as max_ns from inside group by phase),
    found as (
        select r.phase, q, max_ns, arg_min(i, i) as i, arg_min(n, i) as n, arg_min(upto, i) as upto, any_value(total) as total
        from running r join largest l on r.phase = l.phase cross join (select unnest($quantiles) as q)
        where upto >= q * total group by all
    )
    select phase, q, case
        when q = 1 then max_ns / 1e9
        when total * (1 - q) < 1 then null
        else least(max_ns, lower + (q * total - (upto - n)) / n * (floor(10000 * power(1.25, i)) - lower)) / 1e9 end
    from (select *, if(i = 0, 0, floor(10000 * power(1.25, i - 1))) as lower from found)
"""
"""Quantiles of the merged histograms, linear within a bucket."""

DELIVERY = """
    with commits as (
        select distinct regexp_replace(task, '-[0-9]+$', '') as sink, task, checkpoint, source, base, bitmap from delivery
    ), bits as (
        select sink, source, base, bitmap::bit as bits, unnest(range(0, 4096)) as i from commits
    ), counts as (
        select sink, source, base + i as number, count(*) as n from bits
        where get_bit(bits, ((i // 8) * 8 + 7 - i % 8)::integer) = 1 group by all
    ), ends as (
        select subject as source, arg_max((data::json ->> 'next')::bigint, t_ns) as total from events
        where kind = 'source.end' group by subject
    ), pairs as (select e.source, e.total, s.sink from ends e cross join (select distinct sink from commits) s)
    select (select sum(total) from pairs) - (select count(*) from counts c join ends e on c.source = e.source where number < total),
           (select sum(n - 1) from counts c join ends e on c.source = e.source where number < total)
             + (select coalesce(sum(duplicated), 0) from delivery),
           (select count(*) from counts),
           (select coalesce(sum(n), 0) from counts c join ends e on c.source = e.source where number >= total)
             + (select coalesce(sum(corrupted), 0) from delivery),
           (select coalesce(sum(out_of_order), 0) from delivery)
"""
"""lost, duplicated, committed, corrupted, out of order; for jobs in which each record reaches each sink vertex once."""


class Oracle:
    """The tables of one trial in DuckDB."""

    def __init__(self, history: Path, entry: Mapping[str, Any]) -> None:
        self._duck = duckdb.connect()
        for file in history.glob("*.parquet"):
            self._duck.execute(f"create view {file.stem} as select * from read_parquet('{file}')")
        self._duck.execute("create table spans (name text, start_ns bigint, end_ns bigint)")
        spans = [(p["name"], p["start_ns"], p["end_ns"]) for p in entry["phases"]]
        self._duck.executemany("insert into spans values (?, ?, ?)", spans)

    def throughput(self) -> dict[str, float]:
        return dict(self._rows(THROUGHPUT))

    def latency(self) -> dict[tuple[str, float], float | None]:
        rows = self._rows(LATENCY, {"quantiles": list(QUANTILES)})
        return {(phase, float(quantile)): value for phase, quantile, value in rows}

    def delivery(self) -> dict[str, float]:
        names = ("lost", "duplicated", "committed", "corrupted", "out-of-order")
        return dict(zip(names, self._rows(DELIVERY)[0], strict=True))

    def _rows(self, query: str, parameters: Any = None) -> Sequence[Any]:
        return self._duck.execute(query, parameters).fetchall()
