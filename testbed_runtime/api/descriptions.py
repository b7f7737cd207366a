"""Descriptions of the fields of a kind's spec and status, for the reference pages and `kubectl explain`: the docstring below each field.

Fault kinds and their parameters carry their own descriptions: see core.faults.kinds.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise

from pydantic import BaseModel

from testbed_runtime.api.models import Part


@cache
def _docstrings(module: str) -> dict[str, str]:
    """Map `Class.field` to the docstring below the field, for the classes of a module. They exist only in its source."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        f"{owner.name}.{field.target.id}": str(below.value.value)
        for owner in tree.body
        if isinstance(owner, ast.ClassDef)
        for field, below in pairwise(owner.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def docstring_of(model: type, field: str, base: type) -> str:
    """Return the docstring below a field of `model`, or of a class between it and `base`. Empty if there is none."""
    owners = [owner for owner in model.__mro__ if issubclass(owner, base)]
    found = (_docstrings(owner.__module__).get(f"{owner.__name__}.{field}") for owner in owners)
    return next(filter(None, found), "")


def meaning(model: type[BaseModel], field: str) -> str:
    """Return the description of a field: the docstring below it, or that of its declaration. Empty if there is none."""
    return docstring_of(model, field, Part) or model.model_fields[field].description or ""
