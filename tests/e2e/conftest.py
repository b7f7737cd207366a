"""The run that the tests of `test_scenario_<name>.py` read."""

from __future__ import annotations

import pytest

from tests.e2e.shipped import Finished, run
from tests.local.helpers import no_packets

PACKETS = "07-packet-loss"


@pytest.fixture(scope="module")
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Made once for each file. Skipped with the reason where the scenario needs packets and there can be none."""
    name = request.path.stem.removeprefix("test_scenario_").replace("_", "-")
    if name == PACKETS and (why := no_packets()):
        pytest.skip(why)
    return run(name, tmp_path_factory.mktemp("runs"))
