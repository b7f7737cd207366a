"""House style that no linter checks: sizes, leftovers, plain English, and nothing specific to one machine."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

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


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions of a module. Expressions, which are most of its nodes, have none."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _functions(child)


def test_functions_and_modules_are_short_and_every_test_states_its_rule():
    """At most 70 lines per function, 600 per module. A test is a sentence: its name, and one line that states the rule.

    One test, because half of its time is the parsing of all files.
    """
    found = []
    for path in PYTHON:
        text, name = path.read_text(), path.relative_to(ROOT)
        if text.count("\n") > MODULE_LINES_MAX:
            found.append(f"{name} has more than {MODULE_LINES_MAX} lines")
        for node in _functions(ast.parse(text)):
            if (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX:
                found.append(f"{name}:{node.lineno} {node.name} has more than {FUNCTION_LINES_MAX} lines")
            if (
                path.name.startswith("test_")
                and node.name.startswith("test_")
                and not ast.get_docstring(node)
            ):
                found.append(f"{name}:{node.lineno} {node.name} has no docstring")
    assert not found


def test_no_committed_file_names_a_registry_host_or_a_machine_path():
    """A clone works anywhere: no package index, no home folder."""
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


def test_no_comment_marks_unfinished_work():
    """Missing features are in docs/limits.md, not in comments."""
    found = [
        f"{p.relative_to(ROOT)}"
        for p in PYTHON
        if p.name != "test_tidy.py" and LEFTOVERS.search(p.read_text())
    ]
    assert not found


def test_no_comment_makes_a_statement_take_more_lines():
    """A comment stands above a statement that does not fit with it into one line; behind its closing bracket it would explain nothing."""
    behind = re.compile(r"^ *[)\]}]+[:,]?  # (?!fmt: skip|noqa|type: ignore)")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in PYTHON
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if behind.match(line)
    ]
    assert found == []


TEXTS = ("*.py", "*.md", "*.yaml", "*.tpl", "*.txt", "*.html", "*.sh", "Makefile", "Dockerfile")
EXEMPT = (
    "tests/test_tidy.py",
    "tools/images/slim.py",  # part of the key of the images' cache
)


FRAGMENTS = re.compile(r'"""(?:Of|Until|For|Who|What|By|From|Where|Soon)\b|\bDESIGN(?: §|\'s)')
WORDS = (
    "told",
    "mend",
    "whoever",
    "of ours",
    "nobody(?!:)",
    "comes? again",
    "came again",
    "people",
    "goes home",
    "for ever",
    "flink-facts",
    "wire[.]md",
    "source rows?",
)
UNWANTED = re.compile(rf"(?<![a-z])(?:{'|'.join(WORDS)})(?![a-z])")
"""Matches a word in prose and as a part of an identifier, in a text in lower case."""


def test_texts_use_none_of_the_words_that_make_them_hard_to_read():
    """A docstring starts with an imperative or names the thing, and a text uses the word that a reader would search for.

    Write `report` or `notify` for `told`, `hint` or `fix` for `mend`, `Headgate's` for `of ours`, `restarts` for `comes again`.
    """
    found = []
    for path in _tracked(*TEXTS):
        if str(path.relative_to(ROOT)) in EXEMPT:
            continue
        text = path.read_text()
        lower = text.lower()
        for match in (*FRAGMENTS.finditer(text), *UNWANTED.finditer(lower)):
            number = match.string.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{number}: {match.group()}")
    assert found == []


def test_only_known_folders_are_in_the_checkout():
    """A scratch run that was left behind would be committed with the next change."""
    found = {path.relative_to(ROOT).parts[0] for path in _tracked() if path.parent != ROOT}
    known = ".ci benchmarks docs helm manifests operator scenarios studies testbed_runtime tests tools"
    assert found <= {*known.split()}
