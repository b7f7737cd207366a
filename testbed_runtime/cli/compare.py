"""`headgate compare` and `headgate trend`: what differs between runs or variants, with intervals and in words."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from testbed_runtime.cli import options

if TYPE_CHECKING:
    from testbed_runtime.core.judgement.comparison import Group, Key

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

    loaded = {folder: _groups(folder, variant or ()) for folder in dict.fromkeys(runs)}
    keys, share = _keys(metric or ()), _share(matters)
    if len(loaded) == 1:
        groups = next(iter(loaded.values()))
        tables = [("", comparison(_several(groups, runs[0]), keys=keys, matters=share))]
    else:
        tables = [
            (name, comparison(groups, keys=keys, matters=share)) for name, groups in _across(loaded).items()
        ]
    _print(tables, _changes(list(loaded)) if len(loaded) > 1 else [], as_json=as_json)


def trend(
    runs: options.RunFolders,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant; may be repeated.")] = None,
    metric: Metric = None,
    matters: Matters = DEFAULT_MATTERS,
    as_json: options.AsJson = False,
) -> None:
    """Show how runs of a scenario change over time: each run, oldest first, against the one before."""
    from testbed_runtime.core.errors import UserError
    from testbed_runtime.core.judgement.comparison import comparison
    from testbed_runtime.runner.manifest import read_manifest

    ordered = sorted(dict.fromkeys(runs), key=lambda folder: str(read_manifest(folder).get("started", "")))
    if len(ordered) < 2:
        raise UserError("RUNS", "a trend needs at least two runs", "name more run folders")
    loaded = {folder: _groups(folder, variant or ()) for folder in ordered}
    tables = [
        (name, comparison(groups, keys=_keys(metric or ()), matters=_share(matters), each_with_previous=True))
        for name, groups in _across(loaded).items()
    ]
    _print(tables, _changes(ordered), as_json=as_json)


# ---- reading


def _groups(folder: Path, variants: Sequence[str]) -> list[Group]:
    from testbed_runtime.core.errors import UserError
    from testbed_runtime.runner.judge import groups_of, read_rows
    from testbed_runtime.runner.manifest import read_manifest

    found = {group.name: group for group in groups_of(read_manifest(folder), read_rows(folder))}
    unknown = [name for name in variants if name not in found]
    if unknown or not found:
        there = ", ".join(found) or "none with a trial that counts"
        raise UserError(str(folder), f"has no variant {', '.join(unknown)}".rstrip(), f"there are {there}")
    return [found[name] for name in variants or found]


def _several(groups: list[Group], folder: Path) -> list[Group]:
    from testbed_runtime.core.errors import UserError

    if len(groups) > 1:
        return groups
    raise UserError(
        str(folder), f"has one variant, {groups[0].name}: nothing to compare it with", "name a second run"
    )


def _across(loaded: Mapping[Path, Sequence[Group]]) -> dict[str, list[Group]]:
    """Return the groups of each variant, one for each run. Runs with one variant each are compared whatever it is called."""
    from testbed_runtime.core.errors import UserError

    labels = _labels(list(loaded))
    if all(len(groups) == 1 for groups in loaded.values()):
        return {"": [replace(groups[0], name=labels[folder]) for folder, groups in loaded.items()]}
    common = [
        g.name
        for g in next(iter(loaded.values()))
        if all(g.name in {o.name for o in groups} for groups in loaded.values())
    ]
    if not common:
        raise UserError("RUNS", "the runs have no variant in common", "name one of each with --variant")
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
    from testbed_runtime.core.errors import UserError
    from testbed_runtime.core.judgement.comparison import HEADLINE, Key
    from testbed_runtime.core.judgement.metrics import METRICS, QUANTILES, TRIAL_PHASES, parse_quantile

    found = []
    for text in metrics:
        name, *rest = text.split()
        info = METRICS.get(name)
        if info is None or info.lower_is_better is None:
            hint = "name a metric with a better direction: `headgate faults --metrics` lists them"
            raise UserError("--metric", f"{name!r} cannot be compared", hint)
        phase = next((word for word in rest if word in TRIAL_PHASES), "")
        try:
            quantile = next((parse_quantile(word) for word in rest if word not in TRIAL_PHASES), None)
        except ValueError as error:
            raise UserError("--metric", str(error)) from None
        if info.quantiles != (quantile is not None) or (info.quantiles and quantile not in QUANTILES):
            hint = "write it as in 'latency p99'" if info.quantiles else f"write {name!r}"
            raise UserError("--metric", f"{text!r} has a wrong quantile", hint)
        found.append(Key(name, quantile, phase))
    return tuple(found) or HEADLINE


def _share(text: str) -> float:
    from testbed_runtime.core.errors import UserError
    from testbed_runtime.core.judgement.expectations import parse_margin

    try:
        value, relative = parse_margin(text, "ratio")
    except ValueError as error:
        raise UserError("--matters", str(error)) from None
    if not relative:
        raise UserError("--matters", f"{text!r} is no share", "write a percentage, such as '5 %'")
    return value


def _changes(folders: Sequence[Path]) -> list[str]:
    """Return which settings differ between the runs, so that no difference is attributed to the wrong setting."""
    from testbed_runtime.runner.manifest import read_manifest

    labels = _labels(folders)
    manifests = [(labels[folder], read_manifest(folder)) for folder in folders]
    found: list[str] = []
    for (before, old), (after, new) in itertools.pairwise(manifests):
        was, now = dict(_settings(old)), dict(_settings(new))
        changed = [
            f"{key}: {was.get(key, 'not set')} → {now.get(key, 'not set')}"
            for key in dict.fromkeys((*was, *now))
            if was.get(key) != now.get(key)
        ]
        if changed:
            found.append(f"{before} → {after}: {'; '.join(changed)}")
    return found


def _settings(manifest: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    yield "environment", str(manifest.get("place", ""))
    for entry in manifest["trials"]:
        if entry.get("role") == "control":
            continue
        head = "" if entry["variant"] == "main" else f"{entry['variant']}: "
        yield f"{head}flinkVersion", str(entry.get("flinkVersion", ""))
        for key, value in (entry.get("configuration") or {}).items():
            yield f"{head}{key}", str(value)
        yield f"{head}job", json.dumps(entry.get("job"), sort_keys=True)
        faults = [
            {k: f.get(k) for k in ("name", "kind", "at_s", "duration_s", "params")} for f in entry["faults"]
        ]
        yield f"{head}faults", json.dumps(faults, sort_keys=True)


# ---- output


def _print(tables: Sequence[tuple[str, Mapping[str, Any]]], changes: Sequence[str], *, as_json: bool) -> None:
    data = {"schema": 1, "changes": list(changes), "comparisons": [{"variant": n, **t} for n, t in tables]}
    lines = [f"settings: {change}" for change in changes]
    for name, table in tables:
        lines += [*([f"\n{name}"] if name else []), *text_table(table)]
    options.show(data, lines, as_json=as_json)


def text_table(table: Mapping[str, Any]) -> list[str]:
    """Return comparison.json as lines: a row for each metric, a column for each group, then the answers in words."""
    groups = table["groups"]
    head = ["", *(f"{g['name']} ({g['trials']} trial{'s' if g['trials'] != 1 else ''})" for g in groups)]
    rows = [
        [metric["title"], *(group["values"][index]["text"] for group in groups)]
        for index, metric in enumerate(table["metrics"])
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]
    lines += [f"{c['title']}: {c['group']} against {c['reference']}: {c['text']}" for c in table["contrasts"]]
    return [*lines, *(f"answer: {text}" for text in table["summary"])]
