"""Write the CustomResourceDefinitions of manifests/ and of the Helm chart, and the chart's admission policies and RBAC rules. `--check` only lists
outdated ones and exits with 1."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from testbed_runtime.api import rbac
from testbed_runtime.api.admission import policies
from testbed_runtime.api.crds import definitions, file_name

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm" / "headgate" / "files"
FOLDERS = (ROOT / "manifests" / "crds", CHART / "crds")
HEAD = "# Written by `make docs` from testbed_runtime/api.\n"
WIDTH = 140
"""Columns per line of YAML."""


class Plain(yaml.SafeDumper):
    """Write every part in full, without YAML aliases, as kubectl expects."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def files() -> dict[Path, str]:
    """Return the text of every file."""
    texts = {file_name(one): _text(one) for one in definitions()}
    return {
        **{folder / name: text for folder in FOLDERS for name, text in texts.items()},
        CHART / "admission.yaml": _text(policies()),
        **{
            CHART / "rules" / f"{role}.yaml": _text(found, lists_in_line=True)
            for role, found in rbac.rules().items()
        },
    }


def _text(content: object, *, lists_in_line: bool = False) -> str:
    flow = None if lists_in_line else False
    return HEAD + yaml.dump(
        content, Dumper=Plain, sort_keys=False, width=WIDTH, allow_unicode=True, default_flow_style=flow
    )


def main(arguments: list[str]) -> int:
    stale = {p: t for p, t in files().items() if not p.exists() or p.read_text() != t}
    for path, text in stale.items():
        print(path.relative_to(ROOT))
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
