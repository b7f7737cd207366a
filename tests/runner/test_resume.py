"""A run continues after its runner died, waits while it is suspended, and ends when its faults are healed; in virtual time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.validate import validate
from testbed_runtime.core.errors import FaultHealed, HeadgateError
from testbed_runtime.history.manifest import manifest_data, read_manifest
from testbed_runtime.runner.engine import RunControl, Runner, RunRequest
from testbed_runtime.runner.manifest import MAX_ATTEMPTS, Manifest, RunInfo, next_attempt
from testbed_runtime.runner.progress import Notice, Suspended
from testbed_runtime.simulation.loop import run_virtual
from tests.collecting import Collected
from tests.manifests import run_manifest
from tests.runner.conftest import Habits, ManifestEvaluator, MemoryHost

SEEDS = 200
RUN_S = 36.0
"""About the length of a run of these tests: one trial and its control trial."""


class DurableHost(MemoryHost):
    """Testbeds outlive their runner, as pods do. Records what was injected into which trial."""

    def __init__(self, habits: Habits) -> None:
        super().__init__(habits)
        self.injections: dict[str, list[str]] = {}
        self.disposed: list[str] = []

    async def create(self, testbed: Any, *, context: Any) -> Any:
        await asyncio.sleep(2.0)
        made = await super().create(testbed, context=context)
        inject = made.inject

        async def counted(fault: Any, **rest: Any) -> Any:
            self.injections.setdefault(context.trial, []).append(fault.name)
            await asyncio.sleep(0.2)
            return await inject(fault, **rest)

        made.inject = counted
        return made

    async def dispose(self, context: Any) -> None:
        self.disposed.append(context.trial)
        await super().dispose(context)


class RecorderCopy:
    """A `RunFolder` whose storage outlives the runner; each runner has its own disk."""

    def __init__(self, kept: dict[str, bytes], path: Path) -> None:
        self._kept = kept
        self.path = path

    async def keep(self, *names: str) -> None:
        await asyncio.sleep(0.05)
        for name in names:
            file = self.path / name
            if file.is_file():
                self._kept[name] = file.read_bytes()

    async def restore(self, *names: str) -> None:
        await asyncio.sleep(0.05)
        for name in names:
            if name in self._kept:
                (self.path / name).write_bytes(self._kept[name])


class World:
    """One run, and as many runners as it needs."""

    def __init__(self, folder: Path, document: dict[str, Any], habits: Habits | None = None) -> None:
        self.folder = folder
        self.document = document
        self.host = DurableHost(habits or Habits())
        self.progress = Collected()
        self.control = RunControl()
        self.evaluator = ManifestEvaluator()
        self.kept: dict[str, bytes] = {}
        self.runners = 0

    def runner(self, *, control: bool = True, **request: Any) -> Runner:
        self.runners += 1
        path = self.folder / f"disk-{self.runners}"
        scenario = validate(self.document).valid()
        asked = RunRequest(
            plan=compile_run(scenario, scenario_folder=self.folder, control=control),
            document=self.document,
            info=RunInfo("small-1", "simulation", "2026-01-01T00:00:00+00:00"),
            folder=path,
            resume=True,
            **request,
        )
        return Runner(
            asked,
            host=self.host,
            evaluator=self.evaluator,
            progress=self.progress,
            control=self.control,
            folder=RecorderCopy(self.kept, path),
        )

    async def killed_after(self, seconds: float) -> bool:
        """Run a runner and kill it after some seconds. Return False if it had completed before."""
        runner = self.runner()
        task = asyncio.create_task(runner.run(), name="run")
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            task.result()
            return False
        before = dict(self.kept)
        disposed, alive = self.host.dispose, list(self.host.alive)

        async def too_late(_: Any) -> None:
            """It is dead."""

        self.host.dispose = too_late
        task.cancel()
        await asyncio.wait({task})
        self.host.dispose, self.host.alive = disposed, alive
        self.kept.clear()
        self.kept.update(before)
        return True

    @property
    def disk(self) -> Path:
        """The folder of the last runner."""
        return self.folder / f"disk-{self.runners}"

    @property
    def trials(self) -> list[dict[str, Any]]:
        trials: list[dict[str, Any]] = manifest_data(self.disk)["trials"]
        return trials


@pytest.fixture
def world(tmp_path, document):
    return World(tmp_path, document)


def killed_and_resumed(world: World, seconds: list[float]) -> Any:
    async def main() -> Any:
        for after in seconds:
            await world.killed_after(after)
        return await world.runner().run()

    return run_virtual(main())


def test_a_run_continues_after_its_runner_died_at_any_moment_and_nothing_is_injected_twice(
    tmp_path, document
):
    """Killed once to three times at seeded moments: the right verdict, one injection a trial, no testbed left."""
    for seed in range(SEEDS):
        drawn = random.Random(seed)
        seconds = [drawn.uniform(0.0, RUN_S) for _ in range(drawn.randint(1, 3))]
        world = World(tmp_path / str(seed), document)
        result = killed_and_resumed(world, seconds)
        assert result.verdict.verdict == "Pass", (seed, seconds)
        assert all(len(names) == 1 for names in world.host.injections.values()), (seed, seconds)
        assert world.host.alive == [], (seed, seconds)
        names = [t["trial"] for t in world.trials]
        assert len(set(names)) == len(names)
        assert sum(1 for t in world.trials if t["role"] == "fault" and not t["voided"]) == 1
        assert all(t["ended"] for t in world.trials)


def test_finished_trials_stay_and_the_open_one_is_void_and_repeated(world):
    """Killed within the trial: the control run is not repeated, the trial is, under a new id."""
    result = killed_and_resumed(world, [RUN_S * 0.8])
    assert [(t["trial"], t["voided"]) for t in world.trials] == [
        ("main-control-1", False),
        ("main-1", True),
        ("main-1-r2", False),
    ]
    assert world.trials[1]["void_reason"] == "the runner ended during this trial"
    assert world.host.disposed == ["main-control-1", "main-1", "main-1-r2"]
    assert result.verdict.verdict == "Pass"


def test_a_completed_run_is_only_judged_again(world):
    """No trial is repeated when the runner died after the last one."""

    async def main() -> Any:
        await world.runner().run()
        return await world.runner().run()

    result = run_virtual(main())
    assert result.verdict.verdict == "Pass"
    assert len(world.host.testbeds) == 2


def test_dead_runners_do_not_use_up_the_attempts_of_a_trial(document, tmp_path):
    """Three lapsed leases end it; what a dead runner left open counts apart."""
    plan = compile_run(validate(document).valid(), scenario_folder=tmp_path, control=False).trials[0]
    manifest = Manifest(tmp_path, run_manifest())
    for _ in range(4):
        manifest.add_trial(next_attempt(plan, manifest.run.trials)).void()
    for _ in range(MAX_ATTEMPTS):
        manifest.add_trial(next_attempt(plan, manifest.run.trials)).change(voided=True)
    assert manifest.run.trials[-1].trial == "main-1-r7"
    assert next_attempt(plan, manifest.run.trials) is None


def test_another_runs_folder_is_refused(world):
    """A runner never continues the manifest of another run."""

    async def main() -> None:
        await world.runner().run()
        other = world.runner()
        other.request = RunRequest(**{
            **{name: getattr(other.request, name) for name in RunRequest.__slots__},
            "info": RunInfo("other-1", "simulation", ""),
        })  # fmt: skip
        await other.run()

    with pytest.raises(HeadgateError, match=r"holds the run small-1, not other-1"):
        run_virtual(main())


def test_a_suspended_run_ends_its_trial_and_waits(world):
    """The control run ends as planned; the trial begins when the run is resumed."""

    async def main() -> Any:
        task = asyncio.create_task(world.runner().run(), name="run")
        await asyncio.sleep(5.0)
        world.control.suspend()
        await asyncio.sleep(300.0)
        assert [t.context.trial for t in world.host.testbeds] == ["main-control-1"]
        assert world.host.alive == []
        world.control.resume()
        return await task

    assert run_virtual(main()).verdict.verdict == "Pass"
    said = [e.text for e in world.progress.events if isinstance(e, Notice | Suspended)]
    assert said.index("resumed") == 1 + said.index(
        "suspended: no other trial starts until the run is resumed"
    )


def test_a_healed_run_stops_at_once_and_is_inconclusive(world):
    """In the middle of a fault: healed, sealed, disposed of; the trial is void and nothing is repeated."""

    async def main() -> Any:
        task = asyncio.create_task(world.runner(control=False).run(), name="run")
        await asyncio.sleep(12.0)
        world.control.heal("somebody asked for it")
        return await task

    result = run_virtual(main())
    assert (result.verdict.verdict, result.verdict.reason) == ("Inconclusive", "Healed")
    assert "somebody asked for it" in str(result.verdict)
    assert [(t["trial"], t["voided"]) for t in world.trials] == [("main-1", True)]
    assert world.host.testbeds[0].log[-1][1] == "heal"
    assert world.host.testbeds[0].sealed
    assert world.host.alive == []


def test_a_healed_run_stays_healed_when_its_runner_restarts(world):
    """No other trial starts."""

    async def main() -> Any:
        task = asyncio.create_task(world.runner(control=False).run(), name="run")
        await asyncio.sleep(12.0)
        world.control.heal("somebody asked for it")
        await task
        world.control = RunControl()
        return await world.runner(control=False).run()

    result = run_virtual(main())
    assert result.verdict.reason == "Healed"
    assert len(world.host.testbeds) == 1


def test_a_run_that_is_healed_before_its_testbed_is_there_has_nothing_to_judge(world):
    """No history of that trial is asked for; the verdict is not Error."""
    make = world.host.create

    async def create(*args: Any, **rest: Any) -> Any:
        await asyncio.sleep(30.0)
        return await make(*args, **rest)

    async def main() -> Any:
        world.host.create = create
        task = asyncio.create_task(world.runner(control=False).run(), name="run")
        await asyncio.sleep(5.0)
        world.control.heal("somebody asked for it")
        return await task

    result = run_virtual(main())
    assert (result.verdict.verdict, result.verdict.reason) == ("Inconclusive", "Healed")
    assert read_manifest(world.disk).counted == []


def test_a_renewal_that_is_answered_with_healed_ends_the_run(world, document):
    """Not void and repeated, as a lapsed lease is."""
    make = world.host.create

    async def create(*args: Any, **rest: Any) -> Any:
        made = await make(*args, **rest)

        async def renew(_: str) -> None:
            raise FaultHealed("somebody healed all faults")

        made.renew = renew
        return made

    world.host.create = create
    result = run_virtual(world.runner(control=False).run())
    assert (result.verdict.verdict, result.verdict.reason) == ("Inconclusive", "Healed")
    assert [(t["trial"], t["voided"]) for t in world.trials] == [("main-1", True)]
    assert world.host.alive == []


def test_a_host_may_need_longer_to_create_a_testbed(world):
    """`create_limit_s` of the host is the time limit."""
    world.host.create_limit_s = 1.0
    result = run_virtual(world.runner(control=False).run())
    assert result.verdict.verdict == "Error"
    assert world.trials[0]["error"] == "starting the testbed took longer than 1 s"


def test_the_policy_for_inconclusive_reaches_the_junit_file(world):
    """An Inconclusive expectation is a failure there when that was asked for."""
    world.host.habits.loses_faults_of = {"main-1", "main-1-r2", "main-1-r3"}
    result = run_virtual(world.runner(control=False, inconclusive="fail").run())
    assert result.verdict.verdict == "Inconclusive"
    assert "<failure" in (result.folder / "junit.xml").read_text()
