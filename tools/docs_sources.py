"""Read sources.yaml, the rows of the published texts, and write the page docs/sources.md from it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml

from tools.docs_texts import text

ROOT = Path(__file__).resolve().parents[1]
DECLARED = Path(__file__).with_name("sources.yaml")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the texts. The fields are described in sources.yaml."""

    name: str
    claim: str
    mechanism: str
    commands: tuple[str, ...] = ()
    result: str = ""
    figures: dict[str, dict[str, str | list[str]]] = {}
    missing: str = ""
    tests: tuple[str, ...] = ()

    @property
    def standing(self) -> str:
        if not self.commands:
            return "not yet"
        return "partly" if self.missing else "shown"


def load() -> dict[str, list[Row]]:
    """Return the rows of each part, by its heading. Raises msgspec.ValidationError for an unknown field."""
    parts = yaml.safe_load(DECLARED.read_text(encoding="utf-8"))
    return {
        f"{letter}. {part['title']}": [
            msgspec.convert({"name": name, **row}, Row) for name, row in part["rows"].items()
        ]
        for letter, part in parts.items()
    }


def _linked(text: str) -> str:
    """Return a mechanism with a link for each module in it."""
    words = []
    for word in text.split(" "):
        name = word.rstrip(",")
        exists = "/" in name and (ROOT / "testbed_runtime" / name).exists()
        words.append(f"[{name}](../testbed_runtime/{name}){word[len(name) :]}" if exists else word)
    return " ".join(words)


def _shown(row: Row) -> str:
    """Return the text about what the command showed, and about what is missing."""
    missing = row.missing and f"**{'Missing' if row.commands else 'Not yet'}:** {row.missing}"
    return " ".join(filter(None, [row.result and f"{row.result.rstrip('.')}.", missing]))


def _test(name: str) -> str:
    path, _, function = name.partition("::")
    return f"[{function.removeprefix('test_') or Path(path).stem}](../{path})"


def page() -> str:
    """Return docs/sources.md."""
    parts = load()
    rows = [row for part in parts.values() for row in part]
    counts = {
        standing: sum(r.standing == standing for r in rows) for standing in ("shown", "partly", "not yet")
    }
    listed = ", ".join(f"{n} {'is' if n == 1 else 'are'} {s}" for s, n in counts.items())
    lines = [text("sources"), f"Of {len(rows)} rows, {listed}.\n"]
    for title, part in parts.items():
        lines += [f"## {title}\n", "| row | claim | mechanism | command | result | tests |", "|" + "---|" * 6]
        for row in part:
            cells = (
                row.name,
                row.claim,
                _linked(row.mechanism),
                "<br>".join(f"`{c}`" for c in row.commands),
                _shown(row),
                "<br>".join(_test(t) for t in row.tests),
            )
            lines.append("| " + " | ".join(cell.replace("|", "\\|") or "–" for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)
