"""The files of Python functions on their way into a cluster: `headgate run` puts them into a ConfigMap of the run, and the
TaskManagers' pods mount it (docs/decisions/0015)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from testbed_runtime.api.views import Resource
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.functions import FIELD, KEY, FunctionReference, is_in_cluster
from testbed_runtime.core.job.restore import IN_CLUSTER
from testbed_runtime.kube.manifests import CONFIG_MAP_BYTES, config_map, unwatched, with_parts


def files_of(document: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return, by name, the text of each file that contains a Python function of the scenario, and of each file in the same folder that
    such a file imports. `folder` is the scenario's.

    Raises UserError for a file that cannot be read, two files with one name, and files that are too large."""
    paths: dict[str, Path] = {}

    def found(reference: str) -> str:
        parsed = FunctionReference.parse(reference)
        if parsed is not None:
            add(folder / parsed.file)
        return reference

    def add(path: Path) -> None:
        if not KEY.fullmatch(path.name):
            hint = "use letters, digits, `-`, `_` and `.`, and the ending .py"
            raise UserError(FIELD, f"{path.name!r} cannot be the key of a ConfigMap", hint)
        if path.name not in paths:
            paths[path.name] = path
            texts[path.name] = _read(path)
            for imported in _imports(path, texts[path.name]):
                add(imported)
        elif paths[path.name].resolve() != path.resolve():
            hint = "give one of them another name"
            raise UserError(
                FIELD, f"two files are named {path.name!r}, which one ConfigMap cannot hold", hint
            )

    texts: dict[str, str] = {}
    _with_references(document, found)
    size = sum(len(text.encode()) for text in texts.values())
    if size > CONFIG_MAP_BYTES:
        hint = "build an image with them, and write their absolute paths"
        raise UserError(
            FIELD, f"the files of the functions have {size} bytes, more than {CONFIG_MAP_BYTES}", hint
        )
    return texts


def _imports(path: Path, text: str) -> Iterator[Path]:
    """Yield the files beside `path` that it imports. Raises UserError for a package, which a ConfigMap cannot hold."""
    try:
        tree = ast.parse(text, path.name)
    except SyntaxError:  # the error is reported when the function is loaded
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        for name in names:
            top = path.parent / name.partition(".")[0]
            if top.with_suffix(".py").is_file():
                yield top.with_suffix(".py")
            elif (top / "__init__.py").is_file():
                hint = "put its code into one file, or build an image with it"
                problem = f"{path.name!r} imports the folder {top.name!r}, which a ConfigMap cannot hold"
                raise UserError(FIELD, problem, hint)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(FIELD, f"{path.name!r} cannot be read as UTF-8: {error}") from error


def in_cluster(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the document with references to the ConfigMap `name` instead of to files of this machine."""

    def placed(reference: str) -> str:
        parsed = FunctionReference.parse(reference)
        return f"{IN_CLUSTER}{name}/{Path(parsed.file).name}:{parsed.name}" if parsed else reference

    return _with_references(document, placed)


def manifest(run: Resource, name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the ConfigMap, which is deleted with the run. It is immutable, so that it does not change during the run."""
    return {**unwatched(config_map(run, name, files)), "immutable": True}


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
