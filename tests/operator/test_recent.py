"""Memory of the operator's last reads, and the requests that a look at unchanged objects costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate_operator import objects
from headgate_operator.app import Operator
from headgate_operator.handler import Context, Handler
from headgate_operator.handlers.testbed import TestbedHandler
from headgate_operator.plan.model import Action, Apply, Delete, Key, Patch, Plan
from headgate_operator.plan.scenario import Observed
from headgate_operator.plan.testbed import LATER_S
from headgate_operator.recent import RECENT_S, Address, Recent
from headgate_operator.reconciler import Reconciler
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.views import Pod, Testbed
from testbed_runtime.kube.api import ApiError
from testbed_runtime.simulation.loop import run_virtual
from tests.operator.actors import a_fault
from tests.operator.model import ModelApi, Obj
from tests.operator.test_faults import Lab as FaultLab
from tests.operator.test_faults import play as play_fault
from tests.operator.test_runs import Lab, play
from tests.operator.test_testbed import ready
from tests.operator.world import World, a_testbed, simulate

CONFLICT = ApiError(409, "Conflict", "the object has been modified")
ADDRESS: Address = ("Pod", "lab", "bench-tm-0")


def a_pod(version: str) -> Obj:
    return {
        "kind": "Pod",
        "metadata": {"name": "bench-tm-0", "namespace": "lab", "resourceVersion": version},
    }


def version_of(recent: Recent) -> str:
    """The version that is remembered; empty if there is none."""
    found = recent.find(ADDRESS)
    return found["metadata"]["resourceVersion"] if found else ""


def reading(
    answer: Obj | None, *, while_reading: Callable[[], None] = lambda: None
) -> Callable[[], Awaitable[Obj | None]]:
    async def read() -> Obj | None:
        await asyncio.sleep(0.01)
        while_reading()
        return answer

    return read


def remembered(*events: tuple[str, bool], answer: Obj | None = None, after_s: float = 1.0) -> str:
    """Read version 7, then get these events (version, gone). Return the version that is remembered `after_s` later."""

    async def main() -> str:
        recent = Recent()
        await recent.read(ADDRESS, reading(a_pod("7") if answer is None else answer))
        for version, gone in events:
            recent.on_event(a_pod(version), gone=gone)
        await asyncio.sleep(after_s)
        return version_of(recent)

    return run_virtual(main())


@pytest.mark.parametrize(
    ("events", "after_s", "version"),
    [
        ([], RECENT_S - 1, "7"),
        ([], RECENT_S + 1, ""),
        ([("8", False)], 1, "8"),
        ([("8", False)], RECENT_S + 1, ""),
        ([("6", False)], 1, "7"),
        ([("6", True)], 1, ""),
        ([("opaque", False)], 1, ""),
    ],
)
def test_an_object_is_remembered_until_an_event_or_for_a_while(
    events: list[tuple[str, bool]], after_s: float, version: str
) -> None:
    """A newer version replaces it, an older one does not, and one that cannot be compared makes the next look read it."""
    assert remembered(*events, after_s=after_s) == version


@pytest.mark.parametrize("answer", [None, a_pod("7")])
def test_what_changes_while_it_is_read_is_not_remembered(answer: Obj | None) -> None:
    """The answer may be older than the event. That an object does not exist is never remembered."""

    async def main() -> str:
        recent = Recent()
        changed = reading(answer, while_reading=lambda: recent.on_event(a_pod("8"), gone=False))
        assert await recent.read(ADDRESS, changed) == answer
        return version_of(recent)

    assert not run_virtual(main())


def test_the_later_of_two_reads_is_remembered() -> None:
    """The answer to the earlier one arrives last, and may be older."""

    async def main() -> str:
        recent = Recent()
        release = asyncio.Event()

        async def slow() -> Obj | None:
            await release.wait()
            return a_pod("6")

        first = asyncio.create_task(recent.read(ADDRESS, slow))
        await asyncio.sleep(0)
        await recent.read(ADDRESS, reading(a_pod("7")))
        release.set()
        await first
        return version_of(recent)

    assert run_virtual(main()) == "7"


def test_a_read_that_fails_leaves_nothing() -> None:
    """The next look reads the object."""

    async def main() -> str:
        recent = Recent()

        async def fail() -> Obj | None:
            raise ApiError(0, "Unreachable", "the server is away")

        with pytest.raises(ApiError):
            await recent.read(ADDRESS, fail)
        return version_of(recent)

    assert not run_virtual(main())


def test_expired_objects_take_no_memory() -> None:
    """A cluster has more objects in a day than at a time."""

    async def main() -> int:
        recent = Recent()
        for number in range(100):
            await recent.read(("Pod", "lab", f"pod-{number}"), reading(a_pod("7")))
            await asyncio.sleep(1)
        return len(recent._held)

    assert run_virtual(main()) <= RECENT_S + 1


def reads(world: World, since: int) -> list[str]:
    """The reads since then, without those of the Lease."""
    calls = world.api.calls[since:]
    return [f"{verb} {kind}" for verb, kind, _ in calls if verb in {"get", "list"} and kind != "Lease"]


def test_a_run_that_works_is_looked_at_with_one_request() -> None:
    """Everything beside it is read again only after RECENT_S, except the status map that the runner changes."""

    async def scenario(lab: Lab) -> None:
        lab.runners.deaf = True
        lab.start()
        await lab.world.until(lambda: lab.status.get("phase") == "Running", limit_s=30)
        await asyncio.sleep(30)
        begun, looks = len(lab.api.calls), 0
        await asyncio.sleep(3 * RECENT_S)
        found = [r for r in reads(lab.world, begun) if not r.endswith(("Testbed", "list Pod"))]
        looks = found.count("get ScenarioRun")
        assert looks > 3 * RECENT_S / 5
        assert len(found) < 2 * looks + 4 * 12

    play(scenario)


@pytest.mark.parametrize("late_s", [2.0, RECENT_S - 1.0, 5 * RECENT_S])
def test_a_runner_that_has_ended_is_not_started_again_while_the_event_of_its_report_is_late(
    late_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods and status maps have watches of their own: the pod has Succeeded, and the report that is remembered says Running."""
    handle = Operator.on_event

    def on_event(self: Operator, type_: str | None, obj: Obj) -> None:
        if obj["kind"] == "ConfigMap":
            asyncio.get_running_loop().call_later(late_s, handle, self, type_, obj)
        else:
            handle(self, type_, obj)

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.complete()
        assert (lab.status["verdict"], lab.status["runnerStarts"]) == ("Pass", 1)
        assert "RunnerLost" not in lab.reasons()

    monkeypatch.setattr(Operator, "on_event", on_event)
    play(scenario)


