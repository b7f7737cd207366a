"""The documentation agrees with the code: generated pages are current, links resolve, named modules and commands exist."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from testbed_runtime.api import kinds, models
from testbed_runtime.api.descriptions import meaning
from testbed_runtime.cli.commands import build

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks", "docs", "helm", "manifests", "scenarios", "studies")
PAGES = sorted((*ROOT.glob("*.md"), *(p for folder in FOLDERS for p in ROOT.glob(f"{folder}/**/*.md"))))
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
MODULE = re.compile(r"`((?:core|api|ports|transport|workload|jobmanager|taskmanager|supervisor|store|process|history|checking|faults|evaluation|report|simulation|runner|local|cli|entry)/[\w/{},.]+)`")  # fmt: skip
COMMAND = re.compile(r"headgate ([a-z]+)")
REASON_CALLS = {"no": 1, "unknown": 1, "_waiting": 1, "_wait": 1, "_refuse": 1, "_conclude": 2, "NotYet": 0}
"""Functions of the operator's plans that set the reason of a condition, and the position of the reason among their arguments."""


def test_the_reference_pages_are_current():
    """`make docs` writes them."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate_docs.py"), "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def parts() -> list[type[models.Part]]:
    values = [*vars(models).values(), *vars(kinds).values()]
    found = [v for v in values if isinstance(v, type) and issubclass(v, models.Part)]
    return [p for p in found if p is not models.Part]


def test_every_field_has_a_description():
    """The docstring below it, or the description of its declaration."""
    fields = [(part, name) for part in parts() for name in part.model_fields]
    assert [f"{part.__name__}.{name}" for part, name in fields if not meaning(part, name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_of_a_page_lead_to_existing_files(page: Path):
    """A reader never meets a dead link within the repository."""
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    dead = [link for link in links if not (page.parent / link).exists()]
    assert not dead


def _anchors(page: Path) -> set[str]:
    """Return the anchors of the page's headings, as GitHub derives them."""
    titles = [re.sub(r"[`*]", "", title).strip().lower() for title in HEADING.findall(page.read_text())]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_anchors_in_links_of_a_page_are_headings(page: Path):
    """A link to a section opens that section."""
    links = [(name, anchor) for name, anchor in ANCHOR.findall(page.read_text()) if "://" not in name]
    found = [(page.parent / name if name else page, anchor) for name, anchor in links]
    assert [(p.name, anchor) for p, anchor in found if p.suffix == ".md" and anchor not in _anchors(p)] == []


def _expanded(name: str) -> list[str]:
    """`transport/{tcp,inproc}.py` names two files."""
    braces = re.search(r"\{([^}]*)\}", name)
    if braces is None:
        return [name]
    return [name.replace(braces.group(), one) for one in braces[1].split(",")]


def test_every_module_that_the_architecture_names_exists():
    """Module names in the page are paths below testbed_runtime."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = [one for name in MODULE.findall(text) for one in _expanded(name)]
    package = ROOT / "testbed_runtime"
    assert len(named) > 20
    assert [n for n in named if not ((package / n).exists() or (package / f"{n}.py").exists())] == []


def test_every_command_that_a_page_shows_exists():
    """A page never shows a command that does not exist."""
    app = build()
    known = {c.name for c in app.registered_commands} | {g.name for g in app.registered_groups}
    blocks = [b for p in PAGES for b in re.findall(r"`[^`]*headgate [a-z][^`]*`", p.read_text())]
    shown = {name for block in blocks for name in COMMAND.findall(block)}
    assert shown - known == set()


def test_the_recipes_for_ci_are_valid_yaml_and_use_existing_options():
    """Each `headgate ci` in docs/ci.md is accepted by the command's parser, and each recipe is a YAML document."""
    text = (ROOT / "docs" / "ci.md").read_text()
    recipes = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(recipes) >= 4
    for recipe in recipes:
        assert yaml.safe_load(recipe)
    callback = next(c.callback for c in build().registered_commands if c.name == "ci")
    assert callback is not None
    known = {f"--{name}" for name in inspect.signature(callback).parameters}
    commands = re.findall(r"headgate ci (streaming-checks .*)", text)
    assert len(commands) >= 5
    assert {flag for command in commands for flag in re.findall(r"--[a-z-]+", command)} <= known


def _reasons(tree: ast.Module) -> set[str]:
    """Return the reasons in REASON_CALLS that are literals or names of literals."""
    named = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    found = [
        c.args[at]
        for c in calls
        if isinstance(c.func, ast.Name) and len(c.args) > (at := REASON_CALLS.get(c.func.id, 99))
    ]
    values = [n.value if isinstance(n, ast.Constant) else named.get(getattr(n, "id", "")) for n in found]
    return {v for v in values if isinstance(v, str)}


def test_the_page_about_clusters_explains_every_reason_of_a_condition():
    """A user who reads `kubectl describe` finds each reason in docs/kubernetes.md, with what to do."""
    plans = sorted((ROOT / "operator" / "headgate_operator" / "plan").glob("*.py"))
    reasons = set().union(*(_reasons(ast.parse(p.read_text())) for p in plans))
    assert len(reasons) > 30
    page = (ROOT / "docs" / "kubernetes.md").read_text().partition("### Reasons of conditions")[2]
    assert {r for r in reasons if f"`{r}`" not in page} == set()
