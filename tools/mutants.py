"""Make small random mistakes in the judging code, one at a time, and count how many of them the quick tests notice.

    python -m tools.mutants --seed 1 --count 40 testbed_runtime/checking testbed_runtime/core/judgement

A mistake that every test accepts is printed with its line before and after: it shows a rule without a test, or code without an
effect. The working tree is not touched: everything runs in a temporary copy. All quick tests run once with coverage; a mutant
then only needs the tests that run its lines, fast ones first. Exit code 1 if fewer than `--least` of the mutants are caught, 2
if the tests fail without any change.

Own code, because a check of a few minutes needs a seeded sample. mutmut 3 runs every mutant of a module, and none outside of
functions. cosmic-ray keeps a session of all mutants and runs one command for each. mutatest draws a sample, but its last release
is from 2022, for Python 3.8.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from random import Random

import pytest
from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
CODE = ("testbed_runtime/checking", "testbed_runtime/core/judgement")
TOO_SLOW = "too slow"
SLOW = ("processes", "spark", "scenario", "soak", "cluster", "helm", "virtual")
"""Markers of the tests that are not quick."""
FIRST = 40
"""Number of tests that run first. A fast test catches most mutants, and then the files of the other tests need not be imported."""
LINES = "[run]\nsource_pkgs = testbed_runtime, headgate_operator\nparallel = true\n"
"""Configuration of coverage. Branches would make the tests slower, and are not needed."""
LIMIT_S = 60
"""Limit of processor time for a run of tests, in addition to twice their own seconds: a mutant may loop endlessly."""
WAITING = 20
"""A run of tests may take this many times its processor time: other processes need the machine too."""
MOST_S, EACH_S = 40.0, 0.005
"""Maximum seconds of tests for one mutant, as measured with coverage, and the overhead of each test. Some lines are run by thousands of
tests."""
PYTEST = ["-q", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
LIBRARIES = ("numpy", "pyarrow.compute", "pydantic", "hypothesis")
"""Imported once, before the process forks for each mutant."""
IGNORED = shutil.ignore_patterns(".git", ".venv", ".*cache", "__pycache__")
MOST = 100
"""An integer larger than this is doubled instead of increased: one nanosecond more is no mistake."""
ROUNDING = 1e-6
"""Numbers smaller than this only absorb rounding, like constants named EPSILON, and are not changed."""
UNNOTICED = ("gc", "strict", "kw_only")
"""Arguments that change no result: how a class is made, and a check of lists that always have one length."""
TOLERANCE = re.compile(r"EPSILON|TOLERANCE|ROUNDING|__all__")

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
DROPPED = (ast.AugAssign, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes from `start` to `end` of a file, which are on these lines, become `after`."""

    path: str
    start: int
    end: int
    after: str
    lines: range
    statement: range
    """The lines of its statement: coverage sees no line of its own in a literal of constants."""


