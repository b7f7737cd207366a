"""`python -m testbed_runtime.entry.runner`: the runner pod of one ScenarioRun.

It reads its ScenarioRun, continues from what an earlier runner of the run stored at the recorder, and writes its status to ConfigMaps.
Exit code 0: there is a verdict (including Error), or nothing is left to do. Any other exit code restarts the pod.

SIGTERM ends it at once without closing anything: the current trial is void anyway, and the leases of its faults expire within 10 s.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from testbed_runtime.api import naming
from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.environment import needed
from testbed_runtime.api.resources import manifest
from testbed_runtime.api.status import COMPLETE, MAX_TEXT, RunReport
from testbed_runtime.api.validate import InvalidScenario, validate
from testbed_runtime.api.views import ConfigMap, Run
from testbed_runtime.cli import telemetry
from testbed_runtime.cli.render import Plain
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.judgement.metrics import RUN_FAILED, MetricRow
from testbed_runtime.core.trial.manifest import RunManifest
from testbed_runtime.entry.harness import run_main
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.kube.api import Api, ApiError, connect, patiently
from testbed_runtime.kube.host import KubeTestbedHost, RunAccess
from testbed_runtime.kube.progress import StatusProgress, answer_of, measured, report_map
from testbed_runtime.kube.recorder import RecorderFolder
from testbed_runtime.kube.spark.client import KubeEvaluator
from testbed_runtime.ports.network import Address
from testbed_runtime.process.config import read_token
from testbed_runtime.process.machine import machine_facts
from testbed_runtime.results import read_recoveries, read_rows
from testbed_runtime.runner.engine import RunControl, Runner, RunRequest, RunResult
from testbed_runtime.runner.manifest import RunInfo
from testbed_runtime.runner.progress import Notice, evaluating
from testbed_runtime.timeouts import cancel_all

FIELD_MANAGER = naming.RUNNER_ACCOUNT
SPARK_TOKEN_FILE = "/etc/headgate/spark-token/token"  # noqa: S105 - a path, not a secret
LOOK_EVERY_S = 2.0
"""Interval in which the ScenarioRun is read: how soon a heal or a suspension takes effect."""
AWAY_LIMIT_S = 600.0
"""Time limit for the first read. After it this process ends, and the kubelet restarts it."""
RETRY_S = 2.0
ENDED = 128 + signal.SIGTERM
INVALID = "Invalid"
SET_BY = "the operator sets it in the runner's pod"


class Surroundings(Struct, frozen=True):
    """The environment of the pod."""

    run: str
    namespace: str
    recorder: Address
    spark: Address
    token: str
    spark_token: str
    work_folder: Path

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Surroundings:
        """Raises UserError for a missing variable."""
        return cls(
            run=needed(environment, "HEADGATE_RUN", SET_BY),
            namespace=needed(environment, "POD_NAMESPACE", SET_BY),
            recorder=_address(environment, "HEADGATE_RECORDER"),
            spark=_address(environment, "HEADGATE_SPARK"),
            token=read_token(environment.get("HEADGATE_TOKEN_FILE", naming.TOKEN_FILE)),
            spark_token=read_token(SPARK_TOKEN_FILE),
            work_folder=Path(environment.get("HEADGATE_WORK_FOLDER", naming.WORK_FOLDER)),
        )


def _address(environment: Mapping[str, str], name: str) -> Address:
    host, _, port = needed(environment, name, SET_BY).rpartition(":")
    if not host or not port.isdigit():
        raise UserError(name, f"{environment[name]!r} is not an address", "write host:port")
    return host, int(port)


def document_of(run: Run) -> dict[str, Any]:
    """Return the Scenario that a ScenarioRun contains a copy of, as a document. Pure."""
    name = str(run.spec.get("scenarioName") or "scenario")
    return manifest("Scenario", {"name": name.replace(".", "-")}, spec=run.spec["scenario"])


class RunnerPod:
    """The runner of one ScenarioRun, from the start of its process to its end."""

    def __init__(self, api: Api, around: Surroundings) -> None:
        self._api = api
        self._around = around
        self._control = RunControl()

    async def run(self) -> int:
        """Run to the verdict. Return the exit code. Raises HeadgateError when the API server does not answer."""
        run = await patiently(self._scenario_run, limit_s=AWAY_LIMIT_S, every_s=RETRY_S)
        if run is None or run.terminating:
            return 0
        before = await self._last_report(run)
        if before is not None and before.phase == COMPLETE:
            return 0
        progress = StatusProgress(self._api, run, before=before, also=Plain())
        progress.start()
        watch = asyncio.get_running_loop().create_task(self._watch(), name="watch-run")
        try:
            await self._judged(run, progress)
        finally:
            await cancel_all(watch)
            await progress.close()
        return 0

    async def _judged(self, run: Run, progress: StatusProgress) -> None:
        """Run the scenario and write the verdict. A scenario that cannot be run gets the verdict Error."""
        self._obey(run)
        try:
            result = await self._engine(run, progress)
        except HeadgateError as error:
            reason = INVALID if isinstance(error, InvalidScenario) else RUN_FAILED
            await progress.finish("Error", reason=reason, text=str(error))
            return
        await progress.write_with_retries(report_map(run, result.folder))
        # before the run is complete: the operator may delete this pod then
        if line := await asyncio.to_thread(telemetry.export, result.folder):
            progress.on_event(Notice(line))
        verdict = result.verdict
        manifest = read_manifest(result.folder)
        more = measured(manifest, _rows(result.folder, manifest), read_recoveries(result.folder))
        more["answer"] = answer_of(verdict)
        if result.evaluation_failure:
            more["evaluation_failure"] = result.evaluation_failure[:MAX_TEXT]
        await progress.finish(verdict.verdict, reason=verdict.reason, text=verdict.summary, **more)

    async def _engine(self, run: Run, progress: StatusProgress) -> RunResult:
        around = self._around
        document = document_of(run)
        scenario = validate(document).valid(name=around.run)
        folder = RecorderFolder(around.work_folder / "run", around.recorder, around.token)
        access = RunAccess(around.namespace, around.run, around.token, around.recorder, run)
        host = KubeTestbedHost(
            self._api, access, progress, folder, packet_faults=scenario.spec.testbed.pods.packet_faults
        )
        spec = run.spec
        request = RunRequest(
            plan=compile_run(
                scenario,
                scenario_folder=folder.path,
                variants=tuple(spec.get("variants") or ()),
                control=bool(spec.get("control", True)),
            ),
            document=document,
            info=RunInfo(around.run, "kubernetes", str(run.metadata["creationTimestamp"]), machine_facts()),
            folder=folder.path,
            resume=True,
        )
        evaluator = KubeEvaluator(
            spark=around.spark,
            spark_token=around.spark_token,
            run=around.run,
            recorder=around.recorder,
            recorder_token=around.token,
            on_progress=lambda line: progress.on_event(evaluating(line)),
        )
        runner = Runner(
            request, host=host, evaluator=evaluator, progress=progress, control=self._control, folder=folder
        )
        try:
            return await runner.run()
        finally:
            await folder.close()

    # ---- the ScenarioRun

    async def _scenario_run(self) -> Run | None:
        around = self._around
        found = await self._api.get("ScenarioRun", around.namespace, around.run)
        return None if found is None else Run(found)

    async def _last_report(self, run: Run) -> RunReport | None:
        """Return the last report of an earlier runner of this run; None: there was none, or it is of another run of the same name."""
        name = naming.status_name(run.name)
        found = await patiently(
            lambda: self._api.get("ConfigMap", run.namespace, name), limit_s=AWAY_LIMIT_S, every_s=RETRY_S
        )
        return None if found is None else ConfigMap(found).report(run, RunReport)

    async def _watch(self) -> None:
        """Read the ScenarioRun in intervals. An API server that does not answer changes nothing."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                run = await self._scenario_run()
            except ApiError:
                continue
            if run is None or run.terminating:
                _leave(0)
            self._obey(run)

    def _obey(self, run: Run) -> None:
        if run.suspended:
            self._control.suspend()
        else:
            self._control.resume()
        if run.heal_requested:
            self._control.heal(f"the annotation {naming.ANNOTATION_HEAL} was set on the ScenarioRun")


def _rows(folder: Path, manifest: RunManifest) -> list[MetricRow]:
    try:
        return read_rows(folder, manifest)
    except HeadgateError:
        return []  # there was no evaluation; the verdict has the reason


def _leave(code: int) -> NoReturn:
    """Exit at once: open work is void anyway, and closing it could exceed the pod's grace period."""
    sys.stderr.flush()
    os._exit(code)


async def _main() -> int:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _leave, ENDED)
    around = Surroundings.read(os.environ)
    around.work_folder.mkdir(parents=True, exist_ok=True)
    async with connect(
        namespace=around.namespace, field_manager=FIELD_MANAGER, component=FIELD_MANAGER
    ) as api:
        return await RunnerPod(api, around).run()


if __name__ == "__main__":
    sys.exit(run_main(_main, exit_error=1))
