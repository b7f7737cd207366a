"""Validate an object of any of the five kinds, from a file or from the API server, with the same texts as `validate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from testbed_runtime.api import fault_rules, job_rules, kinds, models, option_rules
from testbed_runtime.api.catalogue import Standing, judge, value_doubt, value_problem
from testbed_runtime.api.compile import merged_variants
from testbed_runtime.api.fields import without_unit
from testbed_runtime.api.naming import API_VERSION
from testbed_runtime.api.problems import show
from testbed_runtime.api.validate import (
    Findings,
    expectation_problem,
    findings_of,
    judged,
    judged_spec,
    refused,
)
from testbed_runtime.core.errors import UserError, nearest
from testbed_runtime.core.judgement.detector import METRICS as DETECTOR_METRICS
from testbed_runtime.core.judgement.detector import MORE_IS_BETTER
from testbed_runtime.core.judgement.metrics import METRICS, parse_bound
from testbed_runtime.core.options import BY_KEY, Option
from testbed_runtime.core.values import is_bare, parse_duration
from testbed_runtime.core.versions import LATEST

P = TypeVar("P", bound=models.Part)
CREATED_BY_SERVER = "generated"
"""Placeholder for the name of an object that has only `generateName` so far."""

KindFindings = Findings[models.Part]
"""The findings about an object of any kind."""


def validate_kind(data: Any) -> KindFindings:
    """Validate an object of Headgate's kinds. `status` and what the API server adds to `metadata` are ignored."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    model = kinds.KINDS.get(str(kind))
    if model is None:
        hint = nearest(str(kind), kinds.KINDS, f"write one of {', '.join(kinds.KINDS)}")
        problem = "is missing" if kind is None else f"{show(kind)} is not a kind of {API_VERSION}"
        return Findings(None, (UserError("kind", problem, hint),))
    return validate_as(model, data)


def validate_as(model: type[P], data: Mapping[str, Any]) -> Findings[P]:
    """Validate an object of one of Headgate's kinds, given by its model."""
    plain, rules = as_written(data), _RULES[model.__name__]
    try:
        resource = model.model_validate(plain)
    except ValidationError as error:
        return Findings(None, refused(model, plain, error, rules))
    return rules(resource)


