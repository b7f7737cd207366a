"""The trace of a run: which waits and trials it has, in which order, and how its processes and tracks are named."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking import trace as module
from testbed_runtime.checking.trace import TRIALS_MAX, trace, trace_events
from testbed_runtime.core.judgement.recovery import Recovery, Round, SharedFault, TrialRecovery
from tests.checking.conftest import NS, History

NONE = TrialRecovery(trial="main-1")


def test_a_trace_has_the_events_of_all_its_trials():
    """A viewer shows milliseconds. A trial is a process that has its name, with two tracks that every trial has."""
    events = trace_events(History().trial(), NONE, pid=3)
    named = [(e["name"], e["ph"], e["ts"], e["pid"], e["tid"], e["args"]["name"]) for e in events]
    assert named == [
        ("thread_name", "M", 0, 3, 1, "rounds"), ("thread_name", "M", 0, 3, 2, "critical path"), ("process_name", "M", 0, 3, 0, "trial main-1"),
    ]  # fmt: skip
    assert trace([events, events[:1]]) == {"displayTimeUnit": "ms", "traceEvents": [*events, events[0]]}


def test_a_trace_has_a_limited_number_of_trials():
    """The last one within the limit is shown, the next one is not. Without a number a trial is the first."""
    assert trace_events(History().trial(), NONE)[0]["pid"] == 1
    assert trace_events(History().trial(), NONE, pid=TRIALS_MAX)
    assert trace_events(History().trial(), NONE, pid=TRIALS_MAX + 1) == []


def test_of_too_many_waits_the_longest_are_kept(monkeypatch: pytest.MonkeyPatch):
    """They are drawn by their start, and of those that begin together the longest first."""
    monkeypatch.setattr(module, "WAITS_MAX", 3)
    history = History()
    for what, start, end in (("short", 1, 2), ("late", 3, 6), ("shorter", 0, 2), ("longer", 0, 4)):
        history.wait("slot", "JobMaster", what, (start, end))
    slices = [(e["name"], e["dur"] / 1e6) for e in trace_events(history.trial(), NONE) if e["ph"] == "X"]
    assert slices == [("slot longer", 4.0), ("slot shorter", 2.0), ("slot late", 3.0)]


@pytest.mark.parametrize(
    ("more", "label"),
    [
        ({"fault": ""}, "start"),
        ({"fault": "a"}, "recovery from a"),
        ({"fault": "a", "shared": (SharedFault(fault="b", effect_ns=0),)}, "recovery from a and b"),
    ],
)
def test_rounds_are_named_by_every_fault_of_their_recovery(more: dict[str, Any], label: str):
    """A recovery without a fault is a first start."""
    only = Round(number=2, start_ns=NS, end_ns=3 * NS, cause="c", ended_by="failure", failure="f")
    recovery = Recovery(effect_ns=0, end_ns=NS, rounds=(only,), **more)
    found = trace_events(History().trial(), TrialRecovery(trial="t", recoveries=(recovery,)))
    (drawn,) = [e for e in found if e["ph"] == "X"]
    assert (drawn["name"], drawn["cat"], drawn["ts"], drawn["dur"], drawn["tid"]) == (
        f"{label}: round 2",
        "round",
        1e6,
        2e6,
        1,
    )
    assert drawn["args"] == {"recovery": label, "cause": "c", "ended_by": "failure", "failure": "f"}
