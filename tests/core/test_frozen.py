"""Values that are shared cannot change after they are made (decision 0018)."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from msgspec import Struct

import headgate_operator.plan
import testbed_runtime

PACKAGES = ["testbed_runtime", "headgate_operator"] + [
    found.name
    for root in (testbed_runtime, headgate_operator)
    for found in pkgutil.walk_packages(root.__path__, f"{root.__name__}.")
    if found.ispkg
]

REUSED = ["UserRecord"]
"""Flink's object reuse (`pipeline.object-reuse`) gives a function the same record with other values."""


def values_of(package: str) -> set[type[Struct]]:
    """Return the values that the modules of a package declare."""
    path = importlib.import_module(package).__path__
    found = [m for m in pkgutil.iter_modules(path) if not m.ispkg and m.name != "__main__"]
    names = [f"{package}.{module.name}" for module in found]
    return {
        value
        for module in map(importlib.import_module, [package, *names])
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Struct) and value.__module__ == module.__name__
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_every_value_is_frozen(package: str):
    """Every package is searched. The result of a check is shared by reports, verdicts and later checks."""
    changeable = [v.__qualname__ for v in values_of(package) if not v.__struct_config__.frozen]
    assert [name for name in changeable if name not in REUSED] == []


def test_values_are_found_in_most_packages():
    """If the search found none, it would not notice any that can change."""
    assert sum(bool(values_of(package)) for package in PACKAGES) > len(PACKAGES) / 2
