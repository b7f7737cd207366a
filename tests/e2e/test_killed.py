"""Parts of a run that are killed, and a full disk: a message, the right exit code, no stack trace, and no process, port, state file or
temporary folder is left."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from testbed_runtime.api.compile import compile_testbed
from testbed_runtime.api.models import TestbedSpec
from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.evaluation.process import START_LIMIT_S
from testbed_runtime.history.schema import TABLES
from testbed_runtime.history.segments import scan
from testbed_runtime.local.testbed import LocalTestbedHost
from testbed_runtime.ports.hosts import TrialContext
from tests.e2e.world import KEPT, LONG, World, no_trace, recorded, running, small, wait_dead
from tests.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(360)]

FILE_MAX_BYTES = 60_000
"""The largest file on the full disk: enough to start, not enough for a minute of history."""
ROWS_BEFORE_THE_KILL = 100


@pytest.mark.parametrize("victim", ["jobmanager", "recorder", "supervisor"])
def test_a_run_that_loses_what_it_cannot_do_without_ends_at_once_and_says_so(world: World, victim: str):
    """kill -9 from outside: Error with the name, within seconds and not after the observation; the rest is stopped."""
    command = running(world, "observation")
    ports = world.ports()
    (pid,) = world.processes(f"testbed_runtime.entry.{victim}")
    os.kill(pid, signal.SIGKILL)
    said = command.ended(seconds=40)
    assert said.code == 2
    no_trace(said)
    assert f"the {victim} was killed by SIGKILL" in said.out
    world.leaves_nothing(ports)
    folder = world.only_run()
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "Error"
    assert list(
        (folder / "history/main-1").rglob("*.segments" if victim != "jobmanager" else "events.parquet")
    )


def test_a_disk_that_is_full_while_recording_ends_the_run_with_a_hint(world: World):
    """No file may grow beyond some KiB: Error that says which folder and what to do; what was acknowledged is kept."""
    command = world.start(
        "run",
        world.scenario(timeline=LONG),
        "--out",
        world.out,
        before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_MAX_BYTES, FILE_MAX_BYTES)),
    )
    said = command.ended()
    assert said.code == 2
    no_trace(said)
    assert "history/main-1" in said.out
    assert "free some space or choose another folder" in said.out
    assert KEPT in said.out.lower()
    kept = list(world.only_run().glob("history/main-1/segments/*.segments"))
    assert any(scan(path.read_bytes()).segments for path in kept)
    assert not any(scan(path.read_bytes()).problem for path in kept)
    world.leaves_nothing()


def test_a_spark_driver_that_is_killed_is_an_error_and_a_report(world: World):
    """kill -9 of the JVM while it works: exit 2, one line, no scratch folder, the history can be evaluated again."""
    folder = recorded(world)
    command = world.start("evaluate", folder)
    command.until("computing the metrics", seconds=START_LIMIT_S)
    for pid in world.processes("org.apache.spark"):
        os.kill(pid, signal.SIGKILL)
    said = command.ended()
    assert said.code == 2
    no_trace(said)
    assert "The Spark driver has ended before its work was done" in said.out
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "Error"
    assert (folder / "report.html").is_file()
    world.leaves_nothing()


PARAMETERS: dict[str, dict[str, Any]] = {
    "network.latency": {"delay": "200 ms", "mode": "one-way"},
    "network.bandwidth": {"bytesPerSecond": 100_000},
    "frames.delay": {"frameClass": "buffer", "delay": "50 ms"},
    "frames.drop": {"frameClass": "backlog"},
    "heartbeats.mute": {"direction": "response"},
    "rpc.delay": {"method": "TriggerCheckpoint", "delay": "100 ms"},
    "store.slow": {"delay": "100 ms"},
    "registration.delay": {"delay": "1 s"},
}
HERE = [name for name, kind in KINDS.items() if set(kind.backends) & {"channel", "proxy", "supervisor"}]


def as_field(kind: str) -> dict[str, Any]:
    """`{network: {half-open: {…}}}` of `network.half-open`, with the names that a document uses."""
    family, _, name = kind.partition(".")
    first, *more = name.split("-")
    field = first + "".join(word.capitalize() for word in more)
    return {family: {field: PARAMETERS.get(kind, {})}}


def kill_runner_during(world: World, kinds: list[str]) -> None:
    """Inject them all, kill the runner, look after ten seconds."""
    faults = [
        {
            "name": kind.replace(".", "-"),
            "duration": "50 s",
            **({} if kind.startswith("jobmanager") else {"target": {"taskManagers": {"names": ["tm-0"]}}}),
            **({"at": "deploy"} if kind.startswith("registration") else {}),
            **as_field(kind),
        }
        for kind in kinds
    ]
    command = running(world, f"({kinds[-1]})", faults=faults)
    output = command.output()
    assert all(f"({kind})" in output for kind in kinds), output
    pids, ports = world.processes(), world.ports()
    assert len(pids) >= 5
    command.signal(signal.SIGKILL)
    assert command.ended().code == -9
    world.leaves_nothing(ports)
    wait_dead(pids)


@pytest.mark.parametrize(
    "kinds",
    [
        ["registration.delay", "network.stall", "frames.delay", "frames.drop", "frames.withhold-credit",
         "rpc.delay", "store.slow"],
        ["network.bandwidth", "network.half-open", "heartbeats.mute", "store.failing", "jobmanager.kill"],
    ],
    ids=["delays", "losses"],
)  # fmt: skip
def test_a_killed_runner_leaves_nothing_whatever_faults_were_active(world: World, kinds: list[str]):
    """Several kinds at once, through the real command; within ten seconds no process, port or file."""
    kill_runner_during(world, kinds)


@pytest.mark.soak
@pytest.mark.parametrize("kind", HERE)
def test_a_killed_runner_leaves_nothing_during_each_kind_of_fault(world: World, kind: str):
    """One after the other."""
    kill_runner_during(world, [kind])


async def test_a_killed_taskmanager_loses_no_acknowledged_history(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """The sealed tables contain each row that the recorder had stored before the kill, once."""
    for name in ("XDG_RUNTIME_DIR", "TMPDIR", world.marker.partition("=")[0]):
        monkeypatch.setenv(name, world.environment[name])
    plan = compile_testbed(TestbedSpec.model_validate(small()["spec"]["testbed"]), seed=7)
    host = LocalTestbedHost(world.folder / "run")
    context = TrialContext("run", "main-1", 7)
    testbed = await host.create(plan, context=context)
    segments = world.folder / "run/history/main-1/segments"
    try:
        await testbed.submit()
        await until(lambda: len(rows_on_disk(segments, "tm-0-1")) > ROWS_BEFORE_THE_KILL, seconds=40)
        states = {state.name: state for state in await testbed.processes.refresh()}
        os.killpg(states["tm-0"].pid, signal.SIGKILL)
        acknowledged = rows_on_disk(segments, "tm-0-1")
        folder = Path(await testbed.finish_history())
    finally:
        await host.dispose(context)
    sealed = [
        (table, row["seq"], row["t_ns"])
        for table in TABLES
        for row in pq.read_table(folder / f"{table}.parquet", columns=["process", "seq", "t_ns"]).to_pylist()
        if row["process"] == "tm-0-1"
    ]
    assert acknowledged <= set(sealed)
    assert len(set(sealed)) == len(sealed)
    world.leaves_nothing()


def rows_on_disk(segments: Path, process: str) -> set[tuple[str, int, int]]:
    """(table, seq, time) of the rows of a process that the recorder has written: acknowledged, or about to be."""
    return {
        (segment.table_name, row["seq"], row["t_ns"])
        for path in segments.glob(f"{process}~*.segments")
        for segment in scan(path.read_bytes()).segments
        for row in segment.rows().select(["seq", "t_ns"]).to_pylist()
    }
