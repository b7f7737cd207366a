"""`headgate compare` and `headgate trend`: what differs between runs or variants, with intervals and in words."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins
from msgspec.structs import replace

from testbed_runtime.cli import options
from testbed_runtime.cli.tables import output_width, side_by_side
from testbed_runtime.core.errors import UserError, nearest, nearest_each
from testbed_runtime.core.judgement.expectations import parse_margin
from testbed_runtime.core.judgement.metrics import (
    METRICS,
    NOT_ENOUGH_TRIALS,
    QUANTILES,
    is_phase,
    parse_quantile,
)
from testbed_runtime.core.options import ALIASES, equal_values
from testbed_runtime.core.trial.manifest import RunManifest
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.results import read_rows

if TYPE_CHECKING:
    from testbed_runtime.core.judgement.comparison import Comparison, Group, Key

Metric = Annotated[
    list[str] | None,
    typer.Option(
        help="Compare this metric, such as recovery.detect or 'latency p99'; may be repeated.",
        show_default=False,
    ),
]
Matters = Annotated[
    str, typer.Option(help="The smallest difference that matters, as a share of the reference.")
]
DEFAULT_MATTERS = "5 %"
MAX_CHANGES = 20
"""Maximum differing settings that are listed for two runs."""


def compare(
    runs: options.RunFolders,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Only this variant; may be repeated. The first one is the reference."),
    ] = None,
    metric: Metric = None,
    matters: Matters = DEFAULT_MATTERS,
    as_json: options.AsJson = False,
) -> None:
    """Compare the variants of a run, or several runs with the first one, variant by variant.

    Trials with the same seed are compared in pairs. The confidence of 95 % applies to all intervals together."""
    from testbed_runtime.core.judgement.comparison import comparison

    loaded = {folder: _groups(folder, variant or (), partly=len(runs) > 1) for folder in _different(runs)}
    keys, share = _keys(metric or ()), _share(matters)
    if len(loaded) == 1:
        groups = next(iter(loaded.values()))
        tables = [("", comparison(_several(groups, runs[0]), keys=keys, matters=share))]
    else:
        tables = [
            (name, comparison(groups, keys=keys, matters=share)) for name, groups in _across(loaded).items()
        ]
    _print(tables, _changes(loaded), as_json=as_json)


def trend(
    runs: options.RunFolders,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant; may be repeated.")] = None,
    metric: Metric = None,
    matters: Matters = DEFAULT_MATTERS,
    as_json: options.AsJson = False,
) -> None:
    """Show how runs of a scenario change over time: each run, oldest first, against the one before.

    With a folder of runs (headgate-runs), show the median of each evaluated run, and the seconds that each option cost over all
    recoveries. This starts Spark. Simulated runs count once `headgate evaluate` has evaluated them."""
    from testbed_runtime.cli import overview
    from testbed_runtime.core.judgement.comparison import comparison

    if len(runs) == 1 and overview.is_folder_of_runs(runs[0]):
        data = overview.select(overview.read(runs[0]), _keys(metric or ()), variant or ())
        options.show(data, overview.lines(data), as_json=as_json)
        return
    ordered = sorted(_different(runs), key=lambda folder: read_manifest(folder).started)
    if len(ordered) < 2:
        raise UserError("RUNS", "a trend needs at least two runs", "name more run folders")
    loaded = {folder: _groups(folder, variant or (), partly=True) for folder in ordered}
    tables = [
        (name, comparison(groups, keys=_keys(metric or ()), matters=_share(matters), each_with_previous=True))
        for name, groups in _across(loaded).items()
    ]
    _print(tables, _changes(loaded), as_json=as_json)


# ---- reading


def _different(runs: Sequence[Path]) -> Sequence[Path]:
    """Return the folders. Raises UserError if one is named twice, or is a copy of another one: a run does not differ from itself."""
    seen: list[tuple[Path, RunManifest]] = []
    for folder in runs:
        manifest = read_manifest(folder)
        same = next((before for before, of_before in seen if of_before == manifest), None)
        if same is not None:
            problem = "is named twice" if same.resolve() == folder.resolve() else f"is a copy of {same}"
            raise UserError(str(folder), f"{problem}: a run does not differ from itself", "name another run")
        seen.append((folder, manifest))
    return runs


def _groups(folder: Path, variants: Sequence[str], *, partly: bool) -> list[Group]:
    """Return the trials of these variants (none: of all). `partly`: a run need only have one of them. Raises UserError."""
    from testbed_runtime.runner.conclude import groups_of

    manifest = read_manifest(folder)
    found = {group.name: group for group in groups_of(manifest, read_rows(folder, manifest))}
    if not found:
        raise UserError(str(folder), "has no trial that counts", "its report says why")
    unknown = [name for name in variants if name not in found]
    if unknown and (not partly or len(unknown) == len(variants)):
        raise UserError(str(folder), f"has no variant {', '.join(unknown)}", nearest_each(unknown, found))
    return [found[name] for name in variants or found if name in found]


def _several(groups: list[Group], folder: Path) -> list[Group]:
    if len(groups) > 1:
        return groups
    raise UserError(
        str(folder), f"has one variant, {groups[0].name}: nothing to compare it with", "name a second run"
    )


def _across(loaded: Mapping[Path, Sequence[Group]]) -> dict[str, list[Group]]:
    """Return the groups of each variant, one for each run. Runs with one variant each are compared even if the names of the variants differ."""
    labels = _labels(list(loaded))
    if all(len(groups) == 1 for groups in loaded.values()):
        return {"": [replace(groups[0], name=labels[folder]) for folder, groups in loaded.items()]}
    common = [
        g.name
        for g in next(iter(loaded.values()))
        if all(g.name in {o.name for o in groups} for groups in loaded.values())
    ]
    if not common:
        raise UserError("RUNS", "the runs have no variant in common", "name one of each run with --variant")
    return {
        name: [
            replace(next(g for g in groups if g.name == name), name=labels[folder])
            for folder, groups in loaded.items()
        ]
        for name in common
    }


def _labels(folders: Sequence[Path]) -> dict[Path, str]:
    """Name each run by its folder, with the parent if two have the same name."""
    names = [folder.resolve().name for folder in folders]
    return {
        folder: name if names.count(name) == 1 else f"{folder.resolve().parent.name}/{name}"
        for folder, name in zip(folders, names, strict=True)
    }


def _keys(metrics: Sequence[str]) -> tuple[Key, ...]:
    from testbed_runtime.core.judgement.comparison import HEADLINE

    return tuple(_key(text) for text in metrics) or HEADLINE


def _key(text: str) -> Key:
    """Parse a metric with its quantile and phase, in any order. Raises UserError."""
    from testbed_runtime.core.judgement.comparison import Key

    name, *rest = text.split() or [""]
    info = METRICS.get(name)
    if info is None:
        hint = nearest(name, METRICS, "`headgate faults --metrics` lists them")
        raise UserError("--metric", f"{name!r} is not a metric", hint)
    if info.lower_is_better is None:
        raise UserError(
            "--metric", f"{name!r} cannot be compared", "neither a higher nor a lower value is better"
        )
    phase = next((word for word in rest if is_phase(word)), "")
    if phase and not info.phased:
        raise UserError("--metric", f"{name} has no phases", f"leave out {phase}")
    quantile = None
    for word in rest:
        if word == phase:
            continue
        try:
            quantile = parse_quantile(word)
        except ValueError:
            problem = f"{word!r} is neither a quantile nor a phase"
            raise UserError("--metric", problem, "write it as in 'latency p99 outage'") from None
    if info.quantiles and quantile not in QUANTILES:
        quantiles = ", ".join(f"p{q * 100:g}" for q in QUANTILES)
        raise UserError(
            "--metric", f"{name} needs a quantile, one of {quantiles}", "write it as in 'latency p99'"
        )
    if quantile is not None and not info.quantiles:
        raise UserError("--metric", f"{name} takes no quantile: means are compared", f"write {name!r}")
    return Key(name, quantile, phase)


def _share(text: str) -> float:
    try:
        value, _ = parse_margin(text, "ratio")
    except ValueError as error:
        raise UserError("--matters", str(error)) from None
    if value > 1:
        raise UserError("--matters", f"{text} is more than 100 %", "write a percentage, such as '5 %'")
    return value


def _changes(loaded: Mapping[Path, Sequence[Group]]) -> dict[str, list[str]]:
    """Return, for each pair of runs, the settings in which the compared variants differ."""
    labels = _labels(list(loaded))
    single = all(len(groups) == 1 for groups in loaded.values())
    found: dict[str, list[str]] = {}
    for (old, first), (new, second) in itertools.pairwise(loaded.items()):
        head = f"{labels[old]} → {labels[new]}"
        manifests = read_manifest(old), read_manifest(new)
        names = [manifest.name for manifest in manifests]
        if names[0] != names[1]:
            found[head] = [f"scenario: {names[0]} → {names[1]}"]
            continue
        common = {g.name for g in first} & {g.name for g in second}
        was, now = (
            dict(
                _settings(
                    manifest, {g.name: "" if single else g.name for g in groups if single or g.name in common}
                )
            )
            for manifest, groups in zip(manifests, (first, second), strict=True)
        )
        changed = [
            f"{key}: {was.get(key, 'not set')} → {now.get(key, 'not set')}"
            for key in dict.fromkeys((*was, *now))
            if key not in was or key not in now or not equal_values(key.split(": ")[-1], was[key], now[key])
        ]
        left_out = len(changed) - MAX_CHANGES
        changed[MAX_CHANGES:] = [f"and {left_out} more"] if left_out > 0 else []
        if changed:
            found[head] = changed
    return found


def _settings(manifest: RunManifest, shown: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield the settings of some variants, one for each path in their document. `shown`: variant → its name in the output."""
    from testbed_runtime.report.words import seconds_short  # it loads the report, which takes long

    yield "environment", manifest.environment
    for name, called in shown.items():
        own = [e for e in manifest.trials if not e.is_control and e.variant == name]
        head, first = (f"{called}: " if called else ""), own[0]
        yield f"{head}flinkVersion", first.flink_version
        ignored = {
            key: f"{value} (ignored)"
            for key, value in first.configuration.items()
            if not first.options.is_set(ALIASES.get(key, key))
        }
        yield from _flat(head, first.options.as_map() | ignored)
        vertices = [
            {key: value for key, value in vertex.items() if value not in (None, "", 0)}
            for vertex in to_builtins(first.job.vertices)
        ]
        yield from _flat(f"{head}job", {**to_builtins(first.job), "vertices": vertices})
        drawn = len({tuple(fault.at_s for fault in entry.faults) for entry in own}) > 1
        for fault in first.faults:
            times = {} if drawn else {"at": seconds_short(fault.at_s)}
            fields = {"kind": fault.kind, **times, "duration": seconds_short(fault.duration_s)}
            yield from _flat(f"{head}faults[{fault.name}]", {**fields, "params": to_builtins(fault.params)})


