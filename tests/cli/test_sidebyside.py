"""The variants of a run side by side, as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.cli import faults, plan
from testbed_runtime.cli.running import print_verdict
from testbed_runtime.cli.tables import fitting, side_by_side
from testbed_runtime.core.documents import COMPARISON_FILE
from testbed_runtime.core.judgement.comparison import Comparison, GroupMeans, Mean, TableMetric
from testbed_runtime.core.judgement.verdict import RunVerdict, Verdict
from testbed_runtime.core.options import Options
from testbed_runtime.faults.registry import LOCAL
from testbed_runtime.runner.engine import RunResult

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


def table(*names: str) -> Comparison:
    """Two metrics, and a group for each name."""
    values = (Mean(text="1.91 [1.87, 1.94] s"), Mean(text="1"))
    return Comparison(
        metrics=(TableMetric("recovery.downtime"), TableMetric("failovers.count")),
        groups=tuple(GroupMeans(name, number, values) for number, name in enumerate(names, 1)),
        summary=("b against a: indistinguishable",),
    )


def test_each_variant_is_a_column():
    """With the number of its trials, and as wide as its longest value."""
    assert side_by_side(table("a", "b")) == [
        "                   a (1 trial)          b (2 trials)",
        "recovery.downtime  1.91 [1.87, 1.94] s  1.91 [1.87, 1.94] s",
        "failovers.count    1                    1",
    ]


@pytest.mark.parametrize(("width", "blocks"), [(0, 1), (80, 1), (79, 2), (59, 2), (58, 3), (1, 3)])
def test_columns_that_do_not_fit_follow_below(width: int, blocks: int):
    """The metrics need 17 characters and each variant 2 + 19: 17 + 3 × 21 = 80. Each block repeats the metrics."""
    lines = side_by_side(table("a", "b", "c"), width=width)
    assert len(lines) == 3 * blocks
    assert sum(line.count("1.91") for line in lines) == 3
    assert [line.split()[0] for line in lines[1::3]] == ["recovery.downtime"] * blocks


def test_many_groups_are_rows():
    """A trend over hundreds of runs has a line for each run, instead of a table for every few runs."""
    lines = side_by_side(table(*(f"run-{number}" for number in range(300))), width=80)
    assert lines[0].split() == ["recovery.downtime", "failovers.count"]
    assert [line.split()[0] for line in lines[1:]] == [f"run-{number}" for number in range(300)]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("content", "shown"),
    [(table("a", "b"), True), (table("a"), False), ("", False), ({"groups": 5}, False), (None, False)],
    ids=["two variants", "one variant", "an empty file", "a damaged file", "no file"],
)
def test_a_run_of_several_variants_ends_with_the_table(
    tmp_path: Path, capsys, content: Comparison | dict[str, Any] | str | None, shown: bool
):
    """Between the answer and what did not hold; nothing to compare prints nothing."""
    if content is not None:
        data = content.to_json() if isinstance(content, Comparison) else content
        (tmp_path / COMPARISON_FILE).write_text(json.dumps(data) if data else "")
    verdict = RunVerdict(verdict=Verdict.PASS, summary="s", answer=("the answer",))
    print_verdict("name", RunResult(tmp_path, verdict, tmp_path / "report.html"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  the answer"
    found = [line for line in lines[2:-1] if line]
    expected = [f"  {line}" for line in (*side_by_side(table("a", "b")), "b against a: indistinguishable")]
    assert found == (expected if shown else [])


def test_columns_that_do_not_fit_follow_below_the_first_ones():
    """The first ones tell which row it is. A column that is wider than the terminal stands alone."""
    columns = [
        ["key", "1 s"],
        ["other", "on"],
        ["verdict", "Pass"],
        ["recovery.total", "2.0"],
        ["x" * 40, "1"],
    ]
    assert fitting(columns, 30, repeated=2) == [
        "key  other  verdict", "1 s  on     Pass",
        "key  other  recovery.total", "1 s  on     2.0",
        f"key  other  {'x' * 40}", "1 s  on     1",
    ]  # fmt: skip
    assert len(fitting(columns, 0, repeated=2)) == 2


def test_faults_and_plans_fit_into_a_terminal_of_80_columns():
    """Sentences continue below themselves, and columns that do not fit follow below. In a file, each kind has one line."""
    kinds = list(faults.kind_lines(LOCAL, 80))
    (_, testbed), *_ = plan._testbeds(SCENARIOS / "10-network-buffers/full-size.yaml", (), other_slots=False)
    planned = list(
        plan.lines({"variant": "main", **plan.describe(testbed, Options(testbed.configuration))}, 80)
    )
    assert max(map(len, kinds + planned)) <= 80
    assert len(kinds) > len(list(faults.kind_lines(LOCAL, 0)))
    assert " ".join("\n".join(planned).split()).count("source → parse (rebalance)") == 2
