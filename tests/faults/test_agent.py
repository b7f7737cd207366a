"""The agent: deadlines, leases, and the rows that say what was measured. Real proxy, real sockets; backends broken on purpose."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import asynccontextmanager

import pytest

from testbed_runtime.core.errors import FaultNotApplied, HeadgateError, UserError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.job.messages import SubmitTask
from testbed_runtime.faults.agent import FaultAgent
from testbed_runtime.faults.backend import FaultRequest, Measurement, Rule, Unreachable
from testbed_runtime.faults.channel.backend import ChannelBackend, judge_frames
from testbed_runtime.faults.channel.process import ChannelFaults, routes
from testbed_runtime.faults.http import ControlClient
from testbed_runtime.faults.probes import EchoServer
from testbed_runtime.faults.proxy import observe
from testbed_runtime.faults.proxy.backend import ProxyBackend
from testbed_runtime.faults.proxy.server import Proxy, application
from testbed_runtime.faults.registry import LOCAL
from testbed_runtime.http import serve
from testbed_runtime.timeouts import cancel_all
from tests.faults.a_fault import fault

TOKEN = "secret"


class FakePeers:
    """Two TaskManagers and a JobManager; `controls` are their control endpoints."""

    def __init__(self) -> None:
        self.controls: dict[str, tuple[str, int]] = {}

    def names(self):
        return ["jobmanager", "tm-0", "tm-1"]

    def control(self, name):
        return self.controls.get(name)


class Place:
    def __init__(self, agent: FaultAgent, proxy: Proxy, peers: FakePeers) -> None:
        self.agent, self.proxy, self.peers = agent, proxy, peers
        self.channels: dict[str, ChannelFaults] = {}

    def states(self, fault_name: str = "f") -> list[str]:
        rows = [item["row"] for item in self.agent.journal.since(0)]
        return [row["state"] for row in rows if row.get("fault") == fault_name]

    def row(self, state: str, fault_name: str = "f") -> dict:
        rows = [item["row"] for item in self.agent.journal.since(0)]
        return next(r for r in rows if (r.get("state"), r.get("fault")) == (state, fault_name))

    async def until(self, state: str, fault_name: str = "f") -> None:
        async with asyncio.timeout(10):
            while state not in self.states(fault_name):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def place(make_proxy_backend=ProxyBackend, make_control=ControlClient):
    proxy, echo, peers, control = Proxy(), EchoServer(), FakePeers(), make_control(TOKEN)
    await echo.start()
    runner, address = await serve(application(proxy, TOKEN), ("127.0.0.1", 0))
    backends = {
        "proxy": make_proxy_backend(control, lambda: address, lambda: echo.address, peers),
        "channel": ChannelBackend(control, peers),
    }
    made = Place(FaultAgent(backends, LOCAL), proxy, peers)
    runners = [runner]
    for name in peers.names():
        made.channels[name] = ChannelFaults(name)
        channel_runner, peers.controls[name] = await _serve_channel(made.channels[name])
        runners.append(channel_runner)
    try:
        yield made
    finally:
        await made.agent.close()
        await control.close()
        await proxy.close()
        await echo.close()
        for each in runners:
            await each.cleanup()


async def _serve_channel(faults: ChannelFaults):
    from aiohttp import web

    app = web.Application()
    app.add_routes(routes(faults))
    return await serve(app, ("127.0.0.1", 0))


async def inject(where: Place, what: Fault, targets=("tm-0",), lease_s: float | None = None):
    return await where.agent.inject(what, fault_id=f"trial/{what.name}", targets=targets, lease_s=lease_s)


def _calls(kind: str, faults: ChannelFaults):
    """Return a call that a fault of this kind delays."""
    match kind:
        case "registration.delay":
            return faults.registration.before_registration("source", "p")
        case "rpc.delay":
            return faults.calls.before_handle("taskexecutor", SubmitTask(descriptor=None))  # type: ignore[arg-type]
    return faults.store(InMemoryStore()).put("a", b"1")


async def _asked(faults: ChannelFaults) -> None:
    """Wait until the agent asks for the counters."""
    asked, counters = asyncio.Event(), faults.counters

    def counted(rule_id: str):
        asked.set()
        return counters(rule_id)

    faults.counters = counted  # type: ignore[method-assign]
    await asked.wait()


class InMemoryStore:
    async def put(self, key, data):
        pass


DELAYS = (
    ("registration.delay", {"delay_s": 10.0}, "10 s"),
    ("registration.delay", {"attempts": 3}, "3 requests"),
    ("rpc.delay", {"delay_s": 10.0, "method": "SubmitTask"}, "10 s"),
    ("store.slow", {"delay_s": 10.0}, "10 s"),
)
HELD = [(kind, params) for kind, params, _ in DELAYS]


@asynccontextmanager
async def holding(what: Fault, at: str = "tm-0", targets=("tm-0",)):
    """A place where the fault holds a call at a TaskManager, and the task of its caller."""
    async with place() as where:
        await inject(where, what, targets=targets)
        held = asyncio.get_running_loop().create_task(_calls(what.kind, where.channels[at]))
        await asyncio.sleep(0)  # the call has reached the fault
        try:
            yield where, held
        finally:
            held.cancel()


@pytest.mark.parametrize(("kind", "params", "requested"), DELAYS)
async def test_a_fault_that_ends_before_its_delay_says_how_long_the_delay_was(kind, params, requested):
    """Nothing was 10 s late: the end of the fault let everything through after 0.3 s."""
    async with place() as where:
        await inject(where, fault(kind, params=params, seconds=0.3))
        held = asyncio.get_running_loop().create_task(_calls(kind, where.channels["tm-0"]))
        await where.until("clean")
        await held
        assert where.states() == ["asked", "injected", "unverified", "ended", "clean"]
        text = where.row("unverified")["text"]
        said = re.fullmatch(
            rf"it lasts 0\.3 s, so the longest delay was (\d\.\d+) s instead of {requested}", text
        )
        assert said is not None
        assert 0 < float(said[1]) < 5  # a busy machine begins the call late, or ends the fault late


@pytest.mark.parametrize(("kind", "params"), HELD)
async def test_a_delay_that_lasts_until_its_trial_ends_took_effect(kind, params):
    """The trial saw nothing of what was held, as requested."""
    async with holding(fault(kind, params=params)) as (where, held):
        await where.agent.heal("trial/f")
        await held
        assert where.states() == ["asked", "injected", "verified", "ended", "clean"]


@pytest.mark.parametrize(("kind", "params"), HELD)
async def test_a_delay_that_lasts_until_its_process_ends_took_effect(kind, params):
    """A process that has ended answers no more, so its last answer counts."""
    async with holding(fault(kind, params=params, seconds=0.5)) as (where, _):
        await _asked(where.channels["tm-0"])
        where.peers.controls.pop("tm-0")
        await where.until("verified")
        await where.agent.heal("trial/f")
        assert where.row("verified")["text"] == "was held until its process ended"


@pytest.mark.parametrize(("kind", "params"), HELD)
async def test_a_delay_whose_caller_gave_up_took_effect(kind, params):
    """A checkpoint that expires, or a job that fails, cancels what is held: it came too late, or never."""
    async with holding(fault(kind, params=params)) as (where, held):
        held.cancel()
        await where.until("verified")
        assert where.states() == ["asked", "injected", "verified"]


async def test_a_delay_that_lasts_until_its_process_is_replaced_took_effect():
    """The fault is applied again to the new process, which knows nothing of what the former one held."""
    what = fault("rpc.delay", params=DELAYS[2][1], on_target_restart="Reapply")
    async with holding(what) as (where, _):
        await _asked(where.channels["tm-0"])
        runner, where.peers.controls["tm-0"] = await _serve_channel(ChannelFaults("tm-0"))
        try:
            await where.agent.target_restarted("tm-0-2")
            await where.until("verified")
            assert where.row("verified")["text"] == "was held until its process ended"
        finally:
            await runner.cleanup()


async def test_a_target_that_did_not_restart_holds_what_it_held():
    """Only the target that restarted gets its fault again."""
    what = fault("rpc.delay", params=DELAYS[2][1], on_target_restart="Reapply")
    async with holding(what, "tm-1", ("tm-0", "tm-1")) as (where, held):
        await where.agent.target_restarted("tm-0-2")
        await asyncio.sleep(0)
        assert not held.done()
        (rule,) = where.channels["tm-1"].state()["active"].values()
        assert rule["counters"]["holding"] == 1


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("network.latency", {"latency_s": 0.04, "mode": "one-way", "jitter_s": 0.01}),
        ("network.latency", {"latency_s": 0.06, "mode": "round-trip"}),
        ("network.partition", {}),
        ("network.stall", {}),
        ("network.reset", {}),
        ("network.half-open", {}),
        ("network.bandwidth", {"bytes_per_s": 100_000}),
    ],
)
async def test_a_network_fault_is_measured_while_it_lasts_and_nothing_is_left_of_it(kind, params):
    """asked, injected, verified, ended, clean; in this order."""
    async with place() as where:
        handle = await inject(where, fault(kind, params=params, plane="both"))
        assert handle.backend == "proxy"
        await where.until("verified")
        await where.agent.heal("trial/f")
        assert where.states() == ["asked", "injected", "verified", "ended", "clean"]
        peers = {"data": "tm-1", "rpc": "jobmanager"}  # who really talks with tm-0 on that plane
        paths = {
            f"{peer}->tm-0/{plane}" if kind == "network.half-open" else f"tm-0->{peer}/{plane}"
            for plane, peer in peers.items()
        }
        assert set(where.row("verified")["measured"]["paths"]) == paths
        assert await where.agent.residue() == {}


async def test_a_latency_is_measured_as_large_as_it_was_asked():
    """Asked 40 ms in each direction: a round trip takes 80 ms longer."""
    async with place() as where:
        await inject(
            where, fault("network.latency", params={"latency_s": 0.04, "mode": "one-way"}), ["tm-0->tm-1"]
        )
        await where.until("verified")
        measured = where.row("verified")["measured"]["paths"]["tm-0->tm-1/data"]
        assert measured["asked_round_trip_s"] == pytest.approx(0.08)
        assert 0.075 <= measured["added_round_trip_s"] <= 0.3


class BrokenProxyBackend(ProxyBackend):
    """Says yes and does nothing."""

    async def apply(self, request: FaultRequest) -> float:
        del request
        return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("network.latency", {"latency_s": 0.04, "mode": "one-way"}),
        ("network.partition", {}),
        ("network.stall", {}),
        ("network.reset", {}),
        ("network.half-open", {}),
        ("network.bandwidth", {"bytes_per_s": 50_000}),
    ],
)
async def test_a_backend_that_does_nothing_is_never_verified(kind, params):
    """The agent believes the measurement, not the backend."""
    async with place(BrokenProxyBackend) as where:
        await inject(where, fault(kind, params=params))
        await where.until("unverified")
        await where.agent.heal("trial/f")
        assert "verified" not in where.states()


BOTH = ("tm-0", "tm-1")


@pytest.mark.parametrize("kind", ["network.partition", "network.reset"])
async def test_a_partition_within_another_fault_is_verified_on_every_path_when_that_has_ended(kind):
    """Four paths that do not answer before it; those of a reset have no connection left."""
    async with place() as where:
        await inject(where, fault(kind, plane="both"), BOTH)
        await where.until("verified")
        await inject(where, fault("network.partition", name="second", plane="both"), BOTH)
        await where.agent.heal("trial/f")
        await where.until("verified", "second")
        paths = where.row("verified", "second")["measured"]["paths"]
        assert len(paths) == 4
        assert {(p["answered_after_s"], p["connection"]) for p in paths.values()} == {(None, "open")}


async def test_a_partition_within_another_one_is_unverified_if_the_proxy_lost_its_rule():
    """Nothing passes only as long as the first one lasts."""
    async with place() as where:
        await inject(where, fault("network.partition"))
        await inject(where, fault("network.partition", name="second"))
        where.proxy.remove("trial~second")
        await where.agent.heal("trial/f")
        await where.until("unverified", "second")
        assert where.row("unverified", "second")["text"] == "a probe was answered"


class SlowControl(ControlClient):
    """Removes a rule only when it may, or fails to."""

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self.removing, self.may = asyncio.Event(), asyncio.Event()
        self.fails = False

    async def call(self, method, address, path, body=None, *, timeout_s=None):
        if method == "DELETE":
            self.removing.set()
            await self.may.wait()
            if self.fails:
                raise Unreachable("the proxy did not answer in time")
        return await super().call(method, address, path, body, timeout_s=timeout_s)


@pytest.mark.parametrize("fails", [False, True], ids=["removed late", "not removed"])
async def test_a_path_is_not_free_before_the_proxy_has_ended_the_fault_on_it(fails):
    """It is still blocked: a second partition is measured when the call has ended, or the proxy ends the rule at its deadline."""
    made: list[SlowControl] = []

    def make_control(token: str) -> SlowControl:
        made.append(SlowControl(token))
        return made[0]

    async with place(make_control=make_control) as where:
        (control,) = made
        control.fails = fails
        await inject(where, fault("network.partition", seconds=3.0 if fails else 30.0))
        healed = asyncio.create_task(where.agent.heal("trial/f"))
        await control.removing.wait()
        if fails:
            control.may.set()
            await where.until("ended")
        await inject(where, fault("network.partition", name="second"))
        control.may.set()
        await where.until("verified", "second")
        control.fails = False
        if fails:  # its residue is measured until the agent's limit, as the second one is active on the path
            await cancel_all(healed)
        else:
            await healed


class LeakingProxyBackend(ProxyBackend):
    """Forgets to remove its rules."""

    async def remove(self, request: FaultRequest) -> None:
        del request


async def test_the_residue_of_a_fault_is_reported(monkeypatch):
    """A new probe and the proxy's own list show it."""
    monkeypatch.setattr(observe, "AFTER_SERIES", 2)
    async with place(LeakingProxyBackend) as where:
        await inject(where, fault("network.latency", params={"latency_s": 0.05, "mode": "one-way"}))
        await where.agent.heal("trial/f")
        assert where.states()[-1] == "residue"
        assert "the rule itself" in where.row("residue")["text"]
        assert "proxy" in await where.agent.residue()


