"""When a run looks whether its comparisons are decided."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from testbed_runtime.core.trial.plan import RunPlan


@pytest.mark.parametrize(
    ("numbers", "looks", "before"),
    [
        ((1, 1, 2, 2, 3, 3), (1, 2), [2, 4]),
        ((1, 1, 2, 2, 3, 3), (2,), [4]),
        ((1, 1, 2, 2), (1,), [2]),
        ((1, 2, 3), (3,), []),
        ((1, 2), (), []),
    ],
    ids=["each", "the second", "the last trial follows", "after the end", "never"],
)
def test_a_run_looks_when_as_many_trials_of_each_variant_have_ended(
    numbers: tuple[int, ...], looks: tuple[int, ...], before: list[int]
):
    """Once, before the first trial with the next number; there is nothing to stop after the last one."""
    trials: Any = tuple(SimpleNamespace(number=number) for number in numbers)
    plan = RunPlan(seed=1, trials=trials, looks=looks)
    assert [index for index in range(len(numbers)) if plan.is_look(index)] == before
