"""The run that the tests of `test_scenario_<name>.py` read, and a world of its own for each other test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.shipped import SHORT, Finished, run
from tests.e2e.world import World
from tests.local.helpers import no_packets

PACKETS = "07-packet-loss"


def scenario_of(path: Path) -> str:
    return path.stem.removeprefix("test_scenario_").replace("_", "-")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a scenario as SHORT says, and all of it in `make soak` unless SHORT is all of it already."""
    if "finished" not in metafunc.fixturenames:
        return
    options = SHORT.get(scenario_of(Path(metafunc.module.__file__)))
    whole = pytest.param((), id="whole", marks=[pytest.mark.soak] if options != () else [])
    short = [pytest.param(options, id="short")] if options else []
    metafunc.parametrize("finished", [*short, whole], indirect=True, scope="module")


@pytest.fixture(scope="module")
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run for all tests of a file. Skipped with the reason when the scenario needs packet faults and this machine has none."""
    name = scenario_of(request.path)
    if name == PACKETS and (why := no_packets()):
        pytest.skip(why)
    return run(name, tmp_path_factory.mktemp("runs"), *request.param)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()
