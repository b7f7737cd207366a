"""`headgate compare` and `headgate trend` on run folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from testbed_runtime.cli.commands import build
from testbed_runtime.cli.compare import text_table
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.judgement.comparison import UNKNOWN, Comparison, Contrast, Key
from testbed_runtime.core.judgement.metrics import NO_DATA, NOT_ENOUGH_TRIALS

CONFIGURATION = {"slow": {"heartbeat.interval": "1 s"}, "fast": {"heartbeat.interval": "500 ms"}}
SLOW, FAST = 2.0, 1.0


def run_folder(
    parent: Path, name: str, *, started: str = "2026-01-01", seed: int = 1, **means: float
) -> Path:
    """Create the folder of a run with 10 trials of each variant, whose detections vary a little around the variant's mean."""
    folder = parent / name
    folder.mkdir()
    trials, rows = [], []
    for number in range(1, 11):
        for variant, mean in means.items():
            trial = f"{variant}-{number}"
            trials.append(
                {"trial": trial, "variant": variant, "role": "fault", "number": number, "seed": seed + number,
                 "configuration": CONFIGURATION.get(variant, {}), "flinkVersion": "2.x", "job": {}, "faults": [], "phases": []}
            )  # fmt: skip
            rows.append(
                {"run": name, "trial": trial, "metric": "recovery.detect", "phase": "", "quantile": None, "text": "",
                 "value": mean + 0.02 * (number * (3 + seed) % 7), "bounded_by": "", "reason": ""}
            )  # fmt: skip
    expectations = {variant: [] for variant in means}
    manifest = {
        "schema": 2, "run": name, "started": started, "place": "simulation", "expectations": expectations, "trials": trials
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "metrics.json").write_text(json.dumps(rows))
    return folder


