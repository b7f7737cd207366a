"""The operator as a process: its Lease, its watches, what it survives, and what it logs. In virtual time."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
from typing import Any

import kopf
import pytest
from aiohttp import ClientConnectorError

from headgate_operator import watching
from headgate_operator.app import RESYNC_S, Operator, WatchFailed
from headgate_operator.health import STALLED_WATCH_S
from headgate_operator.logs import JsonLines
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.kube.api import ApiError
from tests.operator.actors import a_run
from tests.operator.test_testbed import ALL, KEY, condition, is_settled, names, patch, ready
from tests.operator.world import World, a_testbed, is_true, simulate


def requests_in(world: World, namespace: str) -> set[str]:
    """Return the verbs of the requests that were made there, without those for the Lease."""
    calls = (call for call in world.api.calls if call[1] != "Lease")
    return {verb for verb, _, path in calls if path.startswith(f"{namespace}/")}


def interruptions(operator: Operator) -> int:
    """Return how many terms of an operator ended by an error."""
    page = operator.metrics.text(depth=0, leader=True, info={})
    found = re.search(r"^headgate_operator_interruptions_total (\d+)$", page, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_a_namespace_that_refuses_the_operator_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A deleted one, whose Roles are gone, is logged once; it is served when it admits the operator again."""

    async def scenario(world: World) -> None:
        late = a_testbed()
        late["metadata"]["namespace"] = "late"
        bench = lambda: world.api.objects["Testbed", "late", "bench"]  # noqa: E731
        world.api.closed = {"late"}
        world.api.put(late)
        await ready(world)
        await asyncio.sleep(600)
        assert "status" not in bench()
        world.api.closed.clear()
        await world.until(lambda: is_true(bench().get("status") or {}, "Ready"), limit_s=60)
        # and it may be lost while the operator works
        world.api.closed = {"late"}
        world.watch_fails = WatchFailed("403")
        await asyncio.sleep(1)
        world.watch_fails = None
        await asyncio.sleep(10)
        world.api.calls.clear()
        patch(world, taskManagers={"replicas": 4})
        await world.until(lambda: "bench-tm-3" in names(world) and is_settled(world), limit_s=60)
        await asyncio.sleep(60)
        assert requests_in(world, "late") == {"list"}

    with caplog.at_level(logging.WARNING, logger="headgate"):
        simulate(scenario, namespaces=("lab", "late"))
    words = "a namespace does not exist or refuses the operator; it is not served"
    assert [r.message for r in caplog.records].count(words) == 2


def test_a_namespace_that_refuses_one_kind_is_not_served_until_it_admits_all() -> None:
    """No object there is touched or waited for, no term ends meanwhile, and the other namespaces are served; also if it is the
    operator's own, with its Lease, which is watched only while it is served."""
    own = Settings().namespace

    async def scenario(world: World) -> None:
        there = a_testbed()
        there["metadata"]["namespace"] = own
        bench = lambda: world.api.objects["Testbed", own, "bench"]  # noqa: E731
        world.api.closed_kinds = {("ScenarioRun", own)}
        world.api.put(there)
        await ready(world)
        operator, now = world.operators["operator-0"], asyncio.get_running_loop().time
        begun = now()
        while now() < begun + 2 * RESYNC_S + STALLED_WATCH_S:
            await asyncio.sleep(10)
            assert operator.health.stalled(now()) == ""
        assert requests_in(world, own) == {"list"}
        assert "Lease" not in operator.watched
        assert interruptions(operator) == 0
        world.api.closed_kinds.clear()
        await world.until(lambda: is_true(bench().get("status") or {}, "Ready"), limit_s=60)
        assert "Lease" in operator.watched
        # a Role may lose a kind while the operator works
        world.api.closed_kinds = {("ScenarioRun", own)}
        await asyncio.sleep(RESYNC_S + 10)
        assert operator.served == ("lab",)
        world.api.calls.clear()
        await asyncio.sleep(RESYNC_S + STALLED_WATCH_S)
        assert requests_in(world, own) == {"list"}
        assert operator.health.stalled(now()) == ""

    simulate(scenario, namespaces=("lab", own))


