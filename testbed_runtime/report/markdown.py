"""Write the Markdown summary of a CI job: the verdict, what broke, and which timeout cost each second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from testbed_runtime.report import words
from testbed_runtime.report.model import RunView, TrialView

MARKS = {"Pass": "✅", "Fail": "❌", "Inconclusive": "❔", "Error": "💥"}
CELL_MAX = 200
"""Maximum characters of a cell. Longer texts belong on the HTML page."""


def cell(text: object) -> str:
    """Escape the text of a table cell: no line breaks, no bars, no accidental markup."""
    clean = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())[:CELL_MAX]
    for character in "\\`*_|<>[]":
        clean = clean.replace(character, "\\" + character)
    return clean


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table, or nothing without rows."""
    lines = ["| " + " | ".join(cell(c) for c in row) + " |" for row in rows]
    return [f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *lines, ""] if lines else []


def run_markdown(view: RunView) -> str:
    """Return the summary of one run."""
    lines = [f"## {MARKS.get(view.verdict, '')} {cell(view.name)}: {view.verdict}", ""]
    if view.summary:
        lines += [cell(view.summary), ""]
    if view.hypothesis:
        lines += [f"*{cell(view.hypothesis)}*", ""]
    lines += ["### What to look at first", "", *(f"- {cell(item)}" for item in view.first), ""]
    recoveries = [line for trial in view.fault_trials for line in _recovery(trial)]
    if recoveries:
        lines += ["### Which timeout cost each second", "", *recoveries]
    lines += ["### Expectations", "", *expectations(view.expectations)]
    faults = table(
        ("trial", "fault", "requested", "measured", "effect", "backend"),
        ((f["trial"], f["name"], _asked(f), f["measured"], f["effect"], f["backend"]) for f in view.faults),
    )
    if faults:
        lines += ["### Faults", "", *faults]
    return "\n".join(lines).rstrip() + "\n"


def _asked(fault: Mapping[str, Any]) -> str:
    return f"{fault['asked']}, {fault['when']}" if fault["when"] else str(fault["asked"])


def expectations(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the scenario's expectations first, then those built-in checks that did not pass."""
    shown = [i for i in items if not i.get("implied") or i.get("verdict") != "Pass"]
    lines = table(
        ("", "trial", "expectation", "measured", "why"),
        (
            (f"{MARKS.get(str(i.get('verdict')), '')} {i.get('verdict')}", i.get("trial") or i.get("variant") or "",
             i.get("text", ""), i.get("measured") or words.DASH, words.explanation(i) or i.get("bounded_by") or "")
            for i in shown
        ),
    )  # fmt: skip
    silent = len(items) - len(shown)
    if silent:
        checks = "check" if silent == 1 else "checks"
        lines += [f"{silent} built-in {checks} (safety, fault effect, residue) also passed.", ""]
    return lines


def _recovery(trial: TrialView) -> list[str]:
    if not trial.recovery.total:
        return []
    return [
        f"**{cell(trial.trial)}**: {words.seconds(trial.recovery.total)}",
        "",
        *table(
            ("phase", "seconds", "share", "bounded by"),
            (
                (
                    c.title,
                    words.seconds(c.seconds),
                    words.percent(trial.recovery.share(c)),
                    c.bounded_by or words.DASH,
                )
                for c in trial.recovery.costs
                if c.seconds is not None
            ),
        ),
    ]


def summary_markdown(views: Sequence[RunView]) -> str:
    """Return the summary of several runs: one table, then each run that did not pass."""
    worst = next((v for v in words.VERDICT_ORDER if any(x.verdict == v for x in views)), "Inconclusive")
    lines = [f"# {MARKS[worst]} Headgate: {worst}", ""]
    lines += table(
        ("scenario", "verdict", "expectations", "summary"),
        ((v.name, f"{MARKS.get(v.verdict, '')} {v.verdict}", held(v.expectations), v.summary) for v in views),
    )
    return "\n".join(lines) + "".join("\n" + run_markdown(v) for v in views if v.verdict != "Pass")


def held(items: Sequence[Mapping[str, Any]]) -> str:
    """Count the items that passed: `4 of 5`."""
    return f"{sum(1 for i in items if i.get('verdict') == 'Pass')} of {len(items)}"
