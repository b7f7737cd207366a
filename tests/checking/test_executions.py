"""Executions are read from the transitions of the history."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.executions import executions, places, used_in
from testbed_runtime.cli.executions import lines
from tests.checking.conftest import History


def test_each_attempt_has_its_states_its_times_and_its_cause():
    """Two attempts of one subtask, the first of which fails; seconds count from the job's start."""
    history = History()
    history.event("job.state", "job", 1.0, data={"from": "CREATED", "to": "RUNNING", "cause_class": ""})

    def moved(t, attempt, before, after, text="", cause="", where="tm-0-1", task="map-10"):
        data = {"from": before, "to": after, "taskmanager": where, "cause_class": cause}
        history.event("task.state", task, t, attempt=attempt, text=text, data=data)

    moved(1.5, 0, "CREATED", "SCHEDULED", where="")
    moved(2.0, 0, "SCHEDULED", "DEPLOYING")
    moved(3.0, 0, "DEPLOYING", "FAILED", "out of luck", "java.lang.Exception")
    moved(3.5, 0, "CREATED", "SCHEDULED", where="", task="map-9")
    moved(4.0, 1, "CREATED", "SCHEDULED", where="")
    moved(4.0, 1, "SCHEDULED", "CANCELED", where="")
    ninth, failed, canceled = executions(history.memory.trial())
    assert (ninth.task, failed.attempt, canceled.attempt) == ("map-9", 0, 1)
    assert failed.states == [("CREATED", None), ("SCHEDULED", 0.5), ("DEPLOYING", 1.0), ("FAILED", 2.0)]
    assert (failed.taskmanager, failed.cause) == ("tm-0-1", "java.lang.Exception: out of luck")
    assert (canceled.taskmanager, canceled.cause) == ("", "")
    table = list(lines("a-1", [failed, canceled]))
    assert table[1].endswith(
        "SCHEDULED 0.500 → DEPLOYING 1.000 → FAILED 2.000  java.lang.Exception: out of luck"
    )
    assert table[-1] == "2 executions: 1 CANCELED, 1 FAILED"


@pytest.mark.parametrize(
    ("span", "used"),
    [
        ((1, 3), {"tm-0"}),  # before the first
        ((2.5, 3), {"tm-0"}),
        ((2.5, 4), {"tm-0", "tm-1"}),
        ((4, 5), {"tm-0", "tm-1"}),  # the task moves right then
        ((4.5, 5), {"tm-1"}),
    ],
)
def test_a_span_uses_the_taskmanagers_that_have_tasks_or_get_some(
    history: Any, span: tuple[float, float], used: set[str]
):
    """A task is on tm-0 from 2 s, and on tm-1 from 4 s."""
    built = history.empty()
    for attempt, t, name in ((0, 2, "tm-0-1"), (1, 4, "tm-1-1")):
        built.event("task.state", "map-0", t, attempt=attempt, data={"taskmanager": name})
    trial = built.trial()
    assert used_in(trial, *map(history.at, span)) == used
    before = [places(trial, history.at(t)) for t in (2, 2.001, 4, 4.001)]
    assert before == [{}, {"map-0": "tm-0"}, {"map-0": "tm-0"}, {"map-0": "tm-1"}]
