"""Bad input, through the real command: each problem with its field, its value and a hint, exit code 2, no stack trace, nothing left."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.world import World, no_trace, recorded, small
from tests.report import synthetic

pytestmark = pytest.mark.processes

UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
"""Root that may no more than its files' owner."""
PARTITION = "a0" * 16 + "00" * 4 + "b0" * 16 + "c0" * 16 + "00" * 8


def changed(change: Any) -> str:
    """The small scenario with one thing wrong."""
    document = small()
    change(document["spec"])
    return yaml.safe_dump(document, sort_keys=False)


def options(**wrong: str) -> Any:
    return lambda spec: spec["testbed"]["flinkConfiguration"].update(
        {k.replace("_", "."): v for k, v in wrong.items()}
    )


def fault(**fields: Any) -> Any:
    return lambda spec: spec.update(faults=[{"name": "f", "duration": "1 s", **fields}])


def job(spec: Any) -> Any:
    return spec["testbed"]["job"]


PAUSE = {"target": {"taskManagers": {"mode": "one"}}, "process": {"pause": {}}}
MIDDLE = {"name": "map", "slotSharingGroup": "main", "operator": "map"}

BAD: dict[str, tuple[str, str]] = {
    "unknown-field": (
        changed(lambda s: s.update(timelime={})),
        "spec.timelime: is an unknown field (did you mean timeline?",
    ),
    "option-with-a-typo": (
        changed(options(heartbeat_timout="3 s")),
        "spec.testbed.flinkConfiguration[heartbeat.timout]: is not a Flink option (did you mean heartbeat.timeout?)",
    ),
    "value-of-an-option": (
        changed(options(heartbeat_interval="soon")),
        "spec.testbed.flinkConfiguration[heartbeat.interval]: 'soon'",
    ),
    "unknown-fault-kind": (
        changed(fault(proces={"pause": {}})),
        "spec.faults[0].proces: is neither a fault kind nor a field of a fault (did you mean process?",
    ),
    "no-target": (
        changed(fault(process={"pause": {}})),
        "spec.faults[0].target: process.pause needs TaskManagers (write target:",
    ),
    "edge-to-nowhere": (
        changed(lambda s: job(s).update(edges=[{"from": "source", "to": "sinc"}])),
        "spec.testbed.job.edges[0].to: vertex 'sinc' does not exist (did you mean sink?)",
    ),
    "cycle": (
        changed(
            lambda s: job(s).update(
                vertices=[*job(s)["vertices"], MIDDLE, {**MIDDLE, "name": "back"}],
                edges=[
                    {"from": a, "to": b}
                    for a, b in (("source", "map"), ("map", "back"), ("back", "map"), ("map", "sink"))
                ],
            )
        ),
        "spec.testbed.job.edges: there is a cycle among",
    ),
    "negative-duration": (
        changed(fault(**{**PAUSE, "duration": "-8 s"})),
        "spec.faults[0].duration: '-8 s' is negative",
    ),
    "too-few-slots": (
        changed(lambda s: s["testbed"].update(taskManagers={"replicas": 1, "slots": 1})),
        "spec.testbed.taskManagers: the job needs 2 slots (the largest parallelism of each slotSharingGroup, added up), but there are 1",
    ),
    "unknown-metric": (
        changed(lambda s: s.update(expect=[{"metric": "delivery.lots", "equals": 0}])),
        "spec.expect[0].metric: 'delivery.lots' is not a metric (did you mean delivery.lost",
    ),
    "no-yaml": ("apiVersion: [headgate.dev\nkind: {", "is not YAML in line"),
    "empty": ("", "is empty"),
    "only-comments": ("# nothing\n---\n", "is empty"),
    "a-list": ("- apiVersion: headgate.dev/v1alpha1\n", "is not a mapping"),
    "two-documents": ("a: 1\n---\nb: 2\n", "holds more than one document"),
    "twice-the-same-key": ("kind: Scenario\nkind: Scenario\n", "line 2: the key 'kind' is a duplicate"),
    "not-text": ("\0", "is not YAML"),
}
WITH_LINES = ("unknown-field", "unknown-fault-kind", "edge-to-nowhere", "negative-duration", "unknown-metric")


def test_every_kind_of_bad_document_is_reported_with_file_field_and_hint(world: World):
    """All files of one command at once, before anything starts: exit 2, no trace, no folder, no process."""
    paths = {}
    for name, (text, _) in BAD.items():
        paths[name] = world.folder / f"{name}.yaml"
        paths[name].write_text(text)
    paths["latin"] = world.folder / "latin.yaml"
    paths["latin"].write_bytes("hypothesis: fünf\n".encode("latin-1"))
    missing = world.folder / "missing.yaml"
    said = world.run("run", *paths.values(), missing, "--out", world.out)
    assert said.code == 2
    no_trace(said)
    lines = said.err.splitlines()
    wanted = {name: words for name, (_, words) in BAD.items()} | {"latin": "is not UTF-8 text"}
    reported = {name: [line for line in lines if str(paths[name]) in line] for name in wanted}
    silent = {
        name: reported[name]
        for name, words in wanted.items()
        if not any(words in line for line in reported[name])
    }
    assert not silent, said.err
    assert any(f"{missing}: does not exist" in line for line in lines)
    for name in WITH_LINES:
        assert re.search(rf"{re.escape(str(paths[name]))}:\d+: ", said.err), name
    assert said.out == ""
    assert not world.out.exists()
    world.leaves_nothing()


