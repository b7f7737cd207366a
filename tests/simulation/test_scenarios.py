"""Every scenario of this repository in virtual time: the same document, the same runner, the same verdict."""

from __future__ import annotations

import asyncio
from contextvars import Context
from pathlib import Path

import pytest

from testbed_runtime.cli import loading
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.runner.progress import PhaseEntered, Progress, ProgressEvent, Silent
from testbed_runtime.simulation.loop import VirtualLoop
from tests.simulation.simulating import run_document, shortcomings
from tests.simulation.test_figures import SIMULATED

SCENARIOS = Path(__file__).parents[2] / "scenarios"
QUICK = {
    "02-taskmanager-killed": "upstream",
    "03-taskmanager-paused": "short-timeout",
    "04-late-producer": "new-small",
    "05-slow-ask": "staged-small",
    "10-network-buffers": "fraction-03",
}
"""One variant of each that is short enough for the quick tests."""
PACKETS = "07-packet-loss"
"""Has no place here: the simulated network carries byte streams."""


def _variants() -> list[object]:
    found: list[object] = []
    for path in loading.find_all(SCENARIOS):
        name = path.parent.name
        if name == PACKETS:
            continue
        elsewhere = f"scenarios/{name}" in SIMULATED
        variants = loading.load(path).scenario.spec.variants
        for variant in [v.name for v in variants] or [""]:
            quick = QUICK.get(name, "" if name == "06-no-fault" else None) == variant
            marks = [] if quick else [pytest.mark.virtual]
            if quick or not elsewhere:
                found.append(pytest.param(path, variant, id=f"{name}-{variant}".rstrip("-"), marks=marks))
    return found


@pytest.mark.parametrize(("path", "variant"), _variants())
def test_a_scenario_comes_to_its_expected_verdict_in_virtual_time(
    path: Path, variant: str, tmp_path: Path
) -> None:
    """Pass, without a word from asyncio, and with a report. `test_figures.py` runs the scenarios whose figures are in a text, and checks
    the same."""
    document = loading.load(path).document
    _, complaints = run_document(document, tmp_path, variants=[variant] if variant else [])
    assert shortcomings(tmp_path) == []
    assert complaints == []


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
    assert result.verdict.verdict == "Pass"
    assert complaints == []


class _Burst(Silent):
    """Other work on the machine: for most of the time after the fault, the tasks that count get no CPU."""

    def on_event(self, event: ProgressEvent) -> None:
        """Stop them when the fault has ended."""
        if isinstance(event, PhaseEntered) and event.phase == "observation":
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            for process in (f"{event.trial}/{name}-1" for name in ("tm-2", "tm-3")):
                loop.pause(process)
                loop.call_later(2.8, loop.resume, process, context=Context())


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("lasts", "progress", "failed"),
    [
        ("5 s", _Burst(), []),
        ("10 s", Silent(), ["recovery.total at most 9 s"]),
    ],
    ids=["a-burst-of-other-work", "the-latency-stays"],
)
def test_a_latency_spike_passes_if_the_latency_returns_and_fails_if_it_stays(
    lasts: str, progress: Progress, failed: list[str], tmp_path: Path
) -> None:
    """A machine that is busy right after the fault makes the recovery longer. It says nothing about the latency after it."""
    document = loading.load(SCENARIOS / "01-latency-spike").document
    document["spec"]["faults"][0]["duration"] = lasts
    result, _ = run_document(document, tmp_path, progress=progress)
    judged = result.verdict.judged
    after = [e for e in judged if "(fault)" not in e.text]
    assert [e.text for e in after if e.verdict == "Fail"] == failed
    assert (result.verdict.verdict == "Pass") == (not failed)
