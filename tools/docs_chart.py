"""Write the chart's README from the comments of its values.yaml: each `# --` describes the value below it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.docs_texts import text

CHART = Path(__file__).resolve().parents[1] / "helm" / "headgate"
KEY = re.compile(r"^( *)([A-Za-z]+):")
COMMENT = re.compile(r"^ *# ?(-- )?(.*)$")


def page() -> str:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    commented = (CHART / "values.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load(commented)
    keys = list(described(commented))
    groups = {path.rpartition(".")[0] for path, _ in keys}
    rows = [
        f"| `{path}` | {_default(_at(values, path), path in groups)} | {meaning.replace('|', chr(92) + '|')} |"
        for path, meaning in keys
        if meaning or path not in groups
    ]
    kube = chart["kubeVersion"].removeprefix(">=").removesuffix("-0")
    return text("chart", description=chart["description"], kube=f"{kube} or newer") + "\n".join(rows)


def described(text: str) -> Iterator[tuple[str, str]]:
    """Yield (path, meaning) of every key, in order. A key without a comment of its own has no meaning."""
    path: list[str] = []
    meaning: list[str] = []
    for line in text.splitlines():
        key, comment = KEY.match(line), COMMENT.match(line)
        if key is not None:
            path[len(key[1]) // 2 :] = [key[2]]
            yield ".".join(path), " ".join(meaning)
            meaning = []
        elif comment is not None:
            meaning = [comment[2]] if comment[1] else [*meaning, comment[2]]
        else:
            meaning = []


def _default(value: Any, group: bool) -> str:
    """Return the default; the values of a group have their own rows."""
    return "–" if group else f"`{json.dumps(value)}`"


def _at(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values[key]
    return values
