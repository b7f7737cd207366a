"""The shipped example with user code, from its file to verdict and results, in virtual time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import yaml

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.validate import validate
from testbed_runtime.runner.engine import RunRequest, RunResult
from testbed_runtime.runner.manifest import RunInfo
from testbed_runtime.runner.progress import Silent
from testbed_runtime.simulation.entry import simulate

EXAMPLES = Path(__file__).resolve().parents[2] / "scenarios" / "examples"


def run(folder: Path, functions: Path) -> RunResult:
    """`functions`: the folder that counts as the scenario's."""
    document = yaml.safe_load((EXAMPLES / "python-function.yaml").read_text(encoding="utf-8"))
    scenario = validate(document).scenario
    assert scenario is not None
    return simulate(
        RunRequest(
            compile_run(scenario, scenario_folder=functions),
            document,
            RunInfo("run", "simulation", ""),
            folder,
        ),
        Silent(),
    )


def lines(folder: Path) -> Counter[str]:
    """Of all published parts."""
    parts = sorted((folder / "files" / "main-1" / "buckets").glob("part-0-*"))
    return Counter(line for part in parts for line in part.read_text(encoding="utf-8").splitlines())


def test_a_function_beside_the_scenario_sees_each_record_once_and_its_results_stay(tmp_path: Path):
    """Through a failover: as many lines as records committed, only the function's own keys, nothing that was only staged."""
    result = run(tmp_path, EXAMPLES)
    assert result.verdict["verdict"] == "Pass", result.verdict["summary"]
    rows = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    committed = next(r["value"] for r in rows if r["metric"] == "delivery.committed")
    written = lines(tmp_path)
    assert committed == written.total() > 3000
    assert set(written) <= {f"({key},1)" for key in range(10)}
    assert not list(tmp_path.rglob(".staged"))


def test_records_that_a_function_drops_are_not_lost(tmp_path: Path):
    """What should have arrived is not known then: nothing is judged that was not asked, and what was asked is Inconclusive."""
    (tmp_path / "buckets.py").write_text(
        "def bucket(record):\n    return record if record.key % 2 else None\n"
    )
    result = run(tmp_path / "run", tmp_path)
    judged = {j["metric"]: (j["verdict"], j["reason"]) for j in result.verdict["expectations"]}
    assert judged["delivery.lost"] == ("Inconclusive", "RecordsDropped")
    assert result.verdict["verdict"] == "Inconclusive"
    assert lines(tmp_path / "run").total() > 1000
