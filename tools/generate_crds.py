"""Write the CustomResourceDefinitions of manifests/ and of the Helm chart, and the chart's admission policies. `--check` only lists outdated ones and exits with 1."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from testbed_runtime.api.admission import policies
from testbed_runtime.api.crds import definitions, file_name

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "manifests" / "crds", ROOT / "helm" / "headgate" / "files" / "crds")
ADMISSION = ROOT / "helm" / "headgate" / "files" / "admission.yaml"
HEAD = "# Written by `make docs` from testbed_runtime/api.\n"
WIDTH = 140
"""Columns per line of YAML."""


class Plain(yaml.SafeDumper):
    """Write every part in full, without YAML aliases, as kubectl expects."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def files() -> dict[Path, str]:
    """Return the text of every file."""
    texts = {
        file_name(one): HEAD + yaml.dump(one, Dumper=Plain, sort_keys=False, width=WIDTH, allow_unicode=True)
        for one in definitions()
    }
    admission = yaml.dump(policies(), Dumper=Plain, sort_keys=False, width=WIDTH, allow_unicode=True)
    return {
        **{folder / name: text for folder in FOLDERS for name, text in texts.items()},
        ADMISSION: HEAD + admission,
    }


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
