"""The grid of a TuningStudy: its rows, the runs of each row, and the Scenario of a run. Pure; documents are plain data."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from testbed_runtime.api import limits
from testbed_runtime.api.compile import merge_expectations
from testbed_runtime.api.kinds import TuningStudySpec
from testbed_runtime.api.models import Expectation
from testbed_runtime.api.validate_kinds import unbounded_expectation
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.judgement.metrics import METRICS
from testbed_runtime.core.options import ALIASES

DEFAULT, CURRENT = "Default", "Current"
REFERENCES = {DEFAULT: "Flink's defaults", CURRENT: "the scenarios as they are"}
HASH_LENGTH = 8
ROW_DIGITS = 4


class Row(Struct, frozen=True):
    """One combination of values. `number` counts from 0; the last option changes fastest."""

    number: int
    options: Mapping[str, str]
    reference: str = ""
    """`Default` (Flink's defaults) or `Current` (the unchanged scenarios) for a row that is not part of the grid, or that has the
    same values."""
    varied: tuple[str, ...] = ()
    """The options that differ between the rows of the grid. They are enough to name a row. If it is empty, all are needed."""

    @property
    def in_grid(self) -> bool:
        """Whether it is a row of the grid. It may have the name of a reference, too."""
        return bool(self.options)

    @property
    def text(self) -> str:
        """The options that tell the row from others, as `key=value, key=value`, or the name of the reference; both if they are the
        same."""
        return self._named({key: self.options[key] for key in self.varied if key in self.options})

    @property
    def full_text(self) -> str:
        """The row as `text`, with all options."""
        return self._named(self.options)

    def _named(self, options: Mapping[str, str]) -> str:
        name = REFERENCES.get(self.reference, "")
        values = ", ".join(f"{key}={value}" for key, value in (options or self.options).items())
        return f"{values} ({name})" if values and name else values or name


class PlannedRun(Struct, frozen=True):
    """One row applied to one scenario."""

    row: Row
    scenario: str
    name: str
    """The name of its ScenarioRun: the same for the same study, row and scenario, so that nothing runs twice."""


def rows(spec: TuningStudySpec) -> tuple[Row, ...]:
    """Return every combination, then the references. The budget of a study allows at most limits.MAX_STUDY_RUNS."""
    keys = [option.key for option in spec.options]
    combinations = itertools.product(*(option.values for option in spec.options))
    varied = tuple(option.key for option in spec.options if len(option.values) > 1)
    found = [
        Row(number, dict(zip(keys, values, strict=True)), varied=varied)
        for number, values in enumerate(combinations)
    ]
    found += [Row(len(found) + i, {}, reference) for i, reference in enumerate(spec.references)]
    return tuple(found)


def planned_runs(study: str, spec: TuningStudySpec) -> tuple[PlannedRun, ...]:
    """Return the runs row by row, so that an interrupted study has complete rows."""
    return tuple(
        PlannedRun(row, scenario.name, _name(study, row, scenario.name))
        for row in rows(spec)
        for scenario in spec.scenarios
    )


def check_variants(spec: TuningStudySpec, known: Mapping[str, Sequence[str]]) -> None:
    """Raise UserError for a variant of the study that one of its scenarios lacks. `known` are their variants."""
    for index, variant in enumerate(spec.variants):
        for name, names in known.items():
            if variant not in names:
                hint = f"it has {', '.join(names)}" if names else "it has none: leave out spec.variants"
                problem = f"scenario {name!r} has no variant {variant!r}"
                raise UserError(f"spec.variants[{index}]", problem, hint)


def _name(study: str, row: Row, scenario: str) -> str:
    digest = hashlib.sha256(f"{study}/{row.full_text}/{scenario}".encode()).hexdigest()[:HASH_LENGTH]
    room = limits.MAX_RUN_NAME - HASH_LENGTH - ROW_DIGITS - 2
    return f"{study[:room].rstrip('-')}-{row.number}-{digest}"


def scenario_spec(given: Mapping[str, Any], study: TuningStudySpec, row: Row) -> dict[str, Any]:
    """Return a Scenario's spec with the row's values, which also override those of variants, and the study's requirements and objectives.

    If the study names no variants, the scenario's variants are dropped: their expectations are about their own settings."""
    spec: dict[str, Any] = copy.deepcopy(dict(given))
    testbed = spec["testbed"]
    testbed["flinkConfiguration"] = configuration(testbed.get("flinkConfiguration") or {}, study, row)
    if study.trials is not None:
        spec["trials"] = study.trials
        spec.pop("stopEarly", None)
    spec["expect"] = _expected(spec.get("expect") or [], study)
    if not study.variants:
        spec.pop("variants", None)
        spec["expect"] = [item for item in spec["expect"] if not item.get("versus")]
        spec.pop("stopEarly", None)
    for variant in spec.get("variants") or []:
        own = variant.get("flinkConfiguration") or {}
        if own and row.reference != CURRENT:
            variant["flinkConfiguration"] = without_studied(own, study)
        required = {item.key for item in study.require}
        if own := variant.get("expect"):
            variant["expect"] = [e for e in own if Expectation.model_validate(e).key not in required]
    return spec


def faults_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a scenario's faults, and of those of its variants."""
    lists = [spec.get("faults"), *(variant.get("faults") for variant in spec.get("variants") or ())]
    return tuple(dict.fromkeys(fault["name"] for faults in lists for fault in faults or ()))


def configuration(given: Mapping[str, str], study: TuningStudySpec, row: Row) -> dict[str, str]:
    """Return a scenario's options with the values of the row: its own values if the row is `Current`, none if it is `Default`."""
    if row.reference == CURRENT:
        return dict(given)
    return {**without_studied(given, study), **row.options}


def without_studied(given: Mapping[str, str], study: TuningStudySpec) -> dict[str, str]:
    """Return a configuration without the options of the study, whatever their names in it."""
    studied = {ALIASES.get(option.key, option.key) for option in study.options}
    return {key: value for key, value in given.items() if ALIASES.get(key, key) not in studied}


def _expected(given: Iterable[Mapping[str, Any]], study: TuningStudySpec) -> list[dict[str, Any]]:
    """Return a scenario's expectations with those of the study. What the study requires replaces what the scenario expects about the same.
    An objective is added unless something is expected about it."""
    own = merge_expectations(map(Expectation.model_validate, given), study.require)
    known = {item.key for item in own}
    measured = [unbounded_expectation(o) for o in study.objectives if o.metric in METRICS]
    added = {item.key: item for item in measured if item.key not in known}
    return [item.model_dump(by_alias=True, exclude_none=True) for item in (*own, *added.values())]
