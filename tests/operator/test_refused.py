"""The operator reports a request that the API server refuses, and goes on."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from headgate_operator.health import Metrics
from headgate_operator.plan.conditions import no, yes
from headgate_operator.plan.model import Key
from headgate_operator.queue import KeyedQueue
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.status import TuningStudyStatus, to_json
from testbed_runtime.core.errors import LocalProtocolError
from testbed_runtime.faults.backend import Unreachable
from testbed_runtime.kube.api import ApiError
from testbed_runtime.simulation.loop import run_virtual
from tests.operator.actors import a_run
from tests.operator.test_scenario_study import a_study
from tests.operator.test_testbed import condition, is_settled, names, status
from tests.operator.world import World, a_testbed, find, is_true, simulate


def test_a_poison_testbed_stalls_and_others_go_on() -> None:
    """A15: bounded retries, then Stalled with the error's text; when it can be done again, it recovers by itself."""

    async def scenario(world: World) -> None:
        refused = ApiError(422, "Invalid", "a quota says no")
        poison = lambda verb, kind, name: verb == "create" and name == "poison-store"  # noqa: E731
        world.api.failing.append((poison, refused))
        world.start()
        world.api.put(a_testbed("poison"))
        world.api.put(a_testbed())
        assert await world.until(lambda: is_settled(world)) < 10
        bad = world.api.objects["Testbed", "lab", "poison"]["status"]
        assert not is_true(bad, "Stalled")
        stalled = lambda: is_true(  # noqa: E731
            world.api.objects["Testbed", "lab", "poison"]["status"], "Stalled"
        )
        await world.until(stalled, limit_s=300)
        found = find(world.api.objects["Testbed", "lab", "poison"]["status"], "Stalled")
        assert found is not None
        assert "a quota says no" in found["message"]
        tries = len([c for c in world.api.calls if c[0] == "create" and c[2] == "lab/poison-store"])
        await asyncio.sleep(600)
        later = len([c for c in world.api.calls if c[0] == "create" and c[2] == "lab/poison-store"])
        assert later - tries <= 5
        world.api.failing.clear()
        await world.until(lambda: "poison-store" in names(world) and not stalled(), limit_s=400)

    simulate(scenario)


@pytest.mark.parametrize(
    ("refused", "words", "fix", "reason"),
    [
        (("create", "-tm-0"), 'it violates PodSecurity "restricted:latest": unrestricted', "enforce=privileged", "NotAdmitted"),
        (("get", "-token"), 'it is forbidden: User "operator" cannot get secrets', "rbac.testbedNamespaces", "NotAdmitted"),
        (("create", "-tm-0"), "it is forbidden: exceeded quota: q, requested: pods=1, used: pods=2", "raise its ResourceQuota", "QuotaExceeded"),
        (("create", "-tm-0"), "it is forbidden: failed quota: q: must specify limits.cpu", "LimitRange", "NotAdmitted"),
        (("create", "-tm-0"), "it is forbidden: maximum memory usage per Container is 64Mi", "spec.pods.resources", "NotAdmitted"),
        (("create", "-tm-0"), 'admission webhook "policy" denied the request: no', "admission webhook", "NotAdmitted"),
        (("create", "-tm-0"), "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", "policy", "NotAdmitted"),
    ],
)  # fmt: skip
def test_what_its_namespace_does_not_admit_is_reported_at_once(
    refused: tuple[str, str], words: str, fix: str, reason: str
) -> None:
    """Stalled, with the API server's message and how to fix it, in the status and in one Event; it does not flap during retries, and
    recovers."""

    async def scenario(world: World) -> None:
        what = lambda verb, kind, name: verb == refused[0] and refused[1] in name  # noqa: E731
        world.api.failing.append((what, ApiError(403, "Forbidden", words)))
        world.start()
        world.api.put(a_testbed())
        stalled = lambda: (condition(world, "Stalled") or "").startswith("True/")  # noqa: E731
        assert await world.until(stalled, limit_s=10) < 5
        assert condition(world, "Stalled") == f"True/{reason}"
        found = find(status(world), "Stalled")
        assert found is not None
        assert words in found["message"]
        assert fix in found["message"]
        for _ in range(100):
            await asyncio.sleep(5)
            assert condition(world, "Stalled") == f"True/{reason}"
            assert condition(world, "Ready") == f"False/{reason}", "the columns of `kubectl get` show Ready"
            assert status(world)["message"] == found["message"]
        assert [event[2] for event in world.api.events].count("Stalled") == 1
        world.api.failing.clear()
        await world.until(lambda: is_settled(world) and not stalled(), limit_s=400)
        assert words not in status(world).get("message", "")

    simulate(scenario)


