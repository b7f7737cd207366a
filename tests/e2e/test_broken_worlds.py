"""Testbeds whose parts are broken on purpose, from YAML to verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.world import DATA, World, no_trace

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]

BROKEN_LIMIT_S = 420.0
"""Four trials of ten seconds and their Spark take about 80 s on an idle machine."""


@dataclass(frozen=True)
class Broken:
    """A run of data/broken-worlds, with the proxies deaf and the sink `stutter` stuttering."""

    code: int
    text: str
    verdict: Any
    rows: list[dict[str, Any]]

    def of(self, variant: str) -> str:
        return str(next(v["verdict"] for v in self.verdict["variants"] if v["variant"] == variant))

    def value(self, variant: str, metric: str) -> float:
        found = [r["value"] for r in self.rows if r["trial"] == f"{variant}-1" and r["metric"] == metric]
        assert len(found) == 1, found
        return float(found[0])


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    world = World(tmp_path_factory.mktemp("broken"))
    folder = DATA / "broken-worlds"
    try:
        command = world.start(
            *("run", folder, "--out", world.out),
            environment={"PYTHONPATH": str(folder)},
            program="tests.warm_spark",
        )
        said = command.ended(seconds=BROKEN_LIMIT_S)
        no_trace(said)
        world.leaves_nothing()
        run = world.only_run()
        verdict, rows = (json.loads((run / name).read_text()) for name in ("verdict.json", "metrics.json"))
        yield Broken(said.code, said.text, verdict, rows)
    finally:
        world.close()


@pytest.mark.scenario
def test_a_backend_that_does_nothing_is_inconclusive_and_never_a_pass(broken: Broken):
    """The proxy took the rule and shaped nothing: the fault is not verified, so nothing can be concluded."""
    assert broken.of("deaf-proxy") == "Inconclusive", broken.text
    reasons = {e["reason"] for e in broken.verdict["expectations"] if e["variant"] == "deaf-proxy"}
    assert "FaultNotVerified" in reasons
    assert broken.value("deaf-proxy", "delivery.lost") == 0


@pytest.mark.scenario
def test_a_sink_that_writes_one_record_twice_fails(broken: Broken):
    """Exactly one duplicate is seen, though no expectation asked for it; the whole run is Fail, exit 1."""
    assert broken.of("stuttering-sink") == "Fail", broken.text
    assert broken.value("stuttering-sink", "delivery.duplicated") == 1
    assert broken.value("stuttering-sink", "delivery.lost") == 0
    assert (broken.code, broken.verdict["verdict"]) == (1, "Fail")


@pytest.mark.scenario
def test_what_a_zombie_still_offers_is_rejected_and_counted(broken: Broken):
    """A stopped TaskManager with an at-least-once sink: replaced, resumed, and its records are refused."""
    assert broken.of("zombie") == "Pass", broken.text
    assert broken.value("zombie", "stale.rejected") > 0


@pytest.mark.scenario
def test_a_killed_jobmanager_that_restarts_continues_the_job(broken: Broken):
    """The job recovers from the store, runs and drains; nothing is lost or committed twice."""
    assert broken.of("jobmanager-back") == "Pass", broken.text
    assert broken.value("jobmanager-back", "delivery.lost") == 0
    assert broken.value("jobmanager-back", "delivery.duplicated") == 0
