"""A Testbed's operator in virtual time, against the model of the API server and of the kubelet."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from headgate_operator import objects
from testbed_runtime.kube.api import ApiError
from tests.operator.model import Obj
from tests.operator.world import World, a_testbed, find, kstatus, simulate

KEY = ("Testbed", "lab", "bench")
ALL = {"bench-jobmanager", "bench-store", "bench-tm-0", "bench-tm-1", "bench-tm-2"}


def names(world: World) -> set[str]:
    return {pod["metadata"]["name"] for pod in world.api.select("Pod", "lab")}


def status(world: World) -> Obj:
    return world.api.objects[KEY].get("status") or {}


def condition(world: World, type_: str) -> str:
    found = find(status(world), type_)
    return f"{found['status']}/{found['reason']}" if found else ""


def incarnation(world: World, pod: str) -> int:
    obj = world.api.one("Pod", "lab", pod)
    return int(obj["metadata"]["labels"]["headgate.dev/incarnation"]) if obj else 0


def is_settled(world: World) -> bool:
    return condition(world, "Reconciling") == "False/Settled" and condition(world, "Ready").startswith("True")


async def ready(world: World, **spec: Any) -> None:
    world.start()
    world.api.put(a_testbed(**spec))
    await world.until(lambda: is_settled(world), limit_s=30)


def patch(world: World, **spec: Any) -> None:
    world.api.change(*KEY, {"spec": spec})


def test_a_testbed_becomes_pods_and_runs_its_job() -> None:
    """JobManager, store and each TaskManager; conditions say so; the JobManager was asked with the Secret's token."""

    async def scenario(world: World) -> None:
        await ready(world)
        await world.until(lambda: condition(world, "JobRunning") == "True/Running", limit_s=5)
        assert names(world) == ALL
        assert status(world)["readyTaskManagers"] == 3
        assert status(world)["selector"] == "headgate.dev/testbed=bench,headgate.dev/role=taskmanager"
        assert set(status(world)["incarnations"].values()) == {1}
        assert world.jobs.asked[-1][1] == "token-operator-0-1"
        assert {e[2] for e in world.api.events} >= {"Creating", "Ready", "JobRunning"}

    simulate(scenario)


def test_a_settled_testbed_is_left_alone() -> None:
    """A minute of reconciling writes nothing: versions stay the same, and no Event is posted."""

    async def scenario(world: World) -> None:
        await ready(world)
        await world.until(lambda: condition(world, "JobRunning") == "True/Running")
        before = {
            a: o["metadata"]["resourceVersion"] for a, o in world.api.objects.items() if a[0] != "Lease"
        }
        await asyncio.sleep(60)
        after = {a: o["metadata"]["resourceVersion"] for a, o in world.api.objects.items() if a[0] != "Lease"}
        assert before == after

    simulate(scenario)


def test_scaling_adds_the_next_ordinals_and_takes_the_highest() -> None:
    """Scaling from three to five and down to two touches no other pod, and uses no number twice."""

    async def scenario(world: World) -> None:
        await ready(world)
        uid = world.api.one("Pod", "lab", "bench-tm-0")["metadata"]["uid"]  # type: ignore[index]
        patch(world, taskManagers={"replicas": 5})
        await world.until(lambda: status(world)["readyTaskManagers"] == 5, limit_s=30)
        patch(world, taskManagers={"replicas": 2})
        await world.until(lambda: names(world) == ALL - {"bench-tm-2"}, limit_s=30)
        patch(world, taskManagers={"replicas": 3})
        await world.until(lambda: is_settled(world) and len(names(world)) == 5, limit_s=30)
        assert incarnation(world, "bench-tm-2") == 2
        assert world.api.one("Pod", "lab", "bench-tm-0")["metadata"]["uid"] == uid  # type: ignore[index]
        assert not status(world).get("lost")

    simulate(scenario)


