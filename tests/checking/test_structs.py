"""The values of the judging code do not change (docs/decisions/0018)."""

import importlib
import pkgutil

import pytest
from msgspec import Struct

import testbed_runtime.checking
import testbed_runtime.core.judgement

MODULES = [
    module.name
    for package in (testbed_runtime.checking, testbed_runtime.core.judgement)
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_every_struct_is_frozen(name: str):
    """A value that one judgement changed would change every other judgement of the same trial."""
    structs = [value for value in vars(importlib.import_module(name)).values() if isinstance(value, type) and issubclass(value, Struct)]  # fmt: skip
    assert [one.__name__ for one in structs if one is not Struct and not one.__struct_config__.frozen] == []
