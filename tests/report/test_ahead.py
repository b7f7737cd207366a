"""The templates that were compiled ahead give the page that Jinja would give, and never an older one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jinja2
import pytest

from testbed_runtime.report import ahead
from testbed_runtime.report.ahead import NAMES, AheadLoader, code_file
from testbed_runtime.report.html import environment

ROOT = Path(__file__).resolve().parents[2]


def test_the_code_of_the_templates_is_current():
    """`make docs` writes it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate_templates.py"), "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def compilations(monkeypatch):
    """The names of the templates that Jinja compiled itself."""
    found: list[str] = []
    compile_template = jinja2.Environment.compile

    def noted(self, source, name=None, *rest, **more):
        found.append(name)
        return compile_template(self, source, name, *rest, **more)

    monkeypatch.setattr(jinja2.Environment, "compile", noted)
    return found


def fresh() -> jinja2.Environment:
    """An environment that has loaded nothing."""
    return environment().overlay(loader=AheadLoader("testbed_runtime.report", "templates"), cache_size=10)


def test_jinja_compiles_no_template_of_the_report(compilations):
    """Page and style come from their code."""
    for name in NAMES:
        assert fresh().get_template(name).root_render_func
    assert compilations == []


@pytest.mark.parametrize("first", ["# Written by another Jinja", ""])
def test_the_code_of_another_version_or_text_is_not_used(compilations, monkeypatch, tmp_path, first):
    """Then the template is compiled as usual, and renders the same."""
    expected = fresh().get_template("style.css").render()
    code = code_file("style.css").read_text().partition("\n")[2]
    monkeypatch.setattr(ahead, "TEMPLATES", tmp_path)
    (tmp_path / "style.css.code").write_text(f"{first}\n{code}")
    assert fresh().get_template("style.css").render() == expected
    assert compilations == ["style.css"]
