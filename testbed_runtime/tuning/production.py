"""Predict how the failure detector of each row of a study behaves in its production surroundings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from testbed_runtime.api import kinds
from testbed_runtime.core.errors import OptionRefused
from testbed_runtime.core.job.heartbeat import HeartbeatConfig
from testbed_runtime.core.judgement.detector import Disturbance, Quality, quality
from testbed_runtime.core.options import ALIASES, Options, equal_values
from testbed_runtime.core.values import parse_duration
from testbed_runtime.core.versions import LATEST
from testbed_runtime.tuning.grid import CURRENT, Row, configuration, rows, without_studied
from testbed_runtime.tuning.score import Line


def detectors(spec: kinds.TuningStudySpec, scenarios: Mapping[str, Mapping[str, Any]]) -> dict[int, Quality]:
    """Return the quality of the detector by row number. With several scenarios, it is that of the scenario with the most false failovers.
    `scenarios`: the specs of the study's scenarios by name. The result is empty without `surroundings`, and lacks the rows that Flink
    refuses."""
    around = spec.surroundings
    if around is None:
        return {}
    found = {}
    for row in rows(spec):
        try:
            configs = [HeartbeatConfig.of(_options(scenario, spec, row)) for scenario in scenarios.values()]
        except OptionRefused:
            continue
        each = [
            quality(
                config,
                task_managers=around.task_managers,
                pauses=_disturbance(around.pauses),
                unreachable=_disturbance(around.unreachable),
            )
            for config in configs
        ]
        found[row.number] = max(each, key=lambda q: (q.false_failovers_per_day, q.dead_s))
    return found


def _options(scenario: Mapping[str, Any], spec: kinds.TuningStudySpec, row: Row) -> Options:
    testbed = scenario["testbed"]
    values = configuration(testbed.get("flinkConfiguration") or {}, spec, row)
    return Options(values, flink_version=testbed.get("flinkVersion") or LATEST)


def _disturbance(event: kinds.Disturbance | None) -> Disturbance | None:
    if event is None:
        return None
    return Disturbance(
        per_day=float(event.per_day), median_s=parse_duration(event.median), p99_s=parse_duration(event.p99)
    )


def reference_values(
    spec: kinds.TuningStudySpec, scenarios: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, str]]:
    """Return the value of each option in each reference, for the table: `10 s`, or `10 s / 5 s` if the scenarios differ."""
    found: dict[str, dict[str, str]] = {}
    for reference in spec.references:
        each = [_options(scenario, spec, Row(0, {}, reference)) for scenario in scenarios.values()]
        keys = {option.key: ALIASES.get(option.key, option.key) for option in spec.options}
        found[reference] = {
            name: " / ".join(dict.fromkeys(str(options.text(key)) for options in each))
            for name, key in keys.items()
        }
    return found


def same_values(spec: kinds.TuningStudySpec, one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether the studied options have the same values in both, as `50 s` and `50000` are."""
    keys = [option.key for option in spec.options]
    return all(k in one and k in other and equal_values(k, one[k], other[k]) for k in keys)


def merged(
    spec: kinds.TuningStudySpec, scenarios: Mapping[str, Mapping[str, Any]], lines: Sequence[Line]
) -> tuple[Line, ...]:
    """Return the lines of a table without the references that have the values of a row: that row gets the reference's name.
    If one of the two passed and the other did not, both remain."""
    values = reference_values(spec, scenarios)
    if _set_by_variants(spec, scenarios):
        values.pop(CURRENT, None)
    found = list(lines)
    for reference in [line for line in lines if line.row.reference in values]:
        own = values[reference.row.reference]
        for index, line in enumerate(found):
            same = line.row.options and line.verdict == reference.verdict
            if same and same_values(spec, line.row.options, own):
                row = replace(line.row, reference=line.row.reference or reference.row.reference)
                best, front = line.best or reference.best, line.front or reference.front
                found[index] = replace(line, row=row, best=best, front=front)
                found.remove(reference)
                break
    return tuple(found)


def _set_by_variants(spec: kinds.TuningStudySpec, scenarios: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a variant of the study has a value of its own for a studied option."""
    variants = [v for s in scenarios.values() for v in s.get("variants") or () if v["name"] in spec.variants]
    given = [variant.get("flinkConfiguration") or {} for variant in variants]
    return any(without_studied(own, spec) != own for own in given)
