"""An environment in memory: a job that starts, runs and drains, faults with deadlines and leases, an evaluator of the manifest."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.validate import validate
from testbed_runtime.core.errors import AgentSilent, FaultLapsed, HeadgateError, StopRefused, TestbedDisrupted
from testbed_runtime.core.faults.lease import Lease
from testbed_runtime.core.job.messages import JobStatusReply
from testbed_runtime.core.judgement.metrics import SAFETY, MetricRow
from testbed_runtime.faults.registry import SIMULATION
from testbed_runtime.history.manifest import manifest_data
from testbed_runtime.ports.hosts import CLOSE_LIMIT_S, CREATE_LIMIT_S, FaultHandle
from testbed_runtime.runner.engine import Runner, RunRequest
from testbed_runtime.runner.manifest import RunInfo
from testbed_runtime.simulation.loop import run_virtual
from tests.collecting import Collected
from tests.metricrows import metric_row

SCENARIO = """
apiVersion: headgate.dev/v1alpha1
kind: Scenario
metadata: {name: small}
spec:
  seed: 7
  testbed:
    taskManagers: {replicas: 3}
    flinkConfiguration: {execution.checkpointing.interval: 1 s}
    job:
      vertices:
        - {name: source, parallelism: 1, slotSharingGroup: src, source: {recordsPerSecond: 100}}
        - {name: sink, parallelism: 2, slotSharingGroup: snk, sink: ledger}
      edges: [{from: source, to: sink, partitioning: rebalance}]
  timeline: {warmUp: 2 s, baseline: 3 s, observation: 10 s}
  faults:
    - {name: pause, at: 1 s, duration: 8 s, target: {taskManagers: {running: sink, mode: one}}, process: {pause: {}}}
  expect: [{metric: job.state, equals: RUNNING}]
"""
PLACEMENT = {"source-0": "tm-0", "sink-0": "tm-1", "sink-1": "tm-2"}
START_S = 0.5


class Sink:
    """Keeps its rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, dict[str, Any]]] = []

    def append(self, table: str, **row: Any) -> None:
        self.rows.append((table, row))

    async def flush(self) -> None:
        return None


@dataclass
class Habits:
    """How a testbed in this environment misbehaves."""

    start_s: float = START_S
    never_runs: bool = False
    waits_for: str = ""
    """The longest wait of the JobMaster, in words."""
    fails_at_s: float | None = None
    """After the submission the job fails for good."""
    failure: tuple[str, str] = ("", "")
    """Class and text of the failure because of which the job restarts and does not run."""
    drains: bool = True
    refuses_to_stop: str = ""
    """Why the job cannot take a final checkpoint."""
    loses_faults_of: set[str] = field(default_factory=set)
    """Trials whose faults vanish before their deadline: the first renewal finds nothing."""
    short_faults_of: set[str] = field(default_factory=set)
    """Trials in which a fault ended early and only its end shows that."""
    refuses_injection: bool = False
    silent_agents_of: set[str] = field(default_factory=set)
    """Trials in which no agent answers."""
    create_fails: HeadgateError | None = None
    residue: dict[str, Any] = field(default_factory=dict)
    silent_status_after_s: float | None = None
    loses_jobmanager_after_s: float | None = None
    fails_of: dict[str, float] = field(default_factory=dict)
    """Seconds after the submission until the job fails for good, by trial."""
    disrupted_at_s: dict[str, float] = field(default_factory=dict)
    """Seconds after the submission until a pod of the trial's testbed is evicted, by trial."""
    seals_for_s: float = 0.0
    stops_for_s: float = 0.0


