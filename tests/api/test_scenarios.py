"""The scenarios of the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed_runtime.api.compile import compile_run
from testbed_runtime.cli.loading import find_all, load
from testbed_runtime.core.errors import UserError
from testbed_runtime.faults.registry import LOCAL, Capabilities, check_fault

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
RUN_MAX_S = 30.0
WITH_PACKETS = Capabilities("namespaces", (*LOCAL.backends, "nfqueue", "nftables"))
"""This machine as root: a network namespace for each TaskManager."""


@pytest.mark.parametrize("path", find_all(SCENARIOS), ids=lambda p: p.parent.name)
def test_a_scenario_is_valid_short_documented_and_possible_on_this_machine(path):
    """No warning, at most 30 s planned, a README beside it, every fault has a backend here, if need be as root."""
    loaded = load(path)
    place = WITH_PACKETS if loaded.scenario.spec.testbed.pods.packet_faults else LOCAL
    assert loaded.warnings == ()
    assert (path.parent / "README.md").is_file()
    assert path.parent.name.endswith(loaded.scenario.metadata.name)
    for trial in compile_run(loaded.scenario, scenario_folder=loaded.folder).trials:
        assert trial.planned_s <= RUN_MAX_S
        for fault in trial.faults:
            check_fault(fault, place)


def test_the_examples_are_valid():
    """Every file under examples/."""
    for path in sorted((SCENARIOS / "examples").glob("*.yaml")):
        assert load(path).warnings == ()


def test_a_folder_that_does_not_exist_is_named_as_such(tmp_path: Path):
    """Not as one without scenarios."""
    with pytest.raises(UserError, match="does not exist"):
        find_all(tmp_path / "nosuch")
    with pytest.raises(UserError, match="contains no"):
        find_all(tmp_path)
