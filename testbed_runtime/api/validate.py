"""Validate a document: one pure function, with the same error texts in the command line and in the operator. It reports all
problems at once.

The models check types, bounds and exactly-one rules. The job graph, the options and rules between fields are checked here. If the
models refuse a document, only options and metrics are checked in the rest of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct
from pydantic import ValidationError

from testbed_runtime.api import fault_rules, job_rules, models, option_rules
from testbed_runtime.api.compile import (
    MergedVariant,
    compile_expectation,
    compile_fault,
    merged_variants,
    planned_looks,
    without_variants,
)
from testbed_runtime.api.fields import without_unit
from testbed_runtime.api.problems import model_errors, show, without_refused
from testbed_runtime.core.errors import HeadgateError, UserError, nearest
from testbed_runtime.core.judgement.metrics import METRICS
from testbed_runtime.core.values import parse_duration

_ALONE = re.compile(r"Configuration\[[^]]*\]$|\.metric$|\.options\[\d+\]")
"""Paths of errors that do not depend on other fields: those of Flink's options and of names of metrics."""
P = TypeVar("P", bound=models.Part)
P_co = TypeVar("P_co", bound=models.Part, covariant=True)


class InvalidScenario(HeadgateError):
    """An invalid document; the text has one line per problem."""

    def __init__(
        self, errors: Collection[UserError], *, name: str = "", lines: Mapping[str, int] | None = None
    ) -> None:
        self.errors = tuple(errors)
        self.name = name
        where = lines or {}
        super().__init__("\n".join(_with_line(e, name, where.get(e.path)) for e in self.errors))


def _with_line(error: UserError, name: str, line: int | None) -> str:
    location = ":".join(filter(None, [name, str(line or "")])) if name else f"line {line}" if line else ""
    return f"{location}: {error}" if location else str(error)


class Findings(Struct, Generic[P_co], frozen=True):
    """`resource` (models.Scenario, kinds.Testbed, …) is set if the models accepted the document. It may be used only if `errors` is empty."""

    resource: P_co | None
    errors: tuple[UserError, ...] = ()
    warnings: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    """Flink options that are set and have no effect here."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings, and the options without an effect, a line each."""
        return (*self.warnings, *(f"{key}: has no effect here" for key in self.without_effect))

    def valid(self, *, name: str = "", lines: Mapping[str, int] | None = None) -> P_co:
        """Return the resource. Raises InvalidScenario if there are errors; `lines` are those of the fields in the file `name`."""
        if self.errors or self.resource is None:
            raise InvalidScenario(self.errors, name=name, lines=lines)
        return self.resource


def validate(data: Any) -> Findings[models.Scenario]:
    """Validate the plain data of a Scenario."""
    try:
        scenario = models.Scenario.model_validate(data)
    except ValidationError as error:
        return Findings(None, refused(models.Scenario, data, error, judged))
    return judged(scenario)


def judged(scenario: models.Scenario) -> Findings[models.Scenario]:
    """Return the findings of the rules that the models do not check."""
    return judged_spec(scenario, scenario.spec)


def refused(
    model: type[models.Part], data: Any, error: ValidationError, rules: Callable[[Any], Findings[Any]]
) -> tuple[UserError, ...]:
    """Return the errors of a document that its model refuses, and what the `rules` find in the rest of it about options and metrics,
    which do not depend on other fields."""
    errors = model_errors(model, error, data)
    try:
        rest = rules(model.model_validate(without_refused(data, error))).errors
    except ValidationError:
        rest = ()
    return (*errors, *(e for e in rest if _ALONE.search(e.path)))


def judged_spec(resource: P, spec: models.ScenarioSpec) -> Findings[P]:
    """Return the findings of `judged` about the scenario of a resource, with the paths of a Scenario."""
    collected = option_rules.Collected()
    for path, setting in _settings_with_paths(spec):
        own = ".testbed" if path == "spec" else ""
        collected.errors.extend(job_rules.problems(setting.testbed, path + own))
        option_rules.judge_testbed(setting.testbed, f"{path}{own}.flinkConfiguration", collected)
        collected.errors.extend(fault_rules.problems(setting, path, spec.timeline))
        if path == "spec" or setting.faults != tuple(spec.faults):
            collected.warnings.extend(fault_rules.doubts(setting, path))
    collected.warnings.extend(without_unit(spec, "spec"))
    variants = [v.name for v in spec.variants]
    collected.errors.extend(job_rules.repeated_names(variants, "spec.variants", "variant"))
    collected.errors.extend(_expectation_problems(spec))
    collected.warnings.extend(_expectation_doubts(spec))
    collected.errors.extend(_comparison_problems(spec))
    collected.errors, collected.warnings = _once(collected.errors), _once_each(collected.warnings)
    return findings_of(resource, collected)


def findings_of(resource: P, collected: option_rules.Collected) -> Findings[P]:
    """Return what was collected about a resource."""
    without_effect = tuple(dict.fromkeys(collected.without_effect))
    return Findings(resource, tuple(collected.errors), tuple(collected.warnings), without_effect)


