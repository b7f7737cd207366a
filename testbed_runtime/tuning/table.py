"""The result of a study as Markdown, as JSON, and as the status of a TuningStudy. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from testbed_runtime.api.kinds import TuningStudySpec
from testbed_runtime.core.documents import SCHEMA
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement import detector
from testbed_runtime.core.judgement.quantities import DASH
from testbed_runtime.tuning.grid import REFERENCES
from testbed_runtime.tuning.score import Line, conclusion, format_number, name_of, title


def status_rows(spec: TuningStudySpec, lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the table as the status of a TuningStudy stores it."""
    return [
        {
            "options": dict(line.row.options),
            "reference": line.row.reference,
            "verdict": line.verdict or "",
            "objectives": {title(o): text for o, text in zip(spec.objectives, line.texts, strict=True)},
            "runs": list(line.runs),
            "best": line.best,
            "front": line.front,
            "reason": line.reason,
            "costs": _costs(line),
        }
        for line in lines
    ]


def _costs(line: Line) -> dict[str, str]:
    return {key: cost.text for key, cost in line.costs.items() if cost.text}


def to_json(spec: TuningStudySpec, lines: Sequence[Line]) -> dict[str, Any]:
    """Return the whole result for scripts."""
    return {
        "schema": SCHEMA,
        "answer": conclusion(spec, lines),
        "rows": [
            {
                **row,
                "values": {
                    title(o): {
                        "value": v.number,
                        "interval": None if v.interval is None else v.interval.to_json(),
                        "atLeast": v.bounded,
                    }
                    for o, v in zip(spec.objectives, line.objectives, strict=True)
                },
                "detector": None if line.detector is None else to_builtins(line.detector),
                "prices": {key: cost.price_s for key, cost in line.costs.items()},
                "margins": {
                    k: None if c.margin is None else to_builtins(c.margin) for k, c in line.costs.items()
                },
            }
            for row, line in zip(status_rows(spec, lines), lines, strict=True)
        ],
    }


def rows(
    spec: TuningStudySpec, lines: Sequence[Line], shown: Mapping[str, Mapping[str, str]] | None = None
) -> list[list[str]]:
    """Return the table: its head, and one row of cells for each line. The options come first. `shown`: reference → option → its value there."""
    computed = _computed_columns(spec, lines)
    head = [
        *(o.key for o in spec.options),
        "verdict",
        *(title(o) for o in spec.objectives),
        *(f"{name} (computed)" for name in computed),
        "",
    ]
    found = [head]
    for line in lines:
        row = [*_options(spec, line, shown or {}), line.verdict or DASH, *line.texts]
        found.append([*row, *(_computed(line, name) for name in computed), _marks(line)])
    return found


def sentences(
    spec: TuningStudySpec, lines: Sequence[Line], confirmed: Mapping[int, Line] | None = None
) -> str:
    """Return what follows the table: the answer, the costs, why rows fail, and the results of real runs. `confirmed`: rows by number with
    those results."""
    parts = (
        conclusion(spec, lines),
        _cost_lines(lines),
        _failures(lines),
        _confirmations(spec, lines, confirmed or {}),
    )
    return "\n\n".join("\n".join(f"- {one}" for one in part) for part in parts if part)


def markdown(
    spec: TuningStudySpec,
    lines: Sequence[Line],
    confirmed: Mapping[int, Line] | None = None,
    shown: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """Return the table, the best row bold, and the sentences."""
    head, *cells = rows(spec, lines, shown)
    bold = [
        [f"**{c}**" if line.best and c else c for c in row] for line, row in zip(lines, cells, strict=True)
    ]
    text = [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *bold]]
    return "\n".join([*text, "", sentences(spec, lines, confirmed)]).rstrip()


def _options(spec: TuningStudySpec, line: Line, shown: Mapping[str, Mapping[str, str]]) -> list[str]:
    values = line.row.options or shown.get(line.row.reference, {})
    return [values.get(option.key, DASH) for option in spec.options]


def _marks(line: Line) -> str:
    marks = [
        REFERENCES.get(line.row.reference, ""),
        "best" if line.best else "",
        "front" if line.front else "",
    ]
    return ", ".join(filter(None, marks))


def _computed_columns(spec: TuningStudySpec, lines: Sequence[Line]) -> list[str]:
    """Return the detector metrics that are not objectives."""
    if not any(line.detector for line in lines):
        return []
    objectives = {o.metric for o in spec.objectives}
    return [name for name in detector.METRICS if name not in objectives]


def _computed(line: Line, name: str) -> str:
    field, unit, _ = detector.METRICS[name]
    return DASH if line.detector is None else format_number(float(getattr(line.detector, field)), unit)


def _cost_lines(lines: Sequence[Line]) -> list[str]:
    """Return the costs of the best row, the references and the rows that fail; the JSON file has all."""
    found = []
    for line in lines:
        costs = "; ".join(f"{key}: {text}" for key, text in _costs(line).items())
        if costs and (line.best or line.row.reference or line.reason):
            found.append(f"{line.row.text}: {costs}")
    return found


def _failures(lines: Sequence[Line]) -> list[str]:
    """Say why rows fail, once for all rows with the same reason."""
    rows = grouped(((line.verdict, line.reason), line.row.text) for line in lines if line.reason)
    return [f"{'; '.join(texts)}: {verdict}: {reason}" for (verdict, reason), texts in rows.items()]


def _confirmations(spec: TuningStudySpec, lines: Sequence[Line], confirmed: Mapping[int, Line]) -> list[str]:
    """Show the results of real runs beside those of virtual time."""
    found = []
    for line in lines:
        real = confirmed.get(line.row.number)
        if real is not None:
            pairs = [
                f"{name_of(o)} {measured} (virtual time: {simulated})"
                for o, measured, simulated in zip(spec.objectives, real.texts, line.texts, strict=True)
            ]
            why = f": {real.reason}" if real.reason else ""
            found.append(f"confirmed in real runs: {line.row.text}: {real.verdict}{why}; {'; '.join(pairs)}")
    return found
