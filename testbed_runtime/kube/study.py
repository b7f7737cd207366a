"""A TuningStudy in a cluster: creates its ScenarioRuns, reads their verdicts, writes the table, applies the best row.

All state is in the cluster (the labelled runs, their reports, the study's status), so a restarted pod continues.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from testbed_runtime.api import kinds, naming, views
from testbed_runtime.api.refusals import DENIED
from testbed_runtime.api.status import (
    COMPLETE,
    STATUS_KEY,
    SUSPENDED,
    StudyReport,
    StudyRow,
    carried,
    read,
    rfc3339,
    to_json,
)
from testbed_runtime.api.validate import InvalidScenario
from testbed_runtime.api.validate_kinds import validate_as, validate_kind
from testbed_runtime.core.documents import RECOVERY_FILE, VERDICT_FILE
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.judgement.verdict import RunVerdict, Verdict
from testbed_runtime.kube.api import Api, ApiError
from testbed_runtime.kube.manifests import config_map, scenario_run
from testbed_runtime.kube.progress import read_report, read_verdict
from testbed_runtime.tuning import grid, production, score
from testbed_runtime.tuning.table import status_rows

POLL_S = 2.0
"""Interval between two reads of the runs, each of which takes a minute or more. The pod's role does not allow `watch`."""
AWAY_LIMIT_S = 600.0
"""The process ends when the API server is unreachable for longer than this, and the kubelet restarts it."""
REPORT_POLLS = 15
"""How often a Complete run without a report is read (for half a minute) before the verdict is taken from its status."""
INVALID = {400, 422}
"""Answers of the API server to a run that is invalid, for example because its row has values that Flink does not accept."""
HOW_TO_RESUME = "spec.suspend is true; set it to false to continue the study"


