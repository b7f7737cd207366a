"""A testbed of `entry.pod` processes on loopback: each pod an address of 127.x.y.z, names by a file instead of a DNS."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from testbed_runtime.api import naming
from testbed_runtime.api.compile import compile_testbed
from testbed_runtime.api.kinds import TestbedResourceSpec
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.trial.plan import plan_to_json
from testbed_runtime.faults.http import ControlClient, FaultClient
from testbed_runtime.ports.hosts import JOB_PATH
from testbed_runtime.transport.names import HOSTS_VARIABLE

TESTBED, NAMESPACE, TOKEN = "shop", "hg-test", "secret"
LIMIT_S = 60.0
CONFIGURATION = {
    "heartbeat.interval": "500 ms",
    "heartbeat.timeout": "4 s",
    "execution.checkpointing.interval": "500 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "200 ms",
    "restart-strategy.fixed-delay.attempts": "20",
}
SPEC = {
    "taskManagers": {"replicas": 2, "slots": 1, "replaceLost": "500 ms"},
    "flinkConfiguration": CONFIGURATION,
    "job": {
        "vertices": [
            {"name": "source", "parallelism": 2, "source": {"recordsPerSecond": 200, "keys": 20}},
            {"name": "sink", "parallelism": 2, "sink": "ledger"},
        ],
        "edges": [{"from": "source", "to": "sink", "partitioning": "hash"}],
    },
}


class Pods:
    """`start` a pod under its logical name; `kill` takes its whole tree, as a node that is gone; `close` ends all."""

    def __init__(self, folder: Path, number: int, spec=SPEC, *, recorder=True):
        self.folder = folder
        self.net = (
            f"127.{1 + os.getpid() % 250}.{number}"  # ports are fixed: two suites on one machine do not meet
        )
        self.spec = spec
        self.hosts = folder / "hosts.json"
        self.children = {}
        self.addresses = {}
        self.control = ControlClient(TOKEN)
        self.trial = ["recorder.run", naming.RECORDER_PORT, "/t/main-1"] if recorder else None
        self._last = 9
        (folder / "token").write_text(TOKEN)
        self.hosts.write_text("{}")
        self.write()

    def write(self, *, compiled=True):
        """Write testbed.json as the operator does. One of an earlier version has not `compiled` the spec."""
        document = {
            "name": TESTBED,
            "namespace": NAMESPACE,
            "run": "run",
            "trial": "main-1",
            "seed": 7,
            "recorder": self.trial,
            "spec": self.spec,
        }
        if compiled:
            spec = TestbedResourceSpec.model_validate(self.spec)
            document["plan"] = plan_to_json(compile_testbed(spec, seed=7))
        (self.folder / "testbed.json").write_text(json.dumps(document))

    async def start(self, role, name="", *, incarnation=1, fresh=True, ready=True):
        """A new pod (`fresh`: under an address of its own), until its supervisor listens, or until it is Ready."""
        name = name or role
        if fresh:
            self._last += 1
            self.addresses[name] = f"{self.net}.{self._last}"
        host = "recorder.run" if role == "recorder" else naming.dns_name(TESTBED, name, NAMESPACE)
        hosts = {**json.loads(self.hosts.read_text()), host: self.addresses[name]}
        beside = self.hosts.with_suffix(".new")
        beside.write_text(json.dumps(hosts))
        beside.replace(self.hosts)
        data = self.folder / f"data-{name}"
        data.mkdir(exist_ok=True)
        environment = {
            HOSTS_VARIABLE: str(self.hosts),
            "HEADGATE_NAME": name,
            "HEADGATE_INCARNATION": str(incarnation),
            "POD_IP": self.addresses[name],
            "POD_NAMESPACE": NAMESPACE,
            "HEADGATE_CONFIG_FILE": str(self.folder / "testbed.json"),
            "HEADGATE_TOKEN_FILE": str(self.folder / "token"),
            "HEADGATE_CERTIFICATE_FILE": str(self.folder / "certificate.pem"),
            "HEADGATE_WORK_FOLDER": str(self.folder / f"work-{name}-{incarnation}"),
            "HEADGATE_DATA_FOLDER": str(data),
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.children[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "testbed_runtime.entry.pod", role,
                env={**os.environ, **environment}, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        await self.until(lambda: self.probe(name, "healthz"), f"{name} is alive")
        if ready:
            await self.until_ready(name)

    async def start_all(self, *, proxy=False):
        """Everything at once, as a cluster does."""
        roles = [("recorder", ""), ("store", ""), ("jobmanager", "")]
        roles += [("taskmanager", f"tm-{n}") for n in range(self.spec["taskManagers"]["replicas"])]
        roles += [("proxy", "")] if proxy else []
        await asyncio.gather(*(self.start(role, name, ready=False) for role, name in roles))
        await asyncio.gather(*(self.until_ready(name or role) for role, name in roles))

    # ---- looking

    def supervisor(self, name):
        return self.addresses[name], naming.SUPERVISOR_PORT

    async def probe(self, name, path):
        """Whether the kubelet would see 200."""
        try:
            await self.control.call("GET", self.supervisor(name), f"/{path}", timeout_s=2)
        except HeadgateError:
            return False
        return True

    async def until_ready(self, name):
        await self.until(lambda: self.probe(name, "readyz"), f"{name} is ready")

    async def job(self):
        """GET /v1/job; {} while the JobManager is away."""
        address = self.addresses["jobmanager"], naming.JOBMANAGER_PORT
        try:
            return await self.control.call("GET", address, JOB_PATH, timeout_s=2)
        except HeadgateError:
            return {}

    async def until_job(self, condition, what):
        async def holds():
            job = await self.job()
            return bool(job) and condition(job)

        await self.until(holds, what)
        return await self.job()

    async def until_running(self, *, beyond=0):
        """All tasks RUNNING, with more than `beyond` checkpoints completed since the JobManager started."""
        return await self.until_job(
            lambda j: (
                j["state"] == "RUNNING" and j["running"] == j["total"] > 0 and j["checkpoints"] > beyond
            ),
            "the job runs and takes checkpoints",
        )

    async def until(self, condition, what):
        try:
            async with asyncio.timeout(LIMIT_S):
                while not await condition():
                    ended = {n: c.returncode for n, c in self.children.items() if c.returncode is not None}
                    assert not ended, f"{ended}: {self.logs()}"
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(
                f"not within {LIMIT_S:g} s: {what}; {await self.job()}\n{self.logs()}"
            ) from None

    def logs(self):
        """The ends of all of them."""
        return "\n".join(f"{p}: {p.read_text()[-1500:]}" for p in sorted(self.folder.rglob("*.log")))

    def faults(self, name):
        return FaultClient(self.supervisor(name), TOKEN)

    # ---- ending

    async def kill(self, name):
        """SIGKILL: the supervisor's children die with it."""
        self.children[name].send_signal(signal.SIGKILL)
        await self.children.pop(name).wait()

    async def stop(self, name):
        """SIGTERM; the exit code."""
        child = self.children.pop(name)
        child.terminate()
        async with asyncio.timeout(30):
            return await child.wait()

    async def close(self):
        left = [child for child in self.children.values() if child.returncode is None]
        for child in left:
            child.terminate()
        for child in left:
            async with asyncio.timeout(15):
                await child.wait()
        await self.control.close()
