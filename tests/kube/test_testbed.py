"""The engine on a testbed whose pods are processes on loopback: submit, faults by the agents, record, verdict."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.api import naming
from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.validate import validate
from testbed_runtime.checking.delivery import check_delivery
from testbed_runtime.cli.preflight import kept_checkpoints
from testbed_runtime.core.job.restore import STATE_RECOVERY
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.trial.plan import RETENTION, RunPlan, TestbedPlan
from testbed_runtime.faults.fanout import Agent
from testbed_runtime.history.manifest import manifest_data
from testbed_runtime.history.reader import read_trial
from testbed_runtime.history.recording.sink import FLUSH_TIMEOUT_S, MAX_RETRY_S
from testbed_runtime.kube.host import capabilities, recorder_path
from testbed_runtime.kube.recorder import RecorderFolder
from testbed_runtime.kube.testbed import KubeTestbed, TrialAccess
from testbed_runtime.ports.hosts import CREATE_LIMIT_S, TrialContext
from testbed_runtime.runner.engine import Runner, RunRequest
from testbed_runtime.runner.manifest import RunInfo
from testbed_runtime.runner.progress import Notice, PhaseEntered
from testbed_runtime.simulation.entry import DirectEvaluator
from tests.collecting import Collected
from tests.entry.pods import CONFIGURATION, SPEC, TOKEN, Pods
from tests.kube.unwatched import unwatched
from tests.manifests import trial_entry

pytestmark = pytest.mark.processes
_numbers = itertools.count(151)
SUSPENDED = {**SPEC, "jobState": "suspended"}
SHORT = {"warmUp": "1 s", "baseline": "1 s", "observation": "2 s", "drain": "20 s"}
DOCUMENT = {
    "apiVersion": naming.API_VERSION,
    "kind": "Scenario",
    "metadata": {"name": "small"},
    "spec": {
        "seed": 7,
        "testbed": SPEC,
        "timeline": {"warmUp": "1 s", "baseline": "2 s", "observation": "6 s"},
        "faults": [
            {
                "name": "hold",
                "at": "0 s",
                "duration": "2 s",
                "target": {"taskManagers": {}},
                "process": {"pause": {}},
            }
        ],
        "expect": [{"metric": "job.state", "equals": "RUNNING"}],
    },
}


class LoopbackHost:
    """Starts pods as processes instead of resources. Everything else is as in a cluster."""

    environment = "kubernetes"
    capabilities = capabilities(packet_faults=False)
    create_limit_s = CREATE_LIMIT_S
    close_limit_s = 60.0

    def __init__(self, pods: Pods, folder: RecorderFolder) -> None:
        self.pods = pods
        self.folder = folder
        self.kept: Mapping[str, bytes] = {}
        """The objects of the checkpoint from which the job starts."""
        self.testbeds: list[KubeTestbed] = []

    async def create(self, testbed: TestbedPlan, *, context: TrialContext) -> KubeTestbed:
        pods = self.pods
        names = [("store", ""), ("jobmanager", ""), ("taskmanager", "tm-0"), ("taskmanager", "tm-1")]
        for role, name in [*names, *([("proxy", "")] if testbed.proxy else [])]:
            await pods.start(role, name, ready=False)
        access = TrialAccess(
            token=TOKEN,
            recorder=(pods.addresses["recorder"], naming.RECORDER_PORT),
            recorder_path=recorder_path(context.trial),
            capabilities=self.capabilities,
            address=lambda process, port: (pods.addresses[process], port),
        )
        made = KubeTestbed(testbed, context, access, folder=self.folder, **unwatched())
        await made.open(register_limit_s=60.0)
        await made.bring(self.kept)
        self.testbeds.append(made)
        return made

    async def dispose(self, context: TrialContext) -> None:
        for testbed in self.testbeds:
            if testbed.context == context:
                await testbed.close()
        for name in [n for n in self.pods.children if n != "recorder"]:
            await self.pods.stop(name)


@pytest.fixture
async def pods(tmp_path):
    made = Pods(tmp_path, next(_numbers), SUSPENDED)
    await made.start("recorder")
    yield made
    await made.close()


class Played:
    def __init__(self, pods: Pods, folder: Path, **spec: Any) -> None:
        self.document = json.loads(json.dumps({**DOCUMENT, "spec": {**DOCUMENT["spec"], **spec}}))
        scenario = validate(self.document).valid()
        self.path = folder / "run"
        self.path.mkdir()
        (folder / "data-recorder" / "history").mkdir(parents=True, exist_ok=True)
        (self.path / "history").symlink_to(folder / "data-recorder" / "history")
        self.folder = RecorderFolder(self.path, (pods.addresses["recorder"], naming.RECORDER_PORT), TOKEN)
        self.host = LoopbackHost(pods, self.folder)
        self.progress = Collected()
        request = RunRequest(
            plan=compile_run(scenario, scenario_folder=folder, control=False),
            document=self.document,
            info=RunInfo("run", "kubernetes", "2026-01-01T00:00:00+00:00"),
            folder=self.path,
            resume=True,
        )
        self.runner = Runner(
            request,
            host=self.host,
            evaluator=Kept(self.folder),
            progress=self.progress,
            folder=self.folder,
        )

    async def run(self) -> Any:
        try:
            return await self.runner.run()
        finally:
            await self.folder.close()

    @property
    def trials(self) -> list[dict[str, Any]]:
        trials: list[dict[str, Any]] = manifest_data(self.path)["trials"]
        return trials


class Kept(DirectEvaluator):
    """Calls the functions that Spark calls, and stores the results at the recorder like the Spark pod."""

    def __init__(self, folder: RecorderFolder) -> None:
        self.folder = folder

    async def evaluate(self, folder: Path) -> list[MetricRow]:
        rows = await super().evaluate(folder)
        await self.folder.keep("metrics.json", "timeseries.json")
        return rows


def explained(played: Played, result: Any) -> str:
    texts = [e.text for e in played.progress.events if isinstance(e, Notice)]
    return f"{result.verdict.summary} {played.trials[-1]['error']} {texts}"


async def test_a_fault_on_two_pods_takes_effect_in_both_and_leaves_nothing(pods, tmp_path):
    """A run reaches its verdict; the report and the manifest are at the recorder."""
    played = Played(pods, tmp_path)
    result = await played.run()
    assert result.verdict.verdict == "Pass", explained(played, result)
    (entry,) = played.trials
    assert (entry["job_state"], entry["drained"], entry["residue"]) == ("FINISHED", True, {})
    assert (entry["faults"][0]["backend"], entry["faults"][0]["targets"]) == ("supervisor", ["tm-0", "tm-1"])
    kept = tmp_path / "data-recorder"
    for name in ("scenario.yaml", "manifest.json", "verdict.json", "report.html", "metrics.json"):
        assert (kept / name).is_file(), name
    assert manifest_data(kept)["trials"][0]["ended"]


async def small_run(
    folder: Path, options: Mapping[str, str], kept: Mapping[str, bytes]
) -> tuple[Played, Any]:
    """Run with these options on pods of its own. Without faults."""
    folder.mkdir()
    testbed = {**SPEC, "flinkConfiguration": {**CONFIGURATION, **options}}
    pods = Pods(folder, next(_numbers), {**testbed, "jobState": "suspended"})
    try:
        await pods.start("recorder")
        played = Played(pods, folder, testbed=testbed, faults=[], timeline=SHORT)
        played.host.kept = kept
        return played, await played.run()
    finally:
        await pods.close()


async def test_a_run_goes_on_from_the_checkpoint_that_an_earlier_one_kept(tmp_path):
    """Its objects are in the store before the job is submitted. Nothing is lost, and no record comes twice."""
    first, result = await small_run(tmp_path / "first", {RETENTION: "RETAIN_ON_CANCELLATION"}, {})
    assert first.trials[-1]["drained"], explained(first, result)
    plan = from_folder(first, str(first.path / "files" / "main-1"))
    kept = await asyncio.to_thread(kept_checkpoints, plan)
    (objects,) = kept.values()
    options = {STATE_RECOVERY: "configmap://first-checkpoint-0"}
    second, result = await small_run(tmp_path / "second", options, objects)
    assert second.trials[-1]["drained"], explained(second, result)
    history = read_trial(tmp_path / "second" / "data-recorder" / "history" / "main-1")
    assert "job.restored" in {row["kind"] for row in history.rows("events")}
    found = check_delivery(history, trial_entry(second.trials[-1]))
    assert (found.lost, found.duplicated, found.reason) == (0, 0, "")


def from_folder(played: Played, path: str) -> RunPlan:
    """Return the plan of a run whose job starts from a folder."""
    plan = played.runner.request.plan
    (trial,) = plan.trials
    testbed = replace(trial.testbed, configuration={**trial.testbed.configuration, STATE_RECOVERY: path})
    return replace(plan, trials=(replace(trial, testbed=testbed),))


async def test_faults_of_the_channel_and_of_the_proxy_are_held_by_the_pods_that_have_them(pods, tmp_path):
    """Both verified at their far ends, over the network."""
    pods.spec = {**SUSPENDED, "pods": {"proxy": True}}
    pods.write()
    faults = [
        {
            "name": "slow",
            "at": "0 s",
            "duration": "3 s",
            "target": {"taskManagers": {"names": ["tm-0"]}},
            "network": {"latency": {"delay": "40 ms", "mode": "round-trip"}},
        },
        {
            "name": "late",
            "at": "3500 ms",
            "duration": "2 s",
            "target": {"taskManagers": {}},
            "frames": {"delay": {"frameClass": "buffer", "delay": "50 ms"}},
        },
    ]
    played = Played(pods, tmp_path, faults=faults)
    result = await played.run()
    assert result.verdict.verdict == "Pass", explained(played, result)
    assert [f["backend"] for f in played.trials[0]["faults"]] == ["proxy", "channel"]


async def test_faults_that_a_user_heals_at_the_pods_end_the_run(pods, tmp_path):
    """`heal-all` at one agent: Inconclusive, Healed, nothing repeated."""
    long = [{**DOCUMENT["spec"]["faults"][0], "duration": "15 s"}]
    timeline = {**DOCUMENT["spec"]["timeline"], "observation": "20 s"}
    played = Played(pods, tmp_path, faults=long, timeline=timeline)
    on_event = played.progress.on_event

    def heal(event: Any) -> None:
        on_event(event)
        if isinstance(event, Notice) and event.text.startswith("fault `hold`"):
            tasks.append(
                asyncio.create_task(
                    played.host.testbeds[0]._agent_faults._fanout.heal_all([Agent("tm-0")]), name="heal"
                )
            )

    tasks: list[Any] = []
    played.progress.on_event = heal
    result = await played.run()
    await asyncio.gather(*tasks)
    assert (result.verdict.verdict, result.verdict.reason) == ("Inconclusive", "Healed")
    assert [t["voided"] for t in played.trials] == [True]


async def test_a_restarted_recorder_loses_nothing(pods, tmp_path):
    """Killed during a trial and restarted at another address on the same volume: the history is complete."""
    played = Played(pods, tmp_path)
    on_event = played.progress.on_event
    tasks: list[Any] = []

    async def again() -> None:
        await pods.kill("recorder")
        await pods.start("recorder", incarnation=2, fresh=False)

    def kill(event: Any) -> None:
        on_event(event)
        if isinstance(event, Notice) and event.text.startswith("fault `hold`"):
            tasks.append(asyncio.create_task(again(), name="again"))

    played.progress.on_event = kill
    result = await played.run()
    await asyncio.gather(*tasks)
    assert result.verdict.verdict == "Pass", explained(played, result)


async def test_processes_stop_only_when_a_restarting_recorder_can_take_their_rows(pods, tmp_path):
    """Killed at the end of the observation, and away for longer than a process waits at its own end: nothing is missing."""
    played = Played(pods, tmp_path, timeline={**DOCUMENT["spec"]["timeline"], "observation": "4 s"})
    on_event = played.progress.on_event
    tasks: list[Any] = []

    async def away() -> None:
        await pods.kill("recorder")
        await asyncio.sleep(FLUSH_TIMEOUT_S + MAX_RETRY_S)
        await pods.start("recorder", incarnation=2, fresh=False)

    def kill(event: Any) -> None:
        on_event(event)
        if isinstance(event, PhaseEntered) and event.phase == "drain":
            tasks.append(asyncio.create_task(away(), name="away"))

    played.progress.on_event = kill
    result = await played.run()
    await asyncio.gather(*tasks)
    assert tasks
    assert result.verdict.verdict == "Pass", explained(played, result)
    (sealed,) = (tmp_path / "data-recorder" / "history").glob("*/sealed.json")
    assert json.loads(sealed.read_text())["problems"] == []