def _settings_with_paths(spec: models.ScenarioSpec) -> list[tuple[str, MergedVariant]]:
    """Return the scenario itself, then each merged variant. A problem of both is reported once, at the scenario's path."""
    merged = merged_variants(spec) if spec.variants else []
    return [("spec", without_variants(spec)), *((f"spec.variants[{i}]", s) for i, s in enumerate(merged))]


def _once(errors: list[UserError]) -> list[UserError]:
    """Drop repeated errors: a variant inherits the scenario's mistakes. The first one stays."""
    found: dict[tuple[str, str, str], UserError] = {}
    for error in errors:
        found.setdefault((error.path.rpartition("]")[2].rpartition(".")[2], error.problem, error.hint), error)
    return list(found.values())


def _once_each(warnings: list[str]) -> list[str]:
    """Drop warnings that repeat an earlier one about the merged configuration of a variant."""
    found: dict[str, str] = {}
    for warning in warnings:
        found.setdefault(warning.partition(".flinkConfiguration")[2] or warning, warning)
    return list(found.values())


def _expectations(spec: models.ScenarioSpec) -> Iterator[tuple[str, models.Expectation, str]]:
    """Yield the path of each expectation, the expectation, and the name of its variant; empty for one of the scenario itself."""
    lists = [("spec", spec.expect, "")]
    lists += [(f"spec.variants[{i}]", v.expect, v.name) for i, v in enumerate(spec.variants)]
    for path, items, variant in lists:
        for index, item in enumerate(items):
            yield f"{path}.expect[{index}]", item, variant


def _expectation_problems(spec: models.ScenarioSpec) -> list[UserError]:
    faults = [f.name for f in (*spec.faults, *(f for v in spec.variants for f in v.faults or ()))]
    found = [p for path, item, _ in _expectations(spec) if (p := expectation_problem(path, item))]
    for path, item, _ in _expectations(spec):
        phase, _, name = (item.phase or "").partition("/")
        if name and name not in faults:
            hint = nearest(name, faults) if faults else f"write {phase}"
            found.append(UserError(f"{path}.phase", f"the fault {name!r} does not exist", hint))
    return found


def _expectation_doubts(spec: models.ScenarioSpec) -> list[str]:
    looks = len(planned_looks(spec)) or 1
    return [
        f"{path}.{doubt}"
        for path, item, variant in _expectations(spec)
        for doubt in (
            *compile_expectation(item).doubts(spec.trials, looks=looks),
            *_no_time(spec, item, variant),
        )
    ]


def _no_time(spec: models.ScenarioSpec, item: models.Expectation, variant: str) -> Iterator[str]:
    """Yield why a phase that the expectation is measured in has no time, in the variants that it applies to."""
    timeline = spec.timeline
    if parse_duration(timeline.baseline) == 0 and (
        item.phase == "baseline" or item.metric.endswith(".relative")
    ):
        yield "metric: spec.timeline.baseline is 0, so there is nothing to measure: the answer will be Inconclusive (write 3 s or more)"
    if item.phase != "observation":
        return
    observed = parse_duration(timeline.observation)
    replaced = {v.name for v in spec.variants if not variant and item.key in {e.key for e in v.expect}}
    for merged in merged_variants(spec):
        faults = [compile_fault(f) for f in merged.faults]
        if (
            variant in ("", merged.name)
            and merged.name not in replaced
            and any(f.at_s + f.duration_s >= observed for f in faults if not f.before_submit)
        ):
            yield (
                f"phase: the last fault of {merged.name} ends with the observation, so this phase has no time: the answer will be "
                f"Inconclusive (make spec.timeline.observation longer than {timeline.observation})"
            )


def _comparison_problems(spec: models.ScenarioSpec) -> list[UserError]:
    """Return the problems of the comparisons between variants and of `stopEarly`."""
    names = [v.name for v in spec.variants]
    problems = []
    compared = [found for found in _expectations(spec) if found[1].versus is not None]
    for path, item, own in compared:
        where, versus = f"{path}.versus", str(item.versus)
        if versus not in names:
            hint = nearest(versus, names) if names else "add spec.variants to compare"
            problems.append(UserError(where, f"variant {versus!r} does not exist", hint))
        elif versus == own:
            problems.append(UserError(where, "names the variant itself", "name another variant"))
    stop = spec.stop_early
    if stop and not compared:
        hint = "add an expectation such as {metric: recovery.downtime, versus: <variant>, improvesBy: 20 %}"
        problems.append(UserError("spec.stopEarly", "needs an expectation with versus", hint))
    elif stop and stop.min_trials > spec.trials:
        problem = f"{stop.min_trials} is more than trials, {spec.trials}"
        problems.append(UserError("spec.stopEarly.minTrials", problem, "write a larger trials"))
    return problems


def expectation_problem(path: str, item: models.Expectation) -> UserError | None:
    """Return why the expectation at `path` cannot be judged, or None if it can."""
    if item.metric not in METRICS:
        hint = nearest(item.metric, METRICS, "`headgate faults --metrics` lists them")
        return UserError(f"{path}.metric", f"{show(item.metric)} is not a metric", hint)
    compiled = compile_expectation(item)
    field = f".{compiled.problem_field}" if compiled.problem_field else ""
    return UserError(f"{path}{field}", compiled.problem) if compiled.problem else None