async def test_a_fault_ends_at_its_deadline_even_without_a_client():
    """A stand-alone one has no lease."""
    async with place() as where:
        await inject(where, fault("network.partition", seconds=2.0))
        await where.until("clean")
        assert where.states() == ["asked", "injected", "verified", "ended", "clean"]
        assert where.row("ended")["text"] == "its deadline passed"


async def test_a_fault_of_a_run_ends_when_its_lease_is_not_renewed():
    """The trial is then void, and a late renewal is refused."""
    async with place() as where:
        await inject(where, fault("network.partition"), lease_s=2.0)
        await where.agent.renew("trial/f")
        await where.until("voided")
        with pytest.raises(HeadgateError, match="no longer active"):
            await where.agent.renew("trial/f")
        await where.until("clean")


async def test_healing_twice_or_an_unknown_fault_is_harmless():
    """One `ended` row."""
    async with place() as where:
        await inject(where, fault("network.stall"))
        await asyncio.gather(
            where.agent.heal("trial/f"), where.agent.heal("trial/f"), where.agent.heal("unknown")
        )
        await where.agent.heal("trial/f")
        assert where.states().count("ended") == 1


async def test_a_renewal_that_comes_too_late_ends_the_fault():
    """The agent was stalled, and the renewal is handled before the timer of the lease."""
    async with place() as where:
        await inject(where, fault("network.partition"), lease_s=0.2)
        time.sleep(0.4)
        with pytest.raises(HeadgateError, match="no longer active"):
            await where.agent.renew("trial/f")
        await where.until("clean")
        assert where.states().count("voided") == 1


