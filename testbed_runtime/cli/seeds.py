"""`headgate simulate --seeds N`: the same scenario with many seeds, and the distributions of its results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import typer
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.models import ScenarioSpec
from testbed_runtime.cli import exits
from testbed_runtime.cli.folders import make_folder
from testbed_runtime.cli.loading import Loaded, with_seed
from testbed_runtime.cli.preflight import kept_checkpoints, require_functions
from testbed_runtime.cli.study_runs import Done, Task, simulate_all
from testbed_runtime.core.documents import METRICS_FILE, VERDICT_FILE, versioned
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.distribution import Distribution, distributions
from testbed_runtime.core.judgement.metrics import METRICS as KNOWN
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.quantities import format_value
from testbed_runtime.core.judgement.recovery import TrialRecovery
from testbed_runtime.core.judgement.verdict import Verdict
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import parse_duration
from testbed_runtime.files import naming
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.report.answer import answer_lines
from testbed_runtime.results import read_recoveries, read_rows

WORKERS = 2
"""Number of seeds that are simulated at the same time. Each takes one core and its own memory."""
ALIKE = (
    "every seed recovers alike: `jitter` lets a fault meet the timers at other moments, such as `jitter: 2 s`"
)
"""Text shown for a distribution that consists of one value."""
DISTRIBUTION_FILE = "distribution.json"


def simulate_seeds(
    loaded: Loaded, *, seeds: int, out: Path, variants: Sequence[str] = (), quiet: bool = False
) -> list[Verdict]:
    """Simulate the scenario with `seeds` seeds from its own one on. Print the distributions and return the verdicts.

    The runs and `distribution.json` are in a folder of their own below `out`. Raises UserError before the first run if a variant
    or the last seed does not exist."""
    name, first = loaded.scenario.metadata.name, loaded.scenario.spec.seed
    with_seed(loaded, first + seeds - 1)
    plan = compile_run(loaded.scenario, scenario_folder=loaded.folder.resolve(), variants=variants)
    require_functions(plan)
    kept_checkpoints(plan)
    folder = out / f"{name}-seeds-{first}-{first + seeds - 1}"
    make_folder(folder, exist_ok=True)
    verdicts: Counter[Verdict] = Counter()
    rows: list[tuple[str, MetricRow]] = []
    trials: list[TrialEntry] = []
    recoveries: dict[str, TrialRecovery] = {}
    if not quiet:
        exits.say(f"{seeds} seeds in virtual time, up to {WORKERS} at a time → {folder}")
    tasks = _tasks(loaded, range(first, first + seeds), folder, tuple(variants))
    for found in _runs(tasks, quiet=quiet):
        verdicts[found.verdict] += 1
        rows += found.rows
        trials += found.trials
        recoveries |= found.recoveries
    found_distributions = distributions(rows)
    answer = answer_lines(trials, recoveries)
    document = {
        "scenario": name,
        "seeds": [first, first + seeds - 1],
        "verdicts": dict(sorted(verdicts.items())),
        "distributions": to_builtins(found_distributions),
        "answer": answer,
    }
    with naming(path := folder / DISTRIBUTION_FILE):
        path.write_text(json.dumps(versioned(document), indent=1) + "\n", encoding="utf-8")
    counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    typer.echo(f"{name}, {seeds} seeds: {counted}")
    for line in (*lines(found_distributions), *(f"  {line}" for line in answer)):
        typer.echo(line)
    if not _draws_starts(loaded.scenario.spec) and are_alike(found_distributions):
        typer.echo(f"  {ALIKE}")
    typer.echo(f"  runs: {folder}")
    return list(verdicts)


def are_alike(found: Sequence[Distribution]) -> bool:
    """Return whether the recoveries of all seeds take equally long, to the displayed precision."""
    times = [item for item in found if item.metric == "recovery.total"]
    return bool(times) and all(
        item.count > 1
        and item.low is not None
        and item.high is not None
        and format_value(item.low, "s") == format_value(item.high, "s")
        for item in times
    )


def _draws_starts(spec: ScenarioSpec) -> bool:
    """Return whether a fault begins at a time that the seed draws."""
    faults = [*spec.faults, *(fault for variant in spec.variants for fault in variant.faults or ())]
    return any(parse_duration(fault.jitter) for fault in faults)


def lines(found: Sequence[Distribution]) -> Iterator[str]:
    """Yield one line per variant and metric: median, p5 to p95, and the trials without a value."""
    for item in found:
        unit = KNOWN[item.metric].unit
        if item.median is None or item.low is None or item.high is None:
            values = "no value"
        else:
            low, high = format_value(item.low, unit), format_value(item.high, unit)
            values = f"median {format_value(item.median, unit)}, p5 {low}, p95 {high}"
        missing = f" ({item.missing} of {item.count + item.missing} without a value)" if item.missing else ""
        bounded = (
            f" ({item.bounded} of {item.count} had not recovered: at least these values)"
            if item.bounded
            else ""
        )
        yield f"  {item.variant}: {item.metric}: {values}{missing}{bounded}"


class _SeedResult(Struct, frozen=True):
    """The result of one seed. Names of trials in `trials` and `recoveries` begin with the seed, so that no two are equal."""

    verdict: Verdict
    rows: list[tuple[str, MetricRow]]
    trials: list[TrialEntry]
    recoveries: dict[str, TrialRecovery]


def _tasks(loaded: Loaded, seeds: range, folder: Path, variants: tuple[str, ...]) -> list[Task]:
    """Return the run of each seed, with a folder of its own."""
    run = f"{loaded.scenario.metadata.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    document, spec, where = loaded.document, loaded.document["spec"], loaded.folder.resolve()
    seeded = {seed: {**document, "spec": {**spec, "seed": seed}} for seed in seeds}
    return [
        Task(seed, one, where, variants, folder / f"seed-{seed}" / run, keep_history=True)
        for seed, one in seeded.items()
    ]


def _runs(tasks: Sequence[Task], *, quiet: bool) -> Iterator[_SeedResult]:
    """Simulate WORKERS seeds at a time. Yield the results in the order of the seeds. Raises HeadgateError for a seed that could not be
    simulated."""
    folders = {task.number: task.folder for task in tasks}

    def on_done(done: Done) -> None:
        if not (folders[done.number] / VERDICT_FILE).exists():
            raise HeadgateError(f"the simulation with seed {done.number} failed: {done.verdict.summary}")
        if not quiet:
            exits.say(f"seed {done.number}: {done.verdict.verdict}")

    for done in simulate_all(tasks, jobs=WORKERS, on_done=on_done):
        yield _found(done, folders[done.number])


def _found(done: Done, run: Path) -> _SeedResult:
    """Read the run of a seed. A run without a usable trial has no metrics."""
    manifest, seed = read_manifest(run), f"seed-{done.number}"
    entries = {entry.trial: entry for entry in manifest.trials}
    rows = [
        (entries[row.trial].variant, row)
        for row in (read_rows(run, manifest) if (run / METRICS_FILE).exists() else ())
        if not entries[row.trial].is_control
    ]
    recoveries = {f"{seed}/{trial}": found for trial, found in read_recoveries(run).items()}
    trials = [replace(entry, trial=f"{seed}/{trial}") for trial, entry in entries.items()]
    return _SeedResult(done.verdict.verdict, rows, trials, recoveries)
