"""The supervisor as a process of its own, with children that only sleep."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.faults.http import ControlClient
from testbed_runtime.faults.process.backend import process_state
from testbed_runtime.local import registry
from testbed_runtime.local.process_host import LocalProcessHost
from testbed_runtime.supervisor.supervisor import ChildSpec
from tests.faults.a_fault import fault
from tests.local.helpers import descendants_with, listeners, sleeping, state_of
from tests.waiting import until

pytestmark = pytest.mark.processes


@pytest.fixture
async def host(tmp_path, marker):
    made = LocalProcessHost(run="run", trial="main-1", logs_folder=tmp_path / "logs")
    await made.open()
    yield made
    await made.close()
    await until(lambda: not descendants_with(marker))
    assert list(registry.state_folder().iterdir()) == []


async def until_said(host: LocalProcessHost, state: str) -> None:
    """A row of the journal stays, what it tells of may be over."""
    async with asyncio.timeout(60):
        while not any(item["row"].get("state") == state for item in await host.faults.journal(0)):
            await asyncio.sleep(0.02)


async def test_a_child_is_started_watched_and_stopped(host):
    """Ready line, state, exit code."""
    state = await host.launch(ChildSpec("tm-0", sleeping()))
    assert (state.state, state.incarnation) == ("running", 1)
    await host.stop("tm-0")
    (state,) = await host.refresh()
    assert (state.state, state.exit_code, state.pid) == ("killed", -15, None)


async def test_a_child_that_fails_says_why(host):
    """The tail of its stderr is in the error."""
    with pytest.raises(HeadgateError, match="the disk is on fire"):
        await host.launch(ChildSpec("tm-0", sleeping("--fail")))


async def test_a_child_that_does_not_listen_is_killed_after_its_grace(host):
    """SIGTERM is ignored, SIGKILL is not."""
    await host.launch(ChildSpec("tm-0", sleeping("--stubborn")))
    await host.stop("tm-0", grace_s=0.1)
    (state,) = await host.refresh()
    assert state.exit_code == -9


async def test_the_same_name_twice_is_refused(host):
    """While the first one lives."""
    await host.launch(ChildSpec("tm-0", sleeping()))
    with pytest.raises(UserError, match="is already running"):
        await host.launch(ChildSpec("tm-0", sleeping()))


async def test_every_endpoint_but_healthz_wants_the_token(host):
    """A wrong one is refused."""
    stranger = ControlClient("wrong")
    assert (await stranger.call("GET", host._address, "/healthz"))["ok"]
    for method, path in (("GET", "/v1/processes"), ("GET", "/v1/faults"), ("POST", "/v1/faults/heal-all")):
        with pytest.raises(HeadgateError, match="token"):
            await stranger.call(method, host._address, path)
    await stranger.close()


async def test_a_paused_process_is_stopped_in_the_kernels_eyes_and_goes_on_after_the_fault(host):
    """Verified by /proc, clean afterwards; the supervisor answers meanwhile."""
    state = await host.launch(ChildSpec("tm-0", sleeping()))
    await host.faults.inject(fault("process.pause"), fault_id="x", targets=["tm-0"], lease_s=10)
    await until(lambda: state_of(state.pid) == "T")  # a process that is to stop does so when it gets a core
    assert (await host.refresh())[0].state == "paused"
    await until_said(host, "verified")
    await host.faults.heal("x")
    assert state_of(state.pid) in ("S", "R")
    rows = [i["row"] for i in await host.faults.journal(0) if i["table"] == "faults"]
    assert [r["state"] for r in rows] == ["asked", "injected", "verified", "ended", "clean"]
    assert rows[2]["measured"]["states"] == {"tm-0": "T"}


async def test_a_killed_process_is_gone_and_stays_gone_without_replacement(host):
    """replaceLost: Never."""
    state = await host.launch(ChildSpec("tm-0", sleeping()))
    await host.faults.inject(fault("process.kill"), fault_id="x", targets=["tm-0"], lease_s=10)
    await until(lambda: state_of(state.pid) in ("", "Z"))
    await until_said(host, "verified")
    await host.faults.heal("x")
    assert (await host.refresh())[0].exit_code == -9
    rows = [i["row"] for i in await host.faults.journal(0)]
    exits = [r for r in rows if r.get("kind") == "process.exit"]
    assert exits[0]["data"]["signal"] == 9
    assert exits[0]["data"]["asked"]
    assert [r["state"] for r in rows if "state" in r] == ["asked", "injected", "verified", "ended", "clean"]


async def test_a_lost_process_comes_again_as_its_next_incarnation(host):
    """After its delay, with its number in its configuration."""
    spec = ChildSpec("tm-0", sleeping("{config}"), config={"name": "tm-0"}, replace_lost_s=0.2)
    first = await host.launch(spec)
    os.killpg(first.pid, signal.SIGKILL)
    states = []

    async def again() -> bool:
        states[:] = await host.refresh()
        return states[0].incarnation == 2 and states[0].state == "running" and bool(states[0].ready)

    deadline = time.monotonic() + 60
    while not await again():
        assert time.monotonic() < deadline
    assert states[0].pid != first.pid
    assert states[0].ready == {"name": "tm-0", "incarnation": 2}
    waits = [i["row"] for i in await host.faults.journal(0) if i["table"] == "waits"]
    assert [(w["kind"], w["what"], w["outcome"]) for w in waits] == [
        ("start", "tm-0-1", "completed"),
        ("replacement", "tm-0", "fired"),
        ("start", "tm-0-2", "completed"),
    ]
    assert (waits[1]["option"], waits[1]["value"]) == ("replaceLost", "0.2 s")
    assert (waits[1]["t_ns"] - waits[1]["start_ns"]) / 1e9 >= 0.2


async def test_a_killed_jobmanager_is_started_again_at_the_end_of_the_fault_where_it_was(host):
    """On the address that everybody knows."""
    config = {"name": "jobmanager", "rpc": ["127.0.0.1", 4711], "bind": ["127.0.0.1", 0]}
    await host.launch(ChildSpec("jobmanager", sleeping("{config}"), config=config, keep_address=True))
    await host.faults.inject(fault("jobmanager.kill"), fault_id="x", targets=["jobmanager"], lease_s=10)
    await host.faults.heal("x")
    (state,) = await host.refresh()
    assert (state.state, state.incarnation) == ("running", 2)
    assert state.ready["bind"] == ["127.0.0.1", 4711]


async def test_a_lease_that_is_not_renewed_ends_the_fault(host):
    """The process goes on by itself."""
    state = await host.launch(ChildSpec("tm-0", sleeping()))
    await host.faults.inject(fault("process.pause"), fault_id="x", targets=["tm-0"], lease_s=3.0)
    await until_said(host, "verified")
    await until_said(host, "voided")
    await until(lambda: state_of(state.pid) != "T")
    with pytest.raises(HeadgateError, match="no longer active"):
        await host.faults.renew("x")


async def test_the_residue_names_a_process_that_is_still_paused(host):
    """It is listed until its fault is healed."""
    await host.launch(ChildSpec("tm-0", sleeping()))
    assert await host.faults.residue() == {}
    await host.faults.inject(fault("process.pause"), fault_id="x", targets=["tm-0"], lease_s=None)
    await until_said(host, "verified")
    assert (await host.faults.residue())["paused"] == ["tm-0"]
    await host.faults.heal("x")
    assert await host.faults.residue() == {}


def test_the_registry_finds_running_supervisors_heals_them_and_forgets_dead_ones(tmp_path, marker):
    """One that was killed leaves nothing once somebody looked."""
    import asyncio

    async def begin():
        made = LocalProcessHost(run="run", trial="main-1", logs_folder=tmp_path / "logs")
        await made.open()
        await made.launch(ChildSpec("tm-0", sleeping()))
        await made.faults.inject(fault("process.pause"), fault_id="x", targets=["tm-0"], lease_s=None)
        await made._control.close()
        await made.faults.close()
        return made._supervisor

    with asyncio.Runner() as runner:
        child = runner.run(begin())
        assert len(registry.active_faults()) == 1
        assert registry.heal_all() == ["run main-1: 1 fault ended"]
        assert registry.active_faults() == []
        (entry,) = registry.supervisors()
        os.kill(entry.pid, 9)
        runner.run(child.exited.wait())
        assert registry.supervisors() == []
        assert list(registry.state_folder().iterdir()) == []
        runner.run(until(lambda: not descendants_with(marker)))


RUNNER = """
import asyncio, json, sys
from pathlib import Path
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.local.process_host import LocalProcessHost
from testbed_runtime.supervisor.supervisor import ChildSpec
from testbed_runtime.process.config import ProcessConfig
import msgspec
from testbed_runtime.supervisor.supervisor import ChildSpec