def test_an_operator_that_is_limited_to_namespaces_says_how_its_role_gets_a_missing_right() -> None:
    """The chart refuses `rbac.testbedNamespaces` for it, and there is no ClusterRole."""

    async def scenario(world: World) -> None:
        words = 'secrets is forbidden: User "operator" cannot create resource "secrets"'
        world.api.failing.append((lambda verb, _, name: "-token" in name, ApiError(403, "Forbidden", words)))
        world.start()
        world.api.put(a_testbed())
        await world.until(lambda: condition(world, "Stalled") == "True/NotAdmitted", limit_s=10)
        found = find(status(world), "Stalled")
        assert found is not None
        assert words in found["message"]
        assert "repeat `helm upgrade`" in found["message"]
        assert "testbedNamespaces" not in found["message"]

    simulate(scenario, namespaces=("lab",))


@pytest.mark.parametrize("wanted", [a_testbed(), a_run(), a_study()], ids=lambda wanted: wanted["kind"])
def test_the_columns_of_kubectl_get_show_why_an_object_is_stalled(wanted: dict[str, Any]) -> None:
    """Without `-o wide`."""

    async def scenario(world: World) -> None:
        refused = lambda verb, kind, _: verb == "create" and kind == "Pod"  # noqa: E731
        world.api.failing.append((refused, ApiError(403, "Forbidden", "exceeded quota")))
        world.start()
        world.api.put(wanted)
        seen = lambda: world.api.objects[wanted["kind"], "lab", wanted["metadata"]["name"]].get("status")  # noqa: E731
        await world.until(lambda: is_true(seen() or {}, "Stalled"), limit_s=10)
        columns = CUSTOM_RESOURCES[wanted["kind"]].columns
        [path] = [c["jsonPath"] for c in columns if (c["name"], c["priority"]) == ("Reason", 0)]
        found = re.fullmatch(r'\.status\.conditions\[\?\(@\.type=="(\w+)"\)\]\.reason', path)
        assert found is not None
        shown = find(seen(), found[1])
        assert shown is not None
        assert shown["reason"] == "QuotaExceeded"

    simulate(scenario)


def test_the_message_of_a_refusal_goes_when_it_is_over_although_the_plan_keeps_messages() -> None:
    """A TuningStudy has its runner's message; before the runner reports, its plan writes the message that the status has."""

    async def scenario(world: World) -> None:
        study = a_study()
        seen = lambda: world.api.objects["TuningStudy", "lab", study["metadata"]["name"]].get("status") or {}  # noqa: E731
        refused = lambda verb, kind, _: verb == "create" and kind == "Pod"  # noqa: E731
        world.api.failing.append((refused, ApiError(403, "Forbidden", "exceeded quota")))
        world.start()
        world.api.put(study)
        await world.until(lambda: is_true(seen(), "Stalled"), limit_s=10)
        assert "exceeded quota" in seen()["message"]
        world.api.failing.clear()
        await world.until(lambda: not is_true(seen(), "Stalled"), limit_s=100)
        await asyncio.sleep(10)
        assert "message" not in seen()

    simulate(scenario)