def test_a_lost_taskmanager_stays_lost_when_it_is_never_replaced() -> None:
    """`replaceLost: Never`: a deleted or failed TaskManager is reported and not replaced."""

    async def scenario(world: World) -> None:
        await ready(world)
        world.kubelet.vanish("lab", "bench-tm-1")
        world.kubelet.fail("lab", "bench-tm-2")
        await asyncio.sleep(120)
        assert "bench-tm-1" not in names(world)
        assert set(status(world)["lost"]) == {"tm-1", "tm-2"}
        assert condition(world, "Ready") == "False/TaskManagerLost"
        losses = [e for e in world.api.events if e[2] == "TaskManagerLost"]
        assert [e[3].split(" (")[0] for e in losses] == ["tm-1", "tm-2"]
        assert "exit code 137" in losses[1][3]

    simulate(scenario)


@pytest.mark.parametrize("how", ["vanish", "fail", "delete"])
def test_a_lost_taskmanager_is_replaced_after_its_delay(how: str) -> None:
    """`replaceLost: 5 s`: not earlier, and as its next incarnation."""

    async def scenario(world: World) -> float:
        await ready(world, taskManagers={"replaceLost": "5 s"})
        await asyncio.sleep(3)
        if how == "vanish":
            world.kubelet.vanish("lab", "bench-tm-1")
        elif how == "fail":
            world.kubelet.fail("lab", "bench-tm-1")
        else:
            world.api.remove(("Pod", "lab", "bench-tm-1"), graceful=True)
        took = await world.until(lambda: incarnation(world, "bench-tm-1") == 2, limit_s=30)
        await world.until(lambda: is_settled(world), limit_s=10)
        assert not status(world).get("lost")
        return took

    assert 5.0 <= simulate(scenario) <= 8.0


@pytest.mark.parametrize("helper", ["bench-jobmanager", "bench-store"])
def test_a_lost_helper_is_recreated_at_once(helper: str) -> None:
    """`replaceLost` does not delay it, because it concerns TaskManagers only."""

    async def scenario(world: World) -> float:
        await ready(world)
        world.kubelet.vanish("lab", helper)
        took = await world.until(lambda: helper in names(world), limit_s=30)
        await world.until(lambda: is_settled(world), limit_s=30)
        assert incarnation(world, helper) == 2
        return took

    assert simulate(scenario) <= 1.0


def test_a_changed_configuration_rolls_one_pod_at_a_time_and_the_jobmanager_last() -> None:
    """The highest ordinal goes first, each is ready before the next is replaced, and the store stays. The Testbed is Ready once, at the
    end."""

    async def scenario(world: World) -> None:
        await ready(world)
        gone: list[str] = []
        early: list[Any] = []
        missing_at_once = 0

        def watch(type_: str, obj: Obj) -> None:
            nonlocal missing_at_once
            if obj["kind"] == "Pod" and type_ == "DELETED":
                gone.append(obj["metadata"]["name"])
            found = find(obj.get("status") or {}, "Ready")
            if obj["kind"] == "Testbed" and found and len(gone) < 4:
                early.extend([found] if (found["status"], found["observedGeneration"]) == ("True", 2) else [])
            there = [p for p in world.api.select("Pod", "lab") if not p["metadata"].get("deletionTimestamp")]
            missing_at_once = max(missing_at_once, 5 - len(there))

        world.api.watchers.append(watch)
        patch(world, flinkConfiguration={"heartbeat.timeout": "57 s"})
        await world.until(lambda: len(gone) == 4 and is_settled(world), limit_s=120)
        assert gone == ["bench-tm-2", "bench-tm-1", "bench-tm-0", "bench-jobmanager"]
        assert missing_at_once == 1
        assert early == [], "Ready before every pod had the new configuration"
        assert [text for *_, reason, text in world.api.events if reason == "Ready"] == [
            f"generation {number} is ready" for number in (1, 2)
        ]
        texts = [text for _, _, reason, text in world.api.events if reason == "Replacing"]
        assert texts == [f"replacing {p} for generation 2" for p in ("tm-2", "tm-1", "tm-0", "jobmanager")]
        assert incarnation(world, "bench-store") == 1
        (config,) = world.api.select("ConfigMap", "lab")
        assert '"heartbeat.timeout": "57 s"' in config["data"]["testbed.json"]

    simulate(scenario)