def headgate(*arguments: object) -> str:
    done = CliRunner().invoke(build(), [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_variants_of_a_run_are_compared_with_its_first_one(tmp_path: Path):
    """A table with means and intervals, then the answer in words."""
    shown = headgate("compare", run_folder(tmp_path, "a", slow=SLOW, fast=FAST))
    assert "slow (10 trials)" in shown
    assert "fast against slow: recovery.detect: better by 1.00 s" in shown


def test_a_run_of_an_unknown_version_is_compared_as_one_of_the_newest(tmp_path: Path):
    """Its folder may come from a later Headgate."""
    old, new = (run_folder(tmp_path, name, slow=SLOW) for name in "ab")
    manifest = new / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"flinkVersion": "2.x"', '"flinkVersion": "3.0"'))
    assert "flinkVersion: 2.x → 3.0" in headgate("compare", old, new)


def test_groups_that_do_not_fit_beside_each_other_follow_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The table is as wide as the terminal, as that of `headgate run`."""
    monkeypatch.setenv("COLUMNS", "50")
    folder = run_folder(tmp_path, "a", slow=SLOW, fast=FAST)
    table = headgate("compare", folder, "--metric", "recovery.detect").partition("against")[0].splitlines()
    assert [line.split()[0] for line in table[:-1]] == ["slow", "recovery.detect", "fast", "recovery.detect"]


def test_too_few_trials_are_one_line_and_not_one_for_each_metric(tmp_path: Path):
    """The table has what was measured, the answer how many trials an interval needs."""
    contrasts = tuple(
        Contrast(key=Key(metric), name="b", reference="a", answer=UNKNOWN, text=f"unknown: {metric}; an interval needs 8", reason=reason)
        for metric, reason in (("recovery.detect", NOT_ENOUGH_TRIALS), ("outage", NOT_ENOUGH_TRIALS), ("lag", NO_DATA))
    )  # fmt: skip
    table = Comparison(contrasts=contrasts[:2], summary=("Differences may be chance",))
    assert text_table(table)[1:] == ["answer: Differences may be chance"]
    shown = text_table(replace(table, contrasts=contrasts))
    assert shown[1:3] == [
        "lag: b against a: unknown: lag; an interval needs 8",
        "recovery.detect, outage: unknown; an interval needs more trials",
    ]
    assert "an interval needs 8" in text_table(replace(table, contrasts=contrasts[:1]))[1]


def test_runs_are_compared_variant_by_variant_and_their_settings_are_listed(tmp_path: Path):
    """The same variants in two runs with other seeds: indistinguishable; a changed setting is printed first."""
    first = run_folder(tmp_path, "a", slow=SLOW, fast=FAST)
    second = run_folder(tmp_path, "b", seed=40, slow=SLOW, fast=FAST)
    data = json.loads(headgate("compare", first, second, "--json"))
    assert data["changes"] == []
    assert [(c["variant"], c["contrasts"][0]["answer"]) for c in data["comparisons"]] == [
        ("slow", "indistinguishable"), ("fast", "indistinguishable"),
    ]  # fmt: skip
    assert not data["comparisons"][0]["contrasts"][0]["paired"]
    (tmp_path / "x").mkdir()
    one = run_folder(tmp_path, "c", slow=SLOW)
    other = run_folder(tmp_path / "x", "c", started="2026-01-02", fast=FAST)
    shown = headgate("compare", one, other)
    assert shown.count("different settings,") == 1
    assert "\n  heartbeat.interval: 1 s → 500 ms" in shown
    assert "better by 1.00 s" in shown


def test_a_trend_is_ordered_by_time_and_compares_each_run_with_the_one_before(tmp_path: Path):
    """The run that became slower is named, whatever the order of the arguments."""
    runs = [
        run_folder(tmp_path, name, started=f"2026-01-0{day}", seed=day, main=mean)
        for day, name, mean in ((1, "mon", FAST), (2, "tue", FAST), (3, "wed", SLOW))
    ]
    shown = headgate("trend", runs[2], runs[0], runs[1])
    assert "answer: tue and mon are indistinguishable in recovery.detect" in shown
    assert "answer: wed against tue: recovery.detect: worse by 1.0" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "one"], "nothing to compare it with"),
        (["compare", "one", "--variant", "nosuch"], "has no variant nosuch"),
        (["compare", "one", "one/../two", "--metric", "job.state"], "cannot be compared"),
        (["compare", "one", "two", "--metric", "latency"], "latency needs a quantile, one of p50"),
        (["compare", "one", "two", "--metric", "latency p99 outge"], "neither a quantile nor a phase"),
        (["compare", "one", "two", "--metric", "recovery.detect outage"], "has no phases"),
        (["compare", "one", "two", "--metric", "recovery.detect p99"], "takes no quantile"),
        (["compare", "one", "two", "--metric", ""], "'' is not a metric"),
        (["compare", "one", "two", "--matters", "5"], "write a percentage"),
        (["compare", "one", "two", "one"], "one: is named twice"),
        (["trend", "one", "one/../one"], "is named twice"),
        (["compare", "one", "kept"], "kept: is a copy of one"),
        (["compare", "one", "two", "--variant", "other"], "has no variant other"),
        (["compare", "one", "two", "--matters", "500 ms"], "is not a valid bound"),
        (["trend", "one"], "needs at least two runs"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
):
    """The error names the argument and what to write."""
    run_folder(tmp_path, "one", main=FAST)
    run_folder(tmp_path, "two", main=FAST)
    shutil.copytree(tmp_path / "one", tmp_path / "kept")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        CliRunner().invoke(build(), arguments, catch_exceptions=False)


def test_runs_whose_variants_have_other_names_are_compared_by_naming_one_of_each(tmp_path: Path):
    """Without the names there is nothing in common."""
    first = run_folder(tmp_path, "a", slow=SLOW, mid=SLOW)
    second = run_folder(tmp_path, "b", fast=FAST, other=FAST)
    shown = headgate("compare", first, second, "--variant", "slow", "--variant", "fast")
    assert "b against a: recovery.detect: better by 1.00 s" in shown


def changed_manifest(folder: Path, **fields: object) -> None:
    """Set fields in every trial of a run's manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["trials"]:
        entry.update(fields)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_changed_setting_is_named_by_its_path_and_variants_of_one_run_only_are_not_settings(tmp_path: Path):
    """One line for each change; a whole job or a variant that the other run lacks is not printed."""
    first = run_folder(tmp_path, "a", slow=SLOW, extra=FAST)
    second = run_folder(tmp_path, "b", seed=40, slow=SLOW)
    job = {
        "vertices": [{"name": "source", "recordsPerSecond": 200}],
        "edges": [{"from": "source", "to": "sink"}],
    }
    changed_manifest(first, job=job)
    changed_manifest(second, job={**job, "vertices": [{"name": "source", "recordsPerSecond": 400}]})
    changes = json.loads(headgate("compare", first, second, "--json"))["changes"]
    assert changes == ["a → b: slow: job.vertices[source].recordsPerSecond: 200 → 400"]


def test_an_option_under_its_older_name_or_in_another_unit_is_no_changed_setting(tmp_path: Path):
    """Flink reads both names, and 1 min is 60 s."""
    first, second = run_folder(tmp_path, "a", slow=SLOW), run_folder(tmp_path, "b", seed=40, slow=SLOW)
    changed_manifest(first, configuration={"akka.ask.timeout": "60 s", "heartbeat.timeout": "50 s"})
    changed_manifest(second, configuration={"pekko.ask.timeout": "1 min", "heartbeat.timeout": "40 s"})
    changes = json.loads(headgate("compare", first, second, "--json"))["changes"]
    assert changes == ["a → b: heartbeat.timeout: 50 s → 40 s"]


def test_an_option_that_one_version_ignores_is_shown_as_ignored(tmp_path: Path):
    """It is set in all runs. Flink 1.12 and 1.13 do not know it."""
    first, second = run_folder(tmp_path, "a", slow=SLOW), run_folder(tmp_path, "b", seed=40, slow=SLOW)
    key = "heartbeat.rpc-failure-threshold"
    for folder, version in ((first, "1.12"), (second, "2.x")):
        changed_manifest(folder, configuration={key: "3"}, flinkVersion=version)
    changes = json.loads(headgate("compare", first, second, "--json"))["changes"]
    assert changes == ["a → b: flinkVersion: 1.12 → 2.x", f"a → b: {key}: 3 (ignored) → 3"]
    changed_manifest(second, flinkVersion="1.13")
    changes = json.loads(headgate("compare", first, second, "--json"))["changes"]
    assert changes == ["a → b: flinkVersion: 1.12 → 1.13"]


def test_a_vertex_that_one_run_lacks_is_shown_with_what_it_has(tmp_path: Path):
    """An operator has no rate, no record size and no delivery."""
    first, second = run_folder(tmp_path, "a", slow=SLOW), run_folder(tmp_path, "b", seed=40, slow=SLOW)
    changed_manifest(first, job={})
    changed_manifest(second, job={"vertices": [{"name": "map", "role": "operator", "kind": "keyed-count"}]})
    changes = json.loads(headgate("compare", first, second, "--json"))["changes"]
    known = {"parallelism": "1", "slotSharingGroup": "default", "role": "operator", "kind": "keyed-count"}
    assert changes == [f"a → b: job.vertices[map].{name}: not set → {value}" for name, value in known.items()]


def test_a_drawn_beginning_of_a_fault_is_no_changed_setting(tmp_path: Path):
    """With jitter, the trials of one variant differ already; another length of the fault is a change."""
    folders = [run_folder(tmp_path, "a", main=SLOW), run_folder(tmp_path, "b", seed=40, main=SLOW)]
    for number, folder in enumerate(folders):
        manifest = json.loads((folder / "manifest.json").read_text())
        for index, entry in enumerate(manifest["trials"]):
            entry["faults"] = [
                {
                    "name": "dead",
                    "kind": "process.kill",
                    "at_s": number + index / 7,
                    "duration_s": 1.0 + number,
                }
            ]
        (folder / "manifest.json").write_text(json.dumps(manifest))
    changes = json.loads(headgate("compare", *folders, "--json"))["changes"]
    assert changes == ["a → b: faults[dead].duration: 1 s → 2 s"]


ROW = dict.fromkeys(("run", "trial", "metric", "phase", "text", "bounded_by", "reason"), "") | {"quantile": None, "value": 1.0}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    ["{", '{"x": 1}', '[{"x": 1}]', "[1]", "[" * 9999, *(json.dumps([ROW | {n: ["x"]}]) for n in ROW)],
)
def test_metrics_that_hold_no_rows_are_refused_with_the_command_that_repairs_them(
    tmp_path: Path, content: str
):
    """Not with the words of a bug."""
    folder = run_folder(tmp_path, "a", slow=SLOW, fast=FAST)
    (folder / "metrics.json").write_text(content)
    with pytest.raises(HeadgateError, match=r"metrics.json: .*it is damaged; run `headgate evaluate"):
        CliRunner().invoke(build(), ["compare", str(folder)], catch_exceptions=False)


def test_a_metric_or_a_folder_with_another_name_is_corrected(tmp_path: Path):
    """The nearest metric, and a run inside the folder: those of seeds are one level deeper."""
    folder = tmp_path / "seeds" / "seed-7"
    folder.mkdir(parents=True)
    run = run_folder(folder, "a", slow=SLOW, fast=FAST)
    with pytest.raises(UserError, match=r"did you mean recovery\.detect"):
        headgate("compare", run, "--metric", "recovry.detect")
    for outer in (folder, folder.parent):
        with pytest.raises(
            UserError, match=f"{outer}: is not the folder of a run.*name a run in it, such as {run}"
        ):
            headgate("compare", outer)