class MemoryTestbed:
    def __init__(self, host: MemoryHost, context: Any) -> None:
        self.host, self.context, self.habits = host, context, host.habits
        self.history = Sink()
        self.faults: dict[str, Lease] = {}
        self.log: list[tuple[float, str]] = []
        self.targets: dict[str, tuple[str, ...]] = {}
        self.submitted: float | None = None
        self.finished = False
        self.sealed = False

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _note(self, text: str) -> None:
        self.log.append((self._now() - self.host.zero, text))

    async def paths(self) -> dict[str, Any]:
        return {}

    async def submit(self) -> None:
        self.submitted = self._now()
        self._note("submit")

    async def job_status(self) -> JobStatusReply:
        age = self._now() - self.submitted
        if self.habits.silent_status_after_s is not None and age > self.habits.silent_status_after_s:
            await asyncio.sleep(3600)
        if self.habits.fails_at_s is not None and age >= self.habits.fails_at_s:
            return JobStatusReply("FAILED", "PartitionNotFoundException", "Partition p not found.")
        if age >= self.habits.fails_of.get(self.context.trial, age + 1):
            return JobStatusReply("FAILED", "NoRestartBackoffTimeStrategy", "Recovery is suppressed.")
        if self.finished:
            return JobStatusReply("FINISHED", tasks=dict.fromkeys(PLACEMENT, "FINISHED"))
        if self.habits.failure[0]:
            return JobStatusReply(
                "RESTARTING", *self.habits.failure, tasks=dict.fromkeys(PLACEMENT, "CANCELED")
            )
        task_state = "RUNNING" if age >= self.habits.start_s and not self.habits.never_runs else "DEPLOYING"
        return JobStatusReply(
            "RUNNING",
            tasks=dict.fromkeys(PLACEMENT, task_state),
            placement=PLACEMENT,
            counters={"records_in": 100.0 * age},
            waits_for=self.habits.waits_for,
        )

    async def stop_job(self, *, timeout_s: float) -> bool:
        self._note("stop")
        if self.habits.refuses_to_stop:
            raise StopRefused(self.habits.refuses_to_stop)
        if not self.habits.drains:
            await asyncio.sleep(timeout_s)
            return False
        self.finished = True
        return True

    async def inject(self, fault: Any, *, fault_id: str, targets: Any, lease_s: float | None) -> FaultHandle:
        if self.habits.refuses_injection:
            raise HeadgateError("the process to be paused is gone")
        if self.context.trial in self.habits.silent_agents_of:
            raise AgentSilent("the agent of tm-1/packets does not answer")
        self._note(f"inject {fault.name}")
        self.targets[fault.name] = tuple(targets)
        now = self._now()
        self.faults[fault_id] = Lease(now=now, deadline=now + fault.duration_s, lease_s=lease_s)
        if self.context.trial in self.habits.loses_faults_of:
            self.faults.clear()
        return FaultHandle(fault.name, "supervisor", "signals", tuple(targets))

    async def renew(self, fault_id: str) -> None:
        self._note("renew")
        if fault_id not in self.faults or not self.faults[fault_id].renew(self._now()):
            raise HeadgateError(f"there is no fault {fault_id}")

    async def heal(self, fault_id: str) -> None:
        self._note("heal")
        self.faults.pop(fault_id, None)
        if self.context.trial in self.habits.short_faults_of:
            raise FaultLapsed("the agent of tm-1/packets died while it held the fault")

    async def residue(self) -> dict[str, Any]:
        if self.context.trial in self.habits.disrupted_at_s:
            raise HeadgateError("the agent of tm-0 does not answer")
        return {**self.habits.residue, **({"active": list(self.faults)} if self.faults else {})}

    async def check(self) -> None:
        since = self.habits.loses_jobmanager_after_s
        if since is not None and self.submitted is not None and self._now() - self.submitted > since:
            raise HeadgateError("the jobmanager was killed by SIGKILL")
        at = self.habits.disrupted_at_s.get(self.context.trial)
        if at is not None and self.submitted is not None and self._now() - self.submitted >= at:
            raise TestbedDisrupted("the pod of tm-0 was disrupted: EvictionByEvictionAPI")

    async def finish_history(self) -> str:
        await asyncio.sleep(self.habits.seals_for_s)
        self.sealed = True
        return f"history/{self.context.trial}"


