"""All metrics of a trial, and from there to the verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from testbed_runtime.checking.checkpoints import check_checkpoints
from testbed_runtime.checking.common import Window, task_series, windows
from testbed_runtime.checking.latency import Histogram, histogram
from testbed_runtime.checking.metrics import control_metrics, trial_metrics
from testbed_runtime.checking.progress import raw_rate
from testbed_runtime.core.job.ledger import Ledger
from testbed_runtime.core.judgement.expectations import AT_LEAST_ONCE, Expectation
from testbed_runtime.core.judgement.judge import judge
from testbed_runtime.core.judgement.metrics import (
    CONTROL_UNSTABLE,
    FAULT_NOT_VERIFIED,
    HISTORY_INCOMPLETE,
    METRICS,
    NO_DATA,
    NOT_COUNTED,
    NOT_DRAINED,
    NOT_SAMPLED,
)
from testbed_runtime.core.judgement.verdict import RunVerdict, TrialFacts, Verdict
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS
from tests.manifests import trial_entry

ASKED = [
    {"metric": "failovers.count", "equals": 1},
    {"metric": "restarts.attempts", "max": 2},
    {"metric": "recovery.detect", "max": "2.25 s"},
    {"metric": "job.state", "equals": "RUNNING"},
    {"metric": "job.failure", "equals": ""},
    {"metric": "detection.text", "equals": "TaskManager with id * is no longer reachable."},
    {"metric": "delivery.lost", "equals": 0},
    {"metric": "throughput.relative", "phase": "observation", "min": "95 %"},
    {"metric": "latency", "quantile": "p99", "phase": "baseline", "max": "1 s"},
    {"metric": "recovery.total", "max": "6 s"},
]


def found(trial: Any, entry: TrialEntry, *asked: dict[str, Any]) -> RunVerdict:
    """Compute the verdict from tables, like Spark, the simulator and the tuner."""
    rows = trial_metrics(trial, entry)
    return judge(
        trials=[TrialFacts.from_manifest(entry)],
        expectations={"main": [Expectation.from_item(a) for a in asked or ASKED]},
        rows=rows,
    )


def values(trial: Any, entry: dict[str, Any]) -> dict[str, Any]:
    """Metric → value, of the rows without phase and quantile."""
    return {r.metric: r.value for r in trial_metrics(trial, entry) if r.phase == "" and r.quantile is None}


def test_a_good_history_passes(history: Any):
    """Everything that is asked holds."""
    verdict = found(history.good(), history.entry())
    assert verdict.verdict is Verdict.PASS, verdict.summary


def test_one_duplicated_record_fails(history: Any):
    """Whether it was asked for or not."""
    done = False

    def double(table: str, row: dict[str, Any]) -> dict[str, Any]:
        nonlocal done
        if table == "delivery" and not done:
            done = True
            return row | {"duplicated": 1}
        return row

    verdict = found(history.good(double), history.entry())
    assert verdict.verdict is Verdict.FAIL
    assert "delivery.duplicated" in verdict.summary


def test_a_backend_that_never_verified_is_inconclusive_and_never_passes(history: Any):
    """The fault was requested, injected, ended and is clean, but no effect was observed."""
    for trial in (
        history.without("faults", state="verified"),
        history.good(
            lambda t, r: r | {"state": "unverified"} if t == "faults" and r["state"] == "verified" else r
        ),
        history.without("faults"),
    ):
        verdict = found(trial, history.entry())
        assert (verdict.verdict, verdict.reason) == (Verdict.INCONCLUSIVE, FAULT_NOT_VERIFIED)


def test_one_of_two_targets_unverified_is_not_verified(history: Any):
    """Half a fault is another fault."""
    trial = history.good()
    built = history.empty()
    for target, state in (("tm-0", "verified"), ("tm-1", "unverified")):
        built.add("supervisor", "faults", 8.1, fault="kill", state=state, targets=[target])
    rows = trial_metrics(built.trial(), history.entry())
    assert [r.value for r in rows if r.metric == "fault.verified"] == [0.0]
    assert [r.value for r in trial_metrics(trial, history.entry()) if r.metric == "fault.verified"] == [1.0]


def test_residue_is_an_error(history: Any):
    """Residue takes precedence over everything else."""
    trial = history.good(
        lambda t, r: r | {"state": "residue"} if t == "faults" and r["state"] == "clean" else r
    )
    assert found(trial, history.entry()).verdict is Verdict.ERROR


def test_an_undrained_trial_is_inconclusive(history: Any):
    """Delivery is unknown."""
    verdict = found(history.good(), history.entry(drained=False))
    assert (verdict.verdict, verdict.reason) == (Verdict.INCONCLUSIVE, NOT_DRAINED)


@pytest.mark.parametrize(("ends_s", "count", "detected"), [(9.4, 0.0, False), (9.6, 1.0, True)])
def test_a_failover_because_an_interrupted_run_stopped_its_processes_does_not_count(
    history: Any, ends_s: float | None, count: float, detected: bool
):
    """The kill's failover begins at 9.5 s. If the run was interrupted before that, stopping its processes caused it."""
    phase = {"name": "observation", "start_ns": history.at(9.0), "end_ns": history.at(ends_s)}
    entry = history.entry(drained=False, phases=[phase])
    rows = {r.metric: r for r in trial_metrics(history.good(), entry) if not r.phase}
    assert rows["failovers.count"].value == count
    assert bool(rows["detection.text"].text) is detected


