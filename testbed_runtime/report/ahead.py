"""Templates that were compiled ahead: Jinja's parser and code generator take longer than to render a small report.

`tools/generate_templates.py` writes the Python code of each template to `templates/<name>.code`. The first line says of which text and by
which version of Jinja. With another text or version the template is compiled as usual.
"""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import Environment, PackageLoader, Template

TEMPLATES = Path(__file__).with_name("templates")
NAMES = ("report.html.j2", "style.css")


def code_file(name: str) -> Path:
    return TEMPLATES / f"{name}.code"


def mark(source: str) -> str:
    """Return the first line of the code of a template with this text."""
    return f"# Written by `make docs`. Jinja {jinja2.__version__}, text {hashlib.blake2b(source.encode(), digest_size=16).hexdigest()}"


def compiled(environment: Environment, name: str, source: str) -> str:
    """Return what the file of a template should contain."""
    return f"{mark(source)}\n{environment.compile(source, name, name, raw=True)}\n"


class AheadLoader(PackageLoader):
    """Takes the code that was written ahead, if it belongs to the text of the template."""

    def load(
        self,
        environment: Environment,
        name: str,
        globals: MutableMapping[str, Any] | None = None,  # noqa: A002 - Jinja's name
    ) -> Template:
        source, filename, uptodate = self.get_source(environment, name)
        file = code_file(name)
        if file.is_file():
            first, _, code = file.read_text(encoding="utf-8").partition("\n")
            if first == mark(source):
                ready = compile(code, filename, "exec")
                kind = environment.template_class
                return kind.from_code(environment, ready, dict(globals or {}), uptodate)
        return super().load(environment, name, globals)
