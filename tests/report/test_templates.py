"""The compiled templates of the report are kept beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemLoader

from testbed_runtime.report.html import compiled_beside


def _environment(folder: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader(folder), autoescape=True, bytecode_cache=compiled_beside(folder)
    )


def test_a_template_is_compiled_once_for_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling the report's template took 80 ms of each `headgate simulate`."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    (tmp_path / "page.j2").write_text("{{ 6 * 7 }}")
    assert _environment(tmp_path).get_template("page.j2").render() == "42"
    later = _environment(tmp_path)
    monkeypatch.setattr(later, "compile", lambda *_: pytest.fail("compiled again"))
    assert later.get_template("page.j2").render() == "42"


def test_a_changed_template_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache knows the text from which a template was compiled."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    page = tmp_path / "page.j2"
    page.write_text("before")
    _environment(tmp_path).get_template("page.j2")
    page.write_text("after")
    assert _environment(tmp_path).get_template("page.j2").render() == "after"


def test_nothing_is_kept_where_python_keeps_no_byte_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`PYTHONDONTWRITEBYTECODE` holds for the templates too."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    assert compiled_beside(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