class UncheckedProxyBackend(ProxyBackend):
    """Fails to measure the residue in an unexpected way."""

    async def check(self, request: FaultRequest) -> Measurement:
        raise OSError("no process can be started")


async def test_a_fault_ends_once_even_if_its_end_fails():
    """It stays in the list, and neither the deadline of another fault nor healing ends it again."""
    async with place(UncheckedProxyBackend) as where:
        for name, seconds in (("f", 0.5), ("g", 1.5)):
            await inject(where, fault("network.stall", name=name, seconds=seconds))
        await where.until("ended", "g")
        await where.agent.heal("trial/f")
        await where.agent.heal_all()
        assert where.states().count("ended") == 1
        assert [one["name"] for one in where.agent.active()] == ["f", "g"]


async def test_heal_all_ends_every_fault():
    """Including faults of other clients, the newest first."""
    async with place() as where:
        for number in range(3):
            await where.agent.inject(
                fault("network.stall"), fault_id=str(number), targets=["tm-0"], lease_s=None
            )
        assert len(where.agent.active()) == 3
        ended = []
        where.agent._end = lambda fault_id, end=where.agent._end: (ended.append(fault_id), end(fault_id))  # type: ignore[method-assign]
        await where.agent.heal_all()
        assert ended == ["2", "1", "0"]
        assert where.agent.active() == []
        assert where.proxy.state()["rules"] == {}