def mutants(path: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    starts = [0]
    for text in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    tree = ast.parse(source)
    skipped = {id(inner) for part in _unjudged(tree) if part for inner in ast.walk(part)}
    simple = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not hasattr(node, "body")]
    owners = {id(inner): statement for statement in simple for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if id(node) not in skipped and isinstance(node, ast.expr | ast.stmt):
            last = node.end_lineno or node.lineno
            start, end = (
                starts[node.lineno - 1] + node.col_offset,
                starts[last - 1] + (node.end_col_offset or 0),
            )
            lines, owner = range(node.lineno, last + 1), owners.get(id(node), node)
            statement = range(owner.lineno, (owner.end_lineno or owner.lineno) + 1)
            for after in _changes(node) if isinstance(node, ast.expr) else _dropped(node):
                yield Mutant(path, start, end, after, lines, statement)


def _unjudged(tree: ast.Module) -> Iterator[ast.AST | None]:
    """Yield what no test has to notice: annotations, decorators, widths in texts, tolerances, and arguments that change
    no result. Docstrings have no mutants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from (*node.decorator_list, getattr(node, "returns", None))
        elif isinstance(node, ast.arg | ast.AnnAssign):
            yield node.annotation
        elif isinstance(node, ast.keyword) and node.arg in UNNOTICED:
            yield node.value
        elif isinstance(node, ast.Assign) and TOLERANCE.search(ast.unparse(node.targets[0])):
            yield node
        elif isinstance(node, ast.FormattedValue):
            yield node.format_spec
            yield from (part for part in ast.walk(node.value) if isinstance(part, ast.Slice))
        elif isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value <= ROUNDING:
            yield node


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
    elif isinstance(node, ast.Name) and node.id in CALLED:
        yield CALLED[node.id]
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        doubled = node.value > MOST or (isinstance(node.value, float) and node.value != 0)
        yield repr(node.value * 2 if doubled else node.value + 1)


def _dropped(node: ast.stmt) -> Iterator[str]:
    """Yield what replaces a statement: nothing, or None as the result."""
    if isinstance(node, ast.Return) and not (node.value is None or ast.unparse(node.value) == "None"):
        yield "return None"
    elif isinstance(node, DROPPED) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield "pass"


@dataclass
class Copy:
    """A copy of the tree. `seconds` are those of its tests, fast ones first."""

    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def fill(self) -> None:
        """Copy the tree. Tests that list its files need a repository."""
        shutil.copytree(ROOT, self.folder, ignore=IGNORED)
        subprocess.run(("git", "init", "-q", str(self.folder)), check=True)

    def pytest(self, *arguments: str, limit: int = 3600) -> int | None:
        """Run tests in the copy, in a child that need not import the libraries again. Return the exit code; None if they take more than
        `limit` seconds of processor time."""
        child = os.fork()
        if child == 0:
            code = 99
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
                code = self._tested(arguments)
            finally:
                os._exit(code)
        ends = time.monotonic() + WAITING * limit
        while time.monotonic() < ends:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None

    def _tested(self, arguments: Sequence[str]) -> int:
        """Turn this process into one that tests the copy."""
        os.setpgid(0, 0)
        with (self.folder / "pytest.log").open("w") as log:
            for output in (1, 2):
                os.dup2(log.fileno(), output)
        os.chdir(self.folder)
        sys.path[:0] = paths = [str(self.folder), f"{self.folder}/operator"]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        code = pytest.main([*PYTEST, *arguments])
        sys.stdout.flush()
        return code

    def measure(self, folders: Sequence[str], workers: int) -> bool:
        """Run the quick tests of these folders of `tests`, with coverage. Return whether they pass."""
        quick = " and ".join(f"not {marker}" for marker in SLOW)
        (self.folder / "lines.ini").write_text(LINES)
        coverage = ["--cov", "--cov-config=lines.ini", "--cov-context=test", "--cov-report="]
        tests = [str(self.folder / "tests" / name) for name in folders]
        parallel = ["-n", str(workers), "--junitxml=times.xml"]
        if self.pytest("-m", quick, *parallel, *coverage, *tests) != 0:
            print((self.folder / "pytest.log").read_text()[-3000:], file=sys.stderr)
            return False
        for case in ET.parse(self.folder / "times.xml").iter("testcase"):
            name = self._named(case.attrib["classname"], case.attrib["name"])
            self.seconds[name] = float(case.attrib["time"])
        self.seconds = dict(sorted(self.seconds.items(), key=lambda item: item[1]))
        return True

    def users(self, path: str) -> frozenset[str]:
        """Return the tests of a file: those that run a line of it, or of a file that imports it, or are in a file that does
        or that imports every module."""
        parts = Path(path.removeprefix("operator/")).with_suffix("").parts
        module, package, name = ".".join(parts), ".".join(parts[:-1]), parts[-1]
        imports = re.compile(
            rf"^\s*(from|import) {re.escape(module)}\b|^\s*from {re.escape(package)} import [^#]*\b{name}\b",
            re.MULTILINE,
        )
        files = [
            f for top in ("testbed_runtime", "operator", "tests") for f in (self.folder / top).rglob("*.py")
        ]
        users = [
            str(f.relative_to(self.folder)) for f in files if imports.search(f.read_text(encoding="utf-8"))
        ]
        users += [
            str(f.relative_to(self.folder)) for f in files if "pkgutil" in f.read_text(encoding="utf-8")
        ]
        own = frozenset(test for test in self.seconds if test.partition("::")[0] in users)
        return own.union(*(found for user in (path, *users) for found in _ran(self.folder, user).values()))

    def _named(self, owner: str, name: str) -> str:
        """Return the name of a test in pytest, from its module, its class if it has one, and its name."""
        parts = owner.split(".")
        file = next(
            n
            for n in range(len(parts), 0, -1)
            if (self.folder.joinpath(*parts[:n]).with_suffix(".py")).is_file()
        )
        return "::".join(("/".join(parts[:file]) + ".py", *parts[file:], name))

    def chosen(self, path: str, found: Set[str]) -> list[str]:
        """Return the tests to run: those of the file's own test files first, then the fast ones, up to MOST_S in all."""
        own = re.compile(rf"/test_{Path(path).stem}(_\w+)?\.py::")
        tests = [test for test in self.seconds if test in found]
        tests.sort(key=lambda test: own.search(test) is None)
        ends = accumulate(self.seconds[test] + EACH_S for test in tests)
        return [test for test, end in zip(tests, ends, strict=True) if end <= MOST_S]

    def notices(self, mutant: Mutant) -> str:
        """Return how the tests notice a mutant, or "" if they do not. Code that only runs at the import concerns all users of its file."""
        ran = _ran(self.folder, mutant.path)
        found = {test for line in mutant.lines for test in ran.get(line, ())}
        found = found or {test for line in mutant.statement for test in ran.get(line, ())}
        if found == {""}:
            found |= self.users(mutant.path)
        tests = self.chosen(mutant.path, found)
        path = self.folder / mutant.path
        original = path.read_bytes()
        path.write_bytes(original[: mutant.start] + mutant.after.encode() + original[mutant.end :])
        try:
            for some in filter(None, (tests[:FIRST], tests[FIRST:])):
                code = self.pytest(
                    "-n", "0", *some, limit=LIMIT_S + round(2 * sum(self.seconds[test] for test in some))
                )
                if code != 0:
                    return TOO_SLOW if code is None else "caught"
            return ""
        finally:
            path.write_bytes(original)


@cache
def _ran(folder: Path, path: str) -> dict[int, frozenset[str]]:
    """Return the tests that ran each line of a file. The test "" stands for the import."""
    data = CoverageData(str(folder / ".coverage"))
    data.read()
    lines = data.contexts_by_lineno(str(folder / path)).items()
    return {line: frozenset(sys.intern(text.rpartition("|")[0]) for text in found) for line, found in lines}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", default=CODE, help="files or folders")
    parser.add_argument("--tests", nargs="*", default=["."], metavar="FOLDER", help="folders of tests/")
    parser.add_argument("--without", nargs="*", default=[], metavar="PATH", help="files or folders left out")
    parser.add_argument("--workers", type=int, default=2, help="processes for the first run of the tests")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=float, default=0.9, help="share that must be caught")
    options = parser.parse_args()
    began = time.monotonic()
    found = sorted(_files(options.paths) - _files(options.without))
    every = [m for f in found for m in mutants(str(f.relative_to(ROOT)), f.read_text(encoding="utf-8"))]
    chosen = Random(options.seed).sample(every, min(options.count, len(every)))
    for name in LIBRARIES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="headgate-mutants-") as folder:
        Path(folder).chmod(0o755)  # tests that run as root read the tree as another account
        copy = Copy(Path(folder) / "tree")
        copy.fill()
        print(f"{len(every)} mutants, {len(chosen)} drawn; the tests run once without a change", flush=True)
        if not copy.measure(options.tests, options.workers):
            print("The tests fail without any change.", file=sys.stderr)
            return 2
        drawn, caught, slow = Counter(mutant.path for mutant in chosen), Counter[str](), 0
        for number, mutant in enumerate(chosen, 1):
            how = copy.notices(mutant)
            caught[mutant.path] += bool(how)
            slow += how == TOO_SLOW
            print(f"{number}/{len(chosen)} {how or 'SURVIVED'} {_diff(mutant, copy.folder)}", flush=True)
    for path, count in sorted(drawn.items()):
        print(f"{caught[path]:4} of {count:3} {path}")
    total = caught.total()
    score = f"{total / max(1, len(chosen)):.0%}"
    took = f"{time.monotonic() - began:.0f} s"
    print(
        f"{total} of {len(chosen)} mutants were caught ({score}), {slow} of them by their limit of time, {took}"
    )
    return 0 if total >= options.least * len(chosen) else 1


def _files(paths: Sequence[str]) -> set[Path]:
    """Return the Python files of these files and folders."""
    given = [ROOT / path for path in paths]
    return {file for path in given for file in (path.rglob("*.py") if path.is_dir() else [path])}


def _diff(mutant: Mutant, folder: Path) -> str:
    """Return file and line, and the changed lines before and after."""
    source = (folder / mutant.path).read_bytes()
    start, end = source.rfind(b"\n", 0, mutant.start) + 1, source.find(b"\n", mutant.end)
    after = source[start : mutant.start] + mutant.after.encode() + source[mutant.end : end]
    before, changed = (" ".join(text.decode().split()) for text in (source[start:end], after))
    return f"{mutant.path}:{mutant.lines.start}\n    - {before}\n    + {changed}"


if __name__ == "__main__":
    sys.exit(main())
