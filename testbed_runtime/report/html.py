"""Render the HTML page: a single file without scripts or network access."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from jinja2 import BytecodeCache, Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec import Struct

from testbed_runtime.core.judgement import quantities
from testbed_runtime.core.judgement.recovery import Recovery
from testbed_runtime.core.judgement.series import TrialSeries
from testbed_runtime.core.judgement.verdict import Verdict
from testbed_runtime.report import aggregate, colours, words
from testbed_runtime.report.answer import (
    NOTABLE_S,
    VariantAnswer,
    from_events_words,
    headline,
    in_words,
    savings,
)
from testbed_runtime.report.latencychart import latency_svg
from testbed_runtime.report.loadchart import LoadChart, level_of
from testbed_runtime.report.model import RunView, TrialView
from testbed_runtime.report.roundsbar import Titled, mean_of, rounds_svg
from testbed_runtime.report.strips import distributions, strips_svg
from testbed_runtime.report.svg import Shapes
from testbed_runtime.report.timeline import MARK_SHAPES, NARROW, WIDE, Size, Timeline

DRAWN_MAX = 120
"""Maximum number of drawn trials. The others appear only in the distributions and the merged rows."""
SAMPLE_S = 1.0
"""Interval between the rows of the table below a timeline."""
TEMPLATES = Path(__file__).parent / "templates"
STARTS_FROM_S = 2.0
"""A first start gets its own bar from this length on, or when it failed at first."""


class TrialFigures(Struct, frozen=True):
    """A trial with its drawings, each in a wide and a narrow version, and its series as a table."""

    view: TrialView
    timeline: Markup
    latency: Markup
    rounds: Markup
    """Empty if nothing took long enough to be drawn."""
    load: Markup
    samples: tuple[tuple[str, ...], ...]
    kinds: frozenset[str]
    """Kinds of marks in its timeline."""


@cache
def environment() -> Environment:
    """Return the template environment: everything is escaped, and an undefined name is an error."""
    made = Environment(
        loader=PackageLoader("testbed_runtime.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=compiled_beside(TEMPLATES),
    )
    made.filters |= {
        "seconds": quantities.seconds,
        "percent": words.percent,
        "from_events": from_events_words,
        "count": quantities.count,
        "breakable": breakable,
        "marked": marked,
    }
    return made


def compiled_beside(templates: Path) -> BytecodeCache | None:
    """Return the cache of the compiled templates, in a folder beside them, as Python keeps compiled modules. None if Python keeps
    none, or the folder cannot be written."""
    if sys.dont_write_bytecode or not os.access(templates, os.W_OK):
        return None
    folder = templates / "__pycache__"
    folder.mkdir(exist_ok=True)
    return FileSystemBytecodeCache(str(folder)) if os.access(folder, os.W_OK) else None


def breakable(text: str) -> Markup:
    """Allow line breaks after dots and slashes only, not in numbers. Words between backticks are set as code."""
    return marked(Markup(re.sub(r"([./])(?=[^\W\d])", r"\1<wbr>", str(escape(text)))))  # noqa: S704 - escaped first


def marked(text: str) -> Markup:
    """Set words between backticks as code."""
    return Markup(words.CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped first


def page(view: RunView) -> str:
    """Return the whole report as HTML."""
    template = environment().get_template("report.html.j2")
    asked = [i for i in view.expectations if not i.implied]
    implied = [i for i in view.expectations if i.implied]
    chosen = shown_trials(view)
    figures = [_figures(index, trial, view) for index, trial in enumerate(chosen)]
    answers = aggregate.by_variant(view.trials)
    repeated = len(view.fault_trials) > len({t.variant for t in view.fault_trials})
    # without repetitions, charts with one dot per variant would show no more than the table
    found = distributions(view.comparison) if repeated else []
    return template.render(
        run=view,
        strips=_both(lambda size: strips_svg(found, size, key=f"di-{size.name[0]}")),
        figures=figures,
        legend=[s for kind, s in MARK_SHAPES.items() if any(kind in f.kinds for f in figures)],
        shaded={s.kind for f in figures if f.timeline and f.view.series for s in f.view.series.spans},
        wait_kinds=list(colours.legend(_wait_kinds(view))),
        wait_style=Markup(colours.style()),  # noqa: S704 - made of declared names
        answers=answers,
        means=_means(answers) if view.compact else "",
        more_trials=len(view.trials) - len(chosen),
        phase_medians=aggregate.phases(view.trials) if view.compact else [],
        faults=aggregate.faults(view.faults) if view.compact else view.faults,
        headline=headline,
        failures=[failure for f in figures if not f.rounds for failure in _failures(f.view)],
        savings=savings,
        variant_names=list(dict.fromkeys(t.variant for t in view.trials)),
        asked=aggregate.expectations(asked) if view.compact else asked,
        implied=aggregate.expectations(implied) if view.compact else implied,
        implied_passed=(sum(1 for i in implied if i.verdict is Verdict.PASS), len(implied)),
        level_of=level_of,
        times=_times,
        meaning=words.VERDICT_MEANING[view.verdict],
    )


def shown_trials(view: RunView) -> Sequence[TrialView]:
    """Return the trials that the page draws: all of them, or those that failed and the slowest, in the run's order."""
    if len(view.trials) <= DRAWN_MAX:
        return view.trials
    failed = {i.trial for i in view.expectations if i.verdict is not Verdict.PASS}
    ranked = sorted(view.trials, key=lambda t: (t.trial in failed, aggregate.longest_s(t)), reverse=True)
    kept = {t.trial for t in ranked[:DRAWN_MAX]}
    return [t for t in view.trials if t.trial in kept]


