"""A TuningStudy in a cluster: makes its ScenarioRuns, reads their verdicts, keeps the table, applies the best row.

Everything that it knows is in the cluster (the runs by label, their reports, its own status), so a pod that comes again goes on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from testbed_runtime.api import kinds, naming
from testbed_runtime.api.status import STATUS_KEY
from testbed_runtime.api.validate import InvalidScenario
from testbed_runtime.api.validate_kinds import validate_kind
from testbed_runtime.core.errors import UserError
from testbed_runtime.kube.api import Api, ApiError
from testbed_runtime.kube.progress import config_map, read_report
from testbed_runtime.tuning import grid, score

LOOK_S = 2.0
"""Between two looks at the runs: they take a minute and more."""
AWAY_LIMIT_S = 600.0
"""An API server that is away for longer ends this process, and the kubelet starts it again."""
REPORT_LOOKS = 15
"""A run is Complete before its report is seen: so many looks (half a minute) until its verdict is taken from its status."""
KIND = "ScenarioRun"


class Study:
    """One life of the study pod."""

    def __init__(self, api: Api, namespace: str, name: str, *, look_s: float = LOOK_S) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._look_s = look_s
        self._verdicts: dict[str, Mapping[str, Any]] = {}
        self._waited: dict[str, int] = {}
        self._said = ""
        self._in_the_way: dict[str, int] = {}
        """Names of runs to be started that others bear, and at how many looks in a row."""

    async def run(self) -> None:
        """Until the table is whole and told. Raises HeadgateError when the API server stays away."""
        loop = asyncio.get_running_loop()
        away_since: float | None = None
        while True:
            try:
                if await self._step():
                    return
                away_since = None
            except ApiError as error:
                now = loop.time()
                away_since = now if away_since is None else away_since
                if not error.unreachable or now - away_since > AWAY_LIMIT_S:
                    raise
            await asyncio.sleep(self._look_s)

    async def _step(self) -> bool:
        """One look and what follows of it. True: nothing is left to do."""
        study = await self._api.get(naming.API_VERSION, "TuningStudy", self._namespace, self._name)
        if study is None or study["metadata"].get("deletionTimestamp"):
            return True
        try:
            spec = _spec(study)
            scenarios = await self._scenarios(spec)
        except (UserError, InvalidScenario) as error:
            await self._tell(study, {"phase": "Complete", "reason": "Invalid", "message": str(error)})
            return True
        planned = grid.planned_runs(self._name, spec)
        there = await self._runs(study)
        await self._read_verdicts(there)
        if not spec.suspend:
            await self._start_more(study, spec, scenarios, planned, there)
        lines = score.table(spec, [score.Outcome(p, v) for p in planned if (v := self._verdicts.get(p.name))])
        done = sum(p.name in self._verdicts for p in planned)
        said = _progress(spec, lines, done, len(planned), _waits(self._in_the_way))
        if done < len(planned):
            await self._tell(study, said)
            return False
        await self._tell(study, {**said, **await self._apply(spec, lines)})
        return True

    async def _scenarios(self, spec: kinds.TuningStudySpec) -> dict[str, dict[str, Any]]:
        """Raises UserError for one that is not there."""
        found: dict[str, dict[str, Any]] = {}
        for index, reference in enumerate(spec.scenarios):
            scenario = await self._api.get(naming.API_VERSION, "Scenario", self._namespace, reference.name)
            if scenario is None:
                raise UserError(
                    f"spec.scenarios[{index}].name",
                    f"there is no Scenario {reference.name!r} in namespace {self._namespace}",
                    "apply it, or name another",
                )
            found[reference.name] = scenario
        return found

    async def _runs(self, study: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Its own: those of an earlier study of the same name have other options, and are collected soon."""
        labels = {naming.LABEL_STUDY: self._name}
        listed = await self._api.list(naming.API_VERSION, KIND, self._namespace, labels=labels)
        uid = study["metadata"]["uid"]
        own = [r for r in listed if any(o["uid"] == uid for o in r["metadata"].get("ownerReferences") or ())]
        return {run["metadata"]["name"]: run for run in own}

    async def _read_verdicts(self, runs: Mapping[str, Mapping[str, Any]]) -> None:
        """Of every run that is over; a verdict does not change."""
        for name, run in runs.items():
            status = run.get("status") or {}
            if name in self._verdicts or status.get("phase") != "Complete":
                continue
            report = await self._api.get("v1", "ConfigMap", self._namespace, naming.report_name(name))
            text = read_report(report).get("verdict.json") if report else None
            self._waited[name] = self._waited.get(name, 0) + 1
            if text is not None:
                self._verdicts[name] = json.loads(text)
            elif status.get("verdict") == "Error" or self._waited[name] >= REPORT_LOOKS:
                summary = status.get("text", "")
                self._verdicts[name] = {"verdict": status.get("verdict", "Error"), "summary": summary}

    async def _start_more(
        self,
        study: Mapping[str, Any],
        spec: kinds.TuningStudySpec,
        scenarios: Mapping[str, Mapping[str, Any]],
        planned: tuple[grid.PlannedRun, ...],
        there: Mapping[str, Mapping[str, Any]],
    ) -> None:
        active = sum(name not in self._verdicts for name in there)
        waiting = [p for p in planned if p.name not in there and p.name not in self._verdicts]
        before, self._in_the_way = self._in_the_way, {}
        for run in waiting[: max(0, spec.budget.parallel - active)]:
            if await self._api.create(manifest(study, spec, run, scenarios[run.scenario])) is None:
                self._in_the_way[run.name] = before.get(run.name, 0) + 1

    async def _apply(self, spec: kinds.TuningStudySpec, lines: tuple[score.Line, ...]) -> dict[str, Any]:
        """The best row's values into the Testbed that wants them."""
        best = next((line for line in lines if line.best), None)
        ended = {"phase": "Complete", "reason": "TableComplete"}
        if best is None:
            return {
                **ended,
                "reason": "NoRowPasses",
                "message": "no row holds what its scenarios and the study ask for",
            }
        if spec.apply is None:
            return ended
        patch = {"spec": {"flinkConfiguration": dict(best.row.options)}}
        found = await self._api.patch(naming.API_VERSION, "Testbed", self._namespace, spec.apply.name, patch)
        if found is None:
            text = f"spec.apply.name: there is no Testbed {spec.apply.name!r}: nothing was applied"
            return {**ended, "reason": "NotApplied", "message": text}
        return {**ended, "applied": spec.apply.name}

    async def _tell(self, study: Mapping[str, Any], said: Mapping[str, Any]) -> None:
        """ConfigMap `<study>-status`, when there is something new in it."""
        text = json.dumps(said, sort_keys=True)
        if text == self._said:
            return
        data = json.dumps({**said, "updated": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")})
        owned = config_map(study, naming.status_name(self._name), {STATUS_KEY: data})
        owned["metadata"]["labels"] = {
            naming.LABEL_STUDY: self._name,
            naming.LABEL_MANAGED_BY: naming.MANAGED_BY,
        }
        await self._api.apply(owned)
        self._said = text


def _spec(study: Mapping[str, Any]) -> kinds.TuningStudySpec:
    """Raises InvalidScenario."""
    findings = validate_kind(study)
    if findings.errors or not isinstance(findings.resource, kinds.TuningStudy):
        raise InvalidScenario(findings.errors, name=study["metadata"]["name"])
    return findings.resource.spec


def _waits(in_the_way: Mapping[str, int]) -> str:
    """Of a run that is there at the second look too: at the first it may be our own, whose answer was lost."""
    for name, looks in in_the_way.items():
        if looks > 1:
            return (
                f"waits: there is a ScenarioRun {name!r} that is not of this study; it goes by itself if it was of an earlier one "
                "of this name, else delete it, or name the study otherwise"
            )
    return ""


def _progress(
    spec: kinds.TuningStudySpec,
    lines: tuple[score.Line, ...],
    done: int,
    total: int,
    waits: str,
) -> dict[str, Any]:
    best = next((line for line in lines if line.best), None)
    return {
        "phase": "Running",
        "runsDone": done,
        "runsTotal": total,
        "message": "suspended" if spec.suspend else waits,
        "best": best.row.text if best else "",
        "table": score.status_rows(spec, lines),
    }


def manifest(
    study: Mapping[str, Any],
    spec: kinds.TuningStudySpec,
    run: grid.PlannedRun,
    scenario: Mapping[str, Any],
) -> dict[str, Any]:
    """The ScenarioRun of one row over one scenario. Pure."""
    metadata = study["metadata"]
    found: dict[str, Any] = {
        "scenarioName": run.scenario,
        "scenario": grid.scenario_spec(scenario["spec"], spec, run.row),
    }
    if spec.variants:
        found["variants"] = list(spec.variants)
    return {
        "apiVersion": naming.API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": run.name,
            "namespace": metadata["namespace"],
            "labels": {naming.LABEL_STUDY: metadata["name"], naming.LABEL_MANAGED_BY: naming.MANAGED_BY},
            "ownerReferences": [
                {
                    "apiVersion": naming.API_VERSION,
                    "kind": "TuningStudy",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": found,
    }
