"""The shipped example with user code, from its file to verdict and results, in virtual time."""

from __future__ import annotations

import html
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.validate import validate
from testbed_runtime.core.errors import UserError
from testbed_runtime.runner.engine import RunRequest, RunResult
from testbed_runtime.runner.manifest import RunInfo
from testbed_runtime.runner.progress import Silent
from testbed_runtime.simulation.entry import simulate

EXAMPLES = Path(__file__).resolve().parents[2] / "scenarios" / "examples"


def run(folder: Path, functions: Path, document: dict[str, Any] | None = None) -> RunResult:
    """`functions`: the folder that counts as the scenario's. `document`: instead of the example's."""
    document = document or yaml.safe_load((EXAMPLES / "python-function.yaml").read_text(encoding="utf-8"))
    scenario = validate(document).valid()
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
    """The lines of all published parts, counted."""
    parts = sorted((folder / "files" / "main-1" / "buckets").glob("part-0-*"))
    return Counter(line for part in parts for line in part.read_text(encoding="utf-8").splitlines())


def test_a_function_beside_the_scenario_sees_each_record_once_and_its_results_stay(tmp_path: Path):
    """Through a failover: as many lines as records committed, only the function's own keys, nothing that was only staged."""
    result = run(tmp_path, EXAMPLES)
    assert result.verdict.verdict == "Pass", result.verdict.summary
    rows = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    committed = next(r["value"] for r in rows if r["metric"] == "delivery.committed")
    written = lines(tmp_path)
    assert committed == written.total() > 3000
    assert set(written) <= {f"({key},1)" for key in range(10)}
    assert not list(tmp_path.rglob(".staged"))


def test_a_job_that_reads_a_socket_is_refused_before_it_starts(tmp_path: Path):
    """No server of words could ever be reached: the job would restart until the run ends."""
    document = yaml.safe_load((EXAMPLES / "word-count.yaml").read_text(encoding="utf-8"))
    problem = r"words reads from 127\.0\.0\.1:9999, and virtual time has no real connections .*`headgate run`"
    with pytest.raises(UserError, match=problem):
        run(tmp_path / "run", EXAMPLES, document)
    assert not (tmp_path / "run").exists()


def test_records_that_a_function_drops_are_not_lost(tmp_path: Path):
    """The expected output is unknown then: delivery is judged only if it is asked for, and is Inconclusive."""
    (tmp_path / "buckets.py").write_text(
        "def bucket(record):\n    return record if record.key % 2 else None\n"
    )
    result = run(tmp_path / "run", tmp_path)
    judged = {j.metric: (j.verdict, j.reason) for j in result.verdict.judged}
    assert judged["delivery.lost"] == ("Inconclusive", "RecordsDropped")
    assert judged["liveness.at-end"] == ("Pass", "")
    assert result.verdict.verdict == "Inconclusive"
    assert lines(tmp_path / "run").total() > 1000


def without_delivery(functions: Path) -> dict[str, Any]:
    """The document of the example, asking only whether the job runs."""
    document = yaml.safe_load((EXAMPLES / "python-function.yaml").read_text(encoding="utf-8"))
    document["spec"]["expect"] = [{"metric": "job.state", "equals": "RUNNING"}]
    document["spec"]["faults"] = []
    return dict(document)


def test_a_function_that_drops_every_record_never_passes(tmp_path: Path):
    """Delivery cannot be judged, which the verdict says, and nothing arrives at the sinks."""
    (tmp_path / "buckets.py").write_text("def bucket(record):\n    return None\n")
    result = run(tmp_path / "run", tmp_path, without_delivery(tmp_path))
    assert (result.verdict.verdict, result.verdict.reason) == ("Inconclusive", "NoThroughput")
    skipped = [e for e in result.verdict.judged if e.reason == "RecordsDropped"]
    assert {e.metric for e in skipped} >= {"delivery.lost"}


def test_a_function_that_fails_is_named_with_its_file_and_line(tmp_path: Path):
    """The root cause of a job that never ran is in the verdict, its summary, the report and JUnit."""
    (tmp_path / "buckets.py").write_text("VALUE = 1\nimport nowhere\n")
    result = run(tmp_path / "run", tmp_path, without_delivery(tmp_path))
    cause = "ModuleNotFoundError: No module named 'nowhere' (buckets.py:2)"
    assert result.verdict.verdict == "Fail"
    assert result.verdict.causes[0].cause.startswith("PythonFunction: 'buckets.py' failed to load: ")
    assert cause in result.verdict.summary
    assert cause in result.verdict.causes[0].cause
    for name in ("report.html", "report.md", "junit.xml"):
        text = html.unescape((tmp_path / "run" / name).read_text(encoding="utf-8"))
        assert "No module named 'nowhere' (buckets.py:2)" in text, name
