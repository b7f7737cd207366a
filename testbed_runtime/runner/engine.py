"""The engine: every trial of a scenario on a host, then evaluation, verdict and report.

Whatever happens in a trial, its faults are healed, its history is sealed and its testbed disposed of before the next one starts
or the run ends; a cancelled run (Ctrl-C) keeps what was recorded and says `interrupted` in its manifest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.faults.model import Fault
from testbed_runtime.faults.registry import LOCAL, SIMULATION, Capabilities, check_fault
from testbed_runtime.ports.hosts import Evaluator, Testbed, TestbedHost, TrialContext
from testbed_runtime.runner import judge
from testbed_runtime.runner.manifest import Manifest, RunInfo, note_handle, read_manifest
from testbed_runtime.runner.plan import CONTROL, TrialPlan, plan_trials
from testbed_runtime.runner.progress import (
    Evaluating,
    Happened,
    PhaseEntered,
    Progress,
    RunEnded,
    RunStarted,
    TrialEnded,
    TrialStarted,
)
from testbed_runtime.runner.trial import TrialRun
from testbed_runtime.spec import models

MAX_ATTEMPTS = 3
"""Of one trial: a lease that lapses three times is the machine's fault, not chance."""
CREATE_LIMIT_S = 90.0
"""For a testbed to come up: a hundred processes on two cores."""
CLOSE_LIMIT_S = 20.0
"""For each step of closing a testbed (heal, seal, dispose), also after Ctrl-C."""
PLACES = {LOCAL.place: LOCAL, SIMULATION.place: SIMULATION}


@dataclass(frozen=True, slots=True)
class RunResult:
    folder: Path
    verdict: dict[str, Any]
    """As in verdict.json; `verdict` is Pass, Fail, Inconclusive or Error."""
    report: Path


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A validated scenario and where its results go. `scenario_folder` holds what the document names (python functions)."""

    scenario: models.Scenario
    document: dict[str, Any]
    info: RunInfo
    folder: Path
    scenario_folder: Path
    variants: Sequence[str] = ()
    control: bool = True


class Runner:
    """One run. `run` once. Cancelling it is how it is interrupted."""

    def __init__(
        self, request: RunRequest, *, host: TestbedHost, evaluator: Evaluator, progress: Progress
    ) -> None:
        self.request = request
        self.host = host
        self.evaluator = evaluator
        self.progress = progress

    async def run(self) -> RunResult:
        """Raises UserError before anything starts when the scenario cannot be run here."""
        request = self.request
        trials = [
            replace(t, testbed=with_absolute_functions(t.testbed, request.scenario_folder))
            for t in self._plan()
        ]
        capabilities = capabilities_of(self.host)
        use_proxy = {t.variant: check_backends(t.faults, capabilities) for t in trials}
        manifest = self._open(trials)
        try:
            for number, plan in enumerate(trials, 1):
                self.progress.tell(TrialStarted(plan.trial, number, plan.planned_s))
                await self._until_it_counts(plan, manifest, use_proxy=use_proxy[plan.variant])
        except asyncio.CancelledError:
            manifest.data["interrupted"] = True
            manifest.save()
            raise
        return await judge_run(request.folder, self.evaluator, self.progress)

    def _plan(self) -> list[TrialPlan]:
        spec = self.request.scenario.spec
        names = [v.name for v in spec.variants]
        for wanted in self.request.variants:
            if wanted not in names:
                raise UserError(
                    "--variant", f"there is no variant {wanted!r}", f"there are {', '.join(names) or 'none'}"
                )
        return plan_trials(spec, only=self.request.variants, control=self.request.control)

    def _open(self, trials: list[TrialPlan]) -> Manifest:
        request = self.request
        folder = request.folder
        folder.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(request.document, sort_keys=False, allow_unicode=True)
        (folder / "scenario.yaml").write_text(text, encoding="utf-8")
        manifest = Manifest(folder, request.info, request.document)
        planned = sum(t.planned_s for t in trials)
        self.progress.tell(RunStarted(request.info.run, str(folder), len(trials), planned))
        return manifest

    async def _until_it_counts(self, plan: TrialPlan, manifest: Manifest, *, use_proxy: bool) -> None:
        """A voided trial is repeated under a new id, at most MAX_ATTEMPTS times."""
        while await self._trial(plan, manifest, use_proxy=use_proxy) and plan.attempt < MAX_ATTEMPTS:
            plan = plan.repeated()

    async def _trial(self, plan: TrialPlan, manifest: Manifest, *, use_proxy: bool) -> bool:
        """True: void, to be repeated."""
        entry = manifest.trial(plan)
        try:
            await self._with_testbed(plan, entry, use_proxy=use_proxy)
        except (HeadgateError, OSError, ExceptionGroup) as error:
            entry["error"] = words_of(error)
        finally:
            manifest.save()
            self.progress.tell(
                TrialEnded(plan.trial, entry["job_state"], entry["drained"], entry["voided"], entry["error"])
            )
        return bool(entry["voided"])

    async def _with_testbed(self, plan: TrialPlan, entry: dict[str, Any], *, use_proxy: bool) -> None:
        context = TrialContext(self.request.info.run, plan.trial, plan.seed)
        self.progress.tell(PhaseEntered(plan.trial, "create", None))
        async with limited("starting the testbed", CREATE_LIMIT_S):
            testbed = await self.host.create(plan.testbed, context=context, use_proxy=use_proxy)
        trial = TrialRun(plan, testbed, self.progress)
        try:
            await trial.run()
        finally:
            _record(entry, trial)
            await self._close(testbed, trial, entry)

    async def _close(self, testbed: Testbed, trial: TrialRun, entry: dict[str, Any]) -> None:
        """Every step is tried, whatever became of the one before. Cancelled again (a second Ctrl-C), only the last one is."""
        name = trial.plan.trial
        try:
            await self._step(name, entry, "healing", trial.heal_all())
            self.progress.tell(PhaseEntered(name, "seal", None))
            await self._step(name, entry, "sealing the history", testbed.finish_history())
        finally:
            self.progress.tell(PhaseEntered(name, "dispose", None))
            await self._step(name, entry, "stopping the testbed", self.host.dispose(testbed))

    async def _step(self, trial: str, entry: dict[str, Any], what: str, step: Awaitable[Any]) -> None:
        try:
            async with limited(what, CLOSE_LIMIT_S):
                await step
        except Exception as error:
            self.progress.tell(Happened(trial, f"{what}: {words_of(error)}"))
            entry["error"] = entry["error"] or f"{what}: {words_of(error)}"


def _record(entry: dict[str, Any], trial: TrialRun) -> None:
    outcome = trial.outcome
    entry.update(
        drained=outcome.drained,
        job_state=outcome.job_state,
        voided=bool(outcome.voided),
        residue=outcome.residue,
        phases=[
            {"name": s.name, "start_ns": round(s.start * 1e9), "end_ns": round(s.end * 1e9)}
            for s in outcome.spans
        ],
    )
    if outcome.voided:
        entry["void_reason"] = outcome.voided
    if trial.plan.role != CONTROL:
        for handle, targets in outcome.handles:
            note_handle(entry, handle, targets)


def words_of(error: BaseException) -> str:
    """What an error says; of several that came together, the first one's words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, HeadgateError) else f"{type(error).__name__}: {error}"


