"""Leases end to end in virtual time: the real runner, the real fault agent, the judge that reads what they recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.validate import validate
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.trial.plan import TestbedPlan
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.ports.hosts import TrialContext
from testbed_runtime.runner.engine import Runner, RunRequest, RunResult
from testbed_runtime.runner.manifest import RunInfo
from testbed_runtime.runner.progress import Silent
from testbed_runtime.simulation.entry import DirectEvaluator
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.simulation.testbed import SimTestbed, SimTestbedHost

SCENARIO = """
apiVersion: headgate.dev/v1alpha1
kind: Scenario
metadata: {name: leases}
spec:
  testbed:
    taskManagers: {replicas: 2, slots: 1}
    flinkConfiguration: {execution.checkpointing.interval: 1 s, heartbeat.timeout: 60 s}
    job:
      vertices:
        - {name: source, slotSharingGroup: src, source: {recordsPerSecond: 50, recordBytes: 100}}
        - {name: sink, slotSharingGroup: snk, sink: ledger}
      edges: [{from: source, to: sink, partitioning: rebalance}]
  timeline: {warmUp: 1 s, baseline: 3 s, observation: 16 s, drain: 30 s}
  faults:
    - {name: long-gc, at: 0 s, duration: 14 s, target: {taskManagers: {running: sink}}, process: {pause: {}}}
  control: false
  expect: [{metric: job.state, equals: RUNNING}]
"""


class Late(SimTestbedHost):
    """In the trials of `stalls`, calls of one kind answer so many seconds late: a runner that does not come round to more."""

    def __init__(self, folder: Path, call: str, stalls: dict[str, float]) -> None:
        super().__init__(folder)
        self._call, self._stalls = call, stalls

    async def create(self, testbed: TestbedPlan, *, context: TrialContext) -> SimTestbed:
        made = await super().create(testbed, context=context)
        call = getattr(made, self._call)

        async def late(*args: Any, **more: Any) -> Any:
            early = self._call == "inject"
            done = await call(*args, **more) if early else None
            await asyncio.sleep(self._stalls.get(context.trial, 0.0))
            return done if early else await call(*args, **more)

        setattr(made, self._call, late)
        return made


def play(folder: Path, call: str, stalls: dict[str, float]) -> tuple[RunResult, Sequence[TrialEntry]]:
    """The result and the manifest's trials."""
    document = yaml.safe_load(SCENARIO)
    scenario = validate(document).valid()
    request = RunRequest(
        compile_run(scenario, scenario_folder=folder), document, RunInfo("run", "simulation", ""), folder
    )
    runner = Runner(request, host=Late(folder, call, stalls), evaluator=DirectEvaluator(), progress=Silent())
    return run_virtual(runner.run()), read_manifest(folder).trials


def test_a_runner_that_does_not_renew_loses_its_fault_and_the_trial_is_repeated(tmp_path: Path):
    """After 10 s the fault ends by itself; the trial is void and is repeated under a new id, which counts."""
    result, trials = play(tmp_path, "renew", {"main-1": 9.0})
    assert [(t.trial, t.voided) for t in trials] == [("main-1", True), ("main-1-r2", False)]
    assert "lapsed" in trials[0].void_reason
    assert result.verdict.verdict == "Pass", result.verdict.summary


def test_a_lapse_that_the_runner_slept_through_makes_the_run_inconclusive(tmp_path: Path):
    """It came back when the deadline had passed too, so it cannot know; the record does."""
    result, trials = play(tmp_path, "inject", {"main-1": 14.5})
    assert [(t.trial, t.voided) for t in trials] == [("main-1", False)]
    assert (result.verdict.verdict, result.verdict.reason) == ("Inconclusive", "Voided")