def test_a_gap_in_the_history_is_inconclusive(history: Any):
    """Rows are numbered; one in the middle is gone."""
    trial = history.good()
    table = trial.table("tasks")
    trial.tables["tasks"] = table.filter([i != 100 for i in range(len(table))])
    assert values(trial, history.entry())["history.missing"] == 1
    verdict = found(trial, history.entry())
    assert (verdict.verdict, verdict.reason) == (Verdict.INCONCLUSIVE, HISTORY_INCOMPLETE)


def test_the_lost_tail_of_a_killed_process_is_no_gap(history: Any):
    """Rows that were never acknowledged leave no trace."""
    trial = history.good()
    table = trial.table("channels")
    keep = [r["process"] != "tm-1-1" or r["seq"] < 500 for r in table.to_pylist()]
    trial.tables["channels"] = table.filter(keep)
    tasks = trial.table("tasks")
    trial.tables["tasks"] = tasks.filter(
        [r["process"] != "tm-1-1" or r["seq"] < 500 for r in tasks.to_pylist()]
    )
    latency = trial.table("latency")
    trial.tables["latency"] = latency.filter(
        [r["process"] != "tm-1-1" or r["seq"] < 500 for r in latency.to_pylist()]
    )
    assert values(trial, history.entry())["history.missing"] == 0


def test_shed_rows_are_inconclusive(history: Any):
    """The process said so itself."""
    built = history.empty()
    built.event("history.shed", "tm-0-1", 5.0, data={"table": "channels", "rows": 17})
    assert values(built.trial(), history.entry())["history.missing"] == 17


def test_an_empty_history_is_never_a_pass(history: Any):
    """Every row says why it has no value, and nothing raises."""
    rows = trial_metrics(history.empty().trial(), history.entry())
    assert all(r.reason for r in rows if r.value is None and METRICS[r.metric].unit != "text")
    assert found(history.empty().trial(), history.entry()).verdict is Verdict.INCONCLUSIVE
    assert found(history.empty().trial(), trial_entry()).verdict is Verdict.INCONCLUSIVE


def test_rows_have_the_fields_and_every_metric_of_the_catalogue(history: Any):
    """Rows have the fields that Spark declares and the metrics that `expect` may name."""
    trial, entry = history.good(), history.entry()
    rows = trial_metrics(trial, entry)
    rows += trial_metrics(trial, replace(entry, role="control", trial="c"))
    rows += control_metrics(rows, [entry])
    assert {r.metric for r in rows} == set(METRICS)
    keys = [(r.metric, r.phase, r.quantile) for r in trial_metrics(trial, entry)]
    assert len(set(keys)) == len(keys)