class limited:  # noqa: N801 - reads as `async with limited(…)`
    """A time limit that speaks of what took too long, as a HeadgateError."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what, self._seconds = what, seconds
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise HeadgateError(f"{self._what} took longer than {self._seconds:g} s") from None


def capabilities_of(host: TestbedHost) -> Capabilities:
    """What the place of a host offers; UserError for a place that nothing is known of."""
    found = getattr(host, "capabilities", None) or PLACES.get(host.place)
    if not isinstance(found, Capabilities):
        raise UserError(
            "place", f"nothing is known of the place {host.place!r}", f"there are {', '.join(PLACES)}"
        )
    return found


def check_backends(faults: Sequence[Fault], capabilities: Capabilities) -> bool:
    """Whether a proxy belongs into the path. Raises UserError for a fault that nothing here can do."""
    return "proxy" in [check_fault(fault, capabilities)[0] for fault in faults]


def with_absolute_functions(testbed: models.TestbedSpec, folder: Path) -> models.TestbedSpec:
    """`file.py:name` of python operators, looked up beside the scenario. Raises UserError when the file is not there."""
    vertices = [_with_absolute_function(v, folder) for v in testbed.job.vertices]
    return testbed.model_copy(update={"job": testbed.job.model_copy(update={"vertices": vertices})})


def _with_absolute_function(vertex: models.Vertex, folder: Path) -> models.Vertex:
    if vertex.operator != "python":
        return vertex
    file, _, name = vertex.function.rpartition(":")
    path = (folder / file).resolve()
    if not path.is_file():
        raise UserError(
            f"job.vertices[{vertex.name}].function",
            f"there is no file {file!r} beside the scenario",
            f"put it into {folder}",
        )
    return vertex.model_copy(update={"function": f"{path}:{name}"})


async def judge_run(folder: Path, evaluator: Evaluator, progress: Progress) -> RunResult:
    """Evaluate the sealed histories of a run's folder, judge them, write verdict.json and the report.

    An evaluation that fails (a killed driver, a truncated history) makes the verdict Error; the report says so."""
    progress.tell(Evaluating("evaluating the history"))
    manifest = read_manifest(folder)
    rows: list[dict[str, Any]] = []
    failure = ""
    trials = judge.trials_to_evaluate(manifest)
    if trials:
        try:
            rows = await evaluator.evaluate(str(folder), trials)
        except HeadgateError as error:
            failure = str(error)
    progress.tell(Evaluating("writing the report"))
    verdict, report = judge.conclude(folder, manifest, rows, error=failure)
    progress.tell(RunEnded(verdict["verdict"], str(folder), str(report)))
    return RunResult(folder, verdict, report)