class Study:
    """The study of one pod."""

    def __init__(self, api: Api, namespace: str, name: str, *, poll_s: float = POLL_S) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._poll_s = poll_s
        self._verdicts: dict[str, RunVerdict] = {}
        self._recoveries: dict[str, Mapping[str, Any]] = {}
        self._without_report: dict[str, int] = {}
        self._written = StudyReport()
        self._name_taken: dict[str, int] = {}
        """Planned runs whose name belongs to another run, each with the number of polls in a row that found this."""

    async def run(self) -> None:
        """Run until the table is complete and written. Raises HeadgateError when the API server stays unreachable."""
        loop = asyncio.get_running_loop()
        unreachable_since: float | None = None
        while True:
            try:
                if await self._step():
                    return
                unreachable_since = None
            except ApiError as error:
                now = loop.time()
                unreachable_since = now if unreachable_since is None else unreachable_since
                if not error.unreachable or now - unreachable_since > AWAY_LIMIT_S:
                    raise
            await asyncio.sleep(self._poll_s)

    async def _step(self) -> bool:
        """Read the runs and act on them. Returns True when the study is complete or gone."""
        found = await self._api.get("TuningStudy", self._namespace, self._name)
        if found is None or (study := views.Study(found)).terminating:
            return True
        try:
            spec = _spec(study)
            existing = await self._runs(study)
            scenarios = await self._scenarios(spec, check=not existing)
        except (UserError, InvalidScenario) as error:
            # a Scenario may be deleted after its runs were measured: the operator's copy in the status outlives the pod
            measured = self._written if self._written.table else StudyReport(**carried(study.status))
            await self._write(study, replace(measured, phase=COMPLETE, reason="Invalid", message=str(error)))
            return True
        planned = grid.planned_runs(self._name, spec)
        await self._read_verdicts(existing)
        if not spec.suspend:
            await self._start_more(study, spec, scenarios, planned, existing)
        lines = self._lines(spec, scenarios, planned)
        done = sum(p.name in self._verdicts for p in planned)
        active = [run for name, run in existing.items() if name not in self._verdicts]
        report = _report(spec, lines, done, len(planned), _name_taken(self._name_taken) or _awaited(active))
        if done < len(planned):
            await self._write(study, report)
            return False
        await self._write(study, await self._apply(spec, lines, report))
        return True

    def _lines(
        self,
        spec: kinds.TuningStudySpec,
        scenarios: Mapping[str, Mapping[str, Any]],
        planned: tuple[grid.PlannedRun, ...],
    ) -> tuple[score.Line, ...]:
        outcomes = [
            score.Outcome(
                p, verdict, self._recoveries.get(p.name, {}), grid.faults_of(scenarios[p.scenario]["spec"])
            )
            for p in planned
            if (verdict := self._verdicts.get(p.name))
        ]
        specs = {name: scenario["spec"] for name, scenario in scenarios.items()}
        lines = score.table(spec, outcomes, production.detectors(spec, specs))
        return production.merged(spec, specs, lines)

    async def _scenarios(self, spec: kinds.TuningStudySpec, *, check: bool) -> dict[str, dict[str, Any]]:
        """Read the scenarios. Raises UserError if a scenario does not exist or, with `check`, if it is invalid or lacks a variant of the study.
        A study that has runs does not `check`, because an edit must not end it."""
        found: dict[str, dict[str, Any]] = {}
        for index, reference in enumerate(spec.scenarios):
            scenario = await self._api.get("Scenario", self._namespace, reference.name)
            if scenario is None:
                problem = f"namespace {self._namespace} has no Scenario {reference.name!r}"
                raise UserError(f"spec.scenarios[{index}].name", problem, "apply it, or name another one")
            if check and (errors := validate_kind(scenario).errors):
                problem = f"the Scenario {reference.name!r} is invalid: {errors[0]}"
                raise UserError(
                    f"spec.scenarios[{index}].name", problem, "correct it and create the study again"
                )
            found[reference.name] = scenario
        if check:
            variants = {name: [v["name"] for v in s["spec"].get("variants", ())] for name, s in found.items()}
            grid.check_variants(spec, variants)
        return found

    async def _runs(self, study: views.Study) -> dict[str, views.Run]:
        """Return the study's runs by name, without those of an earlier study of the same name."""
        labels = {naming.LABEL_STUDY: self._name}
        listed = await self._api.list("ScenarioRun", self._namespace, labels=labels)
        return {run.name: run for run in map(views.Run, listed) if run.owned_by(study)}

    async def _read_verdicts(self, runs: Mapping[str, views.Run]) -> None:
        """Read the verdict of every run that has become Complete. A verdict never changes."""
        for name, run in runs.items():
            if name in self._verdicts or not run.finished:
                continue
            report = await self._api.get("ConfigMap", self._namespace, naming.report_name(name))
            files = read_report(report) if report else {}
            self._recoveries[name] = json.loads(files.get(RECOVERY_FILE) or "{}")
            self._without_report[name] = self._without_report.get(name, 0) + 1
            if VERDICT_FILE in files:
                try:
                    self._verdicts[name] = read_verdict(files)
                except HeadgateError as error:
                    self._verdicts[name] = RunVerdict(verdict=Verdict.ERROR, summary=str(error))
            elif run.status.verdict == Verdict.ERROR or self._without_report[name] >= REPORT_POLLS:
                verdict = Verdict(run.status.verdict or Verdict.ERROR)
                self._verdicts[name] = RunVerdict(verdict=verdict, summary=run.status.text)

    async def _start_more(
        self,
        study: views.Study,
        spec: kinds.TuningStudySpec,
        scenarios: Mapping[str, Mapping[str, Any]],
        planned: tuple[grid.PlannedRun, ...],
        existing: Mapping[str, views.Run],
    ) -> None:
        """Create as many of the planned runs as the budget allows."""
        active = sum(name not in self._verdicts for name in existing)
        waiting = [p for p in planned if p.name not in existing and p.name not in self._verdicts]
        before, self._name_taken = self._name_taken, {}
        for run in waiting[: max(0, spec.budget.parallel - active)]:
            try:
                created = await self._api.create(manifest(study, spec, run, scenarios[run.scenario]))
            except ApiError as error:
                if not _is_refused(error):
                    raise
                self._verdicts[run.name] = RunVerdict(verdict=Verdict.ERROR, summary=str(error))
                continue
            if created is None:
                self._name_taken[run.name] = before.get(run.name, 0) + 1

    async def _apply(
        self, spec: kinds.TuningStudySpec, lines: tuple[score.Line, ...], report: StudyReport
    ) -> StudyReport:
        """Write the best row's values into the Testbed of `spec.apply`, if the row is of the grid. Returns the final report."""
        best = next((line for line in lines if line.best), None)
        ended = replace(report, phase=COMPLETE, reason="TableComplete")
        if best is None:
            return replace(ended, reason="NoRowPasses", message=" ".join(report.answer))
        if spec.apply is None:
            return ended
        if not best.row.in_grid:
            text = f"no row of the grid is better than {best.row.text}{score.HOW_TO_KEEP[best.row.reference]}, so nothing was applied"
            return replace(ended, message=text)
        patch = {"spec": {"flinkConfiguration": dict(best.row.options)}}
        found = await self._api.patch("Testbed", self._namespace, spec.apply.name, patch)
        if found is None:
            text = f"spec.apply.name: Testbed {spec.apply.name!r} does not exist, so nothing was applied"
            return replace(ended, reason="NotApplied", message=text)
        return replace(ended, applied=spec.apply.name)

    async def _write(self, study: views.Study, report: StudyReport) -> None:
        """Write the ConfigMap `<study>-status` if the report has changed."""
        if report == self._written:
            return
        updated = rfc3339(datetime.now(UTC).timestamp())
        data = json.dumps(to_json(replace(report, updated=updated)))
        await self._api.apply(config_map(study, naming.status_name(self._name), {STATUS_KEY: data}))
        self._written = report