def test_a_default_that_an_upgrade_adds_replaces_no_pod() -> None:
    """The API server adds it to the stored spec without a new generation. A change of the spec still rolls the pods."""

    async def scenario(world: World) -> None:
        await ready(world)
        world.api.objects[KEY]["spec"]["seed"] = 9
        world.kill("operator-0")
        world.start("operator-1")
        world.kubelet.fail("lab", "bench-jobmanager")  # its successor reads the new ConfigMap
        await world.until(lambda: incarnation(world, "bench-jobmanager") == 2, limit_s=60)
        await asyncio.sleep(120)
        assert [incarnation(world, f"bench-tm-{n}") for n in range(3)] == [1, 1, 1]
        patch(world, flinkConfiguration={"heartbeat.timeout": "57 s"})
        await world.until(lambda: incarnation(world, "bench-jobmanager") == 3, limit_s=120)
        assert [incarnation(world, f"bench-tm-{n}") for n in range(3)] == [2, 2, 2]

    simulate(scenario)


def test_a_configuration_that_never_gets_ready_stops_the_roll_and_can_be_corrected() -> None:
    """One pod is missing, not all; the next configuration replaces the broken pod without waiting for it."""

    async def scenario(world: World) -> None:
        await ready(world)
        world.kubelet.held = lambda pod: pod["metadata"]["labels"]["headgate.dev/incarnation"] == "2"
        patch(world, flinkConfiguration={"heartbeat.timeout": "57 s"})
        await asyncio.sleep(60)
        assert status(world)["readyTaskManagers"] == 2
        world.kubelet.held = lambda _: False
        patch(world, flinkConfiguration={"heartbeat.timeout": "58 s"})
        await world.until(lambda: is_settled(world), limit_s=60)
        assert incarnation(world, "bench-tm-2") == 3

    simulate(scenario)


def test_a_bad_testbed_says_why_and_creates_nothing() -> None:
    """The errors of the command line, reported once and not at every look."""

    async def scenario(world: World) -> None:
        world.start()
        world.api.put(a_testbed(flinkConfiguration={"heartbeat.timeot": "5 s"}))
        await world.until(lambda: condition(world, "Accepted") == "False/Invalid", limit_s=10)
        found = find(status(world), "Accepted")
        assert found is not None
        assert "did you mean heartbeat.timeout?" in found["message"]
        assert condition(world, "Stalled") == "True/Invalid"
        assert condition(world, "Reconciling") == "False/Invalid"
        assert kstatus(world.api.objects[KEY]) == "Failed"
        await asyncio.sleep(400)
        assert not names(world)
        assert not world.api.select("Secret", "lab")
        assert [e[2] for e in world.api.events] == ["Rejected"]

    simulate(scenario)


def test_an_edit_that_is_not_accepted_leaves_the_running_pods_alone() -> None:
    """And the mended one goes on where the accepted one was."""

    async def scenario(world: World) -> None:
        await ready(world)
        uids = {p["metadata"]["uid"] for p in world.api.select("Pod", "lab")}
        patch(world, flinkConfiguration={"heartbeat.timeot": "5 s"})
        await world.until(lambda: condition(world, "Accepted") == "False/Invalid", limit_s=10)
        await asyncio.sleep(30)
        assert {p["metadata"]["uid"] for p in world.api.select("Pod", "lab")} == uids
        assert kstatus(world.api.objects[KEY]) == "Failed"
        patch(world, flinkConfiguration=None)
        await world.until(lambda: is_settled(world), limit_s=10)
        assert kstatus(world.api.objects[KEY]) == "Current"
        assert {p["metadata"]["uid"] for p in world.api.select("Pod", "lab")} == uids

    simulate(scenario)


def test_deletion_leaves_nothing() -> None:
    """The children are collected, and none is recreated meanwhile."""

    async def scenario(world: World) -> None:
        await ready(world)
        world.api.remove(KEY)
        await world.until(lambda: not world.api.select("Pod", "lab"), limit_s=10)
        await asyncio.sleep(60)
        assert [a for a in world.api.objects if a[0] not in ("Lease", "Event")] == []

    simulate(scenario)


