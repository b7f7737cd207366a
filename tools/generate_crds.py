"""Write the CustomResourceDefinitions and the RBAC rules of manifests/ and of the Helm chart, and the chart's admission policies. `--check` only
lists outdated ones and exits with 1."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from testbed_runtime.api import naming, rbac
from testbed_runtime.api.admission import policies
from testbed_runtime.api.crds import definitions, file_name

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm" / "headgate" / "files"
MANIFESTS = ROOT / "manifests"
FOLDERS = (MANIFESTS / "crds", CHART / "crds")
HEAD = "# Written by `make docs` from testbed_runtime/api.\n"
BOUND = ("runner", "study", "spark")
"""The roles that the operator binds in the namespaces that have runs, studies or Spark executors."""
AGGREGATED = {"view": ("view",), "edit": ("edit", "admin")}
"""The cluster's roles to which the rights of Headgate's users are added."""
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
        MANIFESTS / "base" / "roles.yaml": _text(*_roles(), lists_in_line=True),
        **{
            CHART / "rules" / f"{role}.yaml": _text(found, lists_in_line=True)
            for role, found in rbac.rules().items()
        },
    }


def _roles() -> Iterator[dict[str, Any]]:
    """Yield the roles of an installation from manifests/, whose operator serves the whole cluster."""
    rules = rbac.rules()
    bound = [f"headgate-{component}" for component in BOUND]
    bind = {
        "apiGroups": [naming.RBAC_GROUP],
        "resources": ["clusterroles"],
        "resourceNames": bound,
        "verbs": ["bind"],
    }
    parts = ("operator", "lease-watch", "operator-acts", "operator-cluster")
    acting = [rule for part in parts for rule in rules[part]]
    yield _role("ClusterRole", "operator", {naming.LABEL_COMPONENT: "operator"}, [*acting, bind])
    yield _role("Role", "operator-lease", {naming.LABEL_COMPONENT: "operator"}, rules["lease"])
    for component in BOUND:
        yield _role("ClusterRole", component, {naming.LABEL_COMPONENT: component}, rules[component])
    for name, others in AGGREGATED.items():
        to = {f"rbac.authorization.k8s.io/aggregate-to-{other}": "true" for other in others}
        yield _role("ClusterRole", name, to, rules[name])


def _role(kind: str, name: str, labels: Mapping[str, str], rules: list[dict[str, Any]]) -> dict[str, Any]:
    common = {naming.LABEL_NAME: naming.MANAGED_BY, naming.LABEL_PART_OF: naming.MANAGED_BY}
    metadata = {"name": f"headgate-{name}", "labels": {**common, **labels}}
    return {"apiVersion": naming.RBAC_VERSION, "kind": kind, "metadata": metadata, "rules": rules}


def _text(*documents: object, lists_in_line: bool = False) -> str:
    flow = None if lists_in_line else False
    return HEAD + yaml.dump_all(
        documents, Dumper=Plain, sort_keys=False, width=WIDTH, allow_unicode=True, default_flow_style=flow
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
