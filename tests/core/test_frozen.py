"""Values that are shared cannot change after they are made (decision 0018)."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from msgspec import Struct

import headgate_operator.plan
import testbed_runtime

PACKAGES = [
    found.name
    for root in (testbed_runtime, headgate_operator)
    for found in pkgutil.walk_packages(root.__path__, f"{root.__name__}.")
    if found.ispkg
]

REUSED = ["UserRecord"]
"""Flink's object reuse (`pipeline.object-reuse`) gives a function the same record with other values."""


@pytest.mark.parametrize("package", PACKAGES)
def test_every_value_is_frozen(package: str):
    """Every package is searched. The result of a check is shared by reports, verdicts and later checks."""
    path = importlib.import_module(package).__path__
    names = [f"{package}.{found.name}" for found in pkgutil.iter_modules(path) if found.name != "__main__"]
    values = {
        value
        for module in map(importlib.import_module, names)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Struct) and value.__module__ == module.__name__
    }
    changeable = [v.__qualname__ for v in values if not v.__struct_config__.frozen]
    assert [name for name in changeable if name not in REUSED] == []
