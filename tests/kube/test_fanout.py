"""One fault on many pods: which agent gets which part, and the same with real supervisors, one for each "pod"."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from testbed_runtime.core.errors import AgentSilent, FaultHealed, FaultNotApplied, HeadgateError, UserError
from testbed_runtime.core.ids import SUPERVISOR
from testbed_runtime.faults.backend import Unreachable
from testbed_runtime.faults.fanout import PACKETS, Agent, FaultFanout, Part, knows, split
from testbed_runtime.local.process_host import LocalProcessHost
from testbed_runtime.supervisor.supervisor import ChildSpec
from tests.faults.a_fault import fault
from tests.local.helpers import sleeping, state_of
from tests.waiting import until

TMS = ("tm-0", "tm-1", "tm-2")
TM0, TM1, TM2, JM = (Agent(n) for n in (*TMS, "jobmanager"))


def parts(kind: str, backend: str, *targets: str, **changes) -> dict[Agent, tuple[str, ...]]:
    found = split(fault(kind, **changes), targets, backend=backend, task_managers=TMS)
    return {part.agent: part.targets for part in found}


def packets(name: str) -> Agent:
    return Agent(name, PACKETS)


# ---- who gets what


def test_a_process_fault_goes_to_the_supervisor_of_each_target():
    """Each gets only its own process."""
    assert parts("process.kill", SUPERVISOR, "tm-0", "tm-2") == {TM0: ("tm-0",), TM2: ("tm-2",)}


def test_a_jobmanager_fault_goes_to_the_jobmanagers_pod():
    """Whatever the targets are called."""
    assert parts("jobmanager.pause", SUPERVISOR, "jobmanager") == {JM: ("jobmanager",)}


def test_a_proxy_fault_goes_to_the_proxys_pod_whole():
    """The proxy sees all links."""
    assert parts("network.latency", "proxy", "tm-0->tm-1", "tm-2") == {Agent("proxy"): ("tm-0->tm-1", "tm-2")}


def test_a_channel_fault_is_held_in_one_place_so_that_flows_that_overlap_are_hit_once():
    """The supervisor of the first target holds it for all targets."""
    assert parts("frames.delay", "channel", "tm-1", "tm-2") == {TM1: ("tm-1", "tm-2")}


def test_packets_of_a_link_are_held_by_their_receiver():
    """`from` tm-0 to tm-1: only tm-1 receives something."""
    assert parts("network.loss", "nfqueue", "tm-0->tm-1", direction="from") == {
        packets("tm-1"): ("tm-1->tm-0",)
    }


def test_packets_in_both_directions_of_a_link_are_held_at_both_ends():
    """Each end holds what it receives from the other."""
    assert parts("network.loss", "nfqueue", "tm-0->tm-1") == {
        packets("tm-1"): ("tm-1->tm-0",),
        packets("tm-0"): ("tm-0->tm-1",),
    }


def test_packets_to_a_target_are_held_there_and_packets_from_it_by_all_others():
    """The JobManager's agent takes part only if the fault is on its plane."""
    assert parts("network.loss", "nfqueue", "tm-0", direction="to") == {packets("tm-0"): ("tm-0",)}
    assert parts("network.loss", "nfqueue", "tm-0", direction="from") == {
        packets("tm-1"): ("tm-1->tm-0",),
        packets("tm-2"): ("tm-2->tm-0",),
    }
    assert packets("jobmanager") in parts("network.partition", "nftables", "tm-0", plane="rpc")


def test_a_pod_is_not_asked_twice_for_what_it_receives():
    """tm-1 receives everything already; what comes from tm-0 is part of it."""
    assert parts("network.loss", "nfqueue", "tm-0", "tm-1")[packets("tm-1")] == ("tm-1",)


def test_half_of_a_round_trip_is_added_in_each_direction():
    """The receiving pods see a one-way latency of half the size, `to` them."""
    whole = {"latency_s": 0.04, "jitter_s": 0.01, "mode": "round-trip"}
    found = split(
        fault("network.latency", params=whole), ("tm-0->tm-1",), backend="nfqueue", task_managers=TMS
    )
    assert {p.fault.direction for p in found} == {"to"}
    assert [p.fault.params for p in found] == [{"latency_s": 0.02, "jitter_s": 0.005, "mode": "one-way"}] * 2


def test_a_fault_without_a_target_is_an_error():
    """Not a silent success."""
    with pytest.raises(HeadgateError, match="hits no process"):
        split(fault("process.kill"), (), backend=SUPERVISOR, task_managers=TMS)


# ---- carried out


@dataclass
class Pods:
    """A supervisor for each name, with one child; as many processes as pods would have."""

    hosts: dict[Agent, LocalProcessHost]
    fanout: FaultFanout
    pids: dict[Agent, int]

    def state(self, agent: Agent) -> str:
        return state_of(self.pids[agent])


