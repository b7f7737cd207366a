"""Render the HTML page: a single file without scripts or network access."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from testbed_runtime.report import words
from testbed_runtime.report.latencychart import latency_svg
from testbed_runtime.report.model import RunView, TrialView
from testbed_runtime.report.phasebar import phases_svg
from testbed_runtime.report.timeline import NARROW, WIDE, timeline_svg

SAMPLE_S = 1.0
"""Interval between the rows of the table below a timeline."""


@dataclass(frozen=True, slots=True)
class TrialFigures:
    """A trial with its drawings, each in a wide and a narrow version, and its series as a table."""

    view: TrialView
    timeline: Markup
    latency: Markup
    samples: tuple[tuple[str, ...], ...]


@cache
def environment() -> Environment:
    """Return the template environment: everything is escaped, and an undefined name is an error."""
    made = Environment(
        loader=PackageLoader("testbed_runtime.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "seconds": words.seconds,
        "percent": words.percent,
        "count": words.count,
        "breakable": breakable,
    }
    return made


def breakable(text: str) -> Markup:
    """Allow line breaks after dots and slashes only."""
    return Markup(re.sub(r"([./])(?=\w)", r"\1<wbr>", str(escape(text))))  # noqa: S704 - escaped first


def page(view: RunView) -> str:
    """Return the whole report as HTML."""
    template = environment().get_template("report.html.j2")
    recoveries = [t.recovery for t in view.fault_trials]
    return template.render(
        run=view,
        phases=_both(phases_svg(recoveries, WIDE, key="ph-w"), phases_svg(recoveries, NARROW, key="ph-n")),
        figures=[_figures(index, trial, view) for index, trial in enumerate(view.trials)],
        explanation=words.explanation,
        variant_names=list(dict.fromkeys(t.variant for t in view.trials)),
        asked=[i for i in view.expectations if not i.get("implied")],
        implied=[i for i in view.expectations if i.get("implied")],
        times=_times,
        meaning=words.VERDICT_MEANING.get(view.verdict, ""),
    )


def _both(wide: str, narrow: str) -> Markup:
    return Markup(wide + narrow)  # noqa: S704 - drawn by svg.py, which escapes every text


def _figures(index: int, trial: TrialView, view: RunView) -> TrialFigures:
    key = f"t{index}"
    series = trial.series
    timeline = latency = Markup("")
    if series and series["bins"]:
        timeline = _both(
            timeline_svg(series, WIDE, key=key + "w", baseline=trial.baseline_rate),
            timeline_svg(series, NARROW, key=key + "n", baseline=trial.baseline_rate),
        )
    control = next((t for t in view.trials if t.trial == view.controls.get(trial.variant)), None)
    if not trial.is_control:
        latency = _both(
            latency_svg(trial, control, WIDE, key=key + "lw"),
            latency_svg(trial, control, NARROW, key=key + "ln"),
        )
    return TrialFigures(trial, timeline, latency, tuple(_samples(series)) if series else ())


def _samples(series: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the timeline as one row per second: time, throughput, lag, p50, p99."""
    every = max(round(SAMPLE_S / series["bin_s"]), 1)
    values = series["series"]
    return [
        (
            f"{series['bins'][i]:.0f} s",
            words.count(_mean(values["throughput"][i : i + every])),
            words.seconds(_largest(values["lag_s"][i : i + every])),
            words.seconds(_largest(values["latency_p50_s"][i : i + every])),
            words.seconds(_largest(values["latency_p99_s"][i : i + every])),
        )
        for i in range(0, len(series["bins"]), every)
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return round(sum(known) / len(known)) if known else None


def _largest(values: Sequence[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _times(ratio: float | None) -> str:
    """Format a ratio to the control run as `×1.20`. Empty without a control run."""
    return "" if ratio is None else f"×{ratio:.2f}" if ratio < 10 else f"×{ratio:,.0f}"
