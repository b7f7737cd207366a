"""Runs in a real cluster, with the operator, the runner, the recorder and the API server taken away in the middle, and healed."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.api import naming
from testbed_runtime.api.validate import validate
from testbed_runtime.cli.loading import load
from testbed_runtime.kube.api import Api, connect
from testbed_runtime.kube.client_run import ClientRun, manifest, run_name
from testbed_runtime.runner.engine import RunResult
from testbed_runtime.runner.progress import TrialEnded
from tests.collecting import Collected
from tests.kubernetes.cluster import ROOT, Cluster, tool
from tests.kubernetes.spaces import (
    OPERATOR_NAMESPACE,
    PRIVILEGED,
    RESTRICTED,
    PodGone,
    Space,
    agent_of,
    condition,
    fresh,
    give_back,
    recorder_of,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
RUN_LIMIT_S = 700.0
"""A run of up to four trials, each with a testbed of its own, on a machine that is shared."""
STOPPED_S = 60.0
GONE_S = 100.0
MORE_RUNS = 9
"""In soak: of three kills each."""
INJECTED = f"""
import pathlib
import pyarrow.parquet
for file in pathlib.Path("{naming.DATA_FOLDER}", "history").glob("*/faults.parquet"):
    states = pyarrow.parquet.read_table(file, columns=["state"])["state"].to_pylist()
    print(file.parent.name, states.count("injected"))
"""
"""In the recorder's container, where the sealed histories are."""
HOLD = {
    "name": "hold",
    "at": "1 s",
    "duration": "4 s",
    "target": {"taskManagers": {"running": "sink", "mode": "one"}},
    "process": {"pause": {}},
}
SLOW = {
    "name": "slow",
    "at": "1 s",
    "duration": "4 s",
    "target": {"taskManagers": {"running": "sink"}},
    "direction": "to",
    "network": {"latency": {"delay": "600 ms", "mode": "one-way"}},
}
"""A busy machine delays packets by less: an effect that is much larger than asked is rightly not verified."""
SMALL: dict[str, Any] = {
    "apiVersion": naming.API_VERSION,
    "kind": "Scenario",
    "metadata": {"name": "small"},
    "spec": {
        "seed": 7,
        "testbed": {
            "taskManagers": {"replicas": 2},
            "flinkConfiguration": {"execution.checkpointing.interval": "1 s", "heartbeat.timeout": "20 s"},
            "job": {
                "vertices": [
                    {
                        "name": "source",
                        "parallelism": 1,
                        "slotSharingGroup": "in",
                        "source": {"recordsPerSecond": 200},
                    },
                    {"name": "sink", "parallelism": 1, "slotSharingGroup": "out", "sink": "ledger"},
                ],
                "edges": [{"from": "source", "to": "sink", "partitioning": "hash"}],
            },
        },
        "timeline": {"warmUp": "2 s", "baseline": "4 s", "observation": "9 s"},
        "faults": [HOLD],
        "expect": [{"metric": "job.state", "equals": "RUNNING"}],
    },
}

Act = Callable[[Space, Api, str], Awaitable[None]]
"""Something that is done to a run; its namespace and name are given."""
Moment = tuple[frozenset[str], Act]
"""Act when the runner's own ConfigMap shows one of these phases: no other process has to be alive."""


