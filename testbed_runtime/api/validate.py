"""One pure validator with the same texts in the command line and in the operator: all problems of a document at once.

Class A (types, bounds, exactly-one) comes from the models; class B (job graph, options, rules between fields) from here. Class B
is judged only of a document that passes class A.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from testbed_runtime.api import fault_rules, job_rules, models, option_rules, to_core
from testbed_runtime.api.problems import class_a, show
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.judgement.metrics import METRICS


@dataclass(frozen=True, slots=True)
class Findings:
    """`scenario` is there when class A passed; it may run only when `errors` is empty."""

    scenario: models.Scenario | None
    errors: tuple[UserError, ...] = ()
    warnings: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    """Flink's keys that are set and change nothing here."""


class InvalidScenario(HeadgateError):
    """A document with problems; the text has one line for each."""

    def __init__(
        self, errors: Collection[UserError], *, name: str = "", lines: Mapping[str, int] | None = None
    ) -> None:
        self.errors = tuple(errors)
        self.name = name
        where = lines or {}
        super().__init__("\n".join(_with_line(e, name, where.get(e.path)) for e in self.errors))


def _with_line(error: UserError, name: str, line: int | None) -> str:
    place = ":".join(filter(None, [name, str(line or "")])) if name else f"line {line}" if line else ""
    return f"{place}: {error}" if place else str(error)


def validate(data: Any) -> Findings:
    """Judge the plain data of a document."""
    try:
        scenario = models.Scenario.model_validate(data)
    except ValidationError as error:
        return Findings(None, tuple(class_a(models.Scenario, error)))
    collected = option_rules.Collected()
    for path, setting in _settings_with_paths(scenario.spec):
        collected.errors.extend(
            job_rules.problems(setting.testbed, f"{path}.testbed" if path == "spec" else path)
        )
        option_rules.judge_testbed(setting.testbed, _options_path(path), collected)
        collected.errors.extend(fault_rules.problems(setting, path, scenario.spec.timeline))
    _unique_variants(scenario.spec, collected)
    collected.errors.extend(_expectation_problems(scenario.spec))
    return Findings(
        scenario,
        tuple(_once(collected.errors)),
        _once_each(collected.warnings),
        tuple(dict.fromkeys(collected.without_effect)),
    )


def _settings_with_paths(spec: models.ScenarioSpec) -> list[tuple[str, to_core.Setting]]:
    """The scenario itself first, then each variant as merged; a problem of both is told once, at the scenario's path."""
    base = to_core.Setting(
        to_core.MAIN_VARIANT, spec.testbed, tuple(spec.faults), tuple(spec.expect), spec.control
    )
    merged = to_core.settings(spec) if spec.variants else []
    return [("spec", base), *((f"spec.variants[{i}]", s) for i, s in enumerate(merged))]


def _options_path(path: str) -> str:
    return "spec.testbed.flinkConfiguration" if path == "spec" else f"{path}.flinkConfiguration"


def _once(errors: list[UserError]) -> list[UserError]:
    """A variant inherits the scenario's mistakes; the same words are told once, where they stand first."""
    found: dict[tuple[str, str, str], UserError] = {}
    for error in errors:
        found.setdefault((error.path.rpartition("]")[2].rpartition(".")[2], error.problem, error.hint), error)
    return list(found.values())


def _once_each(warnings: list[str]) -> tuple[str, ...]:
    """The first of those that say the same of a variant's merged configuration."""
    found: dict[str, str] = {}
    for warning in warnings:
        found.setdefault(warning.partition(".flinkConfiguration")[2] or warning, warning)
    return tuple(found.values())


def _unique_variants(spec: models.ScenarioSpec, collected: option_rules.Collected) -> None:
    seen: set[str] = set()
    for index, variant in enumerate(spec.variants):
        if variant.name in seen:
            collected.errors.append(
                UserError(
                    f"spec.variants[{index}].name",
                    f"{variant.name!r} is there twice",
                    "each variant has its own name",
                )
            )
        seen.add(variant.name)


def _expectation_problems(spec: models.ScenarioSpec) -> list[UserError]:
    lists = [("spec", spec.expect), *((f"spec.variants[{i}]", v.expect) for i, v in enumerate(spec.variants))]
    return [
        problem
        for path, items in lists
        for index, item in enumerate(items)
        if (problem := expectation_problem(f"{path}.expect[{index}]", item))
    ]


def expectation_problem(path: str, item: models.Expectation) -> UserError | None:
    """Why an expectation at `path` cannot be judged; None: it can."""
    if item.metric not in METRICS:
        near = difflib.get_close_matches(item.metric, list(METRICS), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "`headgate faults --metrics` lists them"
        return UserError(f"{path}.metric", f"{show(item.metric)} is no metric", hint)
    problem = to_core.expectation(item).problem
    return UserError(path, problem) if problem else None
