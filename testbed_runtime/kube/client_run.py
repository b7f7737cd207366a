"""`--on kubernetes`: create a ScenarioRun and follow it to its verdict, with the progress events of a local run."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from testbed_runtime.api import kinds, limits, models, naming
from testbed_runtime.api.refusals import QUOTA_EXCEEDED
from testbed_runtime.api.status import (
    COMPLETE,
    EVALUATING,
    RECORDER_LOST,
    ScenarioRunStatus,
    TrialResult,
    read,
)
from testbed_runtime.api.views import Resource
from testbed_runtime.core.documents import PAGE_FILE, VERDICT_FILE
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.judgement.verdict import RunVerdict, Verdict
from testbed_runtime.core.trial.plan import CONTROL, RunPlan
from testbed_runtime.kube import checkpoint, functions
from testbed_runtime.kube.api import DELETED, LISTED, SYNCED, Api, ApiError, patiently
from testbed_runtime.kube.manifests import scenario_run
from testbed_runtime.kube.progress import read_report, read_verdict
from testbed_runtime.runner import progress as p
from testbed_runtime.runner.engine import RunResult
from testbed_runtime.runner.estimate import KUBERNETES, run_seconds
from testbed_runtime.runner.manifest import write_json
from testbed_runtime.timeouts import timeout

NAME_BYTES = 3
"""Random bytes at the end of a run's name."""
REQUEST_BYTES = 16
SILENT_LIMIT_S = 120.0
"""A run without a status for this long means that no operator is running. A run that is Stalled for this long before it has begun needs a
user: its namespace refuses a pod, or the operator has no rights there."""
SILENT_NOTICE_S = 10.0
"""After this time without a status the user gets a notice. A running operator writes a status within a second, a restarting one later."""
REPORT_LIMIT_S = 30.0
"""Time limit for reading the report of a Complete run. It exists by then, but the API server may be unreachable."""
HEAL_LIMIT_S = 15.0
"""Time limit of the request that stops an interrupted run."""
RETRY_S = 1.0
KEPT_S = kinds.SECONDS_PER_WEEK
"""How long a finished run of this command stays in the cluster. The command has copied its report, unless it was interrupted or gave up."""
BEGUN = frozenset({"Running", EVALUATING, COMPLETE})
"""Phases in which the runner drives the run, whatever the operator cannot do."""
WITHOUT_REPORT = frozenset({Verdict.ERROR, Verdict.INCONCLUSIVE})
"""Verdicts of a run that ends without its runner: it could not start, was lost, or was healed."""


def run_name(scenario: str) -> str:
    """Return a new name, short enough for the objects that are named after the run."""
    end = secrets.token_hex(NAME_BYTES)
    return f"{scenario[: limits.MAX_RUN_NAME - len(end) - 1].rstrip('-')}-{end}"


def manifest(
    document: Mapping[str, Any],
    *,
    name: str,
    namespace: str,
    variants: Sequence[str] = (),
    control: bool = True,
) -> dict[str, Any]:
    """Return the ScenarioRun of a scenario's document. Pure."""
    spec: dict[str, Any] = {
        "scenarioName": document["metadata"]["name"],
        "scenario": document["spec"],
        "control": control,
        "ttlSecondsAfterFinished": KEPT_S,
    }
    if variants:
        spec["variants"] = list(variants)
    return scenario_run(name, namespace, spec)


def events_of(before: ScenarioRunStatus, after: ScenarioRunStatus) -> list[p.ProgressEvent]:
    """Return what happened between two statuses of a ScenarioRun. Pure."""
    found: list[p.ProgressEvent] = []
    trial, phase, message = after.trial, after.trial_phase, after.message
    new_trial = bool(trial) and trial != before.trial
    if new_trial:
        found.append(p.TrialStarted(trial, len(after.trials) + 1, 0.0))
    if phase and (new_trial or phase != before.trial_phase):
        control = f"-{CONTROL}-" in trial  # as TrialPlan.trial names it
        found.append(p.PhaseEntered(trial, phase, after.remaining_seconds, control))
    evaluating = after.phase == EVALUATING
    if message and message != before.message:
        found.append(p.Evaluating(f"  {message}") if evaluating else p.Notice(message))
    sample = _sample(after)
    if trial and after.job_state and sample != _sample(before):
        found.append(sample)
    known = {t.name for t in before.trials}
    found += [_trial_ended(t) for t in after.trials if t.name not in known]
    if evaluating and before.phase != EVALUATING:
        found.append(p.Evaluating("evaluating the history"))
    return found


def obstacle(status: ScenarioRunStatus) -> str:
    """Return why the operator cannot start the run until a user acts; empty if it can. Pure.

    A quota is no obstacle: other runs of the namespace end."""
    stalled = status.condition("Stalled")
    if stalled is None or not stalled.is_true or stalled.reason == QUOTA_EXCEEDED:
        return ""
    return "" if status.phase in BEGUN else stalled.message


