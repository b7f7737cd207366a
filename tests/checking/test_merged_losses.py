"""Losses that the restart for another loss merged. With a longer limit for that one alone, they would fail the job."""

from __future__ import annotations

import pytest

from tests.checking.test_avoidable import HEARTBEAT, effect, enough_s, wait


@pytest.mark.parametrize(
    ("lost", "place", "until", "ended", "enough"),
    [
        ((10.5, 15.5), "tm-2", 18, 24, 14.5),
        ((10.5, 15.5), "tm-2", 15.4, 24, 8.0),  # the job ran again: that loss began a failover of its own
        ((10.5, 15.5), "tm-3", 18, 24, 8.0),  # no task ran there
        ((10.05, 15.05), "tm-2", 18, 24, 8.0),  # one failover with the first loss
        ((10.5, 15.5), "tm-2", 18, None, None),
    ],
)
def test_a_loss_during_the_restart_fails_the_job_if_the_first_loss_is_avoided(
    lost: tuple[float, float], place: str, until: float, ended: float | None, enough: float | None
):
    """A pause of tm-1 lasts until 18 s. The heartbeats of tm-2 are muted until 24 s, and missed while the job restarts."""
    effects = [
        effect("pause", "process.pause", 10.1, 18, "tm-1"),
        effect("mute", "heartbeats.mute", 11, ended, "tm-2"),
    ]
    asked = {"pause": {"duration_s": 7.9}, "mute": {"duration_s": 13.0}}
    first, other = (
        wait("heartbeat", HEARTBEAT, span, what=what)
        for span, what in (((10, 15), "tm-1-1"), (lost, "tm-2-1"))
    )
    places = {"map-0": "tm-1", "map-1": place}
    assert enough_s([first, other], effects, asked, places=places, until=until) == enough
