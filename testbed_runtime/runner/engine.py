"""The engine: every trial of a scenario on a host, then evaluation, verdict and report.

Whatever happens in a trial, its faults are healed, its history is sealed and its testbed disposed of before the next one starts
or the run ends; a cancelled run (Ctrl-C) keeps what was recorded and says `interrupted` in its manifest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from testbed_runtime.api import models
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.registry import LOCAL, SIMULATION, Capabilities, check_fault
from testbed_runtime.ports.hosts import (
    Evaluator,
    MeasuringTestbed,
    RecoveringHost,
    Testbed,
    TestbedHost,
    TrialContext,
)
from testbed_runtime.runner import judge
from testbed_runtime.runner.control import RunControl
from testbed_runtime.runner.folder import LocalFolder, RunFolder
from testbed_runtime.runner.manifest import MANIFEST, Manifest, RunInfo, note_handle, read_manifest
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
from testbed_runtime.runner.resume import next_attempt, open_entries, void_open
from testbed_runtime.runner.trial import TrialRun

CREATE_LIMIT_S = 90.0
"""For a testbed to come up: a hundred processes on two cores. A host may say another (`create_limit_s`)."""
CLOSE_LIMIT_S = 20.0
"""For each step of closing a testbed (heal, seal, dispose), also after Ctrl-C. A host may say another (`close_limit_s`)."""
PATHS_LIMIT_S = 10.0
"""For measuring the network before a trial; it takes some 100 ms."""
REPORT_FILES = ("report.html", "report.md", "junit.xml")
PLACES = {LOCAL.environment: LOCAL, SIMULATION.environment: SIMULATION}


@dataclass(frozen=True, slots=True)
class RunResult:
    folder: Path
    verdict: dict[str, Any]
    """As in verdict.json; `verdict` is Pass, Fail, Inconclusive or Error."""
    report: Path
    evaluation_failure: str = ""
    """Why there are no rows, with the end of Spark's log; empty: the evaluation was done."""


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
    resume: bool = False
    """Go on with what an earlier runner of this run left in the folder, if there is something."""
    inconclusive: str = "skip"
    """What an Inconclusive expectation is in junit.xml (`report.write_report`)."""


