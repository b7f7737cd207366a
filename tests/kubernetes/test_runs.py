"""Runs in a real cluster: end to end, and with the runner, the recorder and the API server taken away in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.cli.loading import load
from testbed_runtime.kube.api import Api
from testbed_runtime.kube.client_run import ClientRun, manifest, run_name
from testbed_runtime.kube.connection import connect
from testbed_runtime.runner.engine import RunResult
from testbed_runtime.runner.progress import Collected, PhaseEntered, ProgressEvent, TrialEnded
from testbed_runtime.spec import naming
from testbed_runtime.spec.validate import validate
from tests.kubernetes.cluster import ROOT, tool
from tests.kubernetes.spaces import Space

pytestmark = pytest.mark.cluster
RUN_LIMIT_S = 400.0
"""A run of one trial with two recoveries of its parts, on a machine that is shared."""
STOPPED_S = 60.0
KILL = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        if b"entry.run_recorder" in file.read():
            os.kill(int(pid), 9)
"""
HOLD = {
    "name": "hold",
    "at": "1 s",
    "duration": "4 s",
    "target": {"taskManagers": {"running": "sink", "mode": "one"}},
    "process": {"pause": {}},
}
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
        "timeline": {"warmUp": "2 s", "baseline": "5 s", "observation": "10 s"},
        "faults": [HOLD],
        "expect": [{"metric": "job.state", "equals": "RUNNING"}],
    },
}

Meanwhile = Callable[[Space, Api, str], Awaitable[None]]
"""What happens to a run (its namespace and name are given) once it is in the phase that was asked for."""


class Followed:
    """A run that is followed; `act` is called once, at its first event that `when` is true of."""

    def __init__(self, space: Space, tmp_path: Path) -> None:
        self.space = space
        self.out = tmp_path
        self.progress = Collected()
        self.name = ""

    async def run(
        self,
        document: dict[str, Any],
        *,
        when: Callable[[ProgressEvent], bool] | None = None,
        act: Meanwhile | None = None,
        **options: Any,
    ) -> RunResult:
        findings = validate(document)
        assert findings.scenario is not None
        assert not findings.errors, findings.errors
        told, due = self.progress.tell, asyncio.Event()

        def tell(event: ProgressEvent) -> None:
            told(event)
            if when is not None and when(event):
                due.set()

        self.progress.tell = tell  # type: ignore[method-assign]
        self.name = run_name(document["metadata"]["name"])
        wanted = manifest(document, name=self.name, namespace=self.space.name, control=False, **options)
        connection = connect(kubeconfig=self.space.cluster.kubeconfig, namespace=self.space.name)
        async with asyncio.timeout(RUN_LIMIT_S), Api(connection, patience_s=90.0) as api:
            client = ClientRun(api, self.space.name, self.progress)
            await client.start(wanted)
            acting = asyncio.create_task(self._act(api, due, act), name="act")
            try:
                status = await client.follow(self.name)
                if act is not None:
                    await acting
            finally:
                acting.cancel()
                await asyncio.gather(acting, return_exceptions=True)
            return await client.fetch(self.name, self.out / self.name, status)

    async def _act(self, api: Api, due: asyncio.Event, act: Meanwhile | None) -> None:
        await due.wait()
        if act is not None:
            await act(self.space, api, self.name)

    @property
    def trials(self) -> list[tuple[str, bool]]:
        return [(e.trial, e.voided) for e in self.progress.events if isinstance(e, TrialEnded)]

    def story(self, result: RunResult) -> str:
        return f"{result.verdict['summary']} {self.trials} {self.progress.events[-30:]}"


@pytest.fixture
def followed(space: Space, tmp_path: Path) -> Followed:
    return Followed(space, tmp_path)


def entered(phase: str) -> Callable[[ProgressEvent], bool]:
    return lambda event: isinstance(event, PhaseEntered) and event.phase == phase


def left_behind(space: Space) -> list[str]:
    """Pods of testbeds."""
    found = space.get("pods")["items"]
    return [
        p["metadata"]["name"] for p in found if naming.LABEL_TESTBED in (p["metadata"].get("labels") or {})
    ]


async def delete_runner(space: Space, api: Api, name: str) -> None:
    del space
    await api.delete("v1", "Pod", api.namespace, naming.runner_name(name), grace_s=0)


async def kill_recorder(space: Space, api: Api, name: str) -> None:
    """The process, not its pod: the volume of a small run lives as long as the pod."""
    del api
    space.kubectl("exec", naming.recorder_name(name), "--", "python", "-c", KILL)


async def stop_api_server(space: Space, api: Api, name: str) -> None:
    """SIGSTOP: connections hang, as with a server that is overloaded or cut off."""
    del space, api, name
    pid = int(json.loads(tool("status").stdout)["programs"]["kube-apiserver"])
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(STOPPED_S)
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_scenario_02_runs_from_its_document_to_the_verdict(followed: Followed):
    """A killed consumer: the same verdict as on one machine, phases of the recovery in the status, nothing left."""
    loaded = load(ROOT / "scenarios" / "02-taskmanager-killed")
    result = await followed.run(loaded.document, variants=["downstream"])
    assert result.verdict["verdict"] == "Pass", followed.story(result)
    assert (result.folder / "report.html").read_text().startswith("<!")
    assert left_behind(followed.space) == []
    run = followed.space.get("scenariorun", followed.name)
    assert run["status"]["recovery"]["detect"] > 0


@pytest.mark.parametrize("phase", ["warmUp", "fault", "drain"])
async def test_a_run_whose_runner_is_killed_repeats_the_open_trial_and_ends_well(
    followed: Followed, phase: str
):
    """The trial that was on is void, its repetition counts; nothing of the first one's testbed is left."""
    result = await followed.run(SMALL, when=entered(phase), act=delete_runner)
    assert result.verdict["verdict"] == "Pass", followed.story(result)
    assert dict(followed.trials).get("main-1-r2") is False, followed.story(result)
    assert dict(followed.trials)["main-1"] is True
    assert left_behind(followed.space) == []


async def test_a_run_whose_recorder_is_killed_loses_nothing(followed: Followed):
    """What was acknowledged is on its volume, the rest waits at its source."""
    result = await followed.run(SMALL, when=entered("fault"), act=kill_recorder)
    assert result.verdict["verdict"] == "Pass", followed.story(result)
    assert followed.trials == [("main-1", False)]


async def test_a_run_goes_on_while_the_api_server_is_stopped(followed: Followed):
    """For 60 s from the middle of the baseline on: no trial is repeated, the fault ends at its deadline."""
    if not followed.space.cluster.own:
        pytest.skip("the API server of a given cluster is not ours to stop")
    result = await followed.run(SMALL, when=entered("baseline"), act=stop_api_server)
    assert result.verdict["verdict"] == "Pass", followed.story(result)
    assert followed.trials == [("main-1", False)]