class Followed:
    """A run that is followed as `headgate run --on kubernetes` does, while `moments` come one after the other."""

    def __init__(self, space: Space, tmp_path: Path) -> None:
        self.space = space
        self.out = tmp_path
        self.progress = Collected()
        self.name = ""
        self.reached: list[str] = []

    async def run(self, document: dict[str, Any], *moments: Moment, **options: Any) -> RunResult:
        validate(document).valid()
        self.name = run_name(document["metadata"]["name"])
        wanted = manifest(document, name=self.name, namespace=self.space.name, control=False, **options)
        kubeconfig = self.space.cluster.kubeconfig
        async with (
            asyncio.timeout(RUN_LIMIT_S),
            connect(kubeconfig=kubeconfig, namespace=self.space.name, patience_s=90.0) as api,
        ):
            client = ClientRun(api, self.space.name, self.progress)
            await client.start(wanted)
            acting = asyncio.create_task(self._act(api, moments), name="act")
            try:
                status = await client.follow(self.name)
                if acting.done():
                    await acting
                if len(self.reached) < len(moments):
                    raise AssertionError(f"only {self.reached} came: {status}\n{self.space.story()}")
                await acting
            finally:
                acting.cancel()
                await asyncio.gather(acting, return_exceptions=True)
            return await client.fetch(self.name, self.out / self.name, status)

    async def _act(self, api: Api, moments: Sequence[Moment]) -> None:
        for phases, act in moments:
            self.reached.append(await self._until(api, phases))
            await act(self.space, api, self.name)

    async def _until(self, api: Api, phases: frozenset[str]) -> str:
        fields = f"metadata.name={naming.status_name(self.name)}"
        async for event in api.watch("ConfigMap", self.space.name, fields=fields):
            status = json.loads((event.object.get("data") or {}).get("status.json", "{}"))
            for phase in phases & {status.get("trialPhase"), status.get("phase")}:
                return str(phase)
        raise AssertionError("a watch never ends")

    @property
    def trials(self) -> list[tuple[str, bool]]:
        return [(e.trial, e.voided) for e in self.progress.events if isinstance(e, TrialEnded)]

    def story(self, result: RunResult) -> str:
        return f"{result.verdict.summary} {self.trials} {self.progress.events[-30:]}\n{self.space.story()}"


@pytest.fixture(scope="module")
def space(installed: Cluster) -> Iterator[Space]:
    """One namespace for this file: its Spark is warm for the second run."""
    with fresh(installed) as made:
        yield made


@pytest.fixture
def followed(space: Space, tmp_path: Path) -> Iterator[Followed]:
    """Afterwards nothing of its run is at work: one that is not finished is deleted."""
    made = Followed(space, tmp_path)
    yield made
    if not made.name:
        return
    found = space.kubectl("get", "scenariorun", made.name, "-o", "json", "--ignore-not-found")
    if found and condition(json.loads(found), "Complete"):
        give_back(space)
    else:
        space.kubectl("delete", "scenariorun", made.name, "--wait=false", "--ignore-not-found")


def at(*phases: str) -> frozenset[str]:
    return frozenset(phases)


def left_behind(followed: Followed) -> list[str]:
    """Pods of its testbeds."""
    found = followed.space.get("pods", "-l", naming.LABEL_TESTBED)["items"]
    return [n for p in found if (n := p["metadata"]["name"]).startswith(f"{followed.name}-")]


async def nothing_left(followed: Followed) -> None:
    """Wait until no testbed of the run is left. If the runner was killed at its end, the operator deletes the last one."""
    for pod in left_behind(followed):
        await asyncio.to_thread(followed.space.gone, f"pod/{pod}", GONE_S)


async def injections(followed: Followed) -> dict[str, int]:
    """How often the fault was injected in each trial whose history was sealed."""
    recorder = naming.recorder_name(followed.name)
    said = await asyncio.to_thread(followed.space.kubectl, "exec", recorder, "--", "python", "-c", INJECTED)
    return {trial: int(count) for trial, count in (line.split() for line in said.splitlines())}


async def delete_runner(space: Space, api: Api, name: str) -> None:
    del space
    await api.delete("Pod", api.namespace, naming.runner_name(name), grace_s=0)


def delete_operator(cluster: Cluster) -> None:
    """Without a word: its Lease has to run out before the next one acts."""
    which = ("-n", OPERATOR_NAMESPACE, "-l", "app.kubernetes.io/name=headgate")
    cluster.kubectl("delete", "pod", *which, "--force", "--grace-period=0")