def test_a_control_trial_is_compared_by_phase_and_quantile(history: Any):
    """The control trial belongs to the same variant."""
    entry = history.entry()
    control_entry = history.entry(trial="main-control-1", role="control", faults=[])
    built = history.empty()
    built.memory.trial_name = "main-control-1"
    built.event("job.state", "job", 0.1, data={"to": "RUNNING"})
    history.sample(built, failover=False)
    control = built.trial()
    rows = trial_metrics(history.good(), entry)
    control_rows = [replace(r, trial="main-control-1") for r in trial_metrics(control, control_entry)]
    stable = next(r for r in control_rows if r.metric == "control.stable")
    assert (stable.value, stable.text) == (1.0, "")
    more = control_metrics([*rows, *control_rows], [control_entry, entry])
    relative = {(r.metric, r.phase, r.quantile): r.value for r in more}
    assert relative["latency.relative-to-control", "baseline", 0.5] == pytest.approx(1.0)
    assert relative["latency.relative-to-control", "observation", 0.99] > 50
    assert relative["throughput.relative-to-control", "fault", None] < 0.1
    assert {r.trial for r in more} == {"main-1"}


def test_a_control_trial_with_a_failover_is_not_stable(history: Any):
    """And then nothing but safety counts."""
    entry = history.entry(role="control", faults=[])
    rows = trial_metrics(history.good(), entry)
    stable = next(r for r in rows if r.metric == "control.stable")
    assert stable.value == 0.0
    assert "failover" in stable.text
    both = [replace(r, trial="c") for r in rows] + trial_metrics(history.good(), history.entry())
    verdict = judge(
        trials=[TrialFacts(trial="c", role="control"), TrialFacts.from_manifest(history.entry())],
        expectations={"main": [Expectation.from_item(a) for a in ASKED]},
        rows=both,
    )
    assert (verdict.verdict, verdict.reason) == (Verdict.INCONCLUSIVE, CONTROL_UNSTABLE)


def test_raw_throughput_of_a_window(history: Any):
    """Two sinks of 1000 records a second each; nothing from 8 to 11 s."""
    trial = history.good()
    sinks = task_series(trial, "sink")
    assert raw_rate(sinks, Window(history.at(2), history.at(8))) == pytest.approx(2000, rel=0.01)
    assert raw_rate(sinks, Window(history.at(8.5), history.at(10.5))) == pytest.approx(0, abs=1)
    assert raw_rate(sinks, Window(history.at(14), history.at(20))) == pytest.approx(2000, rel=0.01)
    assert raw_rate([], Window(0, 1)) is None
    assert raw_rate(sinks, Window(history.at(-9), history.at(-8))) is None


def test_records_are_counted_across_attempts(history: Any):
    """Each attempt's counter begins at 0 again."""
    trial = history.good()
    whole = raw_rate(task_series(trial, "sink"), Window(history.at(0), history.at(24)))
    assert whole == pytest.approx(2 * (8000 + 16900) / 24, rel=0.01)


def test_quantiles_come_from_merged_histograms(history: Any):
    """Within 12.5 %, and the maximum exactly."""
    random = np.random.default_rng(7)
    sample = random.lognormal(np.log(20e6), 1.0, 50_000).astype(np.int64)
    counts = np.zeros(len(LATENCY_BOUNDS_NS) + 1, dtype=np.int64)
    np.add.at(counts, np.searchsorted(LATENCY_BOUNDS_NS, sample), 1)
    merged = Histogram(counts, int(sample.max()))
    for q in (0.5, 0.9, 0.99, 0.999):
        assert merged.quantile(q) == pytest.approx(np.quantile(sample, q) / 1e9, rel=0.125)
    assert merged.quantile(1.0) == sample.max() / 1e9
    assert Histogram(counts * 0, 0).quantile(0.5) is None


def test_a_quantile_of_too_few_records_is_no_quantile():
    """99 records have no 99th percentile but their maximum."""
    counts = np.zeros(len(LATENCY_BOUNDS_NS) + 1, dtype=np.int64)
    counts[10] = 99
    assert Histogram(counts, 10**6).quantile(0.99) is None
    counts[10] = 100
    assert Histogram(counts, 10**6).quantile(0.99) is not None