def test_a_settled_testbed_is_looked_at_with_two_requests() -> None:
    """The Testbed and its pods at each look, what the pods mount at every second one."""

    async def scenario(world: World) -> None:
        await ready(world)
        await asyncio.sleep(LATER_S)
        begun = len(world.api.calls)
        await asyncio.sleep(6 * LATER_S)
        found = reads(world, begun)
        looks = found.count("get Testbed")
        assert looks >= 6
        assert found.count("list Pod") == looks
        assert len(found) <= 2 * looks + 3 * (looks // 2 + 1)

    simulate(scenario)


def test_a_secret_that_is_deleted_by_hand_is_missed_soon() -> None:
    """No event reports it: the operator may not watch Secrets."""

    async def scenario(world: World) -> None:
        await ready(world)
        (secret,) = (
            o for o in world.api.select("Secret", "lab") if o["metadata"]["name"].startswith("bench")
        )
        uid, name = secret["metadata"]["uid"], secret["metadata"]["name"]
        world.api.remove(("Secret", "lab", name))

        def replaced() -> bool:
            there = world.api.one("Secret", "lab", name)
            return there is not None and there["metadata"]["uid"] != uid

        assert await world.until(replaced, limit_s=120) <= RECENT_S + 3 * LATER_S

    simulate(scenario)


def test_a_fault_that_acts_is_followed_with_two_requests() -> None:
    """Itself and the pods, whose uids say whether a target restarted. Other Faults matter only before it is planned."""

    async def scenario(lab: FaultLab) -> None:
        await lab.open()
        lab.api.put(a_fault(duration="60 s"))
        await lab.phase("Active")
        begun = len(lab.api.calls)
        await asyncio.sleep(RECENT_S)
        calls = [c for c in lab.api.calls[begun:] if not (c[1] == "Testbed" and c[2].endswith("/bench"))]
        looks = sum(kind == "Fault" for _, kind, _ in calls)
        assert looks >= RECENT_S / 2
        assert not [c for c in calls if c[:2] == ("list", "Fault")]
        assert sum(c[:2] == ("get", "Secret") for c in calls) <= 2
        begun = len(lab.api.calls)
        await lab.phase("Complete", limit_s=90)
        await asyncio.sleep(5)
        ended = [c for c in lab.api.calls[begun:] if c[0] == "list" and c[1] == "Fault"]
        assert not ended

    play_fault(scenario)


def test_a_failed_reconcile_reads_everything_again() -> None:
    """Something remembered may be why it failed: a patch that is guarded by an old version never succeeds."""

    async def scenario(lab: Lab) -> None:
        def secrets() -> int:
            return lab.api.calls.count(("get", "Secret", f"lab/{naming.token_name('trial-run')}"))

        lab.runners.deaf = True
        lab.start()
        await lab.world.until(lambda: lab.status.get("phase") == "Running", limit_s=30)
        before = secrets()
        await lab.world.until(lambda: secrets() > before)
        before = secrets()
        lab.api.failing.append((lambda verb, kind, _: (verb, kind) == ("get", "ScenarioRun"), CONFLICT))
        await asyncio.sleep(RECENT_S / 4)
        lab.api.failing.clear()
        await asyncio.sleep(RECENT_S / 4)
        assert secrets() > before

    play(scenario)


def a_context(api: ModelApi) -> Context:
    return Context(api, Settings(), None, None, lambda: 0.0, lambda: "0", lambda: b"0")


async def test_what_new_pods_are_made_from_is_read_anew() -> None:
    """A pod with an outdated token would be replaced at the next look. While every process has its pod, none is created."""
    api = ModelApi(now=lambda: 0.0)
    bench = api.put(a_testbed(pods={"tokenSecret": "given"}))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "given", "namespace": "lab"}}
    context, key = a_context(api), Key("Testbed", "lab", "bench")

    async def uid_seen() -> str:
        observed = await TestbedHandler().observe(context, key)
        assert observed is not None
        assert observed.secret is not None
        return observed.secret.uid

    def replaced() -> str:
        api.remove(("Secret", "lab", "given"))
        return str(api.put(secret)["metadata"]["uid"])

    first = str(api.put(secret)["metadata"]["uid"])
    assert await uid_seen() == first
    second = replaced()
    assert await uid_seen() == second
    for process in objects.processes(bench["spec"]):
        api.put(objects.pod(bench, process, incarnation=1, secret_uid=second, settings=Settings()))
    third = replaced()
    assert await uid_seen() == second
    api.remove(("Pod", "lab", "bench-tm-0"))
    assert await uid_seen() == third