def test_two_runs_that_lost_their_runners_to_a_quota_do_not_wait_for_each_other() -> None:
    """Nor does a study without its pod wait for them: each ends after ten minutes, with the quota's message."""

    async def scenario(world: World) -> None:
        names = ("one", "two")
        status = lambda kind, name: world.api.objects[kind, "lab", name].get("status") or {}  # noqa: E731
        world.start()
        for name in names:
            world.api.put(a_run(name))
        await world.until(
            lambda: all(status("ScenarioRun", n).get("runnerStarts") for n in names), limit_s=60
        )
        refused = lambda verb, kind, _: verb == "create" and kind == "Pod"  # noqa: E731
        world.api.failing.append((refused, ApiError(403, "Forbidden", "exceeded quota: q")))
        for name in names:
            world.api.remove(("Pod", "lab", f"{name}-runner"))
        world.api.put(a_study())
        objects = [("ScenarioRun", "one"), ("ScenarioRun", "two"), ("TuningStudy", "knobs")]
        await world.until(lambda: all(status(*o).get("phase") == "Complete" for o in objects), limit_s=4000)
        for kind, name in objects:
            ready = find(status(kind, name), "Ready")
            assert ready is not None
            assert (ready["reason"], "exceeded quota: q" in ready["message"]) == ("PodNotCreated", True)

    simulate(scenario)


def test_a_finished_study_keeps_its_result_while_other_requests_are_refused() -> None:
    """It needs none of them, so it is not Stalled, and its conditions and its message stay."""

    async def scenario(world: World) -> None:
        conditions = [no("Ready", "NoRowPasses", "No row passes."), yes("Complete", "NoRowPasses")]
        result = TuningStudyStatus(conditions=tuple(conditions), phase="Complete", message="No row passes.")
        seen = lambda: world.api.objects["TuningStudy", "lab", "knobs"]["status"]  # noqa: E731
        refused = lambda verb, kind, _: verb == "get" and kind in ("ConfigMap", "ServiceAccount", "Pod")  # noqa: E731
        world.api.failing.append((refused, ApiError(403, "Forbidden", "it is forbidden: exceeded quota")))
        world.api.put(a_study())
        await world.api.set_status(world.api.objects["TuningStudy", "lab", "knobs"], to_json(result))
        world.start()
        await asyncio.sleep(60)
        assert not is_true(seen(), "Stalled")
        ready = find(seen(), "Ready")
        assert ready is not None
        assert (ready["reason"], ready["message"]) == ("NoRowPasses", "No row passes.")
        assert seen()["message"] == "No row passes."

    simulate(scenario)


def test_a_refusal_is_logged_without_a_stack_trace(caplog: pytest.LogCaptureFixture) -> None:
    """The answer of the API server says it all; an error of the operator itself keeps its trace."""

    async def scenario(world: World) -> None:
        refused = lambda verb, kind, name: verb == "create" and name == "bench-tm-0"  # noqa: E731
        world.api.failing.append((refused, ApiError(403, "Forbidden", "exceeded quota")))
        world.start()
        world.api.put(a_testbed())
        await world.until(lambda: (condition(world, "Stalled") or "") == "True/QuotaExceeded", limit_s=10)

    simulate(scenario)
    failed = [record for record in caplog.records if record.message == "reconcile failed"]
    assert failed
    assert not any(record.exc_info for record in failed)


@pytest.mark.parametrize(
    ("error", "traced"),
    [(Unreachable("tm-0 does not answer"), False), (LocalProtocolError("two plans"), True), (KeyError("status"), True)],
)  # fmt: skip
def test_only_an_error_of_the_operator_itself_is_logged_with_a_stack_trace(
    caplog: pytest.LogCaptureFixture, error: Exception, traced: bool
) -> None:
    """An agent that does not answer is no such error. The trace comes once, however often the attempt fails."""

    async def main() -> None:
        async def work(key: Key) -> None:
            raise error

        async def stalled(key: Key, text: str) -> None: ...

        queue = KeyedQueue(work, stalled, workers=1, metrics=Metrics())
        task = asyncio.create_task(queue.run())
        queue.add(Key("Fault", "lab", "slow"))
        await asyncio.sleep(10)
        task.cancel()

    run_virtual(main())
    failed = [record for record in caplog.records if record.message == "reconcile failed"]
    assert len(failed) > 1
    assert [bool(record.exc_info) for record in failed] == [traced, *[False] * (len(failed) - 1)]