async def main():
    kind, child, logs, params = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
    host = LocalProcessHost(run="run", trial="main-1", logs_folder=Path(logs))
    await host.open()
    python = sys.executable
    config = msgspec.to_builtins(ProcessConfig(name="proxy", token_file=str(host.token_file)))
    await host.launch(ChildSpec("proxy", (python, "-m", "testbed_runtime.entry.proxy", "{config}"), config=config))
    for name in ("jobmanager", "tm-0", "tm-1"):
        await host.launch(ChildSpec(name, (python, child, "--stubborn")))
    if kind:
        fault = Fault(name="f", kind=kind, at_s=0, duration_s=600, params=params)
        await host.faults.inject(fault, fault_id="x", targets=["tm-0"], lease_s=10)
    states = await host.refresh()
    ports = [host._address[1]] + [s.ready["control"][1] for s in states if s.name == "proxy"]
    print(json.dumps({"pids": [s.pid for s in states if s.pid], "ports": ports}), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("", {}),
        ("process.pause", {}),
        ("process.kill", {}),
        ("jobmanager.pause", {}),
        ("network.partition", {}),
        ("network.latency", {"latency_s": 0.5, "mode": "one-way"}),
    ],
)
async def test_a_runner_that_is_killed_leaves_no_process_port_or_file(tmp_path, marker, kind, params):
    """kill -9 during a fault: children that ignore SIGTERM, stopped ones, the proxy, the supervisor, its files."""
    from tests.local.helpers import CHILD

    argv = [sys.executable, "-c", RUNNER, kind, str(CHILD), str(tmp_path / "logs"), json.dumps(params)]
    runner = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert runner.stdout is not None
    try:
        reported = json.loads(runner.stdout.readline())
        ours = {socket for socket, port in listeners().items() if port in reported["ports"]}
        assert len(ours) >= len(reported["ports"])
    finally:
        runner.kill()
        runner.wait()
        runner.stdout.close()
    await until(lambda: not descendants_with(marker), seconds=60)
    assert not any(state_of(pid) not in ("", "Z") for pid in reported["pids"])
    assert not ours & listeners().keys()
    assert list(registry.state_folder().iterdir()) == []


def processor_time(code: str) -> tuple[str, float]:
    """(what it printed, seconds of a Python that does only this)"""
    begin = os.times()
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    end = os.times()
    return out.stdout, (end.children_user - begin.children_user) + (
        end.children_system - begin.children_system
    )


def test_the_supervisor_is_there_soon():
    """It imports neither numpy, pyarrow nor pyspark, and takes little longer than aiohttp, which it cannot do without (about 1.4 times)."""
    printed, seconds = processor_time(
        "import sys, testbed_runtime.entry.supervisor as s; "
        "print([m for m in ('numpy', 'pyarrow', 'pyspark', 'pydantic', 'pandas') if m in sys.modules])"
    )
    assert printed.strip() == "[]"
    assert seconds < 3 * processor_time("import aiohttp")[1]


async def test_a_process_is_gone_when_its_last_thread_has_ended():
    """Its sockets stay open until then, so its peers do not notice the loss. After a kill on a busy machine this took three seconds."""
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); ctypes.CDLL(None).pthread_exit(None)"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        await until(lambda: state_of(process.pid) == "Z")
        assert process_state(process.pid) == "X"
        process.kill()
        await until(lambda: process_state(process.pid) == "Z")
    finally:
        process.kill()
        process.wait()
