"""A seed is a run: the same in every process, whatever Python's own hash seed is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path
from tests.simulation.swarming import scenario
from tests.simulation.simulating import run_one
document = scenario(int(sys.argv[1]))
document["spec"]["seed"] = int(sys.argv[2])
print(run_one(document, Path(sys.argv[3])).digest)
"""
SWARM_SEED = 17
"""A TaskManager is killed and replaced: failover, restore, probes, everything that draws and orders."""
LIMIT_S = 200


def _digest(folder: Path, *, seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, str(SWARM_SEED), str(seed), str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.processes
def test_one_seed_is_one_history_in_every_process(tmp_path: Path) -> None:
    """The digest of every row of every table, with two hash seeds; another seed gives another."""
    first = _digest(tmp_path / "first", seed=7, hash_seed="1")
    assert first
    assert _digest(tmp_path / "second", seed=7, hash_seed="2") == first
    assert _digest(tmp_path / "other", seed=8, hash_seed="1") != first
