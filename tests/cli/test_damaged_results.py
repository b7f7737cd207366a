"""A damaged file of a run's folder is an error in one line, for every command that reads it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from testbed_runtime.checking.timeseries import trial_timeseries
from testbed_runtime.cli import exits
from testbed_runtime.core.documents import METRICS_FILE, RECOVERY_FILE, TIMESERIES_FILE
from testbed_runtime.core.trial.manifest import MANIFEST_SCHEMA
from testbed_runtime.files import DOCUMENT_MAX
from testbed_runtime.history.manifest import MANIFEST
from tests.report import synthetic
from tests.report.recoveries import killed

Damage = Callable[[Path], object]
TRIAL = "main-1"
SAFE = (
    "delivery.lost", "delivery.duplicated", "delivery.corrupted", "delivery.out-of-order", "credit.violations", "history.missing",
)  # fmt: skip


@pytest.fixture(scope="module")
def series() -> dict[str, Any]:
    """The drawings of a trial as numbers."""
    plan = synthetic.PLANS[1]
    found: dict[str, Any] = to_builtins(trial_timeseries(synthetic.history(plan), synthetic.entry(plan)))
    return found | {"trial": TRIAL}


@pytest.fixture
def folder(tmp_path: Path, series: dict[str, Any]) -> Path:
    """A run that passes, with two variants."""
    trials, rows = [], []
    for variant in ("main", "other"):
        trial = f"{variant}-1"
        trials.append(
            {"trial": trial, "variant": variant, "role": "fault", "number": 1, "seed": 7, "configuration": {}, "job": {},
             "faults": [], "phases": [], "job_state": "RUNNING", "drained": True, "error": "", "voided": False}
        )  # fmt: skip
        values = {"recovery.total": 3.0, "fault.verified": 1, "liveness.at-end": 1, **dict.fromkeys(SAFE, 0)}
        rows += [_row(trial, metric, value) for metric, value in values.items()]
    item = {"metric": "recovery.total", "max": 5.0}
    manifest = {
        "schema": MANIFEST_SCHEMA, "run": "r", "started": "", "place": "simulation", "looks": [],
        "expectations": {"main": [item], "other": []}, "trials": trials,
    }  # fmt: skip
    write(tmp_path / MANIFEST, manifest)
    write(tmp_path / METRICS_FILE, rows)
    write(tmp_path / TIMESERIES_FILE, {"schema": 1, "trials": [series]})
    write(tmp_path / RECOVERY_FILE, {TRIAL: killed(TRIAL).to_json()})
    return tmp_path


def _row(trial: str, metric: str, value: float) -> dict[str, Any]:
    texts = {"phase": "", "text": "", "bounded_by": "", "reason": ""}
    return {"run": "r", "trial": trial, "metric": metric, "quantile": None, "value": value, **texts}


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def changed(change: Callable[[Any], object]) -> Damage:
    """Change values in a JSON file."""

    def of(path: Path) -> None:
        content = json.loads(path.read_text())
        change(content)
        write(path, content)

    return of


def replaced(make: Callable[[Path], object]) -> Damage:
    """Put something else in the place of the file."""

    def of(path: Path) -> None:
        path.unlink()
        make(path)

    return of


def bound(path: Path) -> None:
    """Create a socket."""
    with socket.socket(socket.AF_UNIX) as one, suppress(OSError):
        one.bind(os.path.relpath(path))


def huge(path: Path) -> None:
    """Create a file that needs no space on the disk."""
    with path.open("w") as file:
        file.truncate(DOCUMENT_MAX + 1)


DOCUMENTS: dict[str, Damage] = {
    "a folder": replaced(Path.mkdir),
    "a FIFO": replaced(os.mkfifo),
    "a device": replaced(lambda path: path.symlink_to("/dev/zero")),
    "a socket": replaced(bound),
    "a loop of links": replaced(lambda path: path.symlink_to(path.name)),
    "a huge file": replaced(huge),
    "an empty file": lambda path: path.write_text(""),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe{}"),
    "a key twice": lambda path: path.write_text('{"schema": 2, "schema": 2}'),
    "no number": lambda path: path.write_text('[{"value": NaN}]'),
    "endless nesting": lambda path: path.write_text('{"a":' * 100_000),
    "another type": lambda path: path.write_text("5"),
}


@pytest.mark.parametrize("name", [MANIFEST, METRICS_FILE, TIMESERIES_FILE, RECOVERY_FILE])
@pytest.mark.parametrize("damage", DOCUMENTS.values(), ids=DOCUMENTS)
def test_anything_else_in_the_place_of_a_document_is_an_error_that_names_it(
    headgate: Any, folder: Path, damage: Damage, name: str
):
    """Nothing blocks or fills the memory, and there is no stack trace."""
    damage(folder / name)
    readers = [("report",)] if name in (TIMESERIES_FILE, RECOVERY_FILE) else [("report",), ("compare",)]
    for command in readers:
        said = headgate(*command, folder)
        assert said.returncode == exits.ERROR, said.stdout
        assert name in said.stderr
        assert "Traceback" not in said.stderr
        assert not (folder / "verdict.json").exists()


@pytest.mark.parametrize(
    ("name", "damage", "problem"),
    [
        (MANIFEST, changed(lambda m: m["trials"][0]["job"].update(edges=[{}])), "trials[0].job.edges[0]: Object missing required field `from`"),
        (MANIFEST, changed(lambda m: m.update(decided=7)), "decided: is 7, but `looks` is empty"),
        (MANIFEST, changed(lambda m: m.update(decided="7", looks=[7])), "decided: Expected `int | null`, got `str`"),
        (METRICS_FILE, changed(lambda rows: rows[0].update(value=-3.0)), "[0].value: Expected `float` >= 0.0"),
        (METRICS_FILE, changed(lambda rows: rows[0].update(value=1e308 * 10)), "contains Infinity, which is not JSON"),
        (METRICS_FILE, lambda path: path.write_text(path.read_text().replace("3.0", "1e999", 1)), "[0].value: Expected `float` <= 1.79"),
        (METRICS_FILE, changed(lambda rows: rows[1].update(value=2)), "[1].value: is 2, but fault.verified is at most 1"),
        (METRICS_FILE, changed(lambda rows: rows[1].update(run="s")), "[1].run: is 's', but the run is r"),
        (METRICS_FILE, changed(lambda rows: rows[1].update(trial="main-2")), "[1].trial: is 'main-2', which the run does not have"),
        (TIMESERIES_FILE, changed(lambda s: s["trials"][0]["spans"][0].update(end_s="x")), "trials[0].spans[0].end_s: Expected `float`, got `str`"),
        (TIMESERIES_FILE, changed(lambda s: s["trials"][0]["bins"].pop()), "trials[0]: `series` has more or fewer values of throughput than `bins`"),
        (TIMESERIES_FILE, changed(lambda s: s["trials"][0]["heat"]["columns"].pop()), "trials[0].heat: `columns` has more or fewer columns or rows"),
        (TIMESERIES_FILE, changed(lambda s: s["trials"][0]["load"]["starts_s"].pop()), "trials[0].load: a curve of `vertices` has more or fewer"),
        (TIMESERIES_FILE, changed(lambda s: s["trials"][0]["series"].update(lag_s=[{}])), "trials[0].series[...][0]: Expected `float | null`, got `object`"),
        (RECOVERY_FILE, changed(lambda r: r[TRIAL]["recoveries"][0]["prices"].pop()), "['main-1'].recoveries[0].prices: add up to "),
        (RECOVERY_FILE, changed(lambda r: r[TRIAL]["recoveries"][0].update(end_ns="x")), "recoveries[0].end_ns: Expected `int`, got `str`"),
    ],
)  # fmt: skip
def test_a_damaged_result_names_the_field(
    headgate: Any, folder: Path, name: str, damage: Damage, problem: str
):
    """A value that no evaluation writes is damage too: it could decide a verdict."""
    damage(folder / name)
    said = headgate("report", folder)
    assert said.returncode == exits.ERROR
    assert f"{folder / name}: " in said.stderr
    assert problem in said.stderr


def test_the_run_without_damage_passes_however_its_lines_end(headgate: Any, folder: Path):
    """So each error above comes from the damage. Editors add line ends and a byte order mark."""
    for name in (MANIFEST, METRICS_FILE, TIMESERIES_FILE, RECOVERY_FILE):
        text = json.dumps(json.loads((folder / name).read_text()), indent=1)
        (folder / name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    said = headgate("report", folder)
    assert said.returncode == 0, said.stdout + said.stderr
    (folder / TIMESERIES_FILE).unlink()
    (folder / RECOVERY_FILE).unlink()
    assert headgate("report", folder).returncode == 0