async def test_an_agent_refuses_too_many_faults(monkeypatch):
    """More is a bug in the caller."""
    monkeypatch.setattr("testbed_runtime.faults.agent.MAX_FAULTS", 1)
    async with place() as where:
        await inject(where, fault("network.stall"))
        with pytest.raises(HeadgateError, match="heal some of them"):
            await where.agent.inject(fault("network.stall"), fault_id="2", targets=["tm-0"], lease_s=None)
        assert [active["id"] for active in where.agent.active()] == ["trial/f"]


async def test_the_same_id_twice_is_refused():
    """The first one stays active."""
    async with place() as where:
        await inject(where, fault("network.stall"))
        with pytest.raises(UserError, match="already active"):
            await inject(where, fault("network.stall"))
        assert len(where.agent.active()) == 1


async def test_packet_loss_is_refused_before_anything_is_written():
    """No row, no rule."""
    async with place() as where:
        with pytest.raises(UserError, match=r"network\.loss"):
            await inject(where, fault("network.loss", params={"percent": 5}))
        assert where.states() == []


async def test_a_fault_on_a_missing_process_fails_and_leaves_nothing():
    """The row says why."""
    async with place() as where:
        with pytest.raises(FaultNotApplied, match="not applied: tm-7 was not running"):
            await inject(where, fault("rpc.delay", params={"method": "SubmitTask", "delay_s": 1.0}), ["tm-7"])
        assert where.states() == ["asked", "failed", "clean"]
        assert where.agent.active() == []


