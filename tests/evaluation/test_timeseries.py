"""The series of the report: a pure function of one trial's tables."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import to_builtins

from testbed_runtime.checking.load import CHANNELS_MAX, COLUMNS_MAX, credit_waits
from testbed_runtime.checking.timeseries import BIN_NS, BINS_MAX, trial_timeseries
from testbed_runtime.history.schema import Trial
from testbed_runtime.history.writer import MemoryHistory
from tests.manifests import trial_entry
from tests.report import synthetic


@pytest.fixture(scope="module")
def series() -> dict[str, Any]:
    plan = synthetic.PLANS[1]
    return to_builtins(trial_timeseries(synthetic.history(plan), synthetic.entry(plan)))


def at(series: dict[str, Any], name: str, second: float) -> float | None:
    return series["series"][name][int(second / series["bin_s"])]


def test_throughput_follows_the_records_that_arrived(series: dict[str, Any]):
    """The rate before, nothing while it is down, more while it catches up; and nothing is lost in the bins."""
    assert at(series, "throughput", 5.0) == pytest.approx(synthetic.RATE, rel=0.01)
    assert at(series, "throughput", 10.0) == 0.0
    assert at(series, "throughput", 14.0) == pytest.approx(2.65 * synthetic.RATE, rel=0.02)
    total = sum(v * series["bin_s"] for v in series["series"]["throughput"] if v is not None)
    assert total == pytest.approx(synthetic.RATE * synthetic.END_S, rel=0.001)


def test_goodput_leaves_out_what_is_replayed(series: dict[str, Any]):
    """Without a failover both rates are the same; after one, goodput is never above the raw rate."""
    control = to_builtins(
        trial_timeseries(synthetic.history(synthetic.PLANS[0]), synthetic.entry(synthetic.PLANS[0]))
    )
    assert control["series"]["goodput"] == control["series"]["throughput"]
    good, raw = (series["series"][name] for name in ("goodput", "throughput"))
    assert all(g <= r + 0.1 for g, r in zip(good, raw, strict=True) if g is not None and r is not None)
    assert sum(g for g in good if g) < sum(r for r in raw if r)


def test_the_heat_map_holds_every_record_of_the_latency_table(series: dict[str, Any]):
    """In at most COLUMNS_MAX columns; the rows have rising bounds."""
    heat = series["heat"]
    table = synthetic.history(synthetic.PLANS[1]).table("latency")
    counted = sum(sum(column) for column in heat["columns"])
    assert counted == pytest.approx(sum(table.column("count").to_pylist()), rel=0.02)
    assert len(heat["starts_s"]) == len(heat["columns"]) <= COLUMNS_MAX
    assert heat["bounds_s"] == sorted(heat["bounds_s"])
    assert heat["low_s"] < heat["bounds_s"][0]


def test_the_load_of_a_vertex_is_that_of_its_worst_subtask(series: dict[str, Any]):
    """A third of each second was busy work; nothing waited for buffers."""
    (vertex,) = [v for v in series["load"]["vertices"] if v["vertex"] == "source"]
    assert vertex["busy"][20] == pytest.approx(0.333, abs=0.01)
    assert vertex["backpressured"][20] == 0.0


def test_channels_that_waited_for_credit_are_ranked():
    """The longest first; the others are counted."""
    memory = MemoryHistory(run="r", trial="t", boot_id="b")
    sink = memory.sink("tm-0-1", lambda: 0)
    for index in range(CHANNELS_MAX + 2):
        sink.append("waits", wait=f"tm-0-1/{index}", kind="credit", who="map-0", what=f"sink-{index}",
                    start_ns=0, t_ns=(index + 1) * 1_000_000, outcome="completed")  # fmt: skip
    found = to_builtins(credit_waits(memory.trial()))
    assert (found["channels"][0]["what"], found["channels"][0]["seconds"]) == (
        f"sink-{CHANNELS_MAX + 1}",
        0.014,
    )
    assert (len(found["channels"]), found["more"]) == (CHANNELS_MAX, 2)


def test_lag_and_latency_grow_with_the_pause_and_return(series: dict[str, Any]):
    """Largest lag of each bin; quantiles are null while nothing arrives."""
    assert at(series, "lag_s", 11.0) == pytest.approx(4.0, abs=0.1)
    assert (at(series, "lag_s", 20.0) or 1.0) < 0.05
    assert at(series, "latency_p99_s", 10.0) is None
    assert (at(series, "latency_p50_s", 13.0) or 0.0) > 3.0
    assert (at(series, "latency_p99_s", 20.0) or 9.0) < 0.3


def test_spans_and_marks_are_where_they_were_recorded(series: dict[str, Any]):
    """Phases, the fault's effect and the restart; the checkpoint that failed; nothing from before the first phase."""
    spans = {(s["kind"], s["name"]): s for s in series["spans"]}
    assert spans["fault", "long-gc"]["start_s"] == pytest.approx(7.012), "injected"
    assert spans["fault", "long-gc"]["end_s"] == pytest.approx(15.004)
    assert spans["failover", "restart 1"]["start_s"] == pytest.approx(11.62)
    assert spans["phase", "baseline"]["start_s"] == 3.0
    failed = [m for m in series["marks"] if m["kind"] == "checkpoint.failed"]
    assert [m["t_s"] for m in failed] == [pytest.approx(11.62)]
    assert all(m["t_s"] >= 0 for m in series["marks"])


