"""docs/sources.md and docs/conformance.md are honest: what a row names exists, and a row without a command claims nothing."""

from __future__ import annotations

import ast
import inspect
import shlex
from functools import cache
from pathlib import Path

import pytest

from testbed_runtime.cli.commands import build
from tools import docs_conformance, docs_sources

ROOT = Path(__file__).resolve().parents[1]


ROWS = [row for part in docs_sources.load().values() for row in part]
EXPECTED = {
    "A": [*map(str, range(1, 11))],
    "B": [*map(str, range(1, 8)), "7a", *map(str, range(8, 13))],
    "C": [*map(str, range(1, 8))],
    "D": ["1", "2", "3"],
    "E": ["1", "2", "3", "3a", "4"],
}


def test_all_38_rows_are_declared_in_order():
    """10 + 13 + 7 + 3 + 5 = 38, with B7a and E3a."""
    assert [row.name for row in ROWS] == [letter + n for letter, numbers in EXPECTED.items() for n in numbers]
    assert len(ROWS) == 38


@cache
def _commands():
    app = build(whole=True)
    commands = {c.name: c.callback for c in app.registered_commands}
    for group in app.registered_groups:
        commands |= {f"{group.name} {c.name}": c.callback for c in group.typer_instance.registered_commands}
    return commands


def _flags(callback) -> set[str]:
    flags = set()
    for name, parameter in inspect.signature(callback, eval_str=True).parameters.items():
        flags.add(f"--{name.replace('_', '-')}")
        for info in getattr(parameter.annotation, "__metadata__", ()):
            declared = (getattr(info, "default", ""), *(getattr(info, "param_decls", None) or ()))
            flags |= {d for d in declared if isinstance(d, str) and d.startswith("-")}
    return flags


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_names_only_commands_scenarios_and_options_that_exist(row):
    """`headgate <command>` is known, its options too, and a path below scenarios/ or studies/ is there."""
    for command in row.commands:
        words = shlex.split(command)
        assert words[0] == "headgate", command
        name = " ".join(words[1:3]) if " ".join(words[1:3]) in _commands() else words[1]
        assert name in _commands(), command
        flags = {w for w in words if w.startswith("-")}
        assert flags <= _flags(_commands()[name]), command
        paths = [w for w in words if w.startswith(("scenarios/", "studies/"))]
        assert [p for p in paths if not (ROOT / p).exists()] == [], command


@cache
def _functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_names_only_tests_that_exist(row):
    """A test is a file or `file::function`; a file has at least one test."""
    for test in row.tests:
        path, _, function = test.partition("::")
        found = _functions(path)
        assert function in found if function else any(f.startswith("test_") for f in found), test


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_claims_exactly_what_a_command_shows(row):
    """A command has a result and a test, and a row without a command states what is missing."""
    assert row.claim
    assert row.mechanism
    assert bool(row.commands) == bool(row.result)
    assert row.commands or row.missing
    assert row.tests or not row.commands


def test_every_declared_case_of_flinks_unit_tests_is_repeated_by_a_test():
    """A test names the cases in its name or docstring."""
    cases = {
        case
        for methods in docs_conformance.declared().values()
        for found in methods.values()
        for case in found
    }
    assert len(cases) == 617
    assert cases - set(docs_conformance.tests_by_case()) == set()


@pytest.mark.parametrize(
    ("text", "cases"),
    [
        ("test_A_01_to_A_03_floating", ["A-01", "A-02", "A-03"]),
        ("test_G_01_and_G_02_credit", ["G-01", "G-02"]),
        ("test_F_09_F_10_resumption", ["F-09", "F-10"]),
        ("J-21: Flink's text", ["J-21"]),
        ("test_F_99_to_F_101_barriers", ["F-99", "F-100", "F-101"]),
        ("test_a_job_of_10_tasks", []),
    ],
)
def test_cases_are_read_from_names_and_docstrings(text, cases):
    """Alone, in a row or as a span."""
    assert list(docs_conformance._named(text)) == cases
