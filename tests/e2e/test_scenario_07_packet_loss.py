"""`scenarios/07-packet-loss` on this machine."""

from __future__ import annotations

import pytest

from tests.e2e.shipped import MARKS, Finished, holds, run
from tests.local.helpers import no_packets

pytestmark = MARKS


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    if why := no_packets():
        pytest.skip(why)
    return run("07-packet-loss", tmp_path_factory.mktemp("runs"))


def test_the_scenario_holds_and_leaves_everything_a_reader_wants(finished: Finished):
    """Pass, and all of its files."""
    holds(finished)
