"""The iterations that a user runs: a TaskManager is killed in the middle, and the written results are the right ones."""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.shipped import MARKS, Finished, run, shortcomings

pytestmark = MARKS

VERTICES, CHAINS = 600, 6


def finished(name: str, folder: Path) -> Finished:
    """Run the example. One failover (two on a busy machine), every record once, and the recovery has an owner for the repeated
    supersteps."""
    done = run(f"examples/{name}.yaml", folder)
    assert shortcomings(done) == []
    assert 1 <= done.value("main-1", "failovers.count") <= 2
    assert done.value("main-1", "recovery.unattributed") <= 0.05
    recovery = done.document("recovery.json")["main-1"]
    prices = [
        price for found in [recovery["start"], *recovery["recoveries"]] if found for price in found["prices"]
    ]
    assert "iteration" in {price["kind"] for price in prices}
    return done


def lines(done: Finished, output: str) -> list[str]:
    parts = sorted(done.folder.glob(f"files/main-1/{output}/part-*"))
    return [line for part in parts for line in part.read_text(encoding="utf-8").splitlines()]


def test_a_bulk_iteration_ends_by_its_criterion_with_the_root_of_each_record(tmp_path: Path):
    """Heron's method converges in as many supersteps as the worst first guess needs, which is computed here."""
    done = finished("bulk-iteration", tmp_path)
    assert lines(done, "roots.txt") == ["(10,1)"] * 1000
    guess, steps = 1000.0, 0
    while steps == 0 or abs(guess**2 - 100) > 1e-6:
        guess, steps = (guess + 100 / guess) / 2, steps + 1
    row = done.row("main-1", "iteration.supersteps")
    assert (row["value"], row["text"]) == (steps, f"loop-sync-0: {steps} (converged)")


def test_a_delta_iteration_finds_the_component_of_each_vertex(tmp_path: Path):
    """The graph is six chains, so vertex v belongs to v modulo 6, and the smallest number needs 99 supersteps to the end of its
    chain. The superstep after them finds nothing new."""
    done = finished("delta-iteration", tmp_path)
    found = sorted(tuple(map(int, re.findall(r"\d+", line))) for line in lines(done, "components.txt"))
    assert found == [(vertex, vertex % CHAINS, 1) for vertex in range(VERTICES)]
    assert done.value("main-1", "iteration.supersteps") == VERTICES / CHAINS