def test_a_recreated_testbed_waits_for_the_pods_of_the_first() -> None:
    """Deleted and created in one breath: none of the old pods is taken for a new one."""

    async def scenario(world: World) -> None:
        await ready(world)
        old = {p["metadata"]["uid"] for p in world.api.select("Pod", "lab")}
        world.api.remove(KEY)
        world.api.put(a_testbed())
        await world.until(lambda: is_settled(world), limit_s=60)
        assert names(world) == ALL
        assert not old & {p["metadata"]["uid"] for p in world.api.select("Pod", "lab")}

    simulate(scenario)


def test_a_recreated_testbed_runs_its_job_while_a_pod_of_the_first_still_terminates() -> None:
    """The kubelet keeps the token of an immutable Secret for as long as a pod refers to its name."""

    async def scenario(world: World) -> None:
        await ready(world)
        world.kubelet.stop_s = 20.0
        world.api.remove(("Pod", "lab", "bench-tm-2"), graceful=True)
        world.kubelet.stop_s = 1.0
        world.api.remove(KEY)
        world.api.put(a_testbed())
        await world.until(lambda: condition(world, "JobRunning") == "True/Running", limit_s=15)
        await world.until(lambda: is_settled(world), limit_s=30)
        assert names(world) == ALL

    simulate(scenario)


def test_pods_share_one_token_after_their_secret_was_deleted() -> None:
    """The pods of the lost Secret are gone before one of the same name is created."""

    async def scenario(world: World) -> None:
        await ready(world)
        world.kubelet.stop_s = 20.0
        world.api.remove(("Pod", "lab", "bench-tm-2"), graceful=True)
        world.kubelet.stop_s = 1.0
        (secret,) = world.api.select("Secret", "lab")
        world.api.remove(("Secret", "lab", secret["metadata"]["name"]))
        await world.until(lambda: incarnation(world, "bench-store") == 2, limit_s=60)
        await world.until(lambda: condition(world, "JobRunning") == "True/Running", limit_s=30)

    simulate(scenario)


def test_a_testbed_is_not_ready_while_its_jobmanager_does_not_answer() -> None:
    """Nothing is known about its job then; Ready returns with the first answer."""

    async def scenario(world: World) -> None:
        world.jobs.answer = None
        world.start()
        world.api.put(a_testbed())
        await world.until(lambda: status(world).get("readyTaskManagers") == 3, limit_s=30)
        await asyncio.sleep(20)
        assert condition(world, "JobRunning") == "Unknown/JobManagerNotReached"
        assert condition(world, "Ready") == "False/JobManagerNotReached"
        world.jobs.answer = {"state": "RUNNING", "running": 2, "total": 2}
        assert await world.until(lambda: is_settled(world), limit_s=30) <= 2
        world.jobs.answer = None
        await world.until(lambda: condition(world, "JobRunning").startswith("Unknown"), limit_s=15)
        assert condition(world, "Ready") == "False/JobManagerNotReached"

    simulate(scenario)


