"""Python functions are imported before anything starts. What is wrong names the field, the file and the line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.validate import validate
from testbed_runtime.cli import preflight
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job import functions
from testbed_runtime.core.trial.plan import RunPlan
from testbed_runtime.workload.functions import load_function
from tests.cli.test_state import keep

EXAMPLE = Path(__file__).resolve().parents[2] / "scenarios" / "examples" / "python-function.yaml"

RESTORED = """
apiVersion: headgate.dev/v1alpha1
kind: Scenario
metadata: {{name: restored}}
spec:
  timeline: {{warmUp: 1 s, baseline: 1 s, observation: 1 s, drain: 5 s}}
  testbed:
    job:
      vertices:
        - {{name: source, source: {{}}}}
        - {{name: count, parallelism: 2, maxParallelism: {groups}, operator: keyed-count}}
        - {{name: sink, sink: ledger}}
      edges: [{{from: source, to: count}}, {{from: count, to: sink}}]
"""
"""A job that fits to the kept one of `test_state`, but for its key groups."""

BROKEN = [
    ("missing import", "VALUE = 1\n\nimport nowhere\n", "ModuleNotFoundError: No module named 'nowhere' (buckets.py:3)"),
    ("syntax error", "VALUE = 1\ndef bucket(record:\n    return 1\n", "SyntaxError: '(' was never closed (buckets.py:2)"),
    ("error while importing", "def f():\n    return 1 / 0\n\nf()\n", "ZeroDivisionError: division by zero (buckets.py:2)"),
    ("exit while importing", "import sys\nsys.exit('no')\n", "SystemExit: no (buckets.py:2)"),
    ("missing function", "def other(record):\n    return record\n", "has no function 'bucket'"),
    ("not a function", "bucket = 3\n", "has no function 'bucket'"),
    ("no parameter", "def bucket():\n    return 1\n", "does not take one record: too many positional arguments"),
    ("two parameters", "def bucket(record, more):\n    return 1\n", "does not take one record: missing a required argument: 'more'"),
    ("a process that ends", "import os\nos._exit(7)\n", "ended the process that loads it (exit code 7)"),
]  # fmt: skip


def written(folder: Path, code: str) -> Path:
    """A scenario beside a function with this code."""
    (folder / "buckets.py").write_text(code)
    (folder / "scenario.yaml").write_text(EXAMPLE.read_text())
    return folder / "scenario.yaml"


def plan(folder: Path) -> RunPlan:
    scenario = validate(yaml.safe_load(EXAMPLE.read_text())).valid()
    return compile_run(scenario, scenario_folder=folder)


@pytest.mark.parametrize(("what", "code", "problem"), BROKEN, ids=[b[0] for b in BROKEN])
def test_a_broken_function_is_refused(tmp_path: Path, what: str, code: str, problem: str):
    """One error per function, at its field."""
    del what
    written(tmp_path, code)
    (found,) = preflight.function_problems(plan(tmp_path))
    assert found.path == "job.vertices[buckets].function"
    assert problem in found.problem


def test_a_function_that_blocks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process of its own loads it, with a time limit."""
    monkeypatch.setattr(preflight, "LIMIT_S", 0.5)
    written(tmp_path, "import time\ntime.sleep(60)\n")
    (found,) = preflight.function_problems(plan(tmp_path))
    assert found.problem == "did not load within 0.5 s"


def test_a_sound_function_may_print_while_it_is_imported(tmp_path: Path):
    """Its output is not taken for the answer."""
    written(tmp_path, "print('hello')\n\ndef bucket(record, limit=3):\n    return record\n")
    assert preflight.function_problems(plan(tmp_path)) == []


@pytest.mark.parametrize("command", ["simulate", "run", "validate"])
def test_commands_refuse_a_broken_function_before_anything_starts(headgate, tmp_path: Path, command: str):
    """No folder of a run is left behind."""
    scenario = written(tmp_path, "import nowhere\n")
    out = tmp_path / "runs"
    arguments = [command, str(scenario), *([] if command == "validate" else ["--out", str(out)])]
    done = headgate(*arguments)
    assert done.returncode == 2
    text = done.stdout + done.stderr
    assert "job.vertices[buckets].function" in text
    assert "No module named 'nowhere' (buckets.py:1)" in text
    assert not out.exists()


def test_a_function_is_refused_before_a_run_in_pods_is_created(headgate, tmp_path: Path):
    """It is imported on this machine first. No cluster is asked."""
    done = headgate("run", str(written(tmp_path, "import nowhere\n")), "--on", "kubernetes")
    assert done.returncode != 0
    assert "job.vertices[buckets].function" in done.stderr
    assert "ModuleNotFoundError: No module named 'nowhere' (buckets.py:1)" in done.stderr


def test_a_kept_checkpoint_that_does_not_fit_is_refused_before_anything_starts(
    headgate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In Flink's words, by its name in 1.x too; so is a folder without one."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(keep(tmp_path / "kept", "hashmap"))
    (tmp_path / "empty").mkdir()
    refused = [
        ("run", "256", "--from-checkpoint", "kept", "Cannot map operator count with max parallelism 128 to new program with max parallelism 256."),
        ("simulate", "256", "-s", "kept", "Cannot map operator count with max parallelism 128 to new program with max parallelism 256."),
        ("run", "128", "-s", "nowhere", "nowhere: is not a folder (name the folder files/<trial> of a run)"),
        ("run", "128", "-s", "empty", "empty: contains no checkpoint"),
        ("run", "256", "-s", "kept", "Cannot map operator count with max parallelism 128 to new program with max parallelism 256.", "--on", "kubernetes"),
    ]  # fmt: skip
    for command, groups, option, folder, text, *more in refused:
        (tmp_path / "scenario.yaml").write_text(RESTORED.format(groups=groups))
        said = headgate(command, "scenario.yaml", option, folder, "--out", "runs", *more)
        assert (said.returncode, text in said.stderr) == (2, True), said.stderr
    in_document = RESTORED.format(groups=256) + "    flinkConfiguration: {execution.savepoint.path: kept}\n"
    (tmp_path / "scenario.yaml").write_text(in_document)
    assert "max parallelism 256" in headgate("run", "scenario.yaml").stderr
    # the option of the command replaces that of the document
    said = headgate("run", "scenario.yaml", "-s", "nowhere")
    assert "nowhere: is not a folder" in said.stderr
    assert not list((tmp_path / "runs").rglob("*.*"))


def test_a_function_in_a_configmap_is_loaded_where_pods_mount_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Here it is refused, with the reason. A run in pods leaves it to them."""
    text = EXAMPLE.read_text().replace("buckets.py:bucket", "configmap://functions/buckets.py:bucket")
    scenario = validate(yaml.safe_load(text)).valid()
    mapped = compile_run(scenario, scenario_folder=tmp_path)
    assert preflight.function_problems(mapped, pods=True) == []
    (problem,) = preflight.function_problems(mapped)
    assert (
        "the ConfigMap 'functions' is in a cluster, and this process is not in a pod that mounts it"
        in problem.problem
    )
    monkeypatch.setattr(functions, "FOLDER", str(tmp_path))
    (tmp_path / "functions").mkdir()
    with pytest.raises(UserError, match=r"the ConfigMap 'functions' has no key 'buckets\.py'"):
        load_function("configmap://functions/buckets.py:bucket")
    (tmp_path / "functions" / "buckets.py").write_text("def bucket(record):\n    return 7\n")
    assert load_function("configmap://functions/buckets.py:bucket")(None) == 7
