"""`headgate trend FOLDER`: every evaluated run of a folder, and which options cost the seconds, from its run catalogue."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed_runtime.cli import exits
from testbed_runtime.cli.tables import GAP, aligned
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.judgement.quantities import format_value
from testbed_runtime.history.manifest import MANIFEST

if TYPE_CHECKING:
    from testbed_runtime.core.judgement.comparison import Key

Rows = Sequence[Mapping[str, Any]]


def is_folder_of_runs(path: Path) -> bool:
    """Return whether a path is a folder of runs, and not the folder of a run."""
    return path.is_dir() and not (path / MANIFEST).exists() and any(path.glob(f"*/{MANIFEST}"))


def read(folder: Path) -> dict[str, Rows]:
    """Return the rows of each job over the folder's catalogue. Raises UserError if there is no catalogue, HeadgateError if Spark fails."""
    from testbed_runtime.cli.session import Session
    from testbed_runtime.evaluation.catalogue import FOLDER

    if not (folder / FOLDER).is_dir():
        hint = f"`headgate evaluate {folder}/…` adds runs to it, or name the runs themselves"
        raise UserError(str(folder), "has no catalogue of evaluated runs", hint)
    exits.say("reading the catalogue with Spark")
    with Session() as session:
        session.spark.on_log = lambda line: None
        return {**session.run(session.spark.trends(folder / FOLDER), became="")}


def select(found: Mapping[str, Rows], keys: Sequence[Key], variants: Sequence[str]) -> dict[str, Any]:
    """Return what the command prints: the rows of these metrics and variants (none: of all), and the cost of every option. Pure."""
    from testbed_runtime.evaluation.catalogue import METRICS, PRICES

    chosen = [
        {**row, "title": key.title, "unit": key.unit}
        for key in keys
        for row in found.get(METRICS, ())
        if key.matches(row["metric"], row["phase"], row["quantile"])
        and (not variants or row["variant"] in variants)
    ]
    return {"metrics": chosen, "prices": list(found.get(PRICES, ()))}


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of runs for each scenario, variant and metric, then the seconds of each option over all recoveries. Pure."""
    series = ("scenario", "variant", "title")
    ordered = sorted(data["metrics"], key=lambda row: [row[name] for name in series[:2]])
    for (scenario, variant, title), rows in itertools.groupby(ordered, lambda r: tuple(r[n] for n in series)):
        yield f"{scenario} ({variant}): {title}"
        head = ["run", "trials", "median", "least", "most", "change"]
        yield from _table([head, *map(_run, rows)])
        yield ""
    if not data["metrics"]:
        yield "No run has a value of these metrics."
    if data["prices"]:
        yield "Seconds of all recoveries, by what they waited for:"
        head = ["option or cause", "value", "seconds", "share", "longest", "recoveries", "runs"]
        yield from _table([head, *map(_price, data["prices"])])


def _run(row: Mapping[str, Any]) -> list[str]:
    unit, change = row["unit"], row["change"]
    median, least, most = (format_value(row[name], unit) for name in ("median", "least", "most"))
    shown = (
        f"{'+' if change > 0 else '−' if change < 0 else ''}{format_value(abs(change), unit)}"
        if change is not None
        else "–"
    )
    at_least = "at least " if row["bounded"] else ""
    return [row["run"], str(row["trials"]), at_least + median, least, at_least + most, shown]


def _price(row: Mapping[str, Any]) -> list[str]:
    seconds, longest = (format_value(row[name], "s") for name in ("seconds", "most_s"))
    share = "–" if row["share"] is None else format_value(row["share"], "ratio")
    name = row["option"] or row["cause"]
    return [
        name,
        row["value"] if row["option"] else "",
        seconds,
        share,
        longest,
        str(row["recoveries"]),
        str(row["runs"]),
    ]


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return (f"{GAP}{line}" for line in aligned(rows, numbers=True))