def give_up_at(
    before: ScenarioRunStatus, status: ScenarioRunStatus, limit: float | None, now: float
) -> float | None:
    """Return when the command gives up a run whose status changes: SILENT_LIMIT_S after its obstacle was reported, or never while it has
    none. `limit`: when it would have given up before this change. Pure."""
    if not obstacle(status):
        return None
    return limit if obstacle(before) else now + SILENT_LIMIT_S


def _sample(status: ScenarioRunStatus) -> p.Sample:
    return p.Sample(status.remaining_seconds, status.job_state, status.job)


def _trial_ended(trial: TrialResult) -> p.TrialEnded:
    error, reason = ("", trial.reason) if trial.voided else (trial.reason, "")
    return p.TrialEnded(
        trial.name, trial.job_state, trial.job_state == "FINISHED", trial.voided, error, reason
    )


class ClientRun:
    """A ScenarioRun of the command line: `start` it, `follow` it and `fetch` its report."""

    def __init__(self, api: Api, namespace: str, progress: p.Progress) -> None:
        self._api = api
        self._namespace = namespace
        self._progress = progress
        self._stuck = ""
        """Why the run is given up if it does not start."""

    async def run(
        self,
        scenario: models.Scenario,
        document: Mapping[str, Any],
        *,
        plan: RunPlan,
        out: Path,
        variants: Sequence[str] = (),
        control: bool = True,
        checkpoints: Mapping[str, Mapping[str, bytes]] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> RunResult:
        """Run to the report in `<out>/<run>`. `plan` is the scenario's own, for the estimate of its duration. `checkpoints`: the
        objects of the kept checkpoints that its jobs start from, by folder. `files`: those of its Python functions, by name.

        When cancelled (Ctrl-C), stop the run by healing it; it stays in the cluster.

        Raises HeadgateError if the run is refused, no operator handles it, or it has no report."""
        name = run_name(scenario.metadata.name)
        kept = {
            naming.checkpoint_name(name, number): checkpoint.pack(objects)
            for number, objects in enumerate((checkpoints or {}).values())
        }
        placed = checkpoint.in_cluster(document, dict(zip(checkpoints or (), kept, strict=True)))
        if files:
            placed = functions.in_cluster(placed, naming.functions_name(name))
        await self.start(
            manifest(placed, name=name, namespace=self._namespace, variants=variants, control=control)
        )
        planned_s = run_seconds(plan.trials, environment=KUBERNETES, machine={})
        where = f"{self._namespace}/{name}"
        self._progress.on_event(p.RunStarted(name, where, len(plan.trials), planned_s))
        try:
            await self._bring(name, kept, files or {})
            status = await self.follow(name)
        except asyncio.CancelledError:
            await asyncio.shield(self._heal(name))
            raise
        folder = out / name
        result = await self.fetch(name, folder, status)
        self._progress.on_event(p.RunEnded(result.verdict.verdict, str(folder), str(result.report)))
        return result

    async def start(self, run: Mapping[str, Any]) -> None:
        """Create the ScenarioRun. Raises UserError if the kinds are not installed or the document is refused."""
        request = secrets.token_hex(REQUEST_BYTES)
        metadata = {**run["metadata"], "annotations": {naming.ANNOTATION_REQUEST: request}}
        try:
            created = await self._api.create({**run, "metadata": metadata})
        except ApiError as error:
            if error.not_found and error.reason == "NotFound" and "namespaces" not in error.text:
                raise UserError(
                    "--on kubernetes",
                    f"{self._api.server} has no kind ScenarioRun",
                    "install Headgate there (kubectl apply -k manifests/, or its Helm chart)",
                ) from error
            raise
        if created is None and not await self._is_own(run["metadata"]["name"], request):
            raise HeadgateError(f"ScenarioRun {run['metadata']['name']} exists already")

    async def _is_own(self, name: str, request: str) -> bool:
        """Return whether the existing run was created by this request, whose first answer was lost."""
        existing = await self._api.get("ScenarioRun", self._namespace, name)
        return (
            existing is not None and Resource(existing).annotations.get(naming.ANNOTATION_REQUEST) == request
        )

    async def _bring(self, name: str, kept: Mapping[str, Sequence[bytes]], files: Mapping[str, str]) -> None:
        """Create the ConfigMaps that the run owns: kept checkpoints, for which the runner waits, and the files of Python functions,
        without which the kubelet starts no TaskManager."""
        if not kept and not files:
            return
        run = await self._api.get("ScenarioRun", self._namespace, name)
        if run is None:
            return
        owner = Resource(run)
        made = [functions.manifest(owner, naming.functions_name(name), files)] if files else []
        for first, parts in kept.items():
            made += checkpoint.config_maps(owner, first, parts)
        try:
            for config_map in made:
                await self._api.create(config_map)
        except ApiError:
            await self._heal(name)
            raise

    async def follow(self, name: str) -> ScenarioRunStatus:
        """Wait until the run is Complete and return its status. Raises HeadgateError if it is deleted, or no operator can start it."""
        waiting = f"no operator has looked at the run yet; waiting for one, at most {SILENT_LIMIT_S:g} s"
        loop = asyncio.get_running_loop()
        notice = loop.call_later(SILENT_NOTICE_S, self._progress.on_event, p.Notice(waiting))
        limit = None
        self._stuck = (
            f"has no status after {SILENT_LIMIT_S:g} s: no operator watches the namespace "
            f"(headgate doctor --namespace {self._namespace})"
        )
        try:
            async with timeout(SILENT_LIMIT_S) as limit:
                return await self._follow(name, limit, notice)
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            raise HeadgateError(
                f"ScenarioRun {name} {self._stuck}. The run stays, and starts if this changes before the operator ends it; "
                f"to delete it: kubectl -n {self._namespace} delete scenariorun {name}"
            ) from None
        finally:
            notice.cancel()

    async def _follow(
        self, name: str, limit: asyncio.Timeout, notice: asyncio.TimerHandle
    ) -> ScenarioRunStatus:
        fields = f"metadata.name={name}"
        before = ScenarioRunStatus()
        existed = listed = False
        async for event in self._api.watch("ScenarioRun", self._namespace, fields=fields):
            if event.type == SYNCED:
                if existed and not listed:
                    break
                listed = False
                continue
            if event.type == DELETED:
                break
            existed, listed = True, event.type == LISTED
            try:
                status = read(ScenarioRunStatus, event.object.get("status"))
            except ValueError as error:
                raise HeadgateError(
                    f"ScenarioRun {name}: its status is of another version of Headgate: {error}. The run continues; "
                    "use the version that is installed in the cluster"
                ) from None
            if event.object.get("status"):
                notice.cancel()
                limit.reschedule(give_up_at(before, status, limit.when(), asyncio.get_running_loop().time()))
                self._stuck = f"cannot start: {obstacle(status)}"
            for happened in events_of(before, status):
                self._progress.on_event(happened)
            before = status
            if status.phase == COMPLETE:
                return status
        raise HeadgateError(f"ScenarioRun {name} was deleted before it was Complete")

    async def fetch(self, name: str, folder: Path, status: ScenarioRunStatus) -> RunResult:
        """Write the report's files. A run that the operator ended has none; its status becomes the verdict."""
        try:
            files = await report_files(self._api, self._namespace, name)
        except HeadgateError:
            if status.verdict not in WITHOUT_REPORT:
                raise
            return _without_report(folder, status)
        write_files(folder, files)
        verdict = read_verdict(files)
        if status.reason == RECORDER_LOST:  # only the operator knows the reason
            verdict = _amended(verdict, status)
            write_json(folder / VERDICT_FILE, verdict.to_json())
        return RunResult(folder, verdict, folder / PAGE_FILE)

    async def _heal(self, name: str) -> None:
        patch = {"metadata": {"annotations": {naming.ANNOTATION_HEAL: "interrupted"}}}
        try:
            async with timeout(HEAL_LIMIT_S):
                await self._api.patch("ScenarioRun", self._namespace, name, patch)
        except (ApiError, TimeoutError) as error:
            raise HeadgateError(
                f"interrupted, but the run {name} could not be stopped and continues. When the API server answers again, run "
                f"`headgate heal --all --on kubernetes --namespace {self._namespace}`"
            ) from error


async def report_files(api: Api, namespace: str, name: str) -> dict[str, bytes]:
    """Return the files of a run's report by name. Raises HeadgateError if the run has none."""
    found = await patiently(
        lambda: api.get("ConfigMap", namespace, naming.report_name(name)),
        limit_s=REPORT_LIMIT_S,
        every_s=RETRY_S,
    )
    if found is None:
        raise HeadgateError(f"the run {name} has no report: it is not Complete, or could not start")
    return read_report(found)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files into the folder, ignoring any folder in their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in files.items():
        (folder / Path(file).name).write_bytes(data)


def _without_report(folder: Path, status: ScenarioRunStatus) -> RunResult:
    return RunResult(folder, _amended(RunVerdict(verdict=Verdict.ERROR), status), folder / PAGE_FILE)


def _amended(verdict: RunVerdict, status: ScenarioRunStatus) -> RunVerdict:
    """Return the verdict with the part that only the operator knows."""
    found, summary = Verdict(status.verdict), status.text or "the run failed"
    return replace(verdict, verdict=found, reason=status.reason, summary=summary)
