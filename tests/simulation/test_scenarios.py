"""Every scenario of this repository in virtual time: the same document, the same runner, the same verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed_runtime.cli import loading
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.recovery import RECOVERY_FILE, TrialRecovery
from tests.simulation.simulating import run_document

SCENARIOS = Path(__file__).parents[2] / "scenarios"
QUICK = {
    "02-taskmanager-killed": "upstream",
    "03-taskmanager-paused": "short-timeout",
    "04-late-producer": "new-small",
    "05-slow-ask": "staged-small",
    "10-network-buffers": "fraction-03",
}
"""One variant of each that is short enough for the quick tests."""
UNKNOWN_MAX = 0.01
"""Share of a recovery that no recorded wait covers."""
UNKNOWN_S = 0.001
"""A start of less than a millisecond consists of a few messages: the first checkpoint flushes the first records."""
PACKETS = "07-packet-loss"
"""Has no place here: the simulated network carries byte streams."""


def _variants() -> list[object]:
    found: list[object] = []
    for path in loading.find_all(SCENARIOS):
        name = path.parent.name
        if name == PACKETS:
            continue
        variants = loading.load(path).scenario.spec.variants
        for variant in [v.name for v in variants] or [""]:
            quick = QUICK.get(name, "" if name == "06-no-fault" else None) == variant
            marks = [] if quick else [pytest.mark.virtual]
            found.append(pytest.param(path, variant, id=f"{name}-{variant}".rstrip("-"), marks=marks))
    return found


@pytest.mark.parametrize(("path", "variant"), _variants())
def test_a_scenario_comes_to_its_expected_verdict_in_virtual_time(
    path: Path, variant: str, tmp_path: Path
) -> None:
    """Pass, without a word from asyncio, and with a report."""
    document = loading.load(path).document
    result, complaints = run_document(document, tmp_path, variants=[variant] if variant else [])
    bad = [e for e in result.verdict["expectations"] if e["verdict"] != "Pass"]
    assert (result.verdict["verdict"], bad) == ("Pass", [])
    assert complaints == []
    assert result.report.is_file()
    answers = json.loads((tmp_path / RECOVERY_FILE).read_text())
    found = [
        r
        for trial in map(TrialRecovery.from_json, answers.values())
        for r in (trial.start, *trial.recoveries)
    ]
    assert found
    assert all(
        r is None or r.unattributed_s + r.from_events_s <= max(UNKNOWN_S, UNKNOWN_MAX * r.total_s)
        for r in found
    )


def test_a_scenario_of_packets_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Not played with a fault that does something else."""
    document = loading.load(SCENARIOS / PACKETS).document
    with pytest.raises(HeadgateError, match="carries byte streams, not packets"):
        run_document(document, tmp_path, variants=["loss"])


@pytest.mark.virtual
@pytest.mark.parametrize("name", ["01-latency-spike", "06-no-fault"])
def test_a_scenario_passes_together_with_its_control_run(name: str, tmp_path: Path) -> None:
    """Several trials on one loop do not disturb each other."""
    document = loading.load(SCENARIOS / name).document
    result, complaints = run_document(document, tmp_path, control=True)
    assert result.verdict["verdict"] == "Pass"
    assert complaints == []