def as_written(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return apiVersion, kind, name and spec: the parts that the user wrote. The API server validates the rest of the metadata."""
    plain = {key: data[key] for key in ("apiVersion", "kind", "spec", "metadata") if key in data}
    metadata = data.get("metadata") or {}
    if isinstance(metadata, Mapping) and "metadata" in data:
        plain["metadata"] = {"name": metadata["name"]} if metadata.get("name") else {}
        generated = metadata.get("generateName")
        if not plain["metadata"] and generated and isinstance(generated, str):
            plain["metadata"]["name"] = CREATED_BY_SERVER
    return plain


def _testbed(resource: Any) -> KindFindings:
    spec: kinds.TestbedResourceSpec = resource.spec
    collected = option_rules.Collected()
    collected.errors.extend(job_rules.problems(spec, "spec"))
    collected.errors.extend(job_rules.functions_in_pods(spec.job, "spec.job"))
    path = "spec.flinkConfiguration"
    option_rules.judge_testbed(spec, path, collected)
    collected.warnings.extend(without_unit(spec, "spec"))
    collected.errors.extend(
        option_rules.checkpoint_problems(
            spec.flink_configuration, lambda key: f"{path}[{key}]", alone=spec.job_state == "running"
        )
    )
    return findings_of(resource, collected)


def _fault(resource: Any) -> KindFindings:
    spec: kinds.FaultResourceSpec = resource.spec
    return Findings(
        resource,
        tuple(fault_rules.alone(spec.named(), "spec")),
        (*without_unit(spec, "spec"), *fault_rules.doubts_alone(spec.named(), "spec")),
    )


def _checkpoint_problems(scenario: models.ScenarioSpec) -> list[UserError]:
    """Validate the testbed's options as each variant merges them. An error is reported once, where its option is
    written."""
    found: dict[str, UserError] = {}
    base = scenario.testbed.flink_configuration
    for number, own in enumerate([v.flink_configuration for v in scenario.variants] or [{}]):

        def place(key: str, number: int = number, own: Mapping[str, str] = own) -> str:
            where = f"variants[{number}]" if key in own else "testbed"
            return f"spec.scenario.{where}.flinkConfiguration[{key}]"

        found |= {error.path: error for error in option_rules.checkpoint_problems({**base, **own}, place)}
    return list(found.values())


def _run(resource: Any) -> KindFindings:
    """Validate a ScenarioRun. Its copy of a scenario gets the errors of a Scenario, with their paths moved below `spec.scenario`."""
    spec: kinds.ScenarioRunSpec = resource.spec
    found = judged_spec(resource, spec.scenario)
    errors = [UserError(_moved(e.path), e.problem, e.hint) for e in found.errors]
    errors += _unknown_variants(spec)
    errors += _checkpoint_problems(spec.scenario)
    errors += job_rules.functions_of_scenario(spec.scenario)
    if spec.evaluation.executors > 0 and not spec.evaluation.history_claim:
        errors.append(
            UserError(
                "spec.evaluation.historyClaim",
                "executors need it to read the histories",
                "name a volume claim that several nodes can mount, or write executors: 0",
            )
        )
    return Findings(resource, tuple(errors), tuple(map(_moved, found.warnings)), found.without_effect)


def _moved(path: str) -> str:
    return path.replace("spec", "spec.scenario", 1) if path.startswith("spec") else path


def _unknown_variants(spec: kinds.ScenarioRunSpec) -> list[UserError]:
    known = [s.name for s in merged_variants(spec.scenario)]
    return [
        UserError(f"spec.variants[{i}]", f"variant {name!r} does not exist", nearest(name, known))
        for i, name in enumerate(spec.variants)
        if name not in known
    ]


def _study(resource: Any) -> KindFindings:
    spec: kinds.TuningStudySpec = resource.spec
    collected = option_rules.Collected()
    collected.warnings.extend(without_unit(spec, "spec"))
    seen: set[str] = set()
    for index, option in enumerate(spec.options):
        _study_option(option, f"spec.options[{index}]", seen, collected)
    for index, objective in enumerate(spec.objectives):
        problem = _objective_problem(f"spec.objectives[{index}]", objective, spec)
        collected.errors.extend([problem] if problem else [])
    collected.errors.extend(_surroundings_problems(spec))
    for index, item in enumerate(spec.require):
        problem = expectation_problem(f"spec.require[{index}]", item) or _not_compared(index, item, spec)
        collected.errors.extend([problem] if problem else [])
    needed = grid_size(spec)
    if needed > spec.budget.runs:
        collected.errors.append(
            UserError(
                "spec.budget.runs",
                f"the grid needs {needed} runs, the budget allows {spec.budget.runs}",
                "remove values, or raise spec.budget.runs",
            )
        )
    return findings_of(resource, collected)


def _not_compared(index: int, item: models.Expectation, spec: kinds.TuningStudySpec) -> UserError | None:
    """Return why a requirement with `versus` would not be judged, because its variant does not run; otherwise None."""
    if item.versus is None or item.versus in spec.variants:
        return None
    path = f"spec.require[{index}].versus"
    hint = "name it in spec.variants too, or use an objective: rows are compared with the defaults"
    return UserError(path, f"variant {item.versus!r} does not run in this study", hint)


def _objective_problem(
    path: str, objective: kinds.Objective, spec: kinds.TuningStudySpec
) -> UserError | None:
    metric = objective.metric
    try:
        limit_of(objective)
    except ValueError as error:
        return UserError(f"{path}.limit", str(error))
    if metric in DETECTOR_METRICS:
        around = spec.surroundings
        events = metric in ("detector.false-failovers", "detector.accuracy")
        if around is None or (events and around.pauses is None and around.unreachable is None):
            hint = "add spec.surroundings with pauses or unreachable"
            return UserError(
                f"{path}.metric",
                f"{metric} is computed from pauses and outages in production, which the study does not state",
                hint,
            )
        better = "max" if metric in MORE_IS_BETTER else "min"
        if (objective.direction, objective.quantile, objective.phase) != (better, None, None):
            return UserError(
                path, f"{metric} has no quantile and no phase", f"write direction: {better} only"
            )
        return None
    if metric not in METRICS:
        hint = nearest(metric, [*METRICS, *DETECTOR_METRICS], "`headgate faults --metrics` lists them")
        return UserError(f"{path}.metric", f"{show(metric)} is not a metric", hint)
    if METRICS[metric].unit == "text":
        return UserError(
            f"{path}.metric", f"{metric} is a text, so no value is better", "name another metric"
        )
    return expectation_problem(path, unbounded_expectation(objective))


def limit_of(objective: kinds.Objective) -> float | None:
    """Return the limit in the metric's unit, or None. Raises ValueError with an example of a valid one."""
    if objective.limit is None:
        return None
    computed = DETECTOR_METRICS.get(objective.metric)
    info = METRICS.get(objective.metric)
    return parse_bound(objective.limit, computed[1] if computed else info.unit if info else "")


def _surroundings_problems(spec: kinds.TuningStudySpec) -> list[UserError]:
    found = []
    for name in ("pauses", "unreachable") if spec.surroundings else ():
        event: kinds.Disturbance | None = getattr(spec.surroundings, name)
        if event is None:
            continue
        median, p99 = parse_duration(event.median), parse_duration(event.p99)
        if not 0 < median <= p99:
            problem = f"{event.p99} is not at least the median, {event.median}, or the median is 0"
            found.append(UserError(f"spec.surroundings.{name}.p99", problem, "write a larger p99"))
    return found


def unbounded_expectation(objective: kinds.Objective) -> models.Expectation:
    """Return an expectation that every value of an objective meets, so that the verdict contains the value."""
    least = "0 s" if METRICS[objective.metric].unit == "s" else 0
    return models.Expectation(
        metric=objective.metric, min=least, quantile=objective.quantile, phase=objective.phase
    )


def grid_size(spec: kinds.TuningStudySpec) -> int:
    """Return the number of runs of a study: every combination of values and every reference, over every scenario."""
    size = 1
    for option in spec.options:
        size *= len(option.values)
    return (size + len(spec.references)) * len(spec.scenarios)


def _study_option(
    option: kinds.StudyOption, path: str, seen: set[str], collected: option_rules.Collected
) -> None:
    judgement = judge(option.key, "2.x")
    if judgement.standing == Standing.TYPO:
        hint = f"did you mean {judgement.canonical}?"
        collected.errors.append(UserError(f"{path}.key", f"{option.key!r} is not a Flink option", hint))
    elif judgement.standing != Standing.EFFECTIVE:
        collected.errors.append(
            UserError(f"{path}.key", f"{option.key!r} changes nothing here", "study an option with an effect")
        )
    else:
        known = BY_KEY[judgement.canonical]
        collected.errors.extend(problems := list(_value_problems(option, known, path)))
        # versions that read milliseconds need values without a unit; tune knows the version of each scenario, and warns
        depends = known.millis_until not in ("", LATEST) and all(map(is_bare, option.values))
        doubts = [] if problems or depends else [value_doubt(known, text, LATEST) for text in option.values]
        collected.warnings.extend(f"{path}.values[{i}]: {doubt}" for i, doubt in enumerate(doubts) if doubt)
    if judgement.canonical in seen:
        collected.errors.append(
            UserError(f"{path}.key", f"{option.key!r} is a duplicate", "keep one of them")
        )
    seen.add(judgement.canonical)


def _value_problems(option: kinds.StudyOption, known: Option, path: str) -> Iterator[UserError]:
    """Yield a problem for each value that does not fit the option, or equals an earlier one, as `1 s` and `1000 ms` do."""
    earlier: dict[Any, str] = {}
    for index, text in enumerate(option.values):
        if problem := value_problem(known, text):
            yield UserError(f"{path}.values[{index}]", problem)
            continue
        value = known.parse(text)
        if value in earlier:
            yield UserError(
                f"{path}.values[{index}]", f"{text!r} equals {earlier[value]!r}", "keep one of them"
            )
        earlier.setdefault(value, text)


_RULES: dict[str, Callable[[Any], Findings[Any]]] = {
    "Testbed": _testbed,
    "Fault": _fault,
    "Scenario": judged,
    "ScenarioRun": _run,
    "TuningStudy": _study,
}
