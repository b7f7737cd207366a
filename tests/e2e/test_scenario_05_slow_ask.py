"""`scenarios/05-slow-ask` on this machine."""

from __future__ import annotations

import pytest

from tests.e2e.shipped import MARKS, Finished, holds, run

pytestmark = MARKS


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run("05-slow-ask", tmp_path_factory.mktemp("runs"))


def test_the_scenario_holds_and_leaves_everything_a_reader_wants(finished: Finished):
    """Pass, and all of its files."""
    holds(finished)