async def test_calls_are_verified_by_what_the_interceptor_swallowed():
    """Unverified as long as no heartbeat came."""
    from testbed_runtime.core.job.messages import Heartbeat

    async with place() as where:
        await inject(where, fault("heartbeats.mute", params={"direction": "response"}), ["tm-1"])
        assert where.channels["tm-1"].state()["active"] == {}
        assert not await where.channels["jobmanager"].calls.before_handle("jobmaster", Heartbeat("tm-1-1"))
        await where.until("verified")
        await where.agent.heal("trial/f")
        assert where.states()[-1] == "clean"
        assert where.row("verified")["measured"]["counters"]["jobmanager"]["swallowed"] == 1


async def test_a_fault_that_nothing_came_for_is_unverified():
    """No call, no effect."""
    async with place() as where:
        await inject(where, fault("rpc.delay", params={"method": "SubmitTask", "delay_s": 0.1}))
        await where.agent.heal("trial/f")
        assert where.states() == ["asked", "injected", "unverified", "ended", "clean"]


@pytest.mark.parametrize(
    ("policy", "states"), [("Expire", "clean"), ("Fail", "failed"), ("Reapply", "injected")]
)
async def test_a_restarted_target_loses_its_fault_or_gets_it_again(policy, states):
    """As onTargetRestart says."""
    async with place() as where:
        what = fault("rpc.delay", params={"method": "SubmitTask", "delay_s": 0.1}, on_target_restart=policy)
        await inject(where, what)
        where.channels["tm-0"].remove_all()  # the new incarnation knows of nothing
        await where.agent.target_restarted("tm-0")
        assert states in where.states()
        assert bool(where.channels["tm-0"].state()["active"]) == (policy == "Reapply")


def sighting(side: str, number: int, when: float, klass: str = "buffer"):
    return (side, "tm-0->tm-1", klass, "aa", number, when)


@pytest.mark.parametrize(
    ("kind", "sightings", "ok"),
    [
        ("frames.delay", [sighting("sent", 1, 1.0), sighting("received", 1, 1.2)], True),
        ("frames.delay", [sighting("sent", 1, 1.0), sighting("received", 1, 1.01)], False),
        ("frames.delay", [], False),
        ("frames.drop", [sighting("sent", 1, 1.0)], True),
        ("frames.drop", [sighting("sent", 1, 1.0), sighting("received", 1, 1.0)], False),
        ("frames.drop", [sighting("sent", 1, 9.9)], False),
        ("frames.withhold-credit", [sighting("sent", 1, 1.0, "credit")], True),
    ],
)
def test_frames_are_judged_by_what_both_taps_saw(kind, sightings, ok):
    """Matched by channel, class and number; what was sent a moment ago is not missing yet."""
    rule = Rule("r", kind, 99.0, params={"delay_s": 0.2})
    found = judge_frames(rule, sightings, now=10.0)
    assert isinstance(found, Measurement)
    assert found.ok is ok
