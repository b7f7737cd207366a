"""The files of Python functions on their way into a cluster: `headgate run` puts them into a ConfigMap of the run, and the
TaskManagers' pods mount it (docs/decisions/0015)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testbed_runtime.api.views import Resource
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.functions import FIELD, KEY, FunctionReference, is_in_cluster
from testbed_runtime.core.job.restore import IN_CLUSTER
from testbed_runtime.kube.manifests import CONFIG_MAP_BYTES, brought, config_map, with_parts


def files_of(document: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return the text of each file that a Python function of the scenario is in, by its name. `folder` is the scenario's.

    Raises UserError for a file that cannot be read, two files with one name, and files that are too large."""
    paths: dict[str, Path] = {}

    def found(reference: str) -> str:
        parsed = FunctionReference.parse(reference)
        if parsed is not None:
            path = folder / parsed.file
            if not KEY.fullmatch(path.name):
                hint = "use letters, digits, `-`, `_` and `.`, and the ending .py"
                raise UserError(FIELD, f"{path.name!r} cannot be the key of a ConfigMap", hint)
            if paths.setdefault(path.name, path).resolve() != path.resolve():
                hint = "give one of them another name"
                raise UserError(
                    FIELD, f"two files are named {path.name!r}, which one ConfigMap cannot hold", hint
                )
        return reference

    _with_references(document, found)
    texts = {name: _read(path) for name, path in paths.items()}
    size = sum(len(text.encode()) for text in texts.values())
    if size > CONFIG_MAP_BYTES:
        hint = "build an image with them, and write their absolute paths"
        raise UserError(
            FIELD, f"the files of the functions have {size} bytes, more than {CONFIG_MAP_BYTES}", hint
        )
    return texts


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(FIELD, f"{path.name!r} cannot be read as UTF-8: {error}") from error


def in_cluster(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the document with each function in the ConfigMap `name` that was in a file of this machine."""

    def placed(reference: str) -> str:
        parsed = FunctionReference.parse(reference)
        return f"{IN_CLUSTER}{name}/{Path(parsed.file).name}:{parsed.name}" if parsed else reference

    return _with_references(document, placed)


def manifest(run: Resource, name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the ConfigMap, which is deleted with the run. It cannot be changed while the run is under way."""
    return {**brought(config_map(run, name, files)), "immutable": True}


def _with_references(document: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the document with `change` applied to each reference to a file of this machine."""

    def local(owner: Mapping[str, Any], field: str) -> dict[str, Any]:
        reference = owner.get(field)
        if not reference or is_in_cluster(reference):
            return dict(owner)
        return {**owner, field: change(reference)}

    def vertex(written: Mapping[str, Any]) -> dict[str, Any]:
        changed = local(written, "function")
        if changed.get("iteration"):
            changed["iteration"] = local(changed["iteration"], "criterion")
        return changed

    def part(written: Mapping[str, Any]) -> dict[str, Any]:
        job = written.get("job")
        if not job:
            return dict(written)
        return {**written, "job": {**job, "vertices": [vertex(v) for v in job.get("vertices") or ()]}}

    return with_parts(document, part)