def test_latency_is_split_by_phase(history: Any):
    """The middle of each sample window decides."""
    trial, spans = history.good(), windows(history.good(), history.entry())
    assert spans.baseline is not None
    assert histogram(trial, spans.baseline).total == pytest.approx(2 * 60 * 100, rel=0.02)


def test_checkpoints_count_where_they_ended(history: Any):
    """Once each."""
    before = check_checkpoints(history.good(), Window(history.at(0), history.at(8)))
    after = check_checkpoints(history.good(), Window(history.at(8), history.at(24)))
    assert (before.completed, before.failed, before.longest_s) == (1, 0, 0.1)
    assert (after.completed, after.failed, after.longest_s) == (0, 1, None)


def test_the_size_of_a_checkpoint_is_what_it_stored(history: Any):
    """The mean of two completed ones, over all tasks; one that failed does not count. The full size is that of the state."""
    built = history.empty()
    for checkpoint, stored, whole in ((1, 100, 500), (2, 300, 700), (3, 9000, 0)):
        for task in ("a-0", "a-1"):
            built.add(
                "jobmanager-1",
                "checkpoints",
                1.0,
                checkpoint=checkpoint,
                state="acknowledged",
                task=task,
                state_bytes=stored,
            )
        ended = "completed" if whole else "failed"
        built.add("jobmanager-1", "checkpoints", 1.1, checkpoint=checkpoint, state=ended, state_bytes=whole)
    found = check_checkpoints(built.trial(), Window(history.at(0), history.at(8)))
    assert (found.size_bytes, found.full_bytes) == (400, 600)
    nothing = check_checkpoints(history.empty().trial(), Window(history.at(0), history.at(8)))
    assert (nothing.size_bytes, nothing.full_bytes) == (None, None)


def test_the_size_of_a_checkpoint_includes_what_was_stored_before_the_window(history: Any):
    """And nothing of an unfinished checkpoint whose id a new JobManager used again."""
    built = history.empty()
    for t, state, stored in (
        (1.0, "triggered", 0), (1.1, "acknowledged", 7000), (2.0, "triggered", 0), (2.1, "acknowledged", 100),
        (3.1, "acknowledged", 200), (3.2, "completed", 900),
    ):  # fmt: skip
        built.add("jobmanager-1", "checkpoints", t, checkpoint=1, state=state, task="a-0", state_bytes=stored)
    assert check_checkpoints(built.trial(), Window(history.at(3), history.at(8))).size_bytes == 300


def test_what_stale_attempts_offered_is_added_up(history: Any):
    """The counts are grouped by what was rejected. An event without details is one acknowledgement."""
    built = history.empty()
    built.event("stale.rejected", "sink-0", 9.0, attempt=0)
    for what, count in (("record", 40), ("record", 2), ("acknowledgement", 1)):
        built.event("stale.rejected", "sink-0", 9.0, attempt=0, data={"what": what, "count": count})
    row = next(r for r in trial_metrics(built.trial(), history.entry()) if r.metric == "stale.rejected")
    assert (row.value, row.text) == (44, "2 acknowledgement, 42 record")


def test_counts_of_the_control_plane(history: Any):
    """Requests, retries, timeouts, losses, stalls."""
    built = history.empty()
    for request in (1, 2, 3):
        built.event("partition.request", "sink-0", 1.0, data={"request": request})
    built.event("rpc.timeout", "taskexecutor", 2.0)
    built.event("taskmanager.lost", "tm-1-1", 2.0)
    built.event("taskmanager.lost", "tm-1-1", 2.1)
    built.event("loop.stall", "tm-0-1", 3.0, data={"seconds": 0.4})
    got = values(built.trial(), history.entry())
    assert (got["partition.requests"], got["partition.retries"], got["rpc.timeouts"]) == (3, 2, 1)
    assert (got["taskmanagers.lost"], got["loop.stall"]) == (1, 0.4)