def _spec(study: views.Study) -> kinds.TuningStudySpec:
    """Return the validated spec. Raises InvalidScenario."""
    return validate_as(kinds.TuningStudy, study.raw).valid(name=study.name).spec


def _is_refused(error: ApiError) -> bool:
    """Return whether a run is refused for what it contains. Webhooks and admission policies may also answer with 403, as for a missing right
    or a full quota."""
    return error.status in INVALID or (error.forbidden and any(part in error.text for part in DENIED))


def _name_taken(polls: Mapping[str, int]) -> str:
    """Explain why a run cannot be created. At the first poll, the run may be the study's own: only the answer to its creation was lost."""
    for name, count in polls.items():
        if count > 1:
            return (
                f"waiting: a ScenarioRun {name!r} exists that does not belong to this study. One of an earlier study with this "
                "name is removed by itself; otherwise delete it or rename the study"
            )
    return ""


def _awaited(active: Sequence[views.Run]) -> str:
    """Return which run the study waits for, and the message of that run; empty if it waits for none."""
    if not active:
        return ""
    more = f" (and {len(active) - 1} more)" if len(active) > 1 else ""
    return f"waits for {active[0].name}{more}: {active[0].status.message}".removesuffix(": ")


def _report(
    spec: kinds.TuningStudySpec, lines: tuple[score.Line, ...], done: int, total: int, waiting: str
) -> StudyReport:
    best = next((line for line in lines if line.best), None)
    suspended = spec.suspend and done < total
    message = "; ".join(text for text in (waiting, HOW_TO_RESUME if suspended else "") if text)
    return StudyReport(
        phase=SUSPENDED if suspended and not waiting else "Running",
        runs_done=done,
        runs_total=total,
        message=message if done < total else "",
        answer=tuple(score.conclusion(spec, lines)) if done == total else (),
        best=best.row.text if best else "",
        table=tuple(read(StudyRow, row) for row in status_rows(spec, lines)),
    )


def manifest(
    study: views.Study, spec: kinds.TuningStudySpec, run: grid.PlannedRun, scenario: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the ScenarioRun of one row with one scenario. Pure."""
    found: dict[str, Any] = {
        "scenarioName": run.scenario,
        "scenario": grid.scenario_spec(scenario["spec"], spec, run.row),
    }
    if spec.variants:
        found["variants"] = list(spec.variants)
    return scenario_run(run.name, study.namespace, found, study=study)
