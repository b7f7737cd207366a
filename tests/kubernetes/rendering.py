"""Render the chart and the manifests without a cluster."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.cluster import LAYOUT, ROOT

CHART = ROOT / "helm" / "headgate"
OVERLAY = ROOT / "manifests" / "overlays" / "test"
KUBE_VERSION = "1.34.0"
LIMIT_S = 60
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def program(name: str) -> str:
    """kubectl or helm: of the cluster tool, or of the machine. Skips where there is none."""
    own = LAYOUT.binaries / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: make cluster builds it, or install it")
    return found


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@functools.cache
def helm_template(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = (program("helm"), "template", "demo", str(CHART), "--namespace", "headgate-system")
    done = _run(*command, "--kube-version", KUBE_VERSION, *arguments)
    assert not check or done.returncode == 0, done.stderr
    return done


def helm_lint(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _run(program("helm"), "lint", "--strict", str(CHART), *arguments)


def chart(*arguments: str) -> list[dict[str, Any]]:
    """Every object that the chart renders, hooks included."""
    return _objects(helm_template(*arguments).stdout)


@functools.cache
def _kustomized(folder: Path) -> str:
    done = _run(program("kubectl"), "kustomize", str(folder))
    assert done.returncode == 0, done.stderr
    return done.stdout


def kustomize(folder: Path) -> list[dict[str, Any]]:
    return _objects(_kustomized(folder))


def _objects(text: str) -> list[dict[str, Any]]:
    """The definitions are 1 MB: libyaml reads them ten times faster than the loader in Python."""
    return [one for one in yaml.load_all(text, Loader=LOADER) if one]


def of_kind(objects: Iterable[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [one for one in objects if one["kind"] in kinds]


def pod_specs(objects: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in objects:
        if one["kind"] == "Pod":
            yield one["spec"]
        elif one["kind"] in ("Deployment", "Job"):
            yield one["spec"]["template"]["spec"]


def images(objects: Iterable[dict[str, Any]]) -> set[str]:
    """Every image that is run, or handed to the operator to run."""
    found = set()
    for spec in pod_specs(objects):
        for container in spec["containers"]:
            found.add(container["image"])
            found |= {e["value"] for e in container.get("env", ()) if e["name"].endswith("_IMAGE")}
    return found


Call = tuple[str, str, str]
"""(group, resource, verb), the resource with its subresource."""


def calls(rules: Iterable[dict[str, Any]]) -> set[Call]:
    """Return the calls that rules allow, without the names of objects."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def role(objects: Iterable[dict[str, Any]], name: str) -> set[Call]:
    """Return the calls that the roles of this name allow together."""
    found = [o for o in of_kind(objects, "ClusterRole", "Role") if o["metadata"]["name"] == name]
    assert found, f"no role {name}"
    return set().union(*(calls(one["rules"]) for one in found))