def operator_starts(cluster: Cluster) -> dict[str, int]:
    """Return how often each container of the operator was restarted."""
    which = ("-n", OPERATOR_NAMESPACE, "pods", "-l", "app.kubernetes.io/component=operator")
    found = cluster.get(*which)["items"]
    return {p["metadata"]["uid"]: p["status"]["containerStatuses"][0]["restartCount"] for p in found}


async def kill_operator(space: Space, api: Api, name: str) -> None:
    del api, name
    await asyncio.to_thread(delete_operator, space.cluster)


async def heal(space: Space, api: Api, name: str) -> None:
    patch = {"metadata": {"annotations": {naming.ANNOTATION_HEAL: "by a test"}}}
    await api.patch("ScenarioRun", space.name, name, patch)


async def kill_recorder(space: Space, api: Api, name: str) -> None:
    """The process, not its pod: the volume of a small run lives as long as the pod."""
    del api
    os.kill(await asyncio.to_thread(recorder_of, space, naming.recorder_name(name)), signal.SIGKILL)


async def delete_recorder(space: Space, api: Api, name: str) -> None:
    """The pod, and with it the volume of a small run."""
    del space
    await api.delete("Pod", api.namespace, naming.recorder_name(name), grace_s=0)


async def kill_agents(space: Space, api: Api, name: str) -> None:
    """SIGKILL to the packet agent of each TaskManager of the trial. The kubelet starts an agent later after each kill, so the trial may
    have ended before."""
    del api
    found = await asyncio.to_thread(space.get, "pods", "-l", f"{naming.LABEL_ROLE}=taskmanager")
    pods = [p["metadata"]["name"] for p in found["items"] if "deletionTimestamp" not in p["metadata"]]
    for pod in pods:
        if pod.startswith(f"{name}-"):
            with contextlib.suppress(PodGone, ProcessLookupError):
                os.kill(await asyncio.to_thread(agent_of, space, pod), signal.SIGKILL)


async def stop_api_server(space: Space, api: Api, name: str) -> None:
    """SIGSTOP: connections hang, as with a server that is overloaded or cut off."""
    del space, api, name
    pid = int(json.loads(tool("status").stdout)["programs"]["kube-apiserver"])
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(STOPPED_S)
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.disruptive
async def test_a_run_whose_operator_is_killed_three_times_notices_nothing(followed: Followed):
    """While its testbed is made, within its fault and while it is evaluated: one trial, one injection, Pass, nothing left."""
    moments = [(at("create"), kill_operator), (at("fault"), kill_operator), (at("Evaluating"), kill_operator)]
    result = await followed.run(SMALL, *moments)
    assert result.verdict.verdict == "Pass", followed.story(result)
    assert followed.trials == [("main-1", False)]
    assert await injections(followed) == {"main-1": 1}
    assert (result.folder / "report.html").read_text().startswith("<!")
    await nothing_left(followed)


async def test_a_run_whose_runner_is_killed_three_times_repeats_the_open_trial(followed: Followed):
    """In the warm-up, within the fault and at the end: each trial that was on is void, only the fourth counts."""
    moments = [
        (at("warmUp", "baseline"), delete_runner), (at("fault"), delete_runner),
        (at("drain", "seal", "dispose"), delete_runner),
    ]  # fmt: skip
    result = await followed.run(SMALL, *moments)
    assert result.verdict.verdict == "Pass", followed.story(result)
    voided = {"main-1": True, "main-1-r2": True, "main-1-r3": True, "main-1-r4": False}
    assert dict(followed.trials) == voided, followed.story(result)
    injected = await injections(followed)
    assert injected["main-1-r4"] == 1
    assert max(injected.values()) == 1
    await nothing_left(followed)


