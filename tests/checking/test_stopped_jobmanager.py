"""Outages in which the JobManager was stopped."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.rounds import outages_of
from testbed_runtime.core.job.causes import RECOVERED
from testbed_runtime.core.waits import EVERYTHING, Outcome, Wait
from tests.checking.test_outages import END, at, behind, brief, fault, record
from tests.checking.test_recovery_path import path, wait


@pytest.mark.parametrize("kind", ["cancellation", "restart-delay"])
def test_a_restart_that_the_end_of_the_jobmanager_cut_short_had_not_waited_for_a_taskmanager_yet(kind: str):
    """A replacement that had begun before was needed only for the slots. The next JobManager records the end."""
    cut_off = wait(kind, 0.001, 5, Outcome.CANCELLED)
    coming = wait("replacement", 0, 4, Outcome.FIRED, what="tm-1", option="replaceLost", who="supervisor")
    killed = wait("jobmanager", 2, 5, who=EVERYTHING, what="jobmanager", cause="killed")
    found = path([cut_off, coming, killed, wait("registration", 5, 6, who="tm-0-1")], 6)
    assert [name for name, seconds in found if seconds > 0.1] == [kind, "jobmanager", "registration"]


@pytest.mark.parametrize(
    ("before", "owner"),
    [
        (wait("stalled", 0, 7, who=EVERYTHING, what="tm-1"), "stalled"),
        (wait("leadership", 0, 4, Outcome.FIRED, option="lease-duration"), "leadership"),
    ],
)
def test_a_jobmanager_was_stopped_while_the_job_waited_for_another_process_or_for_a_leader(
    before: Wait, owner: str
):
    """That wait may also end during the stop."""
    stopped = wait("jobmanager", 3, 8, who=EVERYTHING, what="jobmanager", cause="paused")
    assert path([before, stopped], 8) == [(owner, 3.0), ("jobmanager", 5.0)]


@pytest.mark.parametrize(("kind", "ended", "begun"), [("jobmanager.kill", 18, 15), ("jobmanager.kill", 11, 18), ("frames.drop", 18, 18)])  # fmt: skip
def test_a_job_that_tolerated_the_loss_of_its_jobmanager_for_a_while_is_down_when_it_falls_behind(
    history: Any, kind: str, ended: float, begun: float
):
    """The job had recovered at 12 s, as far as its lag shows, and the next JobManager recovers it at 18 s."""
    built = record(history, {9: "lost"}, (0.5, 10, 19))
    built.event("failover.started", "2", 18.0, text="lost", data={"cause_class": RECOVERED})
    effects = [fault("jm", 8.5, ended, kind, "jobmanager")]
    found = outages_of(built.trial(), effects, behind(((8, 12), (15, 20))), at(END))
    assert [brief(o)[1:3] for o in found] == [(8.5, 12), (begun, 20)]