def test_the_fault_is_shown_as_asked_and_as_measured(series: dict[str, Any]):
    """One row a fault, with backend, why, effect and residue."""
    (fault,) = series["faults"]
    assert (fault["effect"], fault["residue"], fault["backend"]) == ("verified", "clean", "supervisor")
    assert fault["asked"] == {"duration_s": 8.0}
    # what was measured while it lasted and what was left after it do not overwrite each other
    assert fault["measured"]["states"] == {"tm-1": "T"}
    assert fault["after"] == {"states": {"tm-1": "R"}}


def test_marks_end_with_the_last_phase(series: dict[str, Any]):
    """Processes that end because the testbed is stopped are no news."""
    assert max(m["t_s"] for m in series["marks"]) <= max(s["end_s"] for s in series["spans"])


def test_a_fault_that_was_asked_and_never_seen_says_so():
    """The manifest alone names it."""
    plan = synthetic.PLANS[1]
    found = to_builtins(trial_timeseries(Trial("r", plan.trial, {}), synthetic.entry(plan)))
    (fault,) = found["faults"]
    assert (fault["effect"], fault["residue"]) == ("not measured", "not measured")
    assert set(found["series"]["throughput"]) == {None}


def test_an_empty_history_without_phases_is_one_empty_bin():
    """Nothing raises, everything is JSON."""
    found = to_builtins(trial_timeseries(Trial("r", "t", {}), trial_entry(trial="t")))
    assert len(found["bins"]) == 1
    json.dumps(found, allow_nan=False)


def test_a_broken_time_stamp_cannot_cost_more_than_the_limit():
    """A trial of a year has BINS_MAX bins."""
    memory = MemoryHistory(run="r", trial="t")
    sink = memory.sink("tm-0-1", lambda: 0)
    for t_ns in (0, 365 * 86_400 * 10**9):
        sink.append("tasks", task="sink-0", role="sink", records_in=1, t_ns=t_ns)
    found = to_builtins(trial_timeseries(memory.trial(), trial_entry(trial="t")))
    assert len(found["bins"]) == BINS_MAX
    assert found["bin_s"] == BIN_NS / 1e9


def test_json_that_is_none_does_no_harm():
    """Texts of other writers are read as far as they can be."""
    memory = MemoryHistory(run="r", trial="t")
    sink = memory.sink("runner", lambda: 0)
    sink.append("events", kind="job.state", subject="job", data="no json", t_ns=1)
    sink.append(
        "faults", fault="f", state="injected", kind="network.latency", targets="[", measured="3", t_ns=1
    )
    found = to_builtins(trial_timeseries(memory.trial(), trial_entry(trial="t")))
    assert found["faults"][0]["targets"] == []


@pytest.mark.parametrize(
    ("state", "name"), [("FAILED", "ended"), ("CANCELED", "ended"), ("FINISHED", "drain")]
)
def test_a_failed_job_is_not_drained(state: str, name: str):
    """Its last phase is not shown as a drain with a final checkpoint."""
    entry = trial_entry(job_state=state, phases=[{"name": "drain", "start_ns": 1_000, "end_ns": 2_000}])
    series = to_builtins(trial_timeseries(MemoryHistory().trial(), entry))
    assert [s["name"] for s in series["spans"]] == [name]
