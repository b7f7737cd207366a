"""The runs of a study: simulated ones, several at a time in processes of their own, and real ones."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.kinds import TuningStudy
from testbed_runtime.api.models import Scenario
from testbed_runtime.api.validate import InvalidScenario
from testbed_runtime.children import ends_with_parent
from testbed_runtime.cli import running
from testbed_runtime.cli.exits import say
from testbed_runtime.cli.interrupting import keeping_interrupts
from testbed_runtime.cli.loading import Loaded, changed
from testbed_runtime.cli.session import Session
from testbed_runtime.core.documents import HISTORY_FOLDER, RECOVERY_FILE
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.detector import Quality
from testbed_runtime.core.judgement.quantities import counted
from testbed_runtime.core.judgement.verdict import RunVerdict, Verdict
from testbed_runtime.files import read_json
from testbed_runtime.process.machine import machine_facts
from testbed_runtime.runner.engine import RunRequest
from testbed_runtime.runner.manifest import RunInfo
from testbed_runtime.runner.progress import Silent
from testbed_runtime.tuning import grid, score
from testbed_runtime.tuning.score import Line, Outcome

KILLED = "a simulation process was killed, perhaps because memory ran out: free some memory (`headgate tune --jobs 1` needs the least)"
CHILD_ENDS_S = 2.0
"""How long a simulation may take to end after SIGTERM. Waiting for it ensures that it writes nothing after its files were deleted."""


class Task(Struct, frozen=True):
    """One run in virtual time, as plain data for another process. `number` is the caller's own."""

    number: int
    document: Mapping[str, Any]
    """A valid scenario."""
    scenario_folder: Path
    variants: tuple[str, ...]
    folder: Path
    keep_history: bool = False
    """Whether the history stays. Those of a study are deleted when their runs have ended: hundreds of them would fill the disk."""


class Done(Struct, frozen=True):
    """The verdict of a run, and the content of its recovery.json."""

    number: int
    verdict: RunVerdict
    recovery: dict[str, Any]


class StudyRuns(Struct, frozen=True, kw_only=True):
    """The runs of a study on this machine: their scenarios, their folder, and how many are simulated at the same time."""

    study: TuningStudy
    scenarios: Mapping[str, Loaded]
    out: Path
    jobs: int
    quiet: bool = False

    def doubts(self) -> list[str]:
        """Return the warnings that the study adds to those of the unchanged scenarios, such as a value without an effect, or a quantile over
        too few trials. Each one names its scenarios."""
        found: dict[str, dict[str, None]] = {}
        for run in self._planned():
            try:
                warnings = with_row(self.scenarios[run.scenario], self.study, run).warnings
            except InvalidScenario:
                continue  # the row has an Error with the reason
            known = self.scenarios[run.scenario].warnings
            for warning in warnings:
                if warning not in known:
                    found.setdefault(warning, {})[run.scenario] = None
        return [f"{', '.join(scenarios)}: {warning}" for warning, scenarios in found.items()]

    def search(self, detectors: Mapping[int, Quality]) -> list[Outcome]:
        """Run every row in virtual time. With several trials, each row gets one first, and all of them only if it may still be the best."""
        trials = self.study.spec.trials or 1
        if trials == 1:
            return self._simulated()
        first = self._with_trials(1)._simulated()  # noqa: SLF001 - the same class
        remaining = score.survivors(self.study.spec, score.table(self.study.spec, first, detectors))
        second = self._simulated(remaining)
        done = {outcome.run.name for outcome in second}
        return [o for o in first if o.run.name not in done] + second

    def run_real(self, only: Collection[int] | None = None) -> list[Outcome]:
        """Run the rows with these numbers (None: all) with real processes, one run after the other, with one Spark for all."""
        planned, ready, outcomes = self._prepared(only)
        settings = running.RunSettings(out=self.out, variants=self.study.spec.variants, quiet=self.quiet)
        with Session() as session:
            for number, (run, loaded) in enumerate(zip(planned, ready, strict=True), 1):
                say(f"{number}/{len(planned)} {run.scenario}: {run.row.text}")
                result = running.run_loaded(loaded, session, settings)
                running.print_verdict(run.name, result)
                recovery = read_json(result.folder / RECOVERY_FILE, {})
                outcomes.append(_outcome(run, loaded, result.verdict, recovery))
        return outcomes

    def confirm(self, lines: Sequence[Line], count: int) -> dict[int, Line]:
        """Repeat the best rows with real processes and the scenarios' own numbers of trials. Return their lines by row number."""
        chosen = {line.row.number for line in score.ranked(self.study.spec, lines)[:count]}
        if not chosen:
            return {}
        once = self._with_trials(None)
        found = score.table(once.study.spec, once.run_real(chosen))
        return {line.row.number: line for line in found if line.row.number in chosen}

    def _planned(self) -> Iterable[grid.PlannedRun]:
        return grid.planned_runs(self.study.metadata.name, self.study.spec)

    def _with_trials(self, trials: int | None) -> StudyRuns:
        spec = self.study.spec.model_copy(update={"trials": trials})
        return replace(self, study=self.study.model_copy(update={"spec": spec}))

    def _simulated(self, only: Collection[int] | None = None) -> list[Outcome]:
        """Simulate the rows with these numbers; None: all."""
        planned, loaded, refused = self._prepared(only)
        folder = self.out / f"{self.study.metadata.name}.study"
        variants = tuple(self.study.spec.variants)
        tasks = [
            Task(number, found.document, found.folder.resolve(), variants, folder / run.name)
            for number, (run, found) in enumerate(zip(planned, loaded, strict=True))
        ]
        trials = self.study.spec.trials
        each = f" ({counted(trials, 'trial')})" if trials else ""
        count = 0

        def on_done(done: Done) -> None:
            nonlocal count
            count += 1
            run = planned[done.number]
            self._say(f"{count}/{len(tasks)} {run.scenario}{each}: {run.row.text}: {done.verdict.verdict}")

        self._say(f"{len(tasks)} runs{each} in virtual time, up to {self.jobs} at a time")
        results = simulate_all(tasks, jobs=self.jobs, on_done=on_done)
        return refused + [
            _outcome(run, found, done.verdict, done.recovery)
            for run, found, done in zip(planned, loaded, results, strict=True)
        ]

    def _prepared(
        self, only: Collection[int] | None
    ) -> tuple[list[grid.PlannedRun], list[Loaded], list[Outcome]]:
        """Return the runs of the rows with these numbers (None: all) with their scenarios, and an outcome for each run whose values
        contradict each other: a grid has such combinations. Raises InvalidScenario if no row of the grid can run."""
        planned, loaded, refused = [], [], []
        first: InvalidScenario | None = None
        for run in self._planned():
            if only is not None and run.row.number not in only:
                continue
            try:
                found = with_row(self.scenarios[run.scenario], self.study, run)
            except InvalidScenario as error:
                first = first or error
                verdict = _failed("; ".join(map(str, error.errors)))
                refused.append(_outcome(run, self.scenarios[run.scenario], verdict, {}))
                continue
            planned.append(run)
            loaded.append(found)
        if first is not None and only is None and all(run.row.reference for run in planned):
            raise first
        return planned, loaded, refused

    def _say(self, text: str) -> None:
        if not self.quiet:
            say(text)


