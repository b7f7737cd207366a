"""Ctrl-C and SIGTERM in every phase of a run: a message, exit code 130, no stack trace, and no process, port, state file or temporary
folder is left."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.e2e.world import KEPT, World, no_trace, recorded, running
from tests.report import synthetic

pytestmark = [pytest.mark.processes, pytest.mark.timeout(360)]

SLOW = {"warmUp": "60 s", "baseline": "1 s", "observation": "3 s", "drain": "5 s"}
SINK = {"taskManagers": {"running": "sink"}}
PAUSE = [{"name": "stop", "duration": "50 s", "target": SINK, "process": {"pause": {}}}]


def manifest(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing(world: World, number: signal.Signals):
    """While the JobManager comes up: exit 130, and the manifest says that it was interrupted."""
    command = running(world, "starting the testbed")
    command.until(lambda: bool(world.processes("testbed_runtime.entry.jobmanager")))
    ports = world.ports()
    command.signal(number)
    said = command.ended(seconds=30)
    assert said.code == 130
    no_trace(said)
    assert KEPT in said.err
    world.leaves_nothing(ports)
    assert manifest(world.only_run())["interrupted"]


def test_ctrl_c_during_the_warm_up_keeps_what_was_recorded_and_judges_nothing(world: World):
    """The history is sealed; evaluating it says Error, because the run was not carried out."""
    command = running(world, "warm-up", timeline=SLOW)
    ports = world.ports()
    assert len(ports) >= 5, "two TaskManagers, JobManager, recorder, supervisor"
    command.signal(signal.SIGINT)
    said = command.ended(seconds=30)
    assert said.code == 130
    no_trace(said)
    world.leaves_nothing(ports)
    folder = world.only_run()
    kinds = pq.read_table(folder / "history/main-1/events.parquet").column("kind").to_pylist()
    assert "trial.phase" in kinds
    assert not (folder / "verdict.json").exists()
    entry = manifest(folder)["trials"][0]
    assert [p["name"] for p in entry["phases"]][-1] == "warmUp"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_heals_the_active_fault_before_it_ends(world: World, number: signal.Signals):
    """A paused TaskManager is resumed: the sealed history holds the end of the fault, measured clean."""
    command = running(world, "fault `stop` (process.pause)", faults=PAUSE)
    ports = world.ports()
    command.signal(number)
    said = command.ended(seconds=30)
    assert said.code == 130
    no_trace(said)
    assert "fault `stop` ended" in said.err
    world.leaves_nothing(ports)
    folder = world.only_run()
    states = pq.read_table(folder / "history/main-1/faults.parquet").column("state").to_pylist()
    assert states[-2:] == ["ended", "clean"]
    assert manifest(folder)["interrupted"]


def test_a_second_ctrl_c_does_not_wait_for_the_cleaning_up(world: World):
    """It ends within seconds, and the supervisor ends what the runner did not."""
    command = running(world, "fault `stop` (process.pause)", faults=PAUSE)
    ports = world.ports()
    command.signal(signal.SIGINT)
    command.until("sealing the history")
    command.signal(signal.SIGINT)
    said = command.ended(seconds=30)
    assert said.code == 130
    assert "the cleaning up was given up" in said.err
    no_trace(said)
    world.leaves_nothing(ports)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_evaluation_that_is_ended_takes_its_spark_with_it(world: World, number: signal.Signals):
    """JVM, Python workers and the scratch folder are gone, also after kill -9; the history stays."""
    folder = recorded(world)
    command = world.start("evaluate", folder)
    command.until(lambda: bool(world.processes("org.apache.spark")))
    command.signal(number)
    said = command.ended(seconds=20)
    assert said.code == (-9 if number is signal.SIGKILL else 130)
    no_trace(said)
    world.leaves_nothing()
    assert not (folder / "verdict.json").exists()
    assert (folder / "history" / synthetic.PLANS[0].trial / "events.parquet").is_file()
