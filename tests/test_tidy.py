"""House style that no linter knows: sizes, leftovers, and nothing of one machine in anything committed."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 600
HOSTS = re.compile(
    r"pypi\.org|pythonhosted|proxy\.golang|registry\.npmjs|repo1?\.maven|deb\.debian|crates\.io",
    re.IGNORECASE,
)
MACHINE = re.compile(r"(?<![\w.$}])/(?:work|root|farm)/")
LEFTOVERS = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")


def _tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


PYTHON = _tracked("*.py")


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_functions_can_be_seen_at_once_and_modules_read_in_one_sitting(path: Path):
    """At most 70 lines a function, 600 a module."""
    text = path.read_text()
    assert text.count("\n") <= MODULE_LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


def test_nothing_committed_names_a_registry_host_or_a_path_of_one_machine():
    """A clone works anywhere: no index address, no home folder."""
    found = []
    for path in _tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if path.name == "test_tidy.py":
            continue
        found += [
            f"{path.relative_to(ROOT)}: {m.group()}" for m in (HOSTS.search(text), MACHINE.search(text)) if m
        ]
    assert not found


def test_no_work_is_left_as_a_comment():
    """What is not done stands in docs/limits.md, not in the code."""
    found = [
        f"{p.relative_to(ROOT)}"
        for p in PYTHON
        if p.name != "test_tidy.py" and LEFTOVERS.search(p.read_text())
    ]
    assert not found


def test_every_test_says_its_rule():
    """A test is a sentence: its name, and one line that says the rule."""
    silent = []
    for path in PYTHON:
        if not path.name.startswith("test_"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            )
            if is_test and not ast.get_docstring(node):
                silent.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not silent
