"""Hand-written parts of the generated pages: tools/pages/*.md.in, with `$name` for what the code declares."""

from __future__ import annotations

from pathlib import Path
from string import Template

FOLDER = Path(__file__).with_name("pages")
GENERATED = "<!-- Written by tools/generate_docs.py (make docs). Change the declaration, the docstring below its field, or tools/pages, not this page. -->"


def text(name: str, **values: object) -> str:
    """Return a text with its values. Raises KeyError for a `$name` without a value."""
    return Template((FOLDER / f"{name}.md.in").read_text(encoding="utf-8")).substitute(values)
