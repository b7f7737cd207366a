"""Change one operator, constant or boolean of the judging code at a time, and check that the quick tests notice.

    python tools/mutate.py --count 40 --seed 7

A mutant that every test accepts is printed as a diff of one line: it shows a rule without a test, or code without an effect.
The working tree is not touched: mutants run in a copy. Exit code 1 if fewer than `--least` of them are caught.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
CODE = (
    "testbed_runtime/checking",
    "testbed_runtime/core/judgement/verdict.py",
    "testbed_runtime/core/judgement/expectations.py",
)
TESTS = (
    "tests/core/test_verdict.py",
    "tests/core/test_comparison.py",
    "tests/checking",
    "tests/evaluation/test_timeseries.py",
)
SLOWER = (
    "tests/checking/test_damage.py",
    "tests/evaluation/test_oracle.py",
    "tests/simulation/test_known_answers.py",
)
"""Run only for mutants that the others accept."""
MOST = 100
"""A larger integer is doubled instead of increased: one nanosecond more is no mistake."""
COPIED = ("testbed_runtime", "tests", "scenarios", "benchmarks", "pyproject.toml")
LIMIT_S = 300.0
"""Limit for the tests of one mutant. A mutant that hangs is caught."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the source of a node, and what replaces it."""

    path: str
    line: int
    start: int
    end: int
    """Byte offsets of the node in the file."""
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  →  {self.after}"


def mutants(path: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    starts = [0]
    for text in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    tree = ast.parse(source)
    skipped = set(_unjudged(tree))
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.expr):
            continue
        for after in _changes(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            before = source.encode()[start:end].decode()
            yield Mutant(path, node.lineno, start, end, " ".join(before.split()), after)


def _unjudged(tree: ast.Module) -> Iterator[int]:
    """Yield the nodes that no test should have to notice: annotations, decorators, and the parts of texts."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [
                *node.decorator_list,
                node.returns,
                *(a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg)),
            ]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.decorator_list, *(n.annotation for n in node.body if isinstance(n, ast.AnnAssign))]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.FormattedValue):
            parts = [node.format_spec]
        for part in parts:
            yield from (id(inner) for inner in ast.walk(part)) if part is not None else ()


def _changes(node: ast.expr) -> Iterator[str]:
    """Yield the source of each small change of an expression."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield ast.unparse(ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators))
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "(" + ast.unparse(ast.BoolOp(other, node.values)) + ")"
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield "(" + ast.unparse(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)) + ")"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "(" + ast.unparse(node.operand) + ")"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        doubled = isinstance(node.value, float) and node.value != 0
        yield repr(node.value * 2 if doubled or node.value > MOST else node.value + 1)


def drawn(count: int, seed: int, only: str = "") -> list[Mutant]:
    """Return `count` mutants of the judging code, drawn by the seed."""
    files = sorted(
        f for name in CODE for f in ([ROOT / name] if name.endswith(".py") else (ROOT / name).glob("*.py"))
    )
    every = [
        m
        for f in files
        if only in str(f)
        for m in mutants(str(f.relative_to(ROOT)), f.read_text(encoding="utf-8"))
    ]
    return Random(seed).sample(every, min(count, len(every)))


def survives(mutant: Mutant, copy: Path, *, quick: bool = False) -> bool:
    """Whether the tests accept the mutant."""
    path = copy / mutant.path
    original = path.read_bytes()
    path.write_bytes(original[: mutant.start] + mutant.after.encode() + original[mutant.end :])
    try:
        return passes(copy, quick=quick)
    finally:
        path.write_bytes(original)


def passes(copy: Path, *, quick: bool = False) -> bool:
    """Whether the tests of the judging code pass in a copy: the quick ones, then the slower ones unless `quick`."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    for tests in ((*TESTS, *(f"--ignore={name}" for name in SLOWER)), *([] if quick else [SLOWER])):
        argv = [*pytest, *tests]
        try:
            done = subprocess.run(
                argv, cwd=copy, env=environment, capture_output=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        if done.returncode != 0:
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", default="", help="part of the files' paths")
    parser.add_argument("--quick", action="store_true", help="without the slower tests")
    parser.add_argument("--least", type=float, default=0.9)
    options = parser.parse_args()
    chosen = drawn(options.count, options.seed, options.only)
    with tempfile.TemporaryDirectory(prefix="headgate-mutants-") as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, copy / name, ignore=ignored) if source.is_dir() else shutil.copy(
                source, copy / name
            )
        if not passes(copy, quick=options.quick):
            print("The tests fail without any change.", file=sys.stderr)
            return 2
        caught = 0
        for number, mutant in enumerate(chosen, 1):
            alive = survives(mutant, copy, quick=options.quick)
            caught += not alive
            print(f"{number}/{len(chosen)} {'SURVIVED' if alive else 'caught  '} {mutant}", flush=True)
    print(f"{caught} of {len(chosen)} mutants were caught ({caught / max(1, len(chosen)):.0%})")
    return 0 if caught >= options.least * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
