"""Faults in words: one sentence for what was asked, one for what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.timeseries import trial_timeseries
from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.judgement.series import FaultSeen
from testbed_runtime.report import faultwords
from testbed_runtime.report.build import _faults
from tests.checking.conftest import History
from tests.manifests import trial_entry

ASKED = [
    ("process.pause", {}, "8 s pause of tm-2"),
    ("process.kill", {}, "kill of tm-2"),
    ("network.latency", {"latency_s": 0.2, "mode": "round-trip", "jitter_s": 0.0}, "200 ms more on each round trip of tm-2 for 8 s"),
    ("network.latency", {"latency_s": 0.1, "mode": "one-way", "jitter_s": 0.02}, "100 ms ± 20 ms more in each direction of tm-2 for 8 s"),
    ("network.bandwidth", {"bytes_per_s": 65536.0}, "at most 64 KiB/s for tm-2 for 8 s"),
    ("frames.drop", {"frame_class": "buffer", "percent": 50}, "50 % of the buffer frames of tm-2 dropped for 8 s"),
    ("registration.delay", {"delay_s": 3.0, "vertex": "source"}, "partitions of source on tm-2 are registered 3 s late"),
    ("registration.delay", {"attempts": 2}, "the first 2 requests for partitions on tm-2 find nothing"),
    ("heartbeats.mute", {"direction": "response"}, "heartbeat responses of tm-2 are dropped for 8 s"),
    ("rpc.delay", {"method": "SubmitTask", "delay_s": 0.2}, "each SubmitTask on tm-2 200 ms later for 8 s"),
]  # fmt: skip


def fault(kind: str, params: dict[str, Any], **asked: Any) -> FaultSeen:
    asked = {"params": params, **asked}
    return FaultSeen(fault="f", kind=kind, targets=["tm-2"], duration_s=8.0, asked=asked)


@pytest.mark.parametrize(("kind", "params", "text"), ASKED)
def test_what_was_asked_is_one_sentence(kind: str, params: dict[str, Any], text: str):
    """With the values that matter, and nothing of the fields that do not."""
    assert faultwords.asked(fault(kind, params)) == text


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_its_sentence(kind: str):
    """No raw fields reach the page, even without parameters."""
    sentence = faultwords.asked(fault(kind, {}))
    assert kind not in sentence
    assert "{" not in sentence


def test_a_direction_is_said_when_it_is_not_both():
    """Seen from the target."""
    one_way = fault("network.partition", {}, direction="to")
    assert faultwords.asked(one_way) == "nothing passes between tm-2 and its peers towards it for 8 s"
    late = fault("network.latency", {"latency_s": 0.1, "mode": "one-way"}, direction="from")
    assert faultwords.asked(late) == ("100 ms more one way of tm-2 away from it for 8 s")


def test_a_fault_that_never_began_is_described_as_it_was_requested():
    """The job had ended before. There are no rows of it, so the entry of the trial has what was requested."""
    params = {"frame_class": "barrier", "percent": 10}
    planned = {"name": "f", "kind": "frames.drop", "at_s": 1.95693, "duration_s": 0.2, "params": params}
    entry = trial_entry(trial="t", faults=[{**planned, "direction": "to"}])
    found = trial_timeseries(History().trial(), entry)
    assert (
        faultwords.asked(found.faults[0])
        == "10 % of the barrier frames of no process dropped towards it for 200 ms"
    )
    assert next(iter(_faults([entry], {"t": found}))).when == "1.957 s after the baseline"


MEASURED = [
    ({"pids": {"tm-2": 7}, "states": {"tm-2": "T"}, "after_s": 0.0003}, "tm-2 stopped 300 µs after the fault began"),
    (
        {"paths": {"tm-2->tm-0/data": {"asked_round_trip_s": 0.2, "added_round_trip_s": 0.2012, "before_s": 0.0003, "probes": 5}}},
        "tm-2 → tm-0/data: round trip +201 ms (200 ms requested, 5 probes)",
    ),
    (
        {"paths": {"tm-2->tm-0/data": {"silent_for_s": 1.0, "answered_after_s": None, "connection": "open"}}},
        "tm-2 → tm-0/data: no answer for 1.00 s, connection open",
    ),
    (
        {"paths": {"tm-2->tm-0/data": {"probes": 200, "tolerance_s": 0.001, "backward_asked_s": 0.02, "backward_added_s": 0.0202}}, "packets": {"packets": 400}},
        "tm-2 → tm-0/data: +20.20 ms on the way back (20 ms requested, median of 200 probes)",
    ),
    (
        {"paths": {"a->b/data": {"backward_probes": 2300, "backward_asked_percent": 5.0, "backward_lost_percent": 5.2174, "backward_interval_percent": [3.6812, 7.3459]}}},
        "a → b/data: 5.22 % lost on the way back (5 % requested, 3.68 … 7.35 % with 99.99 % confidence, 2300 probes)",
    ),
    (
        {"counters": {"tm-0": {"delayed": 1, "delay_s": 3.0}, "tm-1": {"delayed": 0}}},
        "tm-0: 1 delayed, 3.00 s in all",
    ),
    ({"counters": {"tm-1": {"delayed": 0}}}, "nothing arrived that it could affect"),
    ({"sent": 120, "received": 60, "missing": 60}, "120 frames sent, 60 missing"),
    ({}, "–"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "text"), MEASURED)
def test_what_was_measured_is_one_sentence(values: dict[str, Any], text: str):
    """The values come from probes, taps, counters and the process table."""
    assert faultwords.measured(values) == text


def test_residue_has_another_sentence_than_the_effect():
    """The state of a process, the round trips of a path."""
    assert faultwords.after({"states": {"tm-2": "R"}}) == "tm-2 running"
    assert faultwords.after({"paths": {"a->b/data": {"added_s": -0.0001, "round_trip_s": 0.0002}}}) == (
        "round trips −100 µs compared with before"
    )
    assert faultwords.after({}) == ""
