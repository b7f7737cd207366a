"""Write docs/conformance.md: which of Flink's own unit-test cases Headgate repeats, and in which test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from tools.docs_texts import text

ROOT = Path(__file__).resolve().parents[1]
DECLARED = Path(__file__).with_name("conformance.yaml")
CASE = re.compile(
    r"\b(?:test_)?([A-J])[-_](\d{2,3})(?:_to_(?:[A-J]_)?(\d{2,3}))?|_([A-J])_(\d{2,3})(?:_to_(?:[A-J]_)?(\d{2,3}))?"
)


def declared() -> dict[str, dict[str, list[str]]]:
    """Return Flink's test classes, their methods, and the cases of each."""
    found: dict[str, dict[str, list[str]]] = yaml.safe_load(DECLARED.read_text(encoding="utf-8"))
    return found


def _named(text: str) -> Iterator[str]:
    """Yield the cases that a name or a docstring mentions."""
    for groups in CASE.findall(text):
        letter, first, last = groups[:3] if groups[0] else groups[3:]
        yield from (f"{letter}-{number:02}" for number in range(int(first), int(last or first) + 1))


def tests_by_case() -> dict[str, list[str]]:
    """Return the tests (`path::name`) that repeat each case."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for case in dict.fromkeys(_named(f"{node.name} {ast.get_docstring(node) or ''}")):
                    found.setdefault(case, []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def page() -> str:
    """Return docs/conformance.md."""
    ours = tests_by_case()
    lines = [text("conformance")]
    for name, methods in declared().items():
        rows: dict[str, tuple[list[str], list[str]]] = {}
        for method, cases in methods.items():
            tests = dict.fromkeys(test for case in cases for test in ours.get(case, ()))
            links = [
                f"[{t.partition('::')[2].removeprefix('test_')}](../{t.partition('::')[0]})" for t in tests
            ]
            methods_of, cases_of = rows.setdefault("<br>".join(links), ([], []))
            methods_of.append(method)
            cases_of += (case for case in cases if case not in cases_of)
        for text_of_links, (methods_of, cases_of) in rows.items():
            cases_of.sort(key=lambda case: int(case[2:]))
            span = ", ".join(cases_of)
            if len(cases_of) > 2 and int(cases_of[-1][2:]) - int(cases_of[0][2:]) == len(cases_of) - 1:
                span = f"{cases_of[0]} to {cases_of[-1]}"
            lines.append(f"| {name}.{', '.join(methods_of)} | {span} | {text_of_links or '–'} |")
    return "\n".join(lines)
