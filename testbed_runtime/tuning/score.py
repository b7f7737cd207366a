"""The table of a study and its best row, from the verdicts of its runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed_runtime.api.kinds import Objective, TuningStudySpec
from testbed_runtime.tuning.grid import PlannedRun, Row, rows

ORDER = ("Pass", "Inconclusive", "Fail", "Error")
"""Verdicts, best first."""
PASS = "Pass"  # noqa: S105 - a verdict
NO_VALUE = "–"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run. `verdict` is the content of verdict.json."""

    run: PlannedRun
    verdict: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table, with the worst verdict and values of its runs."""

    row: Row
    verdict: str
    """Empty until one of its runs has finished."""
    values: tuple[float | None, ...]
    """One for each objective; None if no run measured it."""
    texts: tuple[str, ...]
    runs: tuple[str, ...]
    whole: bool
    """True when every scenario of the row has run."""
    best: bool = False
    reason: str = field(default="")


def table(spec: TuningStudySpec, outcomes: Sequence[Outcome]) -> tuple[Line, ...]:
    """Return every row of the grid in order. The best row is marked once it is known to pass."""
    lines = [_line(spec, row, [o for o in outcomes if o.run.row.number == row.number]) for row in rows(spec)]
    chosen = best(spec, lines)
    return tuple(_marked(line, best=chosen is not None and line.row == chosen.row) for line in lines)


def best(spec: TuningStudySpec, lines: Sequence[Line]) -> Line | None:
    """Return the best complete row that passes and has a value for every objective, or None. Later objectives, then the row's number,
    decide between equals."""
    passing = [
        line
        for line in lines
        if line.whole and line.verdict == PASS and all(v is not None for v in line.values)
    ]
    return min(passing, key=lambda line: (_rank(spec.objectives, line), line.row.number), default=None)


def _rank(objectives: Sequence[Objective], line: Line) -> tuple[float, ...]:
    signs = (1.0 if o.direction == "min" else -1.0 for o in objectives)
    return tuple(sign * value for sign, value in zip(signs, line.values, strict=True) if value is not None)


def _line(spec: TuningStudySpec, row: Row, outcomes: Sequence[Outcome]) -> Line:
    found = [_worst(objective, outcomes) for objective in spec.objectives]
    verdicts = [str(o.verdict.get("verdict", "Error")) for o in outcomes]
    bad = next((o for o in outcomes if o.verdict.get("verdict") != PASS), None)
    return Line(
        row=row,
        verdict=max(verdicts, key=_badness, default=""),
        values=tuple(value for value, _ in found),
        texts=tuple(text for _, text in found),
        runs=tuple(o.run.name for o in outcomes),
        whole=len(outcomes) == len(spec.scenarios),
        reason=str(bad.verdict.get("summary") or bad.verdict.get("reason") or "") if bad else "",
    )


def _badness(verdict: str) -> int:
    return ORDER.index(verdict) if verdict in ORDER else len(ORDER)


def _worst(objective: Objective, outcomes: Sequence[Outcome]) -> tuple[float | None, str]:
    """Return (value, its text): the worst over all trials of all runs. A trial without a value leaves the row without one."""
    items = [item for outcome in outcomes for item in _items(objective, outcome.verdict)]
    if not items or any(item.get("value") is None for item in items):
        return None, NO_VALUE
    choose = max if objective.direction == "min" else min
    chosen = choose(items, key=lambda item: float(item["value"]))
    return float(chosen["value"]), str(chosen.get("measured") or chosen["value"])


def _items(objective: Objective, verdict: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    wanted = quantile_of(objective)
    return [
        item
        for item in verdict.get("expectations", ())
        if item.get("metric") == objective.metric
        and item.get("quantile") == wanted
        and not item.get("implied")
    ]


def quantile_of(objective: Objective) -> float | None:
    """Return the objective's quantile as a number: 0.99 for `0.99`, `p99` and `99 %`."""
    text = (objective.quantile or "").strip()
    if not text:
        return None
    if text.startswith("p"):
        return float(f"0.{text[1:].replace('.', '')}")
    return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)


def _marked(line: Line, *, best: bool) -> Line:
    return Line(line.row, line.verdict, line.values, line.texts, line.runs, line.whole, best, line.reason)


# ---- output


def status_rows(spec: TuningStudySpec, lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the table as the status of a TuningStudy stores it."""
    return [
        {
            "options": dict(line.row.options),
            "verdict": line.verdict,
            "objectives": {title(o): t for o, t in zip(spec.objectives, line.texts, strict=True)},
            "runs": list(line.runs),
            "best": line.best,
            "reason": line.reason,
        }
        for line in lines
    ]


def markdown(spec: TuningStudySpec, lines: Sequence[Line]) -> str:
    """Return a Markdown table with one line for each row; the best row is bold."""
    head = [*(o.key for o in spec.options), "verdict", *(title(o) for o in spec.objectives)]
    shown = [[*line.row.options.values(), line.verdict or NO_VALUE, *line.texts] for line in lines]
    cells = [[f"**{c}**" if line.best else c for c in row] for line, row in zip(lines, shown, strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *cells])


def title(objective: Objective) -> str:
    """Return the title of a column, such as `latency p99 (min)`."""
    quantile = f" {objective.quantile}" if objective.quantile else ""
    return f"{objective.metric}{quantile} ({objective.direction})"