class MemoryHost:
    """A `ports.hosts.TestbedHost` without processes."""

    capabilities = SIMULATION
    create_limit_s = CREATE_LIMIT_S
    close_limit_s = CLOSE_LIMIT_S

    def __init__(self, habits: Habits) -> None:
        self.habits = habits
        self.testbeds: list[MemoryTestbed] = []
        self.alive: list[MemoryTestbed] = []
        self.with_proxy: list[bool] = []
        self.zero = 0.0

    async def create(self, testbed: Any, *, context: Any) -> MemoryTestbed:
        if self.habits.create_fails:
            raise self.habits.create_fails
        self.zero = asyncio.get_running_loop().time()
        made = MemoryTestbed(self, context)
        self.testbeds.append(made)
        self.alive.append(made)
        self.with_proxy.append(testbed.proxy)
        return made

    async def dispose(self, context: Any) -> None:
        await asyncio.sleep(self.habits.stops_for_s)
        self.alive = [made for made in self.alive if made.context.trial != context.trial]


class ManifestEvaluator:
    """Computes metric rows as if every fault took effect and nothing was lost."""

    def __init__(self) -> None:
        self.fails = False

    async def evaluate(self, folder: Path) -> list[MetricRow]:
        if self.fails:
            raise HeadgateError("The Spark driver has ended before its work was done.")
        manifest = manifest_data(folder)
        entries = [t for t in manifest["trials"] if not t["voided"] and not t["error"]]
        return [row for entry in entries for row in self._rows(manifest["run"], entry)]

    def _rows(self, run: str, entry: dict[str, Any]) -> list[MetricRow]:
        def row(metric: str, value: float | None, text: str = "") -> MetricRow:
            return metric_row(metric, value, run=run, trial=entry["trial"], text=text)

        state = "RUNNING" if entry["job_state"] == "FINISHED" else entry["job_state"]
        return [
            *(row(name, 0.0) for name in SAFETY),
            row("history.missing", 0.0),
            row("control.stable", 1.0),
            row("liveness.at-end", 1.0),
            row("fault.residue", float(len(entry["residue"]))),
            row("job.state", None, state),
            *(row("fault.verified", 1.0, f["name"]) for f in entry["faults"]),
        ]


@dataclass
class Played:
    """A run that has ended or was cancelled."""

    host: MemoryHost
    progress: Collected
    folder: Path
    result: Any = None
    error: BaseException | None = None

    @property
    def manifest(self) -> dict[str, Any]:
        return json.loads((self.folder / "manifest.json").read_text())

    @property
    def trials(self) -> list[dict[str, Any]]:
        return self.manifest["trials"]


@pytest.fixture
def document():
    """Return the scenario of these tests, as plain data to change."""
    return yaml.safe_load(SCENARIO)


@pytest.fixture
def habits():
    return Habits()


@pytest.fixture
def evaluator():
    return ManifestEvaluator()


@pytest.fixture
def play(tmp_path, habits, evaluator):
    """Run a document in virtual time; `cancel_after_s` is Ctrl-C, `again_after_s` the time from it to a second one."""

    def play(
        document: dict[str, Any],
        *,
        cancel_after_s: float | None = None,
        again_after_s: float | None = None,
        **request: Any,
    ) -> Played:
        scenario = validate(document).valid()
        host, progress = MemoryHost(habits), Collected()
        played = Played(host, progress, tmp_path / "run")
        try:
            plan = compile_run(scenario, scenario_folder=tmp_path, **request)
        except HeadgateError as error:
            played.error = error
            return played
        info = RunInfo("small-1", "simulation", "2026-01-01T00:00:00+00:00")
        asked = RunRequest(plan=plan, document=document, info=info, folder=tmp_path / "run")

        async def main() -> None:
            task = asyncio.get_running_loop().create_task(
                Runner(asked, host=host, evaluator=evaluator, progress=progress).run(), name="run"
            )
            await asyncio.wait({task}, timeout=cancel_after_s)
            task.cancel()
            if again_after_s is not None:
                await asyncio.wait({task}, timeout=again_after_s)
                for other in asyncio.all_tasks() - {asyncio.current_task()}:
                    other.cancel()
            await asyncio.wait({task})
            if task.cancelled():
                played.error = asyncio.CancelledError()
            elif task.exception() is not None:
                played.error = task.exception()
            else:
                played.result = task.result()

        run_virtual(main())
        return played

    return play
