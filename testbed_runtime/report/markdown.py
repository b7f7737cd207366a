"""Write the Markdown summary of a CI job: the verdict, what broke, and which timeout cost each second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from testbed_runtime.core.judgement import quantities
from testbed_runtime.core.judgement.recovery import UNATTRIBUTED, Recovery
from testbed_runtime.core.judgement.verdict import Judged, Verdict, most_severe
from testbed_runtime.report import aggregate, words
from testbed_runtime.report.answer import (
    NO_INTERVALS,
    NOTABLE_S,
    VariantAnswer,
    close_margins,
    costly,
    from_events_words,
    margin_words,
    savings,
    with_headlines,
)
from testbed_runtime.report.model import RunView

MARKS = {"Pass": "✅", "Fail": "❌", "Inconclusive": "❔", "Error": "💥"}
CELL_MAX = 200
"""Maximum characters of a cell. Longer texts belong on the HTML page."""
LINE_MAX = 2000
"""Maximum characters of a line outside of tables: the cause of a failure may be long."""
MARKUP = {character: f"\\{character}" for character in "\\`*_|<>[]"}
"""How each character that begins markup is escaped."""
TOTAL = "total"
"""Name of the last row of a price list."""


def cell(text: object, most: int = CELL_MAX) -> str:
    """Escape the text of a table cell: no line breaks, no bars, no accidental markup. A longer text ends with an ellipsis."""
    clean = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    clean = clean if len(clean) <= most else clean[: most - 1].rstrip() + "…"
    return _escaped(clean)


def _escaped(text: str) -> str:
    """Escape markup, but keep code: in the words between two backticks, only a bar would have a meaning."""
    return "".join(
        f"`{part.replace('|', MARKUP['|'])}`" if index % 2 else "".join(MARKUP.get(c, c) for c in part)
        for index, part in enumerate(words.CODE.split(text))
    )


def line(text: object) -> str:
    """Escape the text of a line outside of tables."""
    return cell(text, LINE_MAX)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table, or nothing without rows."""
    lines = ["| " + " | ".join(cell(c) for c in row) + " |" for row in rows]
    return [f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *lines, ""] if lines else []


def run_markdown(view: RunView) -> str:
    """Return the summary of one run."""
    lines = [f"## {MARKS[view.verdict]} {cell(view.name)}: {view.verdict}", ""]
    if view.summary:
        lines += [line(view.summary), ""]
    if view.hypothesis:
        lines += [f"*{line(view.hypothesis)}*", ""]
    lines += ["### What to look at first", "", *(f"- {line(item)}" for item in view.first), ""]
    comparison = _comparison(view)
    if comparison:
        lines += ["### Variants side by side", "", *comparison]
    if recoveries := _answers(view):
        lines += ["### Which timeout cost each second", "", *recoveries]
    lines += ["### Expectations", "", *expectations(view.expectations, merged=view.compact)]
    found = aggregate.faults(view.faults) if view.compact else view.faults
    faults = table(
        ("trial", "fault", "requested", "measured", "effect", "backend"),
        (
            (
                f.trial,
                f.name,
                ", ".join(filter(None, (f.asked, f.when))),
                f.measured,
                f.effect,
                f.backend,
            )
            for f in found
        ),
    )
    if faults:
        lines += ["### Faults", "", *faults]
    return "\n".join(lines).rstrip() + "\n"


def expectations(items: Sequence[Judged], *, merged: bool = False) -> list[str]:
    """List the scenario's expectations first, then those built-in checks that did not pass. `merged`: one row for all
    trials that agree."""
    chosen = [i for i in items if not i.implied or i.verdict is not Verdict.PASS]
    chosen.sort(key=lambda item: item.implied)
    shown = aggregate.expectations(chosen) if merged else chosen
    lines = table(
        ("", "trial", "expectation", "measured", "why"),
        (
            (f"{MARKS[i.verdict]} {i.verdict}", i.where, i.text, i.measured or quantities.DASH, _why(i))
            for i in shown
        ),
    )
    silent = len(items) - len(chosen)
    if silent:
        checks = quantities.counted(silent, "built-in check")
        lines += [f"{checks} (safety, fault effect, residue) also passed.", ""]
    return lines


def _why(item: Judged) -> str:
    """Return the reason or what bounded the value, then what the trials show, such as the false-pass risk of a quantile."""
    return "; ".join(filter(None, (item.explanation or item.bounded_by, item.note)))


def _comparison(view: RunView) -> list[str]:
    groups = view.comparison.groups
    if len(groups) < 2:
        return []
    rows = [(m.title, *(g.values[i].text for g in groups)) for i, m in enumerate(view.comparison.metrics)]
    found = table(("mean [interval]", *(cell(g.name) for g in groups)), rows)
    return [*found, *(f"- {line(text)}" for text in view.comparison.summary), ""]


def _answers(view: RunView) -> list[str]:
    """Return the price lists, with the totals of the page: of each recovery, or the means of each fault of a variant with many trials."""
    lines: list[str] = []
    if view.compact:
        for answer in aggregate.by_variant(view.trials):
            title = f"{answer.variant}{answer.after}: {len(answer.recoveries)} recoveries, mean {quantities.seconds(answer.total_s)}"
            lines += _prices(title, answer, {**answer.intervals, TOTAL: answer.total_interval})
        return lines
    for trial in view.fault_trials:
        for recovery, title in with_headlines(costly(trial.answer.recoveries)) if trial.answer else ():
            lines += _prices(f"{trial.trial}: {title}", recovery)
    return lines


def _prices(
    title: str, found: Recovery | VariantAnswer, intervals: Mapping[str, str] = NO_INTERVALS
) -> list[str]:
    """Return the price list of one recovery, or the means of a variant's with their intervals."""

    def share(seconds: float) -> str:
        return words.percent(seconds / found.total_s if found.total_s else None)

    def mean(owner: str, seconds: float) -> str:
        return intervals.get(owner) or quantities.seconds(seconds)

    rows = [(p.words, mean(p.text, p.seconds), share(p.seconds)) for p in found.prices]
    if round(found.unattributed_s, 3) > 0:
        rows.append((UNATTRIBUTED, quantities.seconds(found.unattributed_s), share(found.unattributed_s)))
    rows.append((TOTAL, mean(TOTAL, found.total_s), ""))
    more = [f"- close to its limit: {line(margin_words(m))}" for m in close_margins(found)]
    more += [f"- {line(text)}" for text in (savings(found) if isinstance(found, Recovery) else ())]
    if found.from_events_s >= NOTABLE_S:
        more.append(f"- {from_events_words(found.from_events_s)} ({share(found.from_events_s)})")
    head = ("waited for", "mean [interval]" if any(intervals.values()) else "seconds", "share")
    return [f"**{line(title)}**", "", *table(head, rows), *more, *([""] if more else [])]


def summary_markdown(views: Sequence[RunView]) -> str:
    """Return the summary of several runs: one table, then each run that did not pass."""
    verdict = most_severe(view.verdict for view in views)
    lines = [f"# {MARKS[verdict]} Headgate: {verdict}", ""]
    lines += table(
        ("scenario", "verdict", "expectations", "summary"),
        ((v.name, f"{MARKS[v.verdict]} {v.verdict}", held(v.expectations), v.summary) for v in views),
    )
    return "\n".join(lines) + "".join("\n" + run_markdown(v) for v in views if v.verdict is not Verdict.PASS)


def held(items: Sequence[Judged]) -> str:
    """Count the items that passed: `4 of 5`."""
    return f"{sum(1 for i in items if i.verdict is Verdict.PASS)} of {len(items)}"
