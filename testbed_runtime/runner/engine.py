"""The engine: every trial of a plan on a host, then evaluation, verdict and report.

Whatever happens in a trial, its faults are healed, its history is sealed and its testbed is disposed of before the next trial starts
or the run ends. A cancelled run (Ctrl-C) keeps what was recorded and has `interrupted` in its manifest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.documents import (
    COMPARISON_FILE,
    JUNIT_FILE,
    METRICS_FILE,
    PAGE_FILE,
    RECOVERY_FILE,
    SUMMARY_FILE,
    TIMESERIES_FILE,
    VERDICT_FILE,
)
from testbed_runtime.core.errors import HeadgateError, TestbedNotReady, UserError
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.quantities import counted
from testbed_runtime.core.judgement.verdict import RunVerdict
from testbed_runtime.core.trial.manifest import PhaseEntry, TrialEntry
from testbed_runtime.core.trial.plan import (
    CONTROL,
    REAL_PARALLELISM_MAX,
    REAL_TASK_MANAGERS_MAX,
    RunPlan,
    TrialPlan,
)
from testbed_runtime.faults.registry import Capabilities, check_fault
from testbed_runtime.history.manifest import MANIFEST, read_manifest
from testbed_runtime.ports.hosts import Evaluator, Testbed, TestbedHost, TrialContext
from testbed_runtime.runner.conclude import conclude, is_decided
from testbed_runtime.runner.estimate import SIMULATION, run_seconds
from testbed_runtime.runner.manifest import (
    Manifest,
    RunFolder,
    RunInfo,
    TrialRecord,
    next_attempt,
)
from testbed_runtime.runner.progress import (
    Evaluating,
    Notice,
    PhaseEntered,
    Progress,
    RunEnded,
    RunStarted,
    Suspended,
    TrialEnded,
    TrialStarted,
)
from testbed_runtime.runner.trial import TrialRun, time_limit
from testbed_runtime.timeouts import timeout

PATHS_LIMIT_S = 10.0
"""Time limit for measuring the network before a trial, which takes some 100 ms."""
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # PyYAML may have been built without libyaml
REPORT_FILES = (PAGE_FILE, SUMMARY_FILE, JUNIT_FILE, COMPARISON_FILE)


class RunResult(Struct, frozen=True):
    folder: Path
    verdict: RunVerdict
    report: Path
    evaluation_failure: str = ""
    """Why there are no rows, with the end of Spark's log. Empty if the evaluation succeeded."""


class RunRequest(Struct, frozen=True):
    """A compiled scenario, its document for the record, and where the results go."""

    plan: RunPlan
    document: Mapping[str, Any]
    info: RunInfo
    folder: Path
    resume: bool = False
    """Continue what an earlier runner of this run left in the folder, if there is anything."""
    inconclusive: str = "skip"
    """The element that an Inconclusive expectation becomes in junit.xml (`report.write_report`)."""


class RunControl:
    """The requests that the owner of a run may make while it runs: pause after this trial, continue, stop because its faults were healed.

    All calls come from the loop's thread and return at once."""

    def __init__(self) -> None:
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.healed = asyncio.Event()
        self.why = ""
        """Why the run was stopped; empty while it was not."""

    def suspend(self) -> None:
        """Let the current trial end as planned, and start no other."""
        self.resumed.clear()

    def resume(self) -> None:
        self.resumed.set()

    def heal(self, why: str) -> None:
        """Stop now: the verdict becomes Inconclusive with reason Healed. The first reason stays."""
        self.why = self.why or why
        self.healed.set()


