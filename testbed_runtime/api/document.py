"""Read a scenario file: YAML of limited size, without duplicate keys, with the line of every field for error messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml
from msgspec import Struct

from testbed_runtime.api import limits
from testbed_runtime.core.errors import UserError

_STEP = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")


class Document(Struct, frozen=True):
    """The plain data of one YAML document, with its nodes for line numbers."""

    data: Any
    node: yaml.Node | None = None
    name: str = ""
    """The file, for messages."""
    number: int = 0
    """Its place in a file that has several documents, from 1."""

    def line(self, path: str) -> int | None:
        """Return the line (from 1) of a field such as `spec.testbed.job.edges[1].to`, or of its nearest parent that exists."""
        node = self.node
        for key, index in _STEP.findall(path):
            child = _child(node, key or index)
            if child is None:
                break
            node = child
        return None if node is None else node.start_mark.line + 1


def _child(node: yaml.Node | None, step: str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    if isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
        return node.value[int(step)]  # type: ignore[no-any-return]
    return None


def read_document(text: str, *, name: str = "") -> Document:
    """Parse one YAML document. Raises UserError if it is not YAML, is too large, or has a duplicate key."""
    return only(read_documents(text, name=name))


def read_documents(text: str, *, name: str = "") -> list[Document]:
    """Parse every YAML document of a file, and the objects of each `List`. Raises UserError as `read_document` does."""
    where = name or "document"
    nodes = compose(text, where)
    if not nodes:
        raise UserError(where, "is empty", "a scenario starts with apiVersion, kind, metadata, spec")
    with _not_yaml(where):
        values = [value for value in yaml.safe_load_all(text) if value is not None]
    found = [part for value, node in zip(values, nodes, strict=True) for part in _objects(value, node)]
    numbers = range(1, len(found) + 1) if len(found) > 1 else (0,)
    for number, (value, _) in zip(numbers, found, strict=True):
        if not isinstance(value, dict):
            place = f"document {number} " if number else ""
            hint = "a scenario starts with apiVersion, kind, metadata, spec; Flink's options are `key: value`"
            raise UserError(where, f"{place}is not a mapping", hint)
    return [Document(*part, name, number) for part, number in zip(found, numbers, strict=True)]


def _objects(value: Any, node: yaml.Node) -> list[tuple[Any, yaml.Node | None]]:
    """Return the objects of a `List`, as `kubectl get -o yaml` prints several, or else the document itself."""
    items = value.get("items") if isinstance(value, dict) and value.get("kind") == "List" else None
    if not isinstance(items, list) or not items:
        return [(value, node)]
    listed = _child(node, "items")
    return [(item, _child(listed, str(at))) for at, item in enumerate(items)]


def only(documents: Sequence[Document]) -> Document:
    """Return the one document of a file. Raises UserError if it has several."""
    first, *others = documents
    if others:
        problem = f"holds more than one document: the second one begins in line {others[0].line('')}"
        hint = "write each into a file of its own; `headgate validate` checks them together"
        raise UserError(first.name or "document", problem, hint)
    return first


def compose(text: str, where: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> list[yaml.Node]:
    """Return the root node of each YAML document. Comments and a lone `null` do not count as documents, because tools write `---` before and
    after a document. Raises the UserErrors of `read_document`."""
    if len(text.encode()) > limits.MAX_DOCUMENT_BYTES:
        raise UserError(
            where, f"has more than {limits.MAX_DOCUMENT_BYTES} bytes", "a scenario is a small file"
        )
    with _not_yaml(where):
        nodes = yaml.compose_all(text, Loader=loader)
        found = [node for node in nodes if node.tag != "tag:yaml.org,2002:null"]
        for node in found:
            _check_nodes(node, where)
    return found


_YAML_FIXES = {
    "'\\t'": "indent with spaces, not with tabs",
    "expected <block end>": "lines of one list or mapping begin in the same column",
    "mapping values are not allowed": "put a text with a colon in quotes, and begin the lines of one mapping in the same column",
}
"""Parts of the parser's messages about common mistakes, each with what to do."""
_OPENED = {
    "while parsing a flow mapping": "put commas between the entries, and close the {",
    "while parsing a flow sequence": "put commas between the entries, and close the [",
    "while scanning a quoted scalar": "close the quote",
}
"""Contexts of the parser → what to do about what opens there."""


@contextmanager
def _not_yaml(where: str) -> Iterator[None]:
    """Raise UserError for text that is not YAML."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context or ""
        hint = next((fix for part, fix in _YAML_FIXES.items() if part in problem), "")
        opened = _OPENED.get(error.context or "")
        if opened and error.context_mark and not hint:
            hint = f"{opened} that opens in line {error.context_mark.line + 1}"
        raise UserError(where, f"is not YAML{line}: {problem}", hint) from None
    except RecursionError:
        raise UserError(where, "is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(where, f"is not YAML: {' '.join(str(error).split())}") from None


def _check_nodes(node: yaml.Node, where: str) -> None:
    """Refuse duplicate keys, aliases that expand beyond the size limit, and aliases to one of their own parents."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(current: yaml.Node) -> int:
        identity = id(current)
        if identity in open_nodes:
            raise UserError(where, f"line {current.start_mark.line + 1}: an alias contains itself")
        if identity not in sizes:
            open_nodes.add(identity)
            _check_keys(current, where)
            sizes[identity] = 1 + sum(size(child) for child in _children(current))
            open_nodes.discard(identity)
            if sizes[identity] > limits.MAX_DOCUMENT_NODES:
                raise UserError(where, f"has more than {limits.MAX_DOCUMENT_NODES} values with its aliases")
        return sizes[identity]

    size(node)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [value for _, value in node.value]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _check_keys(node: yaml.Node, where: str) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            problem = f"line {line}: a key must be a word"
            raise UserError(where, problem, "a template must be rendered first, as `helm template` does")
        if key.value in seen:
            raise UserError(where, f"line {line}: the key {key.value!r} is a duplicate", "keep one of them")
        seen.add(key.value)
