"""The layout of the repository."""

from __future__ import annotations

import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_operator_folder_never_becomes_a_package():
    """`operator/__init__.py` would shadow the standard library's module in every Python that starts here."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert operator.itemgetter(0)([7]) == 7


def test_python_starts_in_the_checkout():
    """The standard library's `operator` wins, even if the checkout is first on the path."""
    found = subprocess.run(
        [sys.executable, "-c", "import enum, operator; print(operator.add(1, 1))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.strip() == "2", found.stderr


@pytest.mark.parametrize(
    "folder", ["operator", "testbed_runtime", "manifests", "helm", "tests", "scenarios", "docs", "benchmarks"]
)
def test_the_top_level_folders_exist(folder: str):
    """Each folder of the documented layout exists."""
    assert (ROOT / folder).is_dir()


def test_every_scenario_has_a_document_and_a_reason():
    """A scenario states its hypothesis, its source and its expectations."""
    scenarios = sorted(p for p in (ROOT / "scenarios").iterdir() if p.is_dir() and p.name[0].isdigit())
    assert len(scenarios) >= 6
    for scenario in scenarios:
        readme = (scenario / "README.md").read_text()
        assert (scenario / "scenario.yaml").exists()
        for word in ("Hypothesis", "Source", "Expect"):
            assert word.lower() in readme.lower(), (
                f"{scenario.name}/README.md does not state its {word.lower()}"
            )


def test_the_folder_that_the_makefile_names_holds_every_test_of_a_cluster():
    """`make test-cluster` collects only there."""
    marked = [p for p in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.cluster" in p.read_text()]
    assert {p.parent.name for p in marked if p != Path(__file__)} == {"kubernetes"}


def test_a_file_names_the_markers_of_its_tests():
    """`make test` collects only the files that name a marker of the stage, and all of tests/e2e."""
    marker = re.compile(r"mark\.(virtual|processes|spark|scenario)\b")
    shared = [p for p in (ROOT / "tests").rglob("*.py") if not p.name.startswith("test_")]
    named = [p for p in shared if marker.search(p.read_text())]
    assert {p.parent.name for p in named} == {"e2e"}
    assert not [p for p in named if "mark.virtual" in p.read_text()]


def test_every_shipped_scenario_has_its_end_to_end_test():
    """A file of its own."""
    scenarios = {p.parent.name for p in (ROOT / "scenarios").glob("[0-9]*/scenario.yaml")}
    prefix = "test_scenario_"
    tested = {
        p.stem.removeprefix(prefix).replace("_", "-") for p in (ROOT / "tests" / "e2e").glob(f"{prefix}*.py")
    }
    assert tested == scenarios
