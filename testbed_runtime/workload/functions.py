"""User code: a Python function that is called for each record, given by a reference (core/job/functions.py)."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import Field, fields, make_dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import msgspec

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.functions import FIELD, FunctionReference


class UserRecord(msgspec.Struct, gc=False):
    """The part of a record that a function sees. It is a Struct, because creating one takes a quarter of the time of a
    dataclass. The module `dataclasses` treats it as a dataclass.

    The function returns this record, a copy with another key or text (`dataclasses.replace`), an int (a new key), or None
    to drop the record."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    source: str
    sequence: int
    key: int
    due_ns: int
    count: int
    text: str

    def __hash__(self) -> int:
        return hash(msgspec.structs.astuple(self))


UserRecord.__dataclass_fields__ = {
    field.name: field for field in fields(make_dataclass("UserRecord", UserRecord.__struct_fields__))
}

UserFunction: TypeAlias = "Callable[..., Any]"
"""Takes a record and returns a record, a new key or None. The function of `flat-map` returns any number of records. The function of
`solution-set-join` takes two records."""


def load_function(reference: str, arguments: int = 1) -> UserFunction:
    """Load a function. Raises UserError, with the file and line of the cause, if the file or the function does not exist, the
    file cannot be executed, or the function does not take that many records."""
    found = FunctionReference.parse(reference)
    if found is None:
        raise UserError(FIELD, f"{reference!r} is not a function", "write file.py:name")
    path, name = Path(found.file), found.name
    if not path.is_file():
        raise UserError(FIELD, _missing(found, path))
    spec = importlib.util.spec_from_file_location(f"headgate_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(FIELD, f"{path.name!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        with _importing_from(path.parent.absolute()):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        text = error.msg if isinstance(error, SyntaxError) else error
        where = f"{path.name}:{_line_of(error, path)}"
        raise UserError(
            FIELD, f"{path.name!r} failed to load: {type(error).__name__}: {text} ({where})"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(FIELD, f"{path.name!r} has no function {name!r}")
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        taken = "one record" if arguments == 1 else f"{arguments} records"
        raise UserError(FIELD, f"{name!r} in {path.name!r} does not take {taken}: {error}") from None
    except ValueError:
        pass  # a builtin without a signature
    return function  # type: ignore[no-any-return]


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Let the file import modules of its own folder. Installed modules of the same name win, so none of Headgate's imports
    changes. Each file gets its own modules: two scenarios may have a `helpers.py` each."""
    before = set(sys.modules)
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if folder in Path(getattr(sys.modules[name], "__file__", None) or "/").parents:
                del sys.modules[name]


def _missing(reference: FunctionReference, path: Path) -> str:
    if not reference.config_map:
        return f"file {path.name!r} does not exist next to the scenario"
    if not path.parent.parent.is_dir():
        return f"the ConfigMap {reference.config_map!r} is in a cluster, and this process is not in a pod that mounts it"
    return f"the ConfigMap {reference.config_map!r} has no key {path.name!r}"


def _line_of(error: BaseException, path: Path) -> int:
    """Return the last line of the user's file on the way to the error."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno or 0 for f in reversed(frames) if f.filename == str(path)), 0)


def main(references: list[str]) -> None:
    """Load functions in this process, and print their problems as one JSON object on stdout. An empty text means no problem. An
    argument consists of the number of the function's parameters, a colon and its reference."""
    problems = {}
    with contextlib.redirect_stdout(sys.stderr):
        for reference in references:
            try:
                arguments, _, name = reference.partition(":")
                load_function(name, int(arguments))
                problems[reference] = ""
            except UserError as error:
                problems[reference] = error.problem
    sys.stdout.write(json.dumps(problems) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
