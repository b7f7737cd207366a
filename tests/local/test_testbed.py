"""A whole testbed of this machine: real processes, a real job, faults, the sealed history; and nothing left afterwards."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from testbed_runtime.api.compile import compile_testbed
from testbed_runtime.api.models import TestbedSpec
from testbed_runtime.checking.delivery import check_delivery, source_ends
from testbed_runtime.cli.state import restored_state
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.job.restore import STATE_RECOVERY
from testbed_runtime.core.trial.plan import RETENTION
from testbed_runtime.history.reader import read_trial
from testbed_runtime.local import registry
from testbed_runtime.local.testbed import LocalTestbedHost
from testbed_runtime.ports.hosts import TrialContext
from testbed_runtime.runner.manifest import job_entry
from tests.local.helpers import descendants_with
from tests.manifests import trial_entry
from tests.transport.encrypted import first_bytes
from tests.waiting import until

pytestmark = pytest.mark.processes

CONTEXT = TrialContext("run", "main-1", 7)
SPEC = {
    "flinkVersion": "2.x",
    "taskManagers": {"replicas": 2, "slots": 1, "replaceLost": "Never"},
    "flinkConfiguration": {
        "heartbeat.interval": "1 s",
        "heartbeat.timeout": "5 s",
        "execution.checkpointing.interval": "500 ms",
    },
    "job": {
        "vertices": [
            {
                "name": "source",
                "parallelism": 1,
                "slotSharingGroup": "src",
                "source": {"recordsPerSecond": 2000, "recordBytes": 100, "keys": 100},
            },
            {"name": "sink", "parallelism": 1, "slotSharingGroup": "main", "sink": "ledger"},
        ],
        "edges": [{"from": "source", "to": "sink", "partitioning": "hash"}],
    },
}


async def running(testbed, *, limit_s: float = 30.0):
    async with asyncio.timeout(limit_s):
        while True:
            status = await testbed.job_status()
            if status.state == "RUNNING" and status.running_tasks == status.total_tasks > 0:
                return status
            assert status.state != "FAILED", f"{status.cause_class}: {status.cause}"
            await asyncio.sleep(0.05)


async def verified(testbed, name: str) -> None:
    async with asyncio.timeout(30):
        while True:
            rows = [i["row"] for i in await testbed.processes.faults.journal(0)]
            states = [r["state"] for r in rows if r.get("fault") == name]
            assert "unverified" not in states
            if "verified" in states:
                return
            await asyncio.sleep(0.05)


async def test_a_job_runs_suffers_faults_drains_and_leaves_its_history_and_nothing_else(tmp_path, marker):
    """Latency, delayed buffers, withheld credits, a pause and muted heartbeats, each verified and clean."""
    plan = replace(compile_testbed(TestbedSpec.model_validate(SPEC), seed=7), proxy=True)
    host = LocalTestbedHost(tmp_path / "run")
    testbed = await host.create(plan, context=CONTEXT)
    try:
        await testbed.submit()
        status = await running(testbed)
        assert set(status.placement) == {"source-0", "sink-0"}
        assert set(status.placement.values()) == {"tm-0", "tm-1"}
        source = status.placement["source-0"]
        asked = [
            Fault(
                "latency",
                "network.latency",
                0,
                20,
                plane="both",
                params={"latency_s": 0.1, "mode": "one-way"},
            ),
            Fault("late-buffers", "frames.delay", 0, 20, params={"frame_class": "buffer", "delay_s": 0.05}),
            Fault("no-credit", "frames.withhold-credit", 0, 20, direction="to"),
            Fault("mute", "heartbeats.mute", 0, 20, params={"direction": "response"}),
            Fault("pause", "process.pause", 0, 20),
        ]
        for fault in asked:
            await testbed.inject(fault, fault_id=f"main-1/{fault.name}", targets=[source], lease_s=10)
            await testbed.renew(f"main-1/{fault.name}")
            await verified(testbed, fault.name)
            await testbed.heal(f"main-1/{fault.name}")
            assert await testbed.residue() == {}
        assert await testbed.stop_job(timeout_s=20)
        folder = await testbed.finish_history()
    finally:
        await host.dispose(CONTEXT)
        await host.dispose(CONTEXT)
    rows = pq.read_table(f"{folder}/faults.parquet").to_pylist()
    for fault in asked:
        states = [r["state"] for r in rows if r["fault"] == fault.name]
        assert states == ["asked", "injected", "verified", "ended", "clean"]
    await until(lambda: not descendants_with(marker))
    assert list(registry.state_folder().iterdir()) == []


@pytest.mark.parametrize("credit", ["true", "false"])
async def test_a_job_runs_with_tls_between_its_taskmanagers(tmp_path, marker, credit):
    """The proxy passes the bytes on, and faults on frames are inside the processes. The certificate is of this testbed alone."""
    configuration = SPEC["flinkConfiguration"] | {
        "security.ssl.internal.enabled": "true",
        "taskmanager.network.credit-model": credit,
    }
    spec = TestbedSpec.model_validate({**SPEC, "flinkConfiguration": configuration})
    plan = replace(compile_testbed(spec, seed=7), proxy=True)
    host = LocalTestbedHost(tmp_path / "run")
    testbed = await host.create(plan, context=CONTEXT)
    try:
        file = testbed.processes.work_folder / "certificate.pem"
        assert file.stat().st_mode & 0o777 == 0o600
        await testbed.submit()
        source = (await running(testbed)).placement["source-0"]
        latency = {"latency_s": 0.1, "mode": "one-way"}
        for fault in (
            Fault("latency", "network.latency", 0, 20, plane="data", params=latency),
            Fault("late-buffers", "frames.delay", 0, 20, params={"frame_class": "buffer", "delay_s": 0.05}),
        ):
            await testbed.inject(fault, fault_id=f"main-1/{fault.name}", targets=[source], lease_s=10)
            await verified(testbed, fault.name)
            await testbed.heal(f"main-1/{fault.name}")
        address = next(s.ready["data"] for s in testbed.processes.states() if s.name == source)
        with pytest.raises(ssl.SSLError):
            await first_bytes(*address)
        assert await testbed.stop_job(timeout_s=20)
        history = read_trial(await testbed.finish_history())
    finally:
        await host.dispose(CONTEXT)
    found = check_delivery(history, replace(trial_entry(drained=True), job=job_entry(plan)))
    assert (found.lost, found.duplicated, found.reason) == (0, 0, "")
    assert not file.exists()


async def test_a_testbed_that_does_not_come_up_leaves_nothing(tmp_path, marker, monkeypatch):
    """The process that failed is named, with its words."""
    bad = {**SPEC, "flinkConfiguration": {"heartbeat.interval": "soon"}}
    host = LocalTestbedHost(tmp_path / "run")
    with pytest.raises(Exception, match="jobmanager"):
        await host.create(compile_testbed(TestbedSpec.model_validate(bad), seed=7), context=CONTEXT)
    await until(lambda: not descendants_with(marker))
    assert list(registry.state_folder().iterdir()) == []


async def test_a_job_starts_from_the_checkpoint_that_another_one_has_kept(tmp_path, marker):
    """At another parallelism: the source goes on after the last record, and every key keeps its count."""
    first, _ = await _run_and_drain(tmp_path / "first", 2, {})
    kept = tmp_path / "first" / "files" / CONTEXT.trial
    second, plan = await _run_and_drain(tmp_path / "second", 3, {STATE_RECOVERY: str(kept)})
    before, after = source_ends(first)["source-0"], source_ends(second)["source-0"]
    assert 0 < before < after
    found = check_delivery(second, replace(trial_entry(drained=True), job=job_entry(plan)))
    assert (found.lost, found.duplicated, found.reason, found.committed) == (0, 0, "", after - before)
    _, counts = await restored_state(tmp_path / "second" / "files" / CONTEXT.trial, 0, 0)
    assert [one.subtask for one in counts] == ["count-0", "count-1", "count-2"]
    assert sum(one.counted for one in counts) == after
    await until(lambda: not descendants_with(marker))


async def _run_and_drain(folder, parallelism: int, configuration: dict[str, str]):
    """Run a job until it has taken a checkpoint, and drain it. Return its history and its plan."""
    source = {k: v for k, v in SPEC["job"]["vertices"][0].items() if k != "slotSharingGroup"}
    count = {"name": "count", "parallelism": parallelism, "operator": "keyed-count"}
    edges = [{"from": "source", "to": "count"}, {"from": "count", "to": "sink"}]
    changes = {
        "taskManagers": {"replicas": 2, "slots": 2},
        "flinkConfiguration": SPEC["flinkConfiguration"]
        | {RETENTION: "RETAIN_ON_CANCELLATION"}
        | configuration,
        "job": {"vertices": [source, count, {"name": "sink", "sink": "ledger"}], "edges": edges},
    }
    plan = compile_testbed(TestbedSpec.model_validate(SPEC | changes), seed=7)
    host = LocalTestbedHost(folder)
    testbed = await host.create(plan, context=CONTEXT)
    try:
        await testbed.submit()
        while not (await running(testbed)).completed_checkpoints:
            await asyncio.sleep(0.05)
        assert await testbed.stop_job(timeout_s=20)
        return read_trial(await testbed.finish_history()), plan
    finally:
        await host.dispose(CONTEXT)


RUNNER = """
import asyncio, json, sys
from pathlib import Path
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.local.testbed import LocalTestbedHost
from testbed_runtime.ports.hosts import TrialContext
from testbed_runtime.api.compile import compile_testbed
from testbed_runtime.api.models import TestbedSpec
from msgspec.structs import replace

async def main():
    plan = replace(compile_testbed(TestbedSpec.model_validate(json.loads(sys.argv[1])), seed=7), proxy=True)
    host = LocalTestbedHost(Path(sys.argv[2]))
    testbed = await host.create(plan, context=TrialContext("run", "main-1", 7))
    await testbed.submit()
    for kind, target in (("network.partition", "tm-0"), ("process.pause", "tm-1")):
        await testbed.inject(Fault(kind, kind, 0, 600), fault_id=kind, targets=[target], lease_s=10)
    print("injected", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_killed_runner_takes_a_whole_testbed_with_it_in_the_middle_of_its_faults(tmp_path, marker):
    """A paused TaskManager, a partition, a running job: within ten seconds no process and no file is left."""
    argv = [sys.executable, "-c", RUNNER, json.dumps(SPEC), str(tmp_path / "run")]
    runner = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert runner.stdout is not None
    try:
        assert runner.stdout.readline() == b"injected\n"
        assert len(descendants_with(marker)) >= 7
    finally:
        runner.kill()
        runner.wait()
        runner.stdout.close()
    await until(lambda: not descendants_with(marker), seconds=60)
    assert list(registry.state_folder().iterdir()) == []
