"""Worlds that break while a scenario runs: kills, Ctrl-C in every phase, a full disk, a dead JVM, parts that are broken on purpose.
Always the same: a message, the right exit code, no stack trace, no process, port, state file or temporary folder left."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from testbed_runtime.api.compile import compile_testbed
from testbed_runtime.api.models import TestbedSpec
from testbed_runtime.faults.model import KINDS
from testbed_runtime.history.schema import TABLES
from testbed_runtime.history.segments import scan
from testbed_runtime.local.testbed import LocalTestbedHost
from testbed_runtime.ports.hosts import TrialContext
from tests.e2e.world import DATA, World, dead, eventually, no_trace, small
from tests.report import synthetic

pytestmark = [pytest.mark.processes, pytest.mark.timeout(360)]

LONG = {"warmUp": "500 ms", "baseline": "1 s", "observation": "60 s", "drain": "5 s"}
SLOW = {"warmUp": "60 s", "baseline": "1 s", "observation": "3 s", "drain": "5 s"}
SINK = {"taskManagers": {"running": "sink"}}
PAUSE = [{"name": "stop", "duration": "50 s", "target": SINK, "process": {"pause": {}}}]
FILE_MAX_BYTES = 60_000
"""What a file of a run on a full disk may grow to: enough to start, not enough for a minute of history."""
BROKEN_LIMIT_S = 300.0
"""For four trials of ten seconds and their Spark: about 80 s on an idle machine."""
ROWS_BEFORE_THE_KILL = 100
KEPT = "what was recorded"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def running(world: World, until: str, **changes: Any) -> Any:
    """A run that has come so far."""
    changes.setdefault("timeline", LONG)
    command = world.start("run", world.scenario(**changes), "--out", world.out)
    command.until(until)
    return command


def manifest(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text())


def recorded(world: World) -> Path:
    """The folder of a run with sealed histories that nobody evaluated yet."""
    folder = world.out / synthetic.RUN
    folder.mkdir(parents=True)
    document = synthetic.write_run(folder)
    document["scenario"] = small(
        variants=[{"name": n} for n in dict.fromkeys(p.variant for p in synthetic.PLANS)]
    )
    (folder / "manifest.json").write_text(json.dumps(document))
    return folder


# ---- Ctrl-C and SIGTERM ---------------------------------------------------------------------------------------


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
    world.leaves_nothing(ports, seconds=1)
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
    world.leaves_nothing(ports, seconds=1)
    folder = world.only_run()
    kinds = pq.read_table(folder / "history/main-1/events.parquet").column("kind").to_pylist()
    assert "trial.phase" in kinds
    assert not (folder / "verdict.json").exists()
    entry = manifest(folder)["trials"][0]
    assert [p["name"] for p in entry["phases"]][-1] == "warmUp"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_heals_the_active_fault_before_it_ends(world: World, number: signal.Signals):
    """A paused TaskManager is resumed: the sealed history holds the end of the fault, measured clean."""
    command = running(world, "fault stop (process.pause)", faults=PAUSE)
    ports = world.ports()
    command.signal(number)
    said = command.ended(seconds=30)
    assert said.code == 130
    no_trace(said)
    assert "fault stop ended" in said.err
    world.leaves_nothing(ports, seconds=1)
    folder = world.only_run()
    states = pq.read_table(folder / "history/main-1/faults.parquet").column("state").to_pylist()
    assert states[-2:] == ["ended", "clean"]
    assert manifest(folder)["interrupted"]


def test_a_second_ctrl_c_does_not_wait_for_the_cleaning_up(world: World):
    """It ends within seconds, and the supervisor ends what the runner did not."""
    command = running(world, "fault stop (process.pause)", faults=PAUSE)
    ports = world.ports()
    command.signal(signal.SIGINT)
    command.until("sealing the history")
    command.signal(signal.SIGINT)
    said = command.ended(seconds=10)
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


# ---- what dies under a run ------------------------------------------------------------------------------------


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
    world.leaves_nothing(ports, seconds=1)
    folder = world.only_run()
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "Error"
    assert list(
        (folder / "history/main-1").rglob("*.segments" if victim != "jobmanager" else "events.parquet")
    )


def test_a_disk_that_is_full_while_recording_ends_the_run_with_the_mend(world: World):
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
    command.until("computing the metrics")
    for pid in world.processes("org.apache.spark"):
        os.kill(pid, signal.SIGKILL)
    said = command.ended()
    assert said.code == 2
    no_trace(said)
    assert "The Spark driver has ended before its work was done" in said.out
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "Error"
    assert (folder / "report.html").is_file()
    world.leaves_nothing()


# ---- kill -9 of the runner ------------------------------------------------------------------------------------

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
    told = command.told()
    assert all(f"({kind})" in told for kind in kinds), told
    pids, ports = world.processes(), world.ports()
    assert len(pids) >= 5
    command.signal(signal.SIGKILL)
    assert command.ended().code == -9
    world.leaves_nothing(ports)
    assert all(dead(pid) for pid in pids)


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


# ---- kill -9 of a TaskManager ---------------------------------------------------------------------------------


async def test_a_killed_taskmanager_loses_no_acknowledged_history(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """What the recorder had on its disk before the kill stands in the sealed tables, row by row; nothing is there twice."""
    for name in ("XDG_RUNTIME_DIR", "TMPDIR", world.marker.partition("=")[0]):
        monkeypatch.setenv(name, world.environment[name])
    plan = compile_testbed(TestbedSpec.model_validate(small()["spec"]["testbed"]), seed=7)
    host = LocalTestbedHost(world.folder / "run")
    context = TrialContext("run", "main-1", 7)
    testbed = await host.create(plan, context=context)
    segments = world.folder / "run/history/main-1/segments"
    try:
        await testbed.submit()
        await eventually(lambda: len(rows_on_disk(segments, "tm-0-1")) > ROWS_BEFORE_THE_KILL, seconds=40)
        await testbed.processes.kill("tm-0")
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


# ---- broken on purpose, from YAML to verdict ------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """A run of data/broken-worlds, with the proxies deaf and the sink `stutter` stuttering."""

    code: int
    text: str
    verdict: Any
    rows: list[dict[str, Any]]

    def of(self, variant: str) -> str:
        return str(next(v["verdict"] for v in self.verdict["variants"] if v["variant"] == variant))

    def value(self, variant: str, metric: str) -> float:
        found = [r["value"] for r in self.rows if r["trial"] == f"{variant}-1" and r["metric"] == metric]
        assert len(found) == 1, found
        return float(found[0])


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    world = World(tmp_path_factory.mktemp("broken"))
    folder = DATA / "broken-worlds"
    try:
        command = world.start("run", folder, "--out", world.out, environment={"PYTHONPATH": str(folder)})
        said = command.ended(seconds=BROKEN_LIMIT_S)
        no_trace(said)
        world.leaves_nothing()
        run = world.only_run()
        verdict, rows = (json.loads((run / name).read_text()) for name in ("verdict.json", "metrics.json"))
        yield Broken(said.code, said.text, verdict, rows)
    finally:
        world.close()


@pytest.mark.scenario
def test_a_backend_that_does_nothing_is_inconclusive_and_never_a_pass(broken: Broken):
    """The proxy took the rule and shaped nothing: the fault is not verified, so nothing can be concluded."""
    assert broken.of("deaf-proxy") == "Inconclusive", broken.text
    reasons = {e["reason"] for e in broken.verdict["expectations"] if e["variant"] == "deaf-proxy"}
    assert "FaultNotVerified" in reasons
    assert broken.value("deaf-proxy", "delivery.lost") == 0


@pytest.mark.scenario
def test_a_sink_that_writes_one_record_twice_fails(broken: Broken):
    """Exactly one duplicate is seen, though no expectation asked for it; the whole run is Fail, exit 1."""
    assert broken.of("stuttering-sink") == "Fail", broken.text
    assert broken.value("stuttering-sink", "delivery.duplicated") == 1
    assert broken.value("stuttering-sink", "delivery.lost") == 0
    assert (broken.code, broken.verdict["verdict"]) == (1, "Fail")


@pytest.mark.scenario
def test_what_a_zombie_still_offers_is_rejected_and_counted(broken: Broken):
    """A stopped TaskManager with an at-least-once sink: replaced, resumed, and its records are refused."""
    assert broken.of("zombie") == "Pass", broken.text
    assert broken.value("zombie", "stale.rejected") > 0


@pytest.mark.scenario
def test_a_killed_jobmanager_that_comes_back_goes_on_with_the_job(broken: Broken):
    """From the store: the job runs and drains, nothing is lost or committed twice."""
    assert broken.of("jobmanager-back") == "Pass", broken.text
    assert broken.value("jobmanager-back", "delivery.lost") == 0
    assert broken.value("jobmanager-back", "delivery.duplicated") == 0
