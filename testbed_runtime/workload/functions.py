"""User code: a Python function that is called for each record, given as `file.py:name`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from testbed_runtime.core.errors import UserError


@dataclass(frozen=True, slots=True)
class UserRecord:
    """The part of a record that a function sees.

    The function returns this record, a copy with another key or text (`dataclasses.replace`), an int (a new key), or None
    to drop the record."""

    source: str
    sequence: int
    key: int
    due_ns: int
    count: int
    text: str


UserFunction: TypeAlias = "Callable[[UserRecord], UserRecord | int | None]"

_FIELD = "operator.function"


def load_function(reference: str) -> UserFunction:
    """Load a function. Raises UserError if the file or the function does not exist, or the file cannot be executed."""
    file, separator, name = reference.rpartition(":")
    if not separator or not name.isidentifier():
        raise UserError(_FIELD, f"{reference!r} is not a function", "write file.py:name")
    path = Path(file)
    if not path.is_file():
        raise UserError(_FIELD, f"file {path.name!r} does not exist next to the scenario")
    spec = importlib.util.spec_from_file_location(f"headgate_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(_FIELD, f"{path.name!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(_FIELD, f"{path.name!r} failed to load: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(_FIELD, f"{path.name!r} has no function {name!r}")
    return function  # type: ignore[no-any-return]