def test_an_operator_that_every_namespace_refuses_waits_unready(caplog: pytest.LogCaptureFixture) -> None:
    """As without any rights: it logs why, once, and works once it is admitted."""

    async def scenario(world: World) -> None:
        world.api.closed = {"lab"}
        world.start()
        world.api.put(a_testbed())
        await asyncio.sleep(60)
        assert not world.operators
        world.api.closed.clear()
        await world.until(lambda: is_settled(world), limit_s=30)

    with caplog.at_level(logging.WARNING, logger="headgate"):
        simulate(scenario, namespaces=("lab",))
    assert caplog.text.count("the first list failed") == 1


def test_an_operator_without_testbeds_releases_deleted_runs() -> None:
    """Somebody deletes all definitions at once. That of ScenarioRun waits for the finalizer of a run, whose pods end with its Testbed."""

    async def scenario(world: World) -> None:
        run = a_run()
        address = ("ScenarioRun", "lab", run["metadata"]["name"])
        world.api.put({**run, "metadata": {**run["metadata"], "finalizers": [naming.FINALIZER]}})
        kept = a_run()
        kept["metadata"]["name"] = "kept"
        world.api.put({**kept, "metadata": {**kept["metadata"], "finalizers": [naming.FINALIZER]}})
        gone = lambda verb, kind, _: verb == "list" and kind == "Testbed"  # noqa: E731
        world.api.failing.append((gone, ApiError(404, "", "404 page not found")))
        await world.api.delete(*address)
        world.start()
        await world.until(lambda: address not in world.api.objects, limit_s=10)
        assert naming.FINALIZER in world.api.objects["ScenarioRun", "lab", "kept"]["metadata"]["finalizers"]

    simulate(scenario)