def _flat(path: str, value: Any) -> Iterable[tuple[str, str]]:
    """Yield each leaf of a document with its path. An item of a list is identified by its name, or by the vertices that it connects."""
    joint = "" if not path or path.endswith(" ") else "."
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{path}{joint}{key}", inner)
    elif isinstance(value, list | tuple) and all(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            name = item.get("name") or " → ".join(filter(None, (item.get("from"), item.get("to")))) or number
            yield from _flat(f"{path}[{name}]", {k: v for k, v in item.items() if k != "name"})
    else:
        yield path, f"{value:.12g}" if isinstance(value, float) else str(value)


# ---- output


def _print(
    tables: Sequence[tuple[str, Comparison]], changes: Mapping[str, Sequence[str]], *, as_json: bool
) -> None:
    listed = [f"{runs}: {change}" for runs, changed in changes.items() for change in changed]
    data = {"changes": listed, "comparisons": [{"variant": n, **t.to_json()} for n, t in tables]}
    lines: list[str] = []
    for runs, changed in changes.items():
        lines += [f"different settings, {runs}:", *(f"  {change}" for change in changed)]
    for name, table in tables:
        lines += [*([f"\n{name}"] if name else []), *text_table(table)]
    contrasts = [found for _, table in tables for found in table.contrasts]
    metrics = {found.key for found in contrasts}
    few = [found for found in contrasts if found.reason == NOT_ENOUGH_TRIALS]
    if few and len(metrics) > 1:
        lines.append("If you compare fewer metrics, you need fewer trials: name one with --metric.")
    options.show(data, lines, as_json=as_json)


def text_table(table: Comparison) -> list[str]:
    """Return a comparison as lines: a row for each metric, a column for each group, then the answers in words."""
    lines = side_by_side(table, width=output_width())
    few = [c for c in table.contrasts if c.reason == NOT_ENOUGH_TRIALS]
    shown = [c for c in table.contrasts if c not in few] if len(few) > 1 else table.contrasts
    lines += [f"{c.key.title}: {c.name} against {c.reference}: {c.text}" for c in shown]
    if len(few) > 1 and shown:  # without other metrics, the answer says so
        titles = dict.fromkeys(c.key.title for c in few)
        lines.append(f"{', '.join(titles)}: unknown; an interval needs more trials")
    return [*lines, *(f"answer: {text}" for text in table.summary)]