async def test_a_run_whose_recorder_is_killed_three_times_loses_nothing(followed: Followed):
    """Acknowledged rows are on its volume; the others wait at their source."""
    if not followed.space.cluster.own:
        pytest.skip("a recorder's process can be killed from outside only on the test cluster's own node")
    document = copy.deepcopy(SMALL)
    document["spec"]["timeline"]["observation"] = "20 s"  # for two restarts of the recorder
    moments = [
        (at("baseline"), kill_recorder), (at("fault", "observation"), kill_recorder), (at("observation"), kill_recorder)
    ]  # fmt: skip
    result = await followed.run(document, *moments)
    assert result.verdict.verdict == "Pass", followed.story(result)
    assert followed.trials == [("main-1", False)]
    assert await injections(followed) == {"main-1": 1}


async def test_a_run_whose_recorder_pod_is_deleted_says_that_the_record_went_with_it(followed: Followed):
    """Rows of the trial are missing, so nothing is concluded: the reason and an Event name the recorder and how to keep its record."""
    result = await followed.run(SMALL, (at("observation"), delete_recorder))
    verdict = (result.verdict.verdict, result.verdict.reason)
    assert verdict == ("Inconclusive", "RecorderLost"), followed.story(result)
    await asyncio.to_thread(followed.space.event, "RecorderLost", "recorder.storage.size", GONE_S)


async def test_a_run_whose_agents_are_killed_three_times_repeats_the_trial_that_was_hit(followed: Followed):
    """Before the fault, within it and after it: what they held is gone with them, so that trial is void; the next one counts."""
    if not followed.space.cluster.own:
        pytest.skip("an agent's process can be killed from outside only on the test cluster's own node")
    document = copy.deepcopy(SMALL)
    # long enough to be seen and hit while it lasts
    document["spec"]["faults"] = [{**SLOW, "duration": "10 s"}]
    # with the agents' requests, the pods still fit beside those of other tests
    document["spec"]["testbed"]["pods"] = {"packetFaults": True, "resources": {"cpu": "50m"}}
    document["spec"]["timeline"] |= {"baseline": "8 s", "observation": "16 s"}
    moments = [
        (at("baseline"), kill_agents), (at("fault"), kill_agents), (at("observation"), kill_agents)
    ]  # fmt: skip
    followed.space.admit(PRIVILEGED)
    try:
        result = await followed.run(document, *moments)
    finally:
        followed.space.admit(RESTRICTED)
    # beside other tests, packets may be delayed by much more than was asked; test_packets measures the delay when nothing else runs
    unmeasurable = result.verdict.reason == "FaultNotVerified"
    assert result.verdict.verdict == "Pass" or unmeasurable, followed.story(result)
    assert dict(followed.trials) == {"main-1": True, "main-1-r2": False}, followed.story(result)
    assert (await injections(followed))["main-1-r2"] == 1
    await nothing_left(followed)


@pytest.mark.disruptive
async def test_a_run_goes_on_while_the_api_server_is_stopped(followed: Followed):
    """The API server is stopped for 60 s in the middle of the baseline: no trial is repeated, and the fault ends at its deadline."""
    if not followed.space.cluster.own:
        pytest.skip("the tests do not stop the API server of a cluster that they did not start")
    before = operator_starts(followed.space.cluster)
    result = await followed.run(SMALL, (at("baseline"), stop_api_server))
    assert operator_starts(followed.space.cluster) == before, "the operator ended"
    assert result.verdict.verdict == "Pass", followed.story(result)
    assert followed.trials == [("main-1", False)]
    assert await injections(followed) == {"main-1": 1}


async def test_a_healed_run_ends_and_is_inconclusive(followed: Followed):
    """The annotation in mid-fault: the trial is void and not repeated, reason Healed, with a report."""
    result = await followed.run(SMALL, (at("fault"), heal))
    verdict = (result.verdict.verdict, result.verdict.reason)
    assert verdict == ("Inconclusive", "Healed"), followed.story(result)
    assert followed.trials == [("main-1", True)], followed.story(result)
    assert result.report.is_file()
    await nothing_left(followed)