class Runner:
    """One run. `run` once. Cancelling it is how it is interrupted, `control` is how it is suspended or healed.

    `folder` is where the run's record is kept."""

    def __init__(
        self,
        request: RunRequest,
        *,
        host: TestbedHost,
        evaluator: Evaluator,
        progress: Progress,
        control: RunControl | None = None,
        folder: RunFolder | None = None,
    ) -> None:
        self.request = request
        self.host = host
        self.evaluator = evaluator
        self.progress = progress
        self.control = control or RunControl()
        self.folder = folder or LocalFolder(request.folder)

    async def run(self) -> RunResult:
        """Raises UserError before anything starts when the scenario cannot be run here."""
        request = self.request
        trials = [
            replace(t, testbed=with_absolute_functions(t.testbed, request.scenario_folder))
            for t in self._plan()
        ]
        capabilities = capabilities_of(self.host)
        use_proxy = {t.variant: check_backends(t.faults, capabilities) for t in trials}
        manifest = await self._open(trials)
        try:
            await self._abandon_open(manifest)
            await self._unless_healed(self._all(trials, manifest, use_proxy), manifest)
        except asyncio.CancelledError:
            manifest.data["interrupted"] = True
            manifest.save()
            raise
        await self.folder.keep(MANIFEST)
        return await judge_run(
            self.folder, self.evaluator, self.progress, inconclusive=self.request.inconclusive
        )

    async def _all(
        self, trials: Sequence[TrialPlan], manifest: Manifest, use_proxy: Mapping[str, bool]
    ) -> None:
        for number, plan in enumerate(trials, 1):
            if self.control.healed:
                return
            if next_attempt(plan, manifest.trials) is None:
                continue
            await self._until_going(plan)
            self.progress.on_event(TrialStarted(plan.trial, number, plan.planned_s))
            await self._until_it_counts(plan, manifest, use_proxy=use_proxy[plan.variant])

    async def _unless_healed(self, trials: Coroutine[Any, Any, None], manifest: Manifest) -> None:
        """Until all trials are done, or somebody has healed the run: then the one that is on is closed, and void."""
        if manifest.data.get("healed"):
            trials.close()
            return
        loop = asyncio.get_running_loop()
        work = loop.create_task(trials, name="trials")
        watch = loop.create_task(self.control.until_healed(), name="heal-watch")
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            work.cancel()
            await _ended_all(work, watch)
        if self.control.healed:
            manifest.data["healed"] = self.control.why
            manifest.save()
        if not work.cancelled():
            work.result()

    async def _until_going(self, plan: TrialPlan) -> None:
        if self.control.suspended:
            self.progress.on_event(
                Happened(plan.trial, "suspended: no other trial begins until it is resumed")
            )
        await self.control.until_going()

    async def _abandon_open(self, manifest: Manifest) -> None:
        """What a runner that died left: its trial is void, its testbed goes."""
        for entry in open_entries(manifest.trials):
            void_open(entry)
            self.progress.on_event(_ended(entry))
            if isinstance(self.host, RecoveringHost):
                context = TrialContext(self.request.info.run, entry["trial"], int(entry["seed"]))
                async with limited("removing what an earlier runner left", self._close_limit_s):
                    await self.host.abandon(context)
        await manifest.keep(self.folder)

    def _plan(self) -> list[TrialPlan]:
        spec = self.request.scenario.spec
        names = [v.name for v in spec.variants]
        for wanted in self.request.variants:
            if wanted not in names:
                raise UserError(
                    "--variant", f"there is no variant {wanted!r}", f"there are {', '.join(names) or 'none'}"
                )
        return plan_trials(spec, only=self.request.variants, control=self.request.control)

    async def _open(self, trials: list[TrialPlan]) -> Manifest:
        request = self.request
        folder = self.folder.path
        folder.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(request.document, sort_keys=False, allow_unicode=True)
        (folder / "scenario.yaml").write_text(text, encoding="utf-8")
        if request.resume:
            await self.folder.restore(MANIFEST)
            manifest = Manifest.open(folder, request.info, request.document)
        else:
            manifest = Manifest(folder, request.info, request.document)
        await self.folder.keep("scenario.yaml", MANIFEST)
        planned = sum(t.planned_s for t in trials if next_attempt(t, manifest.trials))
        self.progress.on_event(RunStarted(request.info.run, str(folder), len(trials), planned))
        return manifest

    async def _until_it_counts(self, first: TrialPlan, manifest: Manifest, *, use_proxy: bool) -> None:
        """A voided trial is repeated under a new id, at most MAX_ATTEMPTS times."""
        while plan := next_attempt(first, manifest.trials):
            await self._trial(plan, manifest, use_proxy=use_proxy)
            if self.control.healed:
                return

    async def _trial(self, plan: TrialPlan, manifest: Manifest, *, use_proxy: bool) -> None:
        """It is in the kept manifest before anything of it is begun: whoever comes after us knows its id."""
        entry = manifest.trial(plan)
        try:
            await manifest.keep(self.folder)
            await self._with_testbed(plan, entry, use_proxy=use_proxy)
        except (HeadgateError, OSError, ExceptionGroup) as error:
            entry["error"] = words_of(error)
        except asyncio.CancelledError:
            if self.control.healed:  # before anything was submitted there is no history that could be judged
                entry.update(voided=True, void_reason=self.control.why, abandoned=not entry.get("phases"))
            raise
        finally:
            entry["ended"] = True
            manifest.save()
            self.progress.on_event(_ended(entry))
        await manifest.keep(self.folder)
        if entry.get("healed"):
            self.control.heal(entry["healed"])

    async def _with_testbed(self, plan: TrialPlan, entry: dict[str, Any], *, use_proxy: bool) -> None:
        context = TrialContext(self.request.info.run, plan.trial, plan.seed)
        self.progress.on_event(PhaseEntered(plan.trial, "create", None))
        async with limited("starting the testbed", self._create_limit_s):
            testbed = await self.host.create(plan.testbed, context=context, use_proxy=use_proxy)
        await _measure_paths(testbed, entry)
        trial = TrialRun(plan, testbed, self.progress)
        try:
            await trial.run()
        finally:
            _record(entry, trial)
            await self._close(testbed, trial, entry)

    @property
    def _create_limit_s(self) -> float:
        return float(getattr(self.host, "create_limit_s", CREATE_LIMIT_S))

    @property
    def _close_limit_s(self) -> float:
        return float(getattr(self.host, "close_limit_s", CLOSE_LIMIT_S))

    async def _close(self, testbed: Testbed, trial: TrialRun, entry: dict[str, Any]) -> None:
        """Every step is tried, whatever became of the one before. Cancelled again (a second Ctrl-C), only the last one is."""
        name = trial.plan.trial
        try:
            await self._step(name, entry, "healing", trial.heal_all())
            self.progress.on_event(PhaseEntered(name, "seal", None))
            await self._step(name, entry, "sealing the history", testbed.finish_history())
        finally:
            self.progress.on_event(PhaseEntered(name, "dispose", None))
            await self._step(name, entry, "stopping the testbed", self.host.dispose(testbed))

    async def _step(self, trial: str, entry: dict[str, Any], what: str, step: Awaitable[Any]) -> None:
        try:
            async with limited(what, self._close_limit_s):
                await step
        except Exception as error:
            self.progress.on_event(Happened(trial, f"{what}: {words_of(error)}"))
            entry["error"] = entry["error"] or f"{what}: {words_of(error)}"