@pytest.fixture
async def pods(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("HEADGATE_TEST", f"{tmp_path.name}-{os.getpid()}")
    hosts: dict[Agent, LocalProcessHost] = {}
    pids: dict[Agent, int] = {}
    token = "the-same-for-all"
    try:
        for agent in (TM0, TM1):
            host = LocalProcessHost(run="run", trial="main-1", logs_folder=tmp_path / agent.process)
            host.token = token
            hosts[agent] = host
            await host.open()
            pids[agent] = (await host.launch(ChildSpec(agent.process, sleeping()))).pid
        unreachable = ("127.0.0.1", 1)
        fanout = FaultFanout(
            lambda agent: hosts[agent]._address if agent in hosts else unreachable, token, outage_s=0.5
        )
        yield Pods(hosts, fanout, pids)
        await fanout.close()
    finally:
        for host in hosts.values():
            await host.close()


def pause(*agents: Agent) -> list[Part]:
    return [Part(agent, fault("process.pause"), (agent.process,)) for agent in agents]


@pytest.mark.processes
async def test_all_targets_are_hit_under_one_id_and_healed_together(pods):
    """Two pods, one handle; both paused, both resumed; nothing is left."""
    handle = await pods.fanout.inject(pause(TM0, TM1), fault_id="main-1/f", lease_s=10.0)
    assert (handle.fault, handle.backend, handle.targets) == ("main-1/f", "supervisor", ("tm-0", "tm-1"))
    await until(lambda: (pods.state(TM0), pods.state(TM1)) == ("T", "T"))
    assert await pods.fanout.renew([TM0, TM1], "main-1/f") == {}
    assert set(await pods.fanout.residue([TM0, TM1])) == {"tm-0", "tm-1"}
    await pods.fanout.heal([TM0, TM1], "main-1/f")
    assert "T" not in (pods.state(TM0), pods.state(TM1))
    assert await pods.fanout.residue([TM0, TM1]) == {}


@pytest.mark.processes
async def test_what_cannot_be_injected_everywhere_is_undone_everywhere(pods):
    """The third pod does not answer, so the two others are healed."""
    with pytest.raises(AgentSilent, match="agent of tm-2 does not answer"):
        await pods.fanout.inject(pause(TM0, TM1, TM2), fault_id="f", lease_s=10.0)
    assert "T" not in (pods.state(TM0), pods.state(TM1))
    assert await pods.fanout.residue([TM0, TM1]) == {}


@pytest.mark.processes
async def test_a_fault_on_a_process_that_is_dead_is_not_applied_anywhere(pods):
    """The error keeps its type over HTTP, the part of the other pod is undone, and nothing is left."""
    kill = [Part(TM0, fault("process.kill"), ("tm-0",))]
    await pods.fanout.inject(kill, fault_id="kill", lease_s=10.0)
    await until(lambda: not pods.state(TM0))
    with pytest.raises(FaultNotApplied, match="not applied: tm-0 was not running"):
        await pods.fanout.inject(pause(TM0, TM1), fault_id="f", lease_s=10.0)
    assert "T" not in pods.state(TM1)
    rows = [r["row"] for r in await fault_rows(pods, TM0) if r["row"]["kind"] == "process.pause"]
    assert [row["state"] for row in rows] == ["asked", "failed", "clean"]


@pytest.mark.processes
async def test_a_known_id_is_refused_so_that_nothing_is_injected_twice(pods):
    """A repeated request learns that the fault exists."""
    await pods.fanout.inject(pause(TM0), fault_id="f", lease_s=10.0)
    with pytest.raises(UserError, match="is already active"):
        await pods.fanout.client(TM0).inject(
            fault("process.pause"), fault_id="f", targets=("tm-0",), lease_s=10.0
        )


async def fault_rows(pods, *agents):
    """Read the new rows of faults; the journals also have the waits of the supervisors."""
    return [r for r in await pods.fanout.journal(list(agents)) if r["table"] == "faults"]


@pytest.mark.processes
async def test_the_rows_of_all_agents_are_read_once_and_in_order(pods):
    """Each step of each pod; the second time only what is new."""
    await pods.fanout.inject(pause(TM0, TM1), fault_id="f", lease_s=10.0)
    first = await fault_rows(pods, TM0, TM1)
    states = [(r["row"]["state"], tuple(r["row"]["targets"])) for r in first]
    assert {("injected", ("tm-0",)), ("injected", ("tm-1",))} <= set(states)
    times = [r["row"]["t_ns"] for r in first]
    assert times == sorted(times)
    await pods.fanout.heal([TM0, TM1], "f")
    second = [r["row"]["state"] for r in await fault_rows(pods, TM0, TM1)]
    assert "injected" not in second
    assert second.count("clean") == 2


@pytest.mark.processes
async def test_a_renewal_after_heal_all_reports_that_a_user_healed_it(pods):
    """FaultHealed, over HTTP too: not a lapsed lease."""
    await pods.fanout.inject(pause(TM0, TM1), fault_id="f", lease_s=10.0)
    await pods.fanout.heal_all([TM0, TM1])
    failed = await pods.fanout.renew([TM0, TM1], "f")
    assert {type(error) for error in failed.values()} == {FaultHealed}


@pytest.mark.processes
async def test_a_restarted_agent_is_distinguished_from_one_whose_lease_lapsed(pods, tmp_path):
    """It does not know the fault. Its journal is read from the first row on."""
    await pods.fanout.inject(pause(TM0, TM1), fault_id="f", lease_s=10.0)
    await pods.fanout.journal([TM0, TM1])
    await pods.hosts[TM1].close()
    failed = await pods.fanout.renew([TM0, TM1], "f")
    assert isinstance(failed.pop(TM1), Unreachable)
    assert failed == {}
    again = LocalProcessHost(run="run", trial="main-1", logs_folder=tmp_path / "again")
    again.token = pods.hosts[TM0].token
    pods.hosts[TM1] = again
    await again.open()
    await again.launch(ChildSpec("tm-1", sleeping()))
    await pods.fanout.close()
    error = (await pods.fanout.renew([TM1], "f"))[TM1]
    assert "no longer active" in str(error)
    assert not await knows(pods.fanout.client(TM1), "f")
    assert await knows(pods.fanout.client(TM0), "f")
    await pods.fanout.inject(pause(TM1), fault_id="f", lease_s=10.0)
    rows = await fault_rows(pods, TM1)
    assert [r["row"]["state"] for r in rows][:2] == ["asked", "injected"]