@pytest.mark.parametrize("kind", ["Service", "PersistentVolumeClaim"])
def test_a_testbed_waits_for_objects_of_another_owner_under_its_names(kind: str) -> None:
    """An earlier Testbed's claim holds its checkpoints, and its Service is about to be collected."""

    async def scenario(world: World) -> None:
        world.start()
        owner = {"apiVersion": "headgate.dev/v1alpha1", "kind": "Testbed", "name": "bench", "uid": "another"}
        name = "bench" if kind == "Service" else "bench-store"
        metadata = {"name": name, "namespace": "lab", "ownerReferences": [owner]}
        world.api.put({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": {}})
        world.api.put(a_testbed(pods={"storage": {"size": "1Gi"}}))
        await world.until(lambda: condition(world, "Ready") == "False/NamesTaken", limit_s=10)
        assert f"{kind} {name}" in status(world)["message"]
        assert not names(world)
        world.api.remove((kind, "lab", name))
        await world.until(lambda: is_settled(world), limit_s=30)
        assert "message" not in status(world)

    simulate(scenario)


def test_a_testbed_whose_pods_get_no_node_stalls_with_the_schedulers_reason() -> None:
    """After 600 s; until then it is starting. When there is room again, it is Ready."""

    async def scenario(world: World) -> None:
        world.kubelet.nodes = False
        world.start()
        world.api.put(a_testbed())
        await asyncio.sleep(590)
        assert kstatus(world.api.objects[KEY]) == "InProgress"
        await world.until(lambda: condition(world, "Stalled") == "True/Unschedulable", limit_s=30)
        assert kstatus(world.api.objects[KEY]) == "Failed"
        found = find(status(world), "Stalled")
        assert found is not None
        assert "0/1 nodes are available: 1 Insufficient cpu" in found["message"]
        assert [reason for _, _, reason, _ in world.api.events].count("Unschedulable") == 1
        world.kubelet.add_node()
        await world.until(lambda: is_settled(world), limit_s=60)
        assert kstatus(world.api.objects[KEY]) == "Current"

    simulate(scenario)


def test_objects_deleted_while_the_operator_was_away_are_recreated() -> None:
    """Service, ConfigMap and the JobManager's pod; a lost Secret replaces every pod, for they no longer understand each other."""

    async def scenario(world: World) -> None:
        await ready(world)
        world.kill()
        (config,) = world.api.select("ConfigMap", "lab")
        config_name = config["metadata"]["name"]
        for kind, name in (("Service", "bench"), ("ConfigMap", config_name), ("Pod", "bench-jobmanager")):
            world.api.remove((kind, "lab", name))
        await asyncio.sleep(30)
        world.start("operator-1")
        await world.until(lambda: is_settled(world) and "bench-jobmanager" in names(world), limit_s=60)
        assert world.api.one("Service", "lab", "bench")
        assert incarnation(world, "bench-store") == 1
        (secret,) = world.api.select("Secret", "lab")
        world.api.remove(("Secret", "lab", secret["metadata"]["name"]))
        await world.until(lambda: incarnation(world, "bench-store") == 2 and is_settled(world), limit_s=60)

    simulate(scenario)


def test_testbeds_of_one_name_in_two_namespaces_have_nothing_in_common() -> None:
    """Twenty TaskManagers here, three there: what is done to one is nothing to the other."""

    async def scenario(world: World) -> None:
        await ready(world, taskManagers={"replicas": 20})
        other = a_testbed()
        other["metadata"]["namespace"] = "shop"
        world.api.put(other)

        def there() -> Obj:
            return (world.api.one("Testbed", "shop", "bench") or {}).get("status") or {}

        await world.until(lambda: there().get("phase") == "Ready", limit_s=30)
        assert status(world)["readyTaskManagers"] == 20
        assert there()["readyTaskManagers"] == 3
        world.api.remove(KEY)
        await world.until(lambda: not names(world), limit_s=30)
        await asyncio.sleep(30)
        assert there()["phase"] == "Ready"
        assert set(there()["incarnations"].values()) == {1}

    simulate(scenario)


def test_a_testbed_and_a_run_of_one_name_have_secrets_of_their_own() -> None:
    """The run's Secret is deleted with the run; the Testbed's pods must not depend on it."""

    async def scenario(world: World) -> None:
        owner = {
            "apiVersion": "headgate.dev/v1alpha1",
            "kind": "ScenarioRun",
            "name": "bench",
            "uid": "another",
        }
        metadata = {"name": "bench-token", "namespace": "lab", "ownerReferences": [owner]}
        world.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"token": "eA=="}})
        await ready(world)
        secrets = {s["metadata"]["name"]: s for s in world.api.select("Secret", "lab")}
        assert len(secrets) == 2
        assert secrets["bench-token"]["data"] == {"token": "eA=="}
        uids = {p["metadata"]["uid"] for p in world.api.select("Pod", "lab")}
        world.api.remove(("Secret", "lab", "bench-token"))
        await asyncio.sleep(30)
        assert {p["metadata"]["uid"] for p in world.api.select("Pod", "lab")} == uids

    simulate(scenario)