async def _ended_all(*tasks: asyncio.Task[None]) -> None:
    """Also when we are cancelled meanwhile: nobody else would wait for what they still clean up, which has limits of its own."""
    cancelled = False
    while any(not task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def _ended(entry: Mapping[str, Any]) -> TrialEnded:
    return TrialEnded(
        entry["trial"],
        entry["job_state"],
        entry["drained"],
        entry["voided"],
        entry["error"],
        entry.get("void_reason", ""),
    )


async def _measure_paths(testbed: Testbed, entry: dict[str, Any]) -> None:
    """The network's own cost, before a fault is judged. One that cannot be measured is no reason not to run."""
    if not isinstance(testbed, MeasuringTestbed):
        return
    with suppress(TimeoutError, HeadgateError):
        async with asyncio.timeout(PATHS_LIMIT_S):
            entry["paths"] = {name: dict(found) for name, found in (await testbed.paths()).items()}


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
    if outcome.healed:
        entry["healed"] = outcome.healed
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


async def judge_run(
    folder: RunFolder | Path, evaluator: Evaluator, progress: Progress, *, inconclusive: str = "skip"
) -> RunResult:
    """Evaluate the sealed histories of a run's folder, judge them, write verdict.json and the report.

    An evaluation that fails (a killed driver, a truncated history) makes the verdict Error; the report says so."""
    progress.on_event(Evaluating("evaluating the history"))
    kept = LocalFolder(folder) if isinstance(folder, Path) else folder
    manifest = read_manifest(kept.path)
    rows: list[dict[str, Any]] = []
    failure = ""
    trials = judge.trials_to_evaluate(manifest)
    if trials:
        try:
            rows = await evaluator.evaluate(str(kept.path), trials)
            await kept.restore(judge.METRICS, judge.TIMESERIES)
        except HeadgateError as error:
            failure = str(error)
    progress.on_event(Evaluating("writing the report"))
    verdict, report = judge.conclude(kept.path, manifest, rows, error=failure, inconclusive=inconclusive)
    await kept.keep(judge.VERDICT, *REPORT_FILES)
    progress.on_event(RunEnded(verdict["verdict"], str(kept.path), str(report)))
    return RunResult(kept.path, verdict, report, failure)
