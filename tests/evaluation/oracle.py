"""The metrics once more, in DuckDB over the same Parquet files. Shares no code with `checking`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from testbed_runtime.core.trial.manifest import TrialEntry

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


PROGRESS = """
create table progress as
with recursive own as (
    select task, role, attempt, t_ns, records_in, lag_ns,
           lag(records_in, 1, 0) over (partition by task, attempt order by t_ns) as earlier
    from tasks where role in ('source', 'sink')
), attempts as (
    select task, attempt, first, row_number() over (partition by task order by attempt) as n
    from (select task, attempt, min(t_ns) as first from own group by all)
), barriers as (
    select a.task, a.attempt, a.n, any_value(c.t_ns) as barrier from attempts a
    left join events e on e.kind = 'task.restored' and e.subject = a.task and e.attempt = a.attempt
    left join checkpoints c on c.state = 'acknowledged' and c.task = a.task and c.checkpoint = e.checkpoint
    where a.n > 1 group by all
), restored as (  -- several attempts may continue at one checkpoint, of the last attempt that ran then
    select b.task, b.attempt, b.n, b.barrier, coalesce(max(p.n) filter (p.first <= b.barrier), any_value(b.n) - 1) as origin
    from barriers b join attempts p on p.task = b.task and p.n < b.n group by all
), around as (
    select r.task, r.attempt, r.n, r.barrier, r.origin,
           max(o.t_ns) filter (o.t_ns <= barrier) as t0, arg_max(o.records_in, o.t_ns) filter (o.t_ns <= barrier) as v0,
           min(o.t_ns) filter (o.t_ns > barrier) as t1, arg_min(o.records_in, o.t_ns) filter (o.t_ns > barrier) as v1
    from restored r join attempts p on p.task = r.task and p.n = r.origin
    join own o on o.task = r.task and o.attempt = p.attempt group by all
), begun as (
    select task, n, 0.0::double as start from attempts where n = 1
    union all
    select a.task, a.n, case when a.barrier is null or t0 is null then 0.0 else b.start +
           case when t1 is null then v0 else v0 + (v1 - v0) * (a.barrier - t0)::double / (t1 - t0) end end
    from around a join begun b on b.task = a.task and b.n = a.origin
), counted as (
    select o.task, o.role, o.t_ns,
           max(b.start + records_in) over upto as received,
           max(if(o.role = 'source' or records_in > earlier, o.t_ns - lag_ns, null)) over upto as reached,
           lead(o.t_ns) over (partition by o.task order by o.t_ns, o.attempt) as following
    from own o join attempts a on a.task = o.task and a.attempt = o.attempt join begun b on b.task = a.task and b.n = a.n
    window upto as (partition by o.task order by o.t_ns, o.attempt rows unbounded preceding)
), filled as (
    select task, role, t_ns, received, reached from counted
    union all select task, role, following - 100000000, received, reached from counted where following - t_ns > 250000000
)
select *, lead(t_ns) over by_time as following, received > lag(received, 1, 0.0) over by_time as is_new,
       reached > coalesce(lag(reached) over by_time, -1) as is_moment
from filled window by_time as (partition by task order by t_ns)
"""
"""The samples of sources and sinks. An attempt continues at what had been received at the restored checkpoint, and
a gap ends one period before its first sample."""

SUBTASKS = """
create table subtasks as
with gaps as (
    select task, count(*) as n, max(gap) as longest from (
        select task, t_ns - lag(t_ns) over (partition by task order by t_ns) as gap
        from progress, spans where name = 'baseline' and role = 'sink' and is_new and t_ns >= start_ns and t_ns < end_ns
    ) group by task
), ends as (
    select subject as task, max(t_ns) as ended from events where kind = 'task.state' group by subject
    having arg_max(data::json ->> 'to', t_ns) = 'FINISHED'
)
select p.task, p.role, e.ended,
       case when p.role = 'source' then 0 when n > 1 then if(longest <= 250000000, 0, longest) end as usual