def test_the_state_of_the_job_is_that_before_the_drain(history: Any):
    """The drain itself ends it."""
    rows = {r.metric: r for r in trial_metrics(history.good(), history.entry())}
    assert rows["job.state"].text == "RUNNING"
    assert (rows["job.failure"].text, rows["job.failure"].reason) == ("", "")
    nothing = {r.metric: r for r in trial_metrics(history.empty().trial(), history.entry())}
    assert nothing["job.failure"].reason == NO_DATA


def test_legacy_mode_has_no_credit_to_violate(history: Any):
    """`taskmanager.network.credit-model: false`."""
    configuration = {"taskmanager.network.credit-model": "false"}
    got = values(history.empty().trial(), history.entry(configuration=configuration))
    assert got["credit.violations"] == 0


def test_buffers_in_use_are_the_largest_share_of_a_phase_and_last_until_they_change(history: Any):
    """With 200 buffers: 20 before the baseline (2 s to 8 s), 50 at 9 s in tm-0; always 40 in tm-1. 2 leaked: a violation."""
    built = history.empty()
    for name, t, used in (("tm-0-1", 1.0, 20), ("tm-0-1", 9.0, 50), ("tm-1-1", 0.5, 40)):
        built.event("network.buffers", name, t, data={"total": 200, "used": used})
    for name, leaked in (("tm-0-1", 0), ("tm-1-1", 2)):
        built.event("network.buffers", name, 30.0, data={"leaked": leaked})
    rows = trial_metrics(built.trial(), history.entry())
    used = {r.phase: (r.value, r.text) for r in rows if r.metric == "buffers.used"}
    assert used["baseline"] == (0.2, "tm-0-1 10.0%; tm-1-1 20.0%")
    assert used[""] == (0.25, "tm-0-1 25.0%; tm-1-1 20.0%")
    (leaked,) = [r for r in rows if r.metric == "buffers.leaked"]
    assert (leaked.value, leaked.text) == (2, "tm-1-1 2")


def test_a_job_that_finished_before_its_channels_were_sampled_is_not_judged_by_its_credit(history: Any):
    """A blocking result is read in less than a tenth of a second. A job that runs on, and has no samples, is unknown."""

    def finished_at(t: float | None) -> Any:
        def change(table: str, row: dict[str, Any]) -> dict[str, Any] | None:
            ends = row.get("kind") == "job.state" and "FINISHED" in str(row["data"])
            row = row | {"t_ns": history.at(t)} if ends and t is not None else row
            return None if table == "channels" else row

        rows = trial_metrics(history.good(change), history.entry())
        return next(r.reason for r in rows if r.metric == "credit.violations")

    assert (finished_at(20.0), finished_at(None)) == (NOT_SAMPLED, NO_DATA)


def test_a_leak_that_no_taskmanager_counted_is_unknown(history: Any):
    """All of them were killed."""
    (leaked,) = [r for r in trial_metrics(history.good(), history.entry()) if r.metric == "buffers.leaked"]
    assert (leaked.value, leaked.reason) == (None, NOT_COUNTED)


@pytest.mark.parametrize(
    ("checkpoint", "mode", "failover", "allowed"),
    [
        (-1, "EXACTLY_ONCE", True, True),
        (1, "AT_LEAST_ONCE", True, True),
        (1, "EXACTLY_ONCE", True, False),
        (-1, "AT_LEAST_ONCE", False, False),
    ],
)
def test_duplicates_are_allowed_with_at_least_once_after_a_failover(
    history: Any, checkpoint: int, mode: str, failover: bool, allowed: bool
):
    """The sink delivers at least once (its rows belong to no checkpoint), or checkpoints do. Without a failover there are none."""
    built = history.empty()
    for _ in range(2):
        ledger = Ledger()
        ledger.add("source-0", np.array([0, 1], dtype=np.int64))
        history.commits(built, checkpoint, "sink-0", 0, ledger.take(), 5.0)
    if failover:
        built.event("failover.started", "1", 6.0)
    entry = history.entry(configuration={"execution.checkpointing.mode": mode})
    texts = {r.metric: r.text for r in trial_metrics(built.trial(), entry)}
    assert (texts["delivery.duplicated"] == AT_LEAST_ONCE) is allowed