def test_an_operator_without_the_definitions_of_its_kinds_logs_how_to_install_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, not at each of its attempts."""

    async def scenario(world: World) -> None:
        missing = (
            lambda verb, kind, _: (verb, kind) == ("list", "ScenarioRun"),
            ApiError(404, "", "404 page not found"),
        )
        world.api.failing.append(missing)
        world.start()
        await asyncio.sleep(60)
        world.api.failing.clear()
        await world.until(lambda: bool(world.operators), limit_s=30)

    with caplog.at_level(logging.WARNING, logger="headgate"):
        simulate(scenario)
    [line] = [json.loads(JsonLines().format(r)) for r in caplog.records if "first list" in r.getMessage()]
    assert "crds.install=true" in line["hint"]


def test_a_namespace_that_is_being_deleted_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """The API server refuses new objects there with 403: nothing is logged as failed, counted as retried or stalled."""

    async def scenario(world: World) -> None:
        words = 'pods "bench-tm-3" is forbidden: unable to create new content in namespace lab because it is being terminated'
        await ready(world)
        refused = lambda verb, *_: verb in ("create", "event")  # noqa: E731
        world.api.failing.append((refused, ApiError(403, "Forbidden", words)))
        patch(world, taskManagers={"replicas": 4})
        await asyncio.sleep(300)
        assert len([c for c in world.api.calls if c[0] == "create" and c[2] == "lab/bench-tm-3"]) > 1
        assert not (condition(world, "Stalled") or "").startswith("True")

    with caplog.at_level(logging.INFO, logger="headgate"):
        simulate(scenario)
    assert [r for r in caplog.records if r.levelno >= logging.WARNING or "refused" in r.getMessage()] == []


def test_the_log_says_what_the_operator_does(caplog: pytest.LogCaptureFixture) -> None:
    """At INFO there is a line for each pod that is created, with its Testbed, and one for each Event."""

    async def scenario(world: World) -> None:
        await ready(world)

    with caplog.at_level(logging.INFO, logger="headgate.reconcile"):
        simulate(scenario)
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    created = {line["target"] for line in lines if line.get("action") == "create"}
    assert {f"Pod {name}" for name in ALL} <= created
    assert {(line["kind"], line["namespace"], line["name"]) for line in lines} == {KEY}
    assert "Ready" in [line.get("reason") for line in lines]


def test_of_two_operators_exactly_one_acts() -> None:
    """The second takes over when the first is dead, not before its Lease has run out; and then goes on where it stood."""

    async def scenario(world: World) -> float:
        world.start("operator-0")
        await world.until(lambda: world.acted == {"operator-0"})
        world.start("operator-1")
        world.api.put(a_testbed())
        await world.until(lambda: is_settled(world), limit_s=30)
        await asyncio.sleep(120)
        assert world.acted == {"operator-0"}
        world.kill("operator-0")
        world.kubelet.vanish("lab", "bench-jobmanager")
        took = await world.until(lambda: "operator-1" in world.acted, limit_s=60)
        await world.until(lambda: is_settled(world), limit_s=30)
        return took

    assert 10 <= simulate(scenario) <= 20


def test_an_operator_that_cannot_renew_its_lease_ends_before_another_may_begin() -> None:
    """The API server is away for a minute: the holder gives up after ten seconds, and the next replica continues."""

    async def scenario(world: World) -> None:
        await ready(world)
        world.api.down = True
        await world.until(lambda: not world.operators, limit_s=13)
        world.kill("operator-0")  # else it would continue by itself, as the next test shows
        await asyncio.sleep(45)
        world.api.down = False
        world.start("operator-1")
        world.kubelet.vanish("lab", "bench-store")
        await world.until(lambda: is_settled(world) and "bench-store" in names(world), limit_s=60)
        assert set(world.operators) == {"operator-1"}

    simulate(scenario)


def test_an_operator_whose_api_server_does_not_answer_logs_that(caplog: pytest.LogCaptureFixture) -> None:
    """A suspended API server keeps its connections open."""

    async def scenario(world: World) -> None:
        await ready(world)
        process = world.operators["operator-0"]
        world.api.latency_s = 60
        await world.until(lambda: interruptions(process) == 1, limit_s=20)

    with caplog.at_level(logging.WARNING, "headgate.operator"):
        simulate(scenario)
    (record,) = (r for r in caplog.records if "interrupted" in r.message)
    assert record.__dict__["error"] == "not renewed for 10 s: the API server does not answer"


def test_an_operator_continues_by_itself_when_the_api_server_is_back() -> None:
    """One replica; the API server is away for a minute. The same process holds the Lease again, and works."""

    async def scenario(world: World) -> None:
        await ready(world)
        process = world.operators["operator-0"]
        world.api.down = True
        await asyncio.sleep(60)
        assert not world.operators
        world.kubelet.vanish("lab", "bench-store")
        world.api.down = False
        await world.until(lambda: is_settled(world) and "bench-store" in names(world), limit_s=60)
        assert world.operators == {"operator-0": process}
        assert interruptions(process) == 1

    simulate(scenario)


def test_a_watch_that_fails_ends_no_operator() -> None:
    """kopf gives up after a minute of refused connections, and raises. The watches start again, and nothing is lost."""

    async def scenario(world: World) -> None:
        await ready(world)
        world.watch_fails = ConnectionRefusedError(111, "Connect call failed")
        await world.until(lambda: not world.operators, limit_s=5)
        world.kubelet.vanish("lab", "bench-jobmanager")
        patch(world, taskManagers={"replicas": 4})
        await asyncio.sleep(30)
        world.watch_fails = None
        await world.until(lambda: is_settled(world) and "bench-tm-3" in names(world), limit_s=60)
        assert world.acted == {"operator-0"}

    simulate(scenario)


def test_watches_that_kopf_gave_up_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With refused connections kopf raises aiohttp's error after its retries, each time that it is started."""
    defaults = watching.kopf_settings

    def impatient() -> Any:
        found = defaults()
        found.networking.error_backoffs = (0.05,)
        return found

    monkeypatch.setattr(watching, "kopf_settings", impatient)
    nowhere = kopf.ConnectionInfo(server="http://127.0.0.1:9")  # the discard port: no process listens there
    monkeypatch.setattr(kopf, "login_via_client", lambda **_: nowhere)

    async def watch_twice() -> None:
        # kopf retrieves the exception of only one of its two requests
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        for _ in range(2):
            with pytest.raises(ClientConnectorError):
                await watching.watch(watching.registry(("Testbed",), lambda *_: None), Settings())
        gc.collect()  # the other exception is reported now, while the handler is set

    asyncio.run(watch_twice())