def keyed(result: str) -> dict[str, Any]:
    """A job with keyed state between source and sink, on three TaskManagers. `result` is the type of the first edge."""
    document = copy.deepcopy(SMALL)
    job = document["spec"]["testbed"]["job"]
    document["spec"]["testbed"]["taskManagers"] = {"replicas": 3}
    count = {"name": "count", "parallelism": 1, "slotSharingGroup": "main", "operator": "keyed-count"}
    job["vertices"].insert(1, count)
    job["edges"] = [
        {"from": "source", "to": "count", "partitioning": "hash", "result": result},
        {"from": "count", "to": "sink", "partitioning": "forward"},
    ]
    return document


async def test_state_in_files_and_local_copies_are_written_in_pods(followed: Followed):
    """With incremental checkpoints; a paused task fails over and restores them. The root file system of a pod is read-only."""
    document = keyed("pipelined")
    document["spec"]["testbed"]["flinkConfiguration"] |= {
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.state-recovery.from-local": "true",
        "heartbeat.interval": "500 ms",
        "heartbeat.timeout": "2 s",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "10",
    }
    document["spec"]["expect"] += [
        {"metric": "failovers.count", "min": 1}, {"metric": "delivery.lost", "equals": 0}, {"metric": "checkpoints.completed", "min": 1}
    ]  # fmt: skip
    result = await followed.run(document)
    assert result.verdict.verdict == "Pass", followed.story(result)


async def test_a_blocking_result_is_written_and_read_in_pods(followed: Followed):
    """A batch job: its consumer is deployed on the full result."""
    document = keyed("blocking")
    source, count, _ = document["spec"]["testbed"]["job"]["vertices"]
    source["source"]["limit"] = 400
    count["serviceTime"] = (
        "10 ms"  # the exchange is seen at work for 4 of the 15 s, in which it has to end on a busy machine too
    )
    document["spec"]["testbed"]["job"]["edges"][0]["deployment"] = "on-full-result"
    del document["spec"]["testbed"]["flinkConfiguration"]["execution.checkpointing.interval"]
    document["spec"]["faults"] = []
    document["spec"]["expect"] = [
        {"metric": "job.state", "equals": "FINISHED"}, {"metric": "delivery.lost", "equals": 0}
    ]  # fmt: skip
    result = await followed.run(document)
    assert result.verdict.verdict == "Pass", followed.story(result)


KILLED = {
    "operator": test_a_run_whose_operator_is_killed_three_times_notices_nothing,
    "runner": test_a_run_whose_runner_is_killed_three_times_repeats_the_open_trial,
    "recorder": test_a_run_whose_recorder_is_killed_three_times_loses_nothing,
    "agent": test_a_run_whose_agents_are_killed_three_times_repeats_the_trial_that_was_hit,
}


@pytest.mark.soak
@pytest.mark.parametrize("again", range(MORE_RUNS))
@pytest.mark.parametrize("who", KILLED)
async def test_thirty_kills_of_each_are_survived(followed: Followed, who: str, again: int):
    """With the three of the tests above; the moments come a little earlier or later each time."""
    del again
    await KILLED[who](followed)


@pytest.mark.soak
async def test_scenario_02_shows_its_recovery_in_the_status(followed: Followed):
    """A killed consumer: the same verdict as on one machine, phases of the recovery in the status, nothing left."""
    loaded = load(ROOT / "scenarios" / "02-taskmanager-killed")
    result = await followed.run(loaded.document, variants=["downstream"])
    assert result.verdict.verdict == "Pass", followed.story(result)
    assert left_behind(followed) == []
    run = followed.space.get("scenariorun", followed.name)
    recovery = run["status"]["recovery"]
    assert recovery["phases"]["detect"] > 0
    assert recovery["outages"][0]["rounds"][0]["owners"], recovery
    assert run["status"]["answer"] == list(result.verdict.answer)
    assert run["status"]["delivery"]["lost"] == 0
