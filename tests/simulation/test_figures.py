"""The figures of docs/sources.md and of the READMEs are what their commands show. Virtual time repeats them exactly."""

from __future__ import annotations

import json
import shlex
import sys
from itertools import chain
from pathlib import Path

import pytest
import yaml

from testbed_runtime.cli import main
from testbed_runtime.core.documents import RECOVERY_FILE
from testbed_runtime.core.judgement.recovery import TrialRecovery
from tests.figures import differences, figures, recorded
from tests.simulation.simulating import Complaints, shortcomings
from tests.test_sources import ROOT, ROWS

READMES: dict[str, dict[str, dict[str, str | list[str]]]] = yaml.safe_load(
    (ROOT / "tools" / "figures.yaml").read_text(encoding="utf-8")
)
INSTANT = ("trace", "plan", "memory")
"""Commands that take a second, in the quick tests."""
LONG = ("studies/", "scenarios/full-size/", "scenarios/09-flow-control", "scenarios/14-buffer-debloating")
"""Folders whose commands take 15 s to some minutes: in `make soak`."""


def _declared() -> list[object]:
    """Return each command once, with all texts that have its figures: their name, the text, and passages with what shows them."""
    texts = {f"docs/sources.md, {row.name}": (row.result, row.figures, row.commands) for row in ROWS}
    for name, commands in READMES.items():
        texts[name] = ((ROOT / name).read_text(encoding="utf-8"), commands, tuple(commands))
    found: dict[tuple[str, ...], list[tuple[str, str, dict[str, str | list[str]]]]] = {}
    for name, (text, commands, order) in texts.items():
        for command, passages in commands.items():
            before = order[order.index(command) - 1] if "RUN/" in command else None
            key = (before, command) if before else (command,)
            found.setdefault(key, []).append((name, text, passages))
    params = []
    for commands, checked in found.items():
        long, instant = any(path in commands[-1] for path in LONG), commands[-1].split()[1] in INSTANT
        marks = [] if instant else [pytest.mark.soak if long else pytest.mark.virtual]
        params.append(pytest.param(commands, checked, id=commands[-1].removeprefix("headgate "), marks=marks))
    return params


DECLARED = _declared()
_WHOLE = [param.id.removeprefix("simulate ") for param in DECLARED if param.marks == [pytest.mark.virtual]]
SIMULATED = {path for path in _WHOLE if " " not in path}
"""Folders and documents that are simulated here as a whole, in `make test`. Their runs are also checked as those of `test_scenarios.py`."""
SUPERSTEPS = {"scenarios/examples/bulk-iteration.yaml": 10, "scenarios/examples/delta-iteration.yaml": 100}


@pytest.fixture
def headgate(monkeypatch, capsys, tmp_path):
    """Run a command of the documentation from the folder of the repository. Return its output and the folder of its run."""

    def call(command: str, before: Path | None) -> tuple[str, Path | None]:
        words = shlex.split(command.replace("RUN/", f"{before}/"))
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        out.mkdir()
        records = words[1] in {"simulate", "tune"}
        monkeypatch.chdir(ROOT)
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", [*words, *(("--out", str(out)) if records else ())])
        with pytest.raises(SystemExit):
            main.main()
        return capsys.readouterr().out, next(iter(out.iterdir()), None)

    return call


@pytest.mark.parametrize(("commands", "checked"), DECLARED)
def test_the_figures_of_a_text_are_what_its_command_shows(commands, checked, headgate) -> None:
    """Within 5 % or the rounding. A command with RUN uses the run of the command before it. A scenario passes, and asyncio complains of
    nothing."""
    folder = None
    with Complaints() as complaints:
        for command in commands:
            output, folder = headgate(command, folder)
    document = commands[-1].removeprefix("headgate simulate ")
    if document in SIMULATED:
        assert (shortcomings(folder), complaints.texts) == ([], [])
    if document in SUPERSTEPS:
        _check_iteration(folder, SUPERSTEPS[document])
    wrong = [
        f"{name}: {difference}"
        for name, text, passages in checked
        for passage, shown in passages.items()
        for difference in differences(text, passage, shown, output, folder)
    ]
    assert not wrong


def _check_iteration(folder: Path, supersteps: int) -> None:
    """Every second of the recovery has an owner, and the supersteps that are done again own most of them."""
    rows = json.loads((folder / "metrics.json").read_text())
    assert [r["value"] for r in rows if r["metric"] == "iteration.supersteps"] == [supersteps]
    (found,) = json.loads((folder / RECOVERY_FILE).read_text()).values()
    for recovery in TrialRecovery.from_json(found).recoveries:
        assert recovery is not None
        assert recovery.unattributed_s == pytest.approx(0, abs=0.01)
        assert recovery.prices[0].kind == "iteration"


def test_every_passage_with_figures_is_in_its_text() -> None:
    """And each command of a row is one that the row names."""
    for row in ROWS:
        assert set(row.figures) <= set(row.commands), row.name
    texts = [(row.result, row.figures) for row in ROWS]
    texts += [((ROOT / name).read_text(encoding="utf-8"), commands) for name, commands in READMES.items()]
    for text, commands in texts:
        for passage in chain.from_iterable(commands.values()):
            assert figures(passage, " ".join(text.split()))


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("takes # aligned, # unaligned", "it takes 2.8 s aligned, 0.25 s unaligned", [2.8, 0.25]),
        ("ran # times", "the flusher ran 1,023 times", [1023]),
        ("# of it", "79.4 % of it", [0.794]),
        ("takes #,", "takes 1024, then", [1024]),
        ("from # to # µs", "from 1.54 to 0.64 µs", [1.54, 0.64]),
        ("from # to #", "from 53 ms to 222 µs", [0.053, 0.000222]),
        ("# slots", "2 slots", [2]),
    ],
)
def test_numbers_are_read_with_their_units(pattern, text, found) -> None:
    """Seconds and shares, with thousands separated."""
    assert [value for value, _ in figures(pattern, text)] == pytest.approx(found)


def test_a_passage_that_is_not_in_the_text_is_refused() -> None:
    """A figure must not escape the comparison because its text was changed."""
    with pytest.raises(ValueError, match="no 'down # s'"):
        figures("down # s", "it was up")


@pytest.mark.parametrize(
    ("stated", "agrees"),
    [("2.09 s", True), ("2.2 s", False), ("1.91 s", True), ("2 s", True), ("1.8 s", False)],
)
def test_a_figure_may_differ_by_its_rounding_or_by_a_twentieth(stated, agrees) -> None:
    """2.00 s was printed."""
    assert (not list(differences(f"down {stated}", "down #", "lasts #", "it lasts 2.00 s", None))) is agrees


def test_a_metric_is_found_by_trial_phase_and_quantile(tmp_path: Path) -> None:
    """In milliseconds, with a divisor."""
    rows = [
        {"trial": "a-1", "metric": "latency", "phase": phase, "quantile": quantile, "value": value}
        for phase, quantile, value in (("", 0.5, 1.0), ("fault", 0.5, 2.0), ("fault", 0.99, 3.0))
    ]
    assert recorded("a-1 latency fault p99", rows) == 3.0
    assert recorded("a-1 latency p50", rows) == 1.0
    (tmp_path / "metrics.json").write_text(json.dumps(rows), encoding="utf-8")
    assert not list(differences("it is 3 s", "is #", ["a-1 latency fault p99"], "", tmp_path))
    assert not list(differences("it is 3 ms", "is #", "a-1 latency fault p99 / 1e3", "", tmp_path))
    assert list(differences("it is 3 s", "is #", ["a-1 latency p50"], "", tmp_path))