def with_row(loaded: Loaded, study: TuningStudy, run: grid.PlannedRun) -> Loaded:
    """Return the scenario with the row's values. Raises InvalidScenario when they contradict it."""
    spec = grid.scenario_spec(loaded.document["spec"], study.spec, run.row)
    return changed(loaded, spec, f"{loaded.path} with {run.row.text}")


def _failed(why: str) -> RunVerdict:
    return RunVerdict(verdict=Verdict.ERROR, summary=why)


def _outcome(
    run: grid.PlannedRun, loaded: Loaded, verdict: RunVerdict, recovery: Mapping[str, Any]
) -> Outcome:
    return Outcome(run, verdict, recovery, grid.faults_of(loaded.document["spec"]))


# ---- processes


def simulate_all(tasks: Sequence[Task], *, jobs: int, on_done: Callable[[Done], None]) -> list[Done]:
    """Simulate all runs, `jobs` at a time. Return their results in the order of the tasks."""
    found = {}
    for done in _results(tasks, jobs):
        on_done(done)
        found[done.number] = done
    return [found[task.number] for task in tasks]


def _results(tasks: Sequence[Task], jobs: int) -> Iterator[Done]:
    if jobs <= 1 or len(tasks) <= 1:
        yield from map(simulate_one, tasks)
        return
    context = multiprocessing.get_context("spawn")
    tie = ends_with_parent(signal.SIGKILL)  # otherwise they would wait forever for work from a killed parent
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context, initializer=tie)
    try:
        yield from _completed(pool, tasks)
    except BaseException:  # Ctrl-C: the runs that have begun are not waited for
        children = multiprocessing.active_children()
        for child in children:
            child.terminate()
        for child in children:
            child.join(CHILD_ENDS_S)
        for task in tasks:
            _forget_history(task)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _completed(pool: ProcessPoolExecutor, tasks: Iterable[Task]) -> Iterator[Done]:
    with keeping_interrupts():  # the first submitted task starts all processes of the pool
        numbers = {pool.submit(simulate_one, task): task.number for task in tasks}
    for future in as_completed(numbers):
        try:
            yield future.result()
        except BrokenProcessPool:
            yield Done(numbers[future], _failed(KILLED), {})


def simulate_one(task: Task) -> Done:
    """Simulate one run into its folder. A run that cannot be carried out gets the verdict Error."""
    from testbed_runtime.simulation.entry import simulate

    task.folder.mkdir(parents=True, exist_ok=True)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    info = RunInfo(task.folder.name, "simulation", started, machine_facts())
    scenario = Scenario.model_validate(task.document)
    try:
        plan = compile_run(scenario, scenario_folder=task.scenario_folder, variants=task.variants)
        result = simulate(RunRequest(plan, task.document, info, task.folder), Silent())
    except HeadgateError as error:
        return Done(task.number, _failed(str(error)), {})
    finally:
        _forget_history(task)
    return Done(task.number, result.verdict, read_json(task.folder / RECOVERY_FILE, {}))


def _forget_history(task: Task) -> None:
    if not task.keep_history:
        shutil.rmtree(task.folder / HISTORY_FOLDER, ignore_errors=True)