def test_one_wrong_field_says_one_line(world: World):
    """No second message that follows from the first."""
    path = world.folder / "scenario.yaml"
    path.write_text(BAD["too-few-slots"][0])
    said = world.run("run", path, "--out", world.out)
    assert said.code == 2
    assert len(said.err.splitlines()) == 1, said.err


def test_a_fault_that_needs_packets_is_refused_before_anything_starts(world: World):
    """network.loss without the privilege: why not here, and what to use instead; no folder and no process."""
    path = world.scenario(faults=[{"name": "f", "duration": "1 s", "network": {"loss": {"percent": 5}}}])
    said = world.run("run", path, "--out", world.out, wrapped=UNPRIVILEGED if os.geteuid() == 0 else ())
    assert said.code == 2
    no_trace(said)
    assert "network.loss is not possible in the environment 'local'" in said.err
    assert "packet faults on one machine need" in said.err
    assert "frames.drop" in said.err
    assert world.runs() == []
    world.leaves_nothing()


def test_without_java_a_run_is_refused_before_it_costs_a_minute(world: World):
    """The message says what to install; `evaluate` of a recorded run says the same, and keeps the history."""
    path = world.scenario()
    without = {"PATH": str(Path(sys.executable).parent), "JAVA_HOME": ""}
    said = world.run("run", path, "--out", world.out, environment=without)
    assert said.code == 2
    no_trace(said)
    assert "Evaluation needs Java 17 or later" in said.err
    assert "JAVA_HOME" in said.err
    assert world.runs() == []
    folder = recorded(world)
    said = world.run("evaluate", folder, environment={**without, "JAVA_HOME": str(world.folder / "nowhere")})
    assert said.code == 2
    no_trace(said)
    assert "Evaluation needs Java 17 or later" in said.text
    assert not (folder / "verdict.json").exists()
    assert len(list(folder.glob("history/*/events.parquet"))) == len(synthetic.PLANS)
    world.leaves_nothing()


@pytest.mark.parametrize("how", ["half", "empty", "noise", "gone"])
def test_a_damaged_history_is_named(world: World, how: str):
    """A Parquet file cut in half, emptied, overwritten or removed: Error with the file's name, and a report that says so."""
    folder = recorded(world)
    victim = folder / "history" / synthetic.PLANS[0].trial / "events.parquet"
    data = victim.read_bytes()
    if how == "gone":
        victim.unlink()
    else:
        victim.write_bytes(
            {"half": data[: len(data) // 2], "empty": b"", "noise": os.urandom(len(data))}[how]
        )
    said = world.run("evaluate", folder)
    assert said.code == 2
    no_trace(said)
    assert f"{victim.parent.name}/{victim.name}" in said.text
    assert ("is missing" if how == "gone" else "truncated or damaged") in said.text
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "Error"
    assert (folder / "report.html").is_file()
    if how == "half":
        again = world.run("report", folder)
        assert again.code == 2
        no_trace(again)
        assert "headgate evaluate" in again.err
    world.leaves_nothing()


@pytest.mark.parametrize("entry", ["jobmanager", "recorder", "proxy", "taskmanager"])
def test_a_process_whose_port_is_taken_says_which_and_ends_with_2(world: World, entry: str):
    """No stack trace, no half-started process."""
    token = world.folder / "token"
    token.write_text("secret")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = list(taken.getsockname())
        config = {
            "name": "tm-0" if entry == "taskmanager" else entry,
            "token_file": str(token),
            "bind": address,
            "jobmanager": ["127.0.0.1", 1],
            "blob_folder": str(world.folder / "blobs"),
            "history_folder": str(world.folder / "history"),
        }
        path = world.folder / "config.json"
        path.write_text(json.dumps(config))
        done = subprocess.run(
            [sys.executable, "-m", f"testbed_runtime.entry.{entry}", str(path)],
            stdin=subprocess.PIPE,
            capture_output=True,
            text=True,
            env=world.environment,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert f"127.0.0.1:{address[1]}" in done.stderr
    assert "in use" in done.stderr
    assert done.stdout == ""
    world.leaves_nothing(seconds=2)


def test_an_exchange_whose_port_is_taken_says_what_to_choose(world: World):
    """The command reports the option's name, also for the other options."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = world.run("exchange", "serve", "--port", port, "--partition", PARTITION)
    assert said.code == 2
    no_trace(said)
    assert f"port: {port} on 127.0.0.1 is in use by another process (choose another port" in said.err
    assert said.out == ""
    world.leaves_nothing()