from (select distinct task, role from progress) p left join gaps g on g.task = p.task left join ends e on e.task = p.task
"""
"""`usual` is the longest silence of a sink in the baseline; null if it received nothing there."""

CUT = """
    select start_ns, least(any_value(end_ns), coalesce(min(last) filter (silent and last > (start_ns + end_ns) // 2), any_value(end_ns))) as end_ns
    from (select task, start_ns, end_ns, max(t_ns) as last, bool_or(following is null or following - t_ns > 150000000) as silent
          from (select * from progress, spans where name = 'baseline' and role = 'sink' and t_ns < end_ns
                qualify row_number() over (partition by task order by t_ns desc) = 1) group by all)
    group by start_ns
"""
"""The baseline without the last, lost samples of sinks that fell silent in its second half."""

GOODPUT = f"""
    with cut as ({CUT}), windows as (
        select phase, w.start_ns, if(phase = 'baseline', c.end_ns, w.end_ns) as end_ns from ({WINDOWS}) w, cut c
    ),
    edges as (select phase, start_ns as t, -1 as sign from windows union all select phase, end_ns, 1 from windows),
    around as (
        select e.phase, e.sign, e.t, p.task,
               max(t_ns) filter (t_ns <= t) as t0, max(received) filter (t_ns <= t) as v0,
               min(t_ns) filter (t_ns > t) as t1, min(received) filter (t_ns > t) as v1
        from edges e, progress p where p.role = 'sink' group by all
    )
    select a.phase, sum(sign * case when t0 is null then 0.0 when t1 is null then v0
                                    else v0 + (v1 - v0) * (t - t0)::double / (t1 - t0) end)
                    / ((any_value(w.end_ns) - any_value(w.start_ns)) / 1e9)
    from around a join windows w on a.phase = w.phase group by a.phase
"""
"""Distinct records per second at all sinks."""

LAG = f"""
    with windows as ({WINDOWS}), moments as (
        select task, t_ns, reached, lead(t_ns) over (partition by task order by t_ns) as next from progress where is_moment
    ), spans as (
        select phase, start_ns, least(end_ns, coalesce(ended, end_ns)) as until, usual, m.*
        from windows cross join subtasks s join moments m on m.task = s.task
    )
    select phase, max(greatest(
        if(t_ns >= start_ns and t_ns < until, t_ns - reached, null),
        if(least(coalesce(next, until), until) - t_ns > 250000000 + usual and least(coalesce(next, until), until) > start_ns,
           least(coalesce(next, until), until) - reached - usual, null))) / 1e9
    from spans group by phase
"""
"""The largest lag of any subtask: that of its samples, and in a silence the one at its end."""

STALL = f"""
    with windows as ({WINDOWS}), spans as (
        select phase, task, start_ns, least(end_ns, coalesce(ended, end_ns)) as until
        from windows, subtasks where role = 'sink' and usual is not null
    ), times as (
        select phase, task, start_ns as t from spans union all select phase, task, until from spans
        union all select phase, s.task, t_ns from spans s join progress p on p.task = s.task
        where is_new and t_ns >= start_ns and t_ns < until
    )
    select phase, max(gap) / 1e9 from (select phase, t - lag(t) over (partition by phase, task order by t) as gap from times)
    group by phase
"""
"""The longest silence of any sink subtask."""

LAGS = """
    select g.t, m.task, case when ended <= g.t then 0.0
        else greatest((m.t_ns - m.reached) / 1e9, (g.t - m.reached - usual) / 1e9) end as seconds
    from {grid} g cross join subtasks s
    asof left join (select * from progress where is_moment) m on m.task = s.task and m.t_ns <= g.t
"""

RECOVERY = f"""
    with recursive cut as ({CUT}),
    paths as (
        select target as vertex, 1 as hops from edges union select e.target, p.hops + 1 from paths p join edges e on e.source = p.vertex
    ),
    flushes as (select vertex, max(hops) * epoch(timeout) as seconds from paths, flusher group by vertex, timeout),
    facts as (
        select (select min(t_ns) from faults where state = 'injected') as effect,
               (select max(t_ns) from faults where state = 'ended') as healed,
               (select max(t_ns) from events where kind = 'failover.started') as failed,
               (select max(end_ns) from spans where name in ('fault', 'observation')) as last
    ),
    running as (
        select max(first) as t from (select min(t_ns) as first from events, facts
            where kind = 'sink.first-record' and t_ns >= failed group by subject)
    ),
    usual_times as (select unnest(range(start_ns, end_ns, 100000000)) as t from cut),
    limits as (
        select task, greatest(quantile_cont(l.seconds, 0.95) + 0.2, any_value(f.seconds)) as most
        from ({LAGS.format(grid="usual_times")}) l left join flushes f on f.vertex = regexp_replace(task, '-[0-9]+$', '')
        where task is not null group by task
    ),
    times as (
        select t, row_number() over (order by t) - 1 as i
        from (select unnest(range(coalesce(r.t, effect), last + 1, 100000000)) as t from facts, running r)
    ),
    received as (
        select task, t_ns, t_ns - lag_ns as due, records_in > lag(records_in, 1, 0) over by_time as any_new,
               if(attempt = 0, 0, min(t_ns) over (partition by task, attempt)) as begun
        from tasks where role = 'sink' window by_time as (partition by task, attempt order by t_ns)
    ),
    usual_late as (
        select r.task, max(t_ns - due) / 1e9 as seconds from received r, cut where any_new and t_ns >= start_ns and t_ns < end_ns group by r.task
    ),
    late as (  -- records of one source that are missing while those of another one arrive
        select r.task, greatest(due + tolerated, begun) as since, t_ns as until
        from received r join (select k.task, round(greatest(most, coalesce(u.seconds, 0) + 0.2) * 1e9) as tolerated
                              from limits k left join usual_late u on u.task = k.task) k on r.task = k.task
        join subtasks s on s.task = r.task
        where any_new and t_ns - due > tolerated and t_ns <= coalesce(ended, t_ns)
    ),
    windows_of_latency as (
        select window_start_ns as first, window_start_ns + window_ns as last, max(max_ns) as largest from latency group by all
    ),
    missing as (  -- records that came in a later window, too late by more than that window
        select greatest(last - largest + tolerated, coalesce((select max(begun) from received where begun <= last + 200000000), 0)) as since, first as until
        from windows_of_latency, (
            select greatest(max(largest) + 200000000, (select coalesce(max(seconds), 0) from flushes) * 1e9) as tolerated
            from windows_of_latency, cut where last > start_ns and first < end_ns
        ) where first < coalesce((select if(count(*) = count(ended), max(ended), null) from subtasks where role = 'sink'), first + 1)
    ),
    goods as (  -- for each subtask, and for the records that are missing at any sink
        select '' as task, g.t, g.i, not exists (select 1 from missing where since < g.t and g.t < until) as good
        from times g where exists (from missing)
        union all
        select k.task, g.t, g.i, coalesce(l.seconds <= k.most, false)
               and not exists (select 1 from late where late.task = k.task and since < g.t and g.t < until) as good
        from times g cross join limits k left join ({LAGS.format(grid="times")}) l on l.task = k.task and l.t = g.t
    ),
    healing as (  -- without a failover, what was good for a second when the fault ended was good since then
        select coalesce((select min(i) from times, facts where failed is null and times.t >= healed), 0) as i
    ),
    quiet as (
        select task, coalesce(max(g.i) filter (not good and g.i < h.i) + 1, 0) as i from goods g, healing h group by task
    ),
    since as (select task, if(q.i = 0 or h.i - q.i >= 10, q.i, h.i) as i from quiet q, healing h),
    runs as (
        select task, t, i, count(*) filter (good) over (partition by task order by i rows between current row and 4 following) as n
        from goods
    ),
    each_caught as (
        select x.task, min(x.t) as t from runs x join since s on s.task = x.task where n = 5 and x.i >= s.i group by x.task
    ),
    caught as (select if(count(*) = (select count(distinct task) from goods), max(t), null) as t from each_caught)
    select (coalesce(c.t, last) - effect) / 1e9, if(failed is null, null, (r.t - effect) / 1e9),
           (select count(distinct (process, subject)) from events
            where kind = 'failover.started' and coalesce(json_extract_string(data, '$.counted'), 'true') = 'true')
    from facts, running r, caught c
"""
"""Total, downtime and failovers of a trial with one fault: until the last subtask's lag has been within the baseline's, or the buffer
timeouts on the way to it, for 500 ms, and no record was late that came after it. Each subtask counts from its own moment on."""


class Oracle:
    """The tables of one trial in DuckDB."""

    def __init__(self, history: Path, entry: TrialEntry) -> None:
        self._duck = duckdb.connect()
        for file in history.glob("*.parquet"):
            self._duck.execute(f"create view {file.stem} as select * from read_parquet('{file}')")
        self._duck.execute("create table spans (name text, start_ns bigint, end_ns bigint)")
        spans = [(phase.name, phase.start_ns, phase.end_ns) for phase in entry.phases]
        self._duck.executemany("insert into spans values (?, ?, ?)", spans)
        self._duck.execute("create table edges (source text, target text)")
        edges = [(edge.source, edge.target) for edge in entry.job.edges]
        self._duck.executemany("insert into edges values (?, ?)", edges)
        timeout = entry.configuration.get("execution.buffer-timeout.interval", "100 ms")
        self._duck.execute("create table flusher as select cast(? as interval) as timeout", [timeout])
        for statement in (PROGRESS, SUBTASKS):
            self._duck.execute(statement)

    def throughput(self) -> dict[str, float]:
        return dict(self._rows(THROUGHPUT))

    def latency(self) -> dict[tuple[str, float], float | None]:
        rows = self._rows(LATENCY, {"quantiles": list(QUANTILES)})
        return {(phase, float(quantile)): value for phase, quantile, value in rows}

    def delivery(self) -> dict[str, float]:
        names = ("lost", "duplicated", "committed", "corrupted", "out-of-order")
        return dict(zip(names, self._rows(DELIVERY)[0], strict=True))

    def by_phase(self, query: str) -> dict[str, float]:
        """Return the value of each phase: GOODPUT, LAG or STALL."""
        return dict(self._rows(query))

    def recovery(self) -> dict[str, float | None]:
        names = ("recovery.total", "recovery.downtime", "failovers.count")
        return dict(zip(names, self._rows(RECOVERY)[0], strict=True))

    def _rows(self, query: str, parameters: Any = None) -> Sequence[Any]:
        return self._duck.execute(query, parameters).fetchall()