def _means(answers: Sequence[VariantAnswer]) -> Markup:
    """Draw one bar per variant, or per fault of a variant with several, with the mean of each wait."""
    captions = [f"{a.variant}{a.after}: {quantities.seconds(a.total_s)} on average" for a in answers]
    found = [mean_of(text, a.prices, a.unattributed_s) for text, a in zip(captions, answers, strict=True)]
    axis = "seconds, mean over the recoveries of a variant; the largest wait first"
    axes = {WIDE.name: axis, NARROW.name: "seconds, mean; the largest first"}
    return _both(lambda size: rounds_svg(found, size, key=f"me-{size.name[0]}", axis=axes[size.name]))


def _both(draw: Callable[[Size], str], shapes: Shapes | None = None) -> Markup:
    """Draw the wide and the narrow layout, after the shapes that both use."""
    drawn = (shapes.render() if shapes else "") + draw(WIDE) + draw(NARROW)
    return Markup(drawn)  # noqa: S704 - drawn by svg.py, which escapes every text


def _figures(index: int, trial: TrialView, view: RunView) -> TrialFigures:
    key = f"t{index}"
    series = trial.series
    timeline = latency = load = Markup("")
    kinds: frozenset[str] = frozenset()
    if series and series.bins:
        drawn = Timeline(
            series, key=key, baseline=trial.baseline_rate, recovery=trial.answer, details=not view.compact
        )
        kinds = frozenset(drawn.kinds)
        timeline = _both(drawn.svg, drawn.shapes)
        if not view.compact:
            vertices = LoadChart(series, key=f"{key}v", end_s=drawn.end)
            load = _both(vertices.svg, vertices.shapes)
    control = next((t for t in view.trials if t.trial == view.controls.get(trial.variant)), None)
    if not trial.is_control and not view.compact:
        latency = _both(lambda size: latency_svg(trial, control, size, key=f"{key}l{size.name[0]}"))
    slowest = not view.compact or trial.trial in aggregate.slowest(view.trials)
    prefix = f"{trial.trial}: " if view.compact else ""
    rounds = (
        [Titled(prefix + text, recovery) for recovery, text in shown_recoveries(trial)] if slowest else []
    )
    bars = _both(lambda size: rounds_svg(rounds, size, key=f"{key}r{size.name[0]}"))
    samples = tuple(_samples(series)) if series and not view.compact else ()
    return TrialFigures(trial, timeline, latency, bars, load, samples, kinds)


def shown_recoveries(trial: TrialView) -> list[tuple[Recovery, str]]:
    """Return what the page shows, with its headline: a first start that was slow or failed at first, and every recovery."""
    return in_words(trial.answer, STARTS_FROM_S) if trial.answer and not trial.is_control else []


def _failures(trial: TrialView) -> list[tuple[str, str]]:
    return [(trial.trial, text) for recovery, text in shown_recoveries(trial) if not recovery.recovered]


def _wait_kinds(view: RunView) -> set[str]:
    """Return the kinds of waits in the drawings."""
    shown = (r for t in view.fault_trials for r, _ in shown_recoveries(t) if r.total_s >= NOTABLE_S)
    return {segment.kind for recovery in shown for n in recovery.rounds for segment in n.segments}


def _samples(series: TrialSeries) -> Iterator[tuple[str, ...]]:
    """Yield the timeline as one row per second: time, throughput, lag, p50, p99."""
    every = max(round(SAMPLE_S / series.bin_s), 1)
    values = series.series
    rate = values.get("goodput") or values["throughput"]
    for i in range(0, len(series.bins), every):
        rates, lags, p50s, p99s = (
            [v for v in column[i : i + every] if v is not None]
            for column in (rate, values["lag_s"], values["latency_p50_s"], values["latency_p99_s"])
        )
        mean = quantities.count(round(sum(rates) / len(rates)) if rates else None)
        most = (quantities.seconds(max(known, default=None)) for known in (lags, p50s, p99s))
        yield f"{series.bins[i]:.0f} s", mean, *most


def _times(ratio: float | None) -> str:
    """Format a ratio to the control run as `×1.20`. Empty without a control run."""
    return "" if ratio is None else f"×{ratio:.2f}" if ratio < 10 else f"×{ratio:,.0f}"
