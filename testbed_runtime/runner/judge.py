"""From metric rows to the verdict and the report: of a run just made, or of a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed_runtime.api import models, to_core
from testbed_runtime.api.validate import InvalidScenario, validate
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.judgement.verdict import RunVerdict, TrialFacts, controls_of, judge
from testbed_runtime.runner.manifest import read_manifest, write_json

METRICS, TIMESERIES, VERDICT = "metrics.json", "timeseries.json", "verdict.json"
INTERRUPTED_TEXT = "the run was interrupted before its last trial"


def trials_to_evaluate(manifest: Mapping[str, Any]) -> list[str]:
    """Trials with a history, the voided ones among them: safety is judged there too. Those of a runner that died have none.
    Nothing when every one is void, as of a run that was healed in its first: an evaluation refuses a run without one that counts."""
    found = [t for t in manifest["trials"] if not t.get("error") and not t.get("abandoned")]
    return [t["trial"] for t in found] if any(not t.get("voided") for t in found) else []


def scenario_of(manifest: Mapping[str, Any]) -> models.Scenario:
    """The scenario that a run's manifest carries. Raises InvalidScenario when this version does not take it."""
    findings = validate(manifest["scenario"])
    if findings.scenario is None or findings.errors:
        raise InvalidScenario(findings.errors, name="manifest.json")
    return findings.scenario


def expectations_of(manifest: Mapping[str, Any]) -> dict[str, list[Expectation]]:
    """By variant, merged; of the variants that have been run."""
    ran = {t["variant"] for t in manifest["trials"]}
    return {
        setting.name: [to_core.expectation(e) for e in setting.expect]
        for setting in to_core.settings(scenario_of(manifest).spec)
        if setting.name in ran
    }


def verdict_of(
    manifest: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, error: str = ""
) -> RunVerdict:
    """Judge a run's metric rows. `error`: why the run as a whole failed."""
    if not error and manifest.get("interrupted"):
        error = INTERRUPTED_TEXT
    return judge(
        trials=facts_of(manifest["trials"]),
        expectations=expectations_of(manifest),
        rows=rows,
        error=error,
        healed=str(manifest.get("healed") or ""),
    )


def facts_of(trials: Sequence[Mapping[str, Any]]) -> list[TrialFacts]:
    """What the verdict needs to know of each trial: whether a later one replaces it, whose control run is its own."""
    last = {(t["variant"], t["role"], t["number"]): t["trial"] for t in trials}
    controls = controls_of(trials)
    return [
        TrialFacts.from_manifest(
            t,
            replaced=last[t["variant"], t["role"], t["number"]] != t["trial"],
            control=controls.get(t["variant"], "") if t["faults"] else "",
        )
        for t in trials
    ]


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Of metrics.json. Raises HeadgateError when it is not there or damaged."""
    try:
        rows: list[dict[str, Any]] = json.loads((folder / METRICS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HeadgateError(f"{folder} has no {METRICS}: run `headgate evaluate {folder}` first") from None
    except ValueError as error:
        raise HeadgateError(
            f"{folder / METRICS} is no JSON: {error}; run `headgate evaluate {folder}` again"
        ) from None
    return rows


def conclude(
    folder: Path,
    manifest: dict[str, Any],
    rows: list[dict[str, Any]],
    *,
    error: str = "",
    inconclusive: str = "skip",
) -> tuple[dict[str, Any], Path]:
    """Judge, write verdict.json and the report; the verdict as it is written and the report's path."""
    from testbed_runtime.report import write_report

    verdict = verdict_of(manifest, rows, error=error).to_json()
    write_json(folder / VERDICT, verdict)
    report = write_report(
        folder,
        manifest=manifest,
        metrics=rows,
        timeseries=_timeseries(folder),
        verdict=verdict,
        inconclusive=inconclusive,
    )
    return verdict, report


def reread(folder: Path, *, inconclusive: str = "skip") -> tuple[dict[str, Any], Path]:
    """Judge a folder's metrics again and write its report anew."""
    return conclude(folder, read_manifest(folder), read_rows(folder), inconclusive=inconclusive)


def _timeseries(folder: Path) -> dict[str, Any]:
    """What the evaluation drew of the trials; nothing, when it failed."""
    try:
        found = json.loads((folder / TIMESERIES).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {"schema": 1, "trials": []}
    return found if isinstance(found, dict) else {"schema": 1, "trials": []}
