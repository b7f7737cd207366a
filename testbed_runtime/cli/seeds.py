"""`headgate simulate --seeds N`: the same scenario with many seeds, and the distributions of its results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from msgspec import Struct, to_builtins

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.models import ScenarioSpec
from testbed_runtime.cli import exits
from testbed_runtime.cli.folders import make_folder
from testbed_runtime.cli.interrupting import keeping_interrupts
from testbed_runtime.cli.loading import Loaded, with_seed
from testbed_runtime.core.documents import METRICS_FILE, VERDICT_FILE, versioned
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.distribution import Distribution, distributions
from testbed_runtime.core.judgement.metrics import METRICS as KNOWN
from testbed_runtime.core.judgement.quantities import format_value
from testbed_runtime.core.judgement.recovery import TrialRecovery
from testbed_runtime.core.values import parse_duration
from testbed_runtime.files import naming
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.report.answer import answer_lines
from testbed_runtime.results import read_recoveries, read_rows

MODULE = "testbed_runtime.cli.main"
WORKERS = 2
"""Number of seeds that are simulated at the same time. Each takes one core and its own memory."""
ALIKE = (
    "every seed recovers alike: `jitter` lets a fault meet the timers at other moments, such as `jitter: 2 s`"
)
"""Text shown for a distribution that consists of one value."""
DISTRIBUTION_FILE = "distribution.json"


def simulate_seeds(
    loaded: Loaded,
    *,
    seeds: int,
    out: Path,
    variants: Sequence[str] = (),
    quiet: bool = False,
    checkpoint: Path | None = None,
) -> list[str]:
    """Simulate the scenario with `seeds` seeds from its own one on. Print the distributions and return the verdicts.

    The runs and `distribution.json` are in a folder of their own below `out`. Raises UserError before the first run if a variant
    or the last seed does not exist."""
    name, first = loaded.scenario.metadata.name, loaded.scenario.spec.seed
    with_seed(loaded, first + seeds - 1)
    compile_run(loaded.scenario, scenario_folder=loaded.folder, variants=variants)
    folder = out / f"{name}-seeds-{first}-{first + seeds - 1}"
    make_folder(folder, exist_ok=True)
    verdicts: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    trials: list[dict[str, Any]] = []
    recoveries: dict[str, TrialRecovery] = {}
    words = [word for variant in variants for word in ("--variant", variant)]
    words += [] if checkpoint is None else ["--from-checkpoint", str(checkpoint)]
    if not quiet:
        exits.say(f"{seeds} seeds in virtual time, up to {WORKERS} at a time → {folder}")
    for found in _runs(loaded, range(first, first + seeds), folder, words):
        verdicts[found.verdict] += 1
        rows += found.rows
        trials += found.trials
        recoveries |= found.recoveries
        if not quiet:
            exits.say(f"seed {found.seed}: {found.verdict}")
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


class _Found(Struct, frozen=True):
    """The result of one seed. Names of trials in `trials` and `recoveries` begin with the seed, so that no two are equal."""

    seed: int
    verdict: str
    rows: list[dict[str, Any]]
    trials: list[dict[str, Any]]
    recoveries: dict[str, TrialRecovery]


def _runs(loaded: Loaded, seeds: range, folder: Path, words: Sequence[str]) -> Iterator[_Found]:
    """Simulate WORKERS seeds at a time, each in a process of its own. Yield the results in the order of the seeds."""
    running_now: dict[int, subprocess.Popen[bytes]] = {}
    waiting = deque(seeds)
    earlier = {seed: frozenset((folder / f"seed-{seed}").glob(f"*/{VERDICT_FILE}")) for seed in seeds}
    try:
        while waiting or running_now:
            while waiting and len(running_now) < WORKERS:
                seed = waiting.popleft()
                with keeping_interrupts():  # Ctrl-C is handled once the process is known, and ends it
                    running_now[seed] = _start(loaded.path, seed, folder / f"seed-{seed}", words)
            seed = next(iter(running_now))
            running_now[seed].wait()
            del running_now[seed]
            yield _result(seed, folder / f"seed-{seed}", before=earlier[seed])
    finally:
        for process in running_now.values():
            process.kill()
            process.wait()


def _start(path: Path, seed: int, out: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", MODULE, "simulate", str(path), "--seed", str(seed), "--out", str(out)]
    return subprocess.Popen([*command, "--quiet", *words], stdout=subprocess.DEVNULL)  # noqa: S603 - own command


def _result(seed: int, out: Path, *, before: frozenset[Path]) -> _Found:
    """Read the new run of a seed; `before` has the earlier runs. Raises HeadgateError if no run was written. Its process has
    printed the reason. A run without a usable trial has no metrics."""
    runs = [path for path in out.glob(f"*/{VERDICT_FILE}") if path not in before]
    if not runs:
        raise HeadgateError(f"the simulation with seed {seed} ended without a verdict")
    run = runs[-1].parent
    verdict = json.loads(runs[-1].read_text(encoding="utf-8"))["verdict"]
    manifest = read_manifest(run)
    roles: Mapping[str, dict[str, Any]] = {t["trial"]: t for t in manifest["trials"]}
    rows = [
        {**row, "variant": roles[row["trial"]]["variant"], "role": roles[row["trial"]]["role"]}
        for row in (read_rows(run, manifest) if (run / METRICS_FILE).exists() else ())
    ]
    recoveries = {f"seed-{seed}/{trial}": found for trial, found in read_recoveries(run).items()}
    trials = [{**entry, "trial": f"seed-{seed}/{trial}"} for trial, entry in roles.items()]
    return _Found(seed, verdict, rows, trials, recoveries)
