"""Values that are shared cannot change after they are made: those of a judgement, and those that tasks and processes exchange."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest
from msgspec import Struct

import testbed_runtime.checking
import testbed_runtime.core.exchange
import testbed_runtime.core.faults
import testbed_runtime.core.job
import testbed_runtime.core.judgement
import testbed_runtime.core.trial

PACKAGES = (
    testbed_runtime.checking,
    testbed_runtime.core,
    testbed_runtime.core.exchange,
    testbed_runtime.core.faults,
    testbed_runtime.core.job,
    testbed_runtime.core.judgement,
    testbed_runtime.core.trial,
)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_value_is_frozen(package: ModuleType):
    """Decision 0018: what a check returned is shared by reports, verdicts and later checks."""
    names = [f"{package.__name__}.{found.name}" for found in pkgutil.iter_modules(package.__path__)]
    values = {
        value
        for module in map(importlib.import_module, names)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Struct) and value.__module__ == module.__name__
    }
    assert values
    assert [v.__qualname__ for v in values if not v.__struct_config__.frozen] == []
