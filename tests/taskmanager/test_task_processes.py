"""TaskManagers as real processes over TCP and HTTP."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.core.job.messages import RequestJobStatus, StopWithDrain, SubmitJob
from testbed_runtime.process.config import ProcessConfig
from testbed_runtime.transport.rpc_http import HttpRpc

pytestmark = pytest.mark.processes

CONFIGURATION = {
    "heartbeat.interval": "200 ms",
    "heartbeat.timeout": "10 s",
    "execution.checkpointing.interval": "300 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "100 ms",
    "restart-strategy.fixed-delay.attempts": "3",
}


class Processes:
    """A JobManager and TaskManagers, each a child with a pipe to its stdin."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.token = folder / "token"
        self.token.write_text("secret")
        self.token.chmod(0o600)
        self.children = {}

    async def start(self, module, name, incarnation=1, **settings):
        config = ProcessConfig(
            name=name,
            incarnation=incarnation,
            configuration=CONFIGURATION,
            token_file=str(self.token),
            blob_folder=str(self.folder / "blobs"),
            **settings,
        )
        path = self.folder / f"{name}-{incarnation}.json"
        config.save(path)
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"testbed_runtime.entry.{module}",
            str(path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self.children[name] = child
        async with asyncio.timeout(60):
            line = await child.stdout.readline()
        assert line, (await child.stderr.read()).decode()
        return json.loads(line)["ready"]

    async def close(self):
        """Close every stdin; the exit codes and what was said on stderr."""
        ends = {}
        for name, child in self.children.items():
            if child.returncode is None:
                child.stdin.close()
            async with asyncio.timeout(60):
                _, stderr = await child.communicate()
            ends[name] = (child.returncode, stderr.decode())
        return ends


def graph(rate=4000.0):
    return JobGraph(
        "job",
        (
            JobVertex("source", 2, 128, "a", source=SourceConfig(records_per_second=rate)),
            JobVertex("count", 2, 128, "b", operator=OperatorConfig("keyed-count")),
            JobVertex("sink", 2, 128, "b", sink=SinkConfig()),
        ),
        (JobEdge("source", "count", "hash"), JobEdge("count", "sink", "forward")),
    )


async def until(ask, wanted, timeout_s=60.0):
    async with asyncio.timeout(timeout_s):
        while True:
            status = await ask(RequestJobStatus(""))
            if wanted(status):
                return status
            await asyncio.sleep(0.05)


async def test_a_job_over_processes_survives_a_killed_taskmanager_and_drains(tmp_path):
    """Ready lines, registration, TCP, HTTP, kill -9, failover, drain; every process ends with its stdin."""
    processes = Processes(tmp_path)
    client = HttpRpc("client", None, "secret")
    await client.start()
    try:
        jobmanager = tuple((await processes.start("jobmanager", "jobmanager"))["rpc"])
        for ordinal in range(5):
            await processes.start("taskmanager", f"tm-{ordinal}", jobmanager=jobmanager)

        async def ask(message):
            return await client.ask("jobmanager", jobmanager, "dispatcher", message, timeout_s=5)

        await until(ask, lambda s: len(s.taskmanagers) == 5)
        await ask(SubmitJob(graph(), CONFIGURATION))
        running = await until(ask, lambda s: s.completed_checkpoints >= 2)
        victim = running.placement["sink-0"].rsplit("-", 1)[0]
        os.kill(processes.children[victim].pid, signal.SIGKILL)
        await until(ask, lambda s: s.restarts >= 1 and s.state == "RUNNING")
        seen = (await ask(RequestJobStatus(""))).completed_checkpoints
        await until(ask, lambda s: s.completed_checkpoints > seen + 1)
        await ask(StopWithDrain(""))
        status = await until(ask, lambda s: s.state not in ("RUNNING", "RESTARTING"))
        assert status.state == "FINISHED"
    finally:
        await client.close()
        ends = await processes.close()
    assert ends.pop(victim)[0] == -signal.SIGKILL
    assert set(ends.values()) == {(0, "")}, ends


async def test_a_data_port_in_use_is_said_in_one_line(tmp_path):
    """It exits with code 2 and prints the port and the fix, without a stack trace."""
    processes = Processes(tmp_path)
    jobmanager = ("127.0.0.1", 9)
    ready = await processes.start("taskmanager", "tm-0", jobmanager=jobmanager)
    with pytest.raises(AssertionError, match="in use by another process") as caught:
        await processes.start("taskmanager", "tm-1", jobmanager=jobmanager, data_bind=tuple(ready["data"]))
    assert "Traceback" not in str(caught.value)
    ends = await processes.close()
    assert (ends["tm-0"][0], ends["tm-1"][0]) == (0, 2)