def test_a_testbed_waits_for_the_secret_of_its_run() -> None:
    """`tokenSecret` names a Secret of another owner. Until it exists, nothing is created, and no other Secret instead."""

    async def scenario(world: World) -> None:
        world.start()
        world.api.put(a_testbed(pods={"tokenSecret": "run-token"}))
        await world.until(lambda: condition(world, "Ready") == "False/WaitingForSecret", limit_s=10)
        await asyncio.sleep(20)
        assert not names(world)
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "run-token", "namespace": "lab"}}
        world.api.put({**secret, "stringData": {"token": "of-the-run"}})
        await world.until(lambda: is_settled(world), limit_s=30)
        assert [s["metadata"]["name"] for s in world.api.select("Secret", "lab")] == ["run-token"]

    simulate(scenario)


def is_as_asked_for(world: World) -> bool:
    """Exactly the wanted pods, alive, and made from what is wanted now."""
    bench = world.api.objects[KEY]
    wanted = {f"bench-{p}": objects.pod_hash(bench, p) for p in objects.processes(bench["spec"])}
    found = {
        pod["metadata"]["name"]: pod["metadata"]["labels"]["headgate.dev/config"]
        for pod in world.api.select("Pod", "lab")
        if (pod.get("status") or {}).get("phase") == "Running"
    }
    return found == wanted and names(world) == set(wanted)


def walk(seed: int) -> None:
    """Random changes, losses and kills; in the end everything is as it was asked for, and no id came twice."""

    async def scenario(world: World) -> None:
        rng = random.Random(seed)
        numbers: dict[str, list[int]] = {}
        operators = 0

        def watch(type_: str, obj: Obj) -> None:
            if obj["kind"] == "Pod" and type_ == "ADDED":
                number = int(obj["metadata"]["labels"]["headgate.dev/incarnation"])
                numbers.setdefault(obj["metadata"]["name"], []).append(number)

        world.api.watchers.append(watch)
        world.start("operator-0")
        world.api.put(a_testbed(taskManagers={"replaceLost": "2 s"}))
        for _ in range(12):
            await asyncio.sleep(rng.uniform(0, 4))
            step = rng.choice(["kill", "kill", "vanish", "fail", "scale", "roll", "flaky"])
            pods = sorted(names(world))
            if step == "kill":
                world.kill(f"operator-{operators}")
                operators += 1
                world.start(f"operator-{operators}")
            elif step in ("vanish", "fail") and pods:
                getattr(world.kubelet, step)("lab", rng.choice(pods))
            elif step == "scale":
                patch(world, taskManagers={"replicas": rng.randint(2, 5)})
            elif step == "roll":
                patch(world, flinkConfiguration={"heartbeat.timeout": f"{rng.randint(51, 59)} s"})
            else:
                chance = rng.random() / 2
                fail = lambda *_, p=chance: rng.random() < p  # noqa: E731
                world.api.failing[:] = [(fail, ApiError(500, "InternalError", "flaky"))]
        world.api.failing.clear()
        await world.until(lambda: is_settled(world) and is_as_asked_for(world), limit_s=400)
        for pod, made in numbers.items():
            assert made == sorted(set(made)), f"{pod}: {made}"

    simulate(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_kills_losses_and_changes_ends_as_it_was_asked_for(seed: int) -> None:
    """Seeded walks under virtual time; what fails becomes a row of its own."""
    walk(seed)


@pytest.mark.soak
def test_many_more_walks() -> None:
    """The same, a thousand times."""
    for seed in range(1000, 2000):
        walk(seed)


def test_a_job_that_restarts_again_and_again_does_not_flood_the_events() -> None:
    """Each of its Events has the same text, so the API server has one that is counted."""

    async def scenario(world: World) -> None:
        await ready(world)
        for restarts in range(1, 11):
            for state in ("RESTARTING", "RUNNING"):
                world.jobs.answer = {"state": state, "running": 2, "total": 2, "restarts": restarts}
                await world.until(lambda: status(world)["jobState"] == state, limit_s=30)  # noqa: B023
        texts = [text for *_, reason, text in world.api.events if reason == "JobRunning"]
        assert len(texts) == 11
        assert len(set(texts)) == 1
        assert status(world)["restarts"] == 10

    simulate(scenario)