class Runner:
    """One run; call `run` once. Cancel it to interrupt the run; `control` suspends or heals it.

    `folder` is where the run's record is stored."""

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
        self.folder = folder or RunFolder(request.folder)

    async def run(self) -> RunResult:
        """Run and judge all trials. Raises UserError before anything starts when the scenario cannot be run here."""
        plan = self.request.plan
        if self.request.info.environment == SIMULATION:
            check_sources(plan)
        else:
            check_size(plan)
        plan = replace(plan, trials=tuple(placed(t, self.host.capabilities) for t in plan.trials))
        manifest = await self._open_manifest(plan)
        try:
            await self._void_open_trials(manifest)
            await self._run_unless_healed(self._run_trials(plan, manifest), manifest)
        except asyncio.CancelledError:
            manifest.change(interrupted=True)
            manifest.save()
            raise
        await self.folder.keep(MANIFEST)
        return await judge_run(
            self.folder, self.evaluator, self.progress, inconclusive=self.request.inconclusive
        )

    async def _open_manifest(self, plan: RunPlan) -> Manifest:
        request = self.request
        folder = self.folder.path
        folder.mkdir(parents=True, exist_ok=True)
        text = yaml.dump(request.document, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
        (folder / "scenario.yaml").write_text(text, encoding="utf-8")
        if request.resume:
            await self.folder.restore(MANIFEST)
        manifest = Manifest.open(folder, request.info, plan, request.document, resume=request.resume)
        await self.folder.keep("scenario.yaml", MANIFEST)
        due = [t for t in plan.trials if next_attempt(t, manifest.run.trials)]
        planned = run_seconds(due, environment=request.info.environment, machine=request.info.machine)
        virtual = request.info.environment == SIMULATION
        self.progress.on_event(RunStarted(request.info.run, str(folder), len(plan.trials), planned, virtual))
        return manifest

    async def _void_open_trials(self, manifest: Manifest) -> None:
        """Void the trial that a dead runner left open, and remove its testbed."""
        for entry in manifest.run.trials:
            if entry.ended:
                continue
            record = TrialRecord(manifest, entry)
            record.void()
            self.progress.on_event(_ended(record.entry))
            context = TrialContext(self.request.info.run, entry.trial, entry.seed)
            async with time_limit("removing what an earlier runner left behind", self.host.close_limit_s):
                await self.host.dispose(context)
        await manifest.keep(self.folder)

    async def _run_unless_healed(self, trials: Coroutine[Any, Any, None], manifest: Manifest) -> None:
        """Run all trials, unless a user heals the run. In that case, close the current trial, which is void."""
        if manifest.run.healed:
            trials.close()
            return
        loop = asyncio.get_running_loop()
        work = loop.create_task(trials, name="trials")
        watch = loop.create_task(self.control.healed.wait(), name="heal-watch")
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            work.cancel()
            await _wait_done(work, watch)
        if self.control.healed.is_set():
            manifest.change(healed=self.control.why)
            manifest.save()
        if not work.cancelled():
            work.result()

    async def _run_trials(self, plan: RunPlan, manifest: Manifest) -> None:
        for number, trial in enumerate(plan.trials, 1):
            if self.control.healed.is_set() or manifest.run.decided:
                return
            if next_attempt(trial, manifest.run.trials) is None:
                continue
            if plan.is_look(number - 1) and await self._is_decided(manifest):
                looked = plan.trials[number - 2].number
                manifest.change(decided=looked)
                text = (
                    f"every comparison is decided after {looked} trials of each variant: the run stops early"
                )
                self.progress.on_event(Notice(text))
                await manifest.keep(self.folder)
                return
            if not self.control.resumed.is_set():
                text = "suspended: no other trial starts until the run is resumed"
                self.progress.on_event(Suspended(text))
                await self.control.resumed.wait()
                self.progress.on_event(Notice("resumed"))
            self.progress.on_event(TrialStarted(trial.trial, number, trial.planned_s))
            if not await self._run_attempts(trial, manifest) and (left := len(plan.trials) - number):
                text = f"{counted(left, 'trial')} not run: the testbed of {trial.trial} was not ready in time"
                self.progress.on_event(Notice(text))
                return

    async def _is_decided(self, manifest: Manifest) -> bool:
        """Evaluate the trials so far, and return whether the comparisons of the run are decided. False if the evaluation
        fails."""
        self.progress.on_event(Evaluating("checking whether the comparisons are decided"))
        if not manifest.run.counted:
            return False
        try:
            rows = await self.evaluator.evaluate(self.folder.path)
        except HeadgateError as error:
            self.progress.on_event(Notice(f"not evaluated: {error}"))
            return False
        return is_decided(manifest.run, rows)

    async def _run_attempts(self, trial: TrialPlan, manifest: Manifest) -> bool:
        """Run a trial; repeat it under a new id while it is void, as often as the manifest allows. Return whether it had a testbed."""
        had_testbed = True
        while attempt := next_attempt(trial, manifest.run.trials):
            had_testbed = await self._run_trial(attempt, manifest)
            if self.control.healed.is_set():
                break
        return had_testbed

    async def _run_trial(self, plan: TrialPlan, manifest: Manifest) -> bool:
        """Run one trial. Store its entry in the manifest before anything starts, so that a later runner knows its id. Return whether its
        testbed started in time."""
        had_testbed = True
        record = manifest.add_trial(plan)
        try:
            await manifest.keep(self.folder)
            await self._run_on_testbed(plan, record)
        except (HeadgateError, OSError, ExceptionGroup) as error:
            record.change(error=words_of(error))
            had_testbed = not isinstance(error, TestbedNotReady)
        except asyncio.CancelledError:
            # if nothing was submitted, there is no history to judge
            if self.control.healed.is_set():
                record.change(voided=True, void_reason=self.control.why, abandoned=not record.entry.phases)
            raise
        finally:
            record.change(ended=True)
            manifest.save()
            self.progress.on_event(_ended(record.entry))
        await manifest.keep(self.folder)
        if record.entry.healed:
            self.control.heal(record.entry.healed)
        return had_testbed

    async def _run_on_testbed(self, plan: TrialPlan, record: TrialRecord) -> None:
        context = TrialContext(self.request.info.run, plan.trial, plan.seed)
        self.progress.on_event(PhaseEntered(plan.trial, "create", None))
        async with time_limit("starting the testbed", self.host.create_limit_s):
            testbed = await self.host.create(plan.testbed, context=context)
        await _measure_paths(testbed, record)
        trial = TrialRun(plan, testbed, self.progress)
        try:
            await trial.run()
        finally:
            _note(record, trial)
            await self._close(trial, context, record)

    async def _close(self, trial: TrialRun, context: TrialContext, record: TrialRecord) -> None:
        """Close a trial: try every step, even if an earlier one failed. If cancelled again (a second Ctrl-C), only dispose of the testbed."""
        try:
            await self._close_step(record, "healing", trial.heal_all())
            self.progress.on_event(PhaseEntered(context.trial, "seal", None))
            await self._close_step(record, "sealing the history", trial.testbed.finish_history())
        finally:
            self.progress.on_event(PhaseEntered(context.trial, "dispose", None))
            await self._close_step(record, "stopping the testbed", self.host.dispose(context))

    async def _close_step(self, record: TrialRecord, what: str, step: Awaitable[object]) -> None:
        try:
            async with time_limit(what, self.host.close_limit_s):
                await step
        except Exception as error:
            text = f"{what}: {words_of(error)}"
            self.progress.on_event(Notice(text))
            record.change(error=record.entry.error or text)


def check_size(plan: RunPlan) -> None:
    """Raise UserError for a job that only virtual time can run."""
    for trial in plan.trials:
        testbed = trial.testbed
        if testbed.replicas > REAL_TASK_MANAGERS_MAX:
            found = f"{testbed.replicas} TaskManagers are more than {REAL_TASK_MANAGERS_MAX}"
            raise UserError(
                "testbed.taskManagers.replicas", found, "`headgate simulate` runs it in virtual time"
            )
        for vertex in testbed.job.vertices:
            if vertex.parallelism > REAL_PARALLELISM_MAX:
                found = f"{vertex.parallelism} subtasks of {vertex.name} are more than {REAL_PARALLELISM_MAX}"
                raise UserError("testbed.job.vertices", found, "`headgate simulate` runs it in virtual time")


def check_sources(plan: RunPlan) -> None:
    """Raise UserError for a job that only real processes can run."""
    for trial in plan.trials:
        for vertex in trial.testbed.job.vertices:
            if vertex.source is not None and vertex.source.socket:
                found = f"{vertex.name} reads from {vertex.source.socket}, and virtual time has no real connections"
                raise UserError("testbed.job.vertices", found, "`headgate run` runs it with real processes")


def placed(trial: TrialPlan, capabilities: Capabilities) -> TrialPlan:
    """Return the trial with a proxy on all connections if a fault of its variant needs one, in the control trial too.

    Raises UserError for a fault that no backend can inject here."""
    backends = [check_fault(fault, capabilities)[0] for fault in trial.faults]
    frames = any(fault.kind.startswith("frames.") for fault in trial.faults)
    return replace(trial, testbed=replace(trial.testbed, proxy="proxy" in backends, frame_faults=frames))


async def _wait_done(*tasks: asyncio.Task[Any]) -> None:
    """Wait for cleanup tasks, even if this task is cancelled, because no other task waits for them. They have their own time limits."""
    cancelled = False
    while any(not task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def _ended(entry: TrialEntry) -> TrialEnded:
    return TrialEnded(
        entry.trial, entry.job_state, bool(entry.drained), entry.voided, entry.error, entry.void_reason
    )


async def _measure_paths(testbed: Testbed, record: TrialRecord) -> None:
    """Record the network's own latency before any fault is judged. The trial runs even if it cannot be measured."""
    with suppress(TimeoutError, HeadgateError):
        async with timeout(PATHS_LIMIT_S):
            paths = {name: dict(found) for name, found in (await testbed.paths()).items()}
        if paths:
            record.change(paths=paths)


def _note(record: TrialRecord, trial: TrialRun) -> None:
    outcome = trial.outcome
    record.change(
        drained=outcome.drained,
        stop_refused=outcome.stop_refused,
        job_state=outcome.job_state,
        cause=outcome.cause,
        voided=bool(outcome.voided),
        void_reason=outcome.voided,
        healed=outcome.healed,
        residue=outcome.residue,
        phases=tuple(PhaseEntry(s.name, round(s.start * 1e9), round(s.end * 1e9)) for s in outcome.spans),
    )
    if trial.plan.role != CONTROL:
        for handle, targets in outcome.handles:
            record.accepted(handle, targets)


def words_of(error: BaseException) -> str:
    """Return the text of an error. For an exception group, return the text of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, HeadgateError) else f"{type(error).__name__}: {error}"


async def judge_run(
    folder: RunFolder | Path, evaluator: Evaluator, progress: Progress, *, inconclusive: str = "skip"
) -> RunResult:
    """Evaluate the sealed histories in a run's folder, judge them, write verdict.json and the report.

    If the evaluation fails (a killed driver, a truncated history), the verdict is Error and the report says why."""
    progress.on_event(Evaluating("evaluating the history"))
    kept = RunFolder(folder) if isinstance(folder, Path) else folder
    manifest = read_manifest(kept.path)
    rows: list[MetricRow] = []
    failure = ""
    if manifest.counted:
        try:
            rows = await evaluator.evaluate(kept.path)
            await kept.restore(METRICS_FILE, TIMESERIES_FILE, RECOVERY_FILE)
        except HeadgateError as error:
            failure = str(error)
    progress.on_event(Evaluating("writing the report"))
    verdict, report = conclude(kept.path, manifest, rows, error=failure, inconclusive=inconclusive)
    await kept.keep(VERDICT_FILE, *REPORT_FILES)
    progress.on_event(RunEnded(verdict.verdict, str(kept.path), str(report)))
    return RunResult(kept.path, verdict, report, failure)