class Acting(Handler):
    """Plans one action."""

    kind = "Testbed"

    def __init__(self, action: Action) -> None:
        self._action = action

    async def observe(self, context: Context, key: Key) -> Any:
        bench = await context.find(Testbed, key.kind, key.namespace, key.name)
        return Observed(bench.raw) if bench else None

    def plan(self, observed: Any, settings: Settings, now: float) -> Plan:
        return Plan((self._action,))


@pytest.mark.parametrize(
    "action",
    [
        Apply({"apiVersion": "v1", **a_pod("7")}),
        Patch("Pod", "lab", "bench-tm-0", {"metadata": {"labels": {"a": "b"}}}),
        Delete("Pod", "lab", "bench-tm-0"),
    ],
)
async def test_the_operator_sees_its_own_last_write(action: Action) -> None:
    """No event has arrived yet, so the next look reads the object."""
    api = ModelApi(now=lambda: 0.0)
    api.put(a_testbed())
    api.put({"apiVersion": "v1", **a_pod("7")})
    context = a_context(api)
    await context.find(Pod, "Pod", "lab", "bench-tm-0")
    assert context.recent.find(ADDRESS) is not None
    await Reconciler(context, {"Testbed": Acting(action)}).reconcile(Key("Testbed", "lab", "bench"))
    assert context.recent.find(ADDRESS) is None
