"""An upgrade of the installation with runs, studies and Testbeds that exist, without a cluster.

Pods of two versions may not understand each other, and one version may call the record of another damaged."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate_operator.handler import Context
from headgate_operator.handlers.scenariorun import _batch as unfinished_runs
from headgate_operator.plan.model import Create, Delete, Plan
from testbed_runtime.api import naming
from testbed_runtime.api.status import rfc3339
from testbed_runtime.api.views import Pod, Run
from tests.operator import runs
from tests.operator import test_study_plans as studies
from tests.operator.actors import a_run
from tests.operator.model import ModelApi
from tests.operator.planned import conditions, events, others
from tests.operator.runs import KNOWN, SPARK, Obj
from tests.operator.test_scenario_study import NOW, SETTINGS
from tests.operator.test_testbed_plans import a_pod, deleted, look, pods, settled

UPGRADED = replace(
    SETTINGS, image="headgate:next", agent_image="headgate-agent:next", spark_image="headgate-spark:next"
)


@pytest.mark.parametrize("annotations", [{}, {naming.ANNOTATION_IMAGES: "headgate-spark:0.0.9"}])
def test_a_spark_from_before_an_upgrade_is_replaced_between_two_runs(annotations: Obj) -> None:
    """It would call the record of a newer version damaged, as a newer one that of the run which began before the upgrade."""
    spark = runs.a_pod(SPARK, annotations=annotations)
    earlier = {SPARK: spark}
    behind = runs.look(runs.made(), pods=earlier, unfinished=1)
    assert others(behind) == []
    assert conditions(behind)["Reconciling"] == "False/Queued"
    assert "before the upgrade" in runs.status_of(behind).message
    assert others(runs.look(runs.made(), pods=earlier)) == [Delete("Pod", "lab", SPARK, f"{SPARK}-uid")]
    leaving = runs.a_pod(SPARK, annotations=annotations, deletionTimestamp=rfc3339(NOW))
    assert others(runs.look(runs.made(), pods={SPARK: leaving})) == []
    begun = runs.look(runs.made(KNOWN), pods=runs.pods(spark=spark))
    assert others(begun) == []
    [created, *_] = [a.manifest for a in others(runs.look(runs.made(KNOWN), pods=runs.pods(spark=None)))]
    assert Pod(created).image == SETTINGS.spark_image


def test_a_run_that_has_not_begun_keeps_the_spark_of_its_version() -> None:
    """Its image is not the operator's; it starts while the runner's image is pulled, or is still warm from the run before."""
    spark = runs.a_pod(SPARK)
    assert spark.image != SETTINGS.image
    found = runs.look(runs.made(), pods={SPARK: spark})
    assert [a for a in others(found) if isinstance(a, Delete)] == []


async def test_a_run_that_waits_behind_an_upgrade_counts_only_runs_that_have_begun() -> None:
    """Two runs that were created after the upgrade would wait for each other otherwise."""
    api = ModelApi(now=lambda: 0.0)
    for name, started in (("waiting", 0), ("too", 0), ("begun", 1)):
        run = a_run()
        run["metadata"]["name"] = name
        api.objects["ScenarioRun", "lab", name] = {
            **api.put(run),
            "status": {"phase": "Starting", "runnerStarts": started},
        }
    context = Context(api, SETTINGS, None, None, lambda: 0.0, lambda: "0", lambda: b"0")
    waiting = Run(api.one("ScenarioRun", "lab", "waiting") or {})
    assert [(await unfinished_runs(context, waiting, waits=waits))[0] for waits in (True, False)] == [1, 0]


def test_the_pod_of_a_study_is_replaced_because_it_reads_the_reports_of_newer_runs() -> None:
    """Finished runs stay, and the new pod continues."""
    pod = studies.a_pod()
    found = Pod({**pod.raw, "spec": {"serviceAccountName": naming.STUDY_ACCOUNT}})
    assert studies.look(pod=found).actions == ()
    replaced = studies.look(pod=found, settings=UPGRADED)
    assert replaced.actions[0] == Delete("Pod", "lab", "knobs-study", "p")
    assert events(replaced)[0][:2] == ("Normal", "Replacing")


def images(plan: Plan) -> dict[str, str]:
    """The image of each pod that is created."""
    made = [Pod(a.manifest) for a in plan.actions if isinstance(a, Create)]
    return {pod.process: pod.spec["containers"][0]["image"] for pod in made}


def runner(image: str) -> Pod:
    return Pod(
        {"metadata": {"annotations": {naming.ANNOTATION_IMAGES: image}}, "status": {"phase": "Running"}}
    )


@pytest.mark.parametrize("without", [("tm-2",), ("jobmanager",)])
def test_a_pod_that_is_replaced_after_an_upgrade_has_the_version_of_its_peers(
    without: tuple[str, ...],
) -> None:
    """A TaskManager of the new version might never register at an older JobManager. The same when the Testbed is scaled."""
    raw = settled(taskManagers={"replicas": 3, "replaceLost": "0 s"})
    there = pods(raw, without=without)
    assert images(look(raw, there, settings=UPGRADED)) == dict.fromkeys(without, SETTINGS.image)


def test_the_pods_of_a_trial_have_the_version_of_its_runner() -> None:
    """Also those of its next trial, of which there are none yet."""
    raw = settled()
    new = images(look(raw, (), settings=UPGRADED, runner=runner("headgate:first")))
    assert set(new.values()) == {"headgate:first"}
    assert set(images(look(raw, (), settings=UPGRADED)).values()) == {"headgate:next"}


def test_a_changed_configuration_replaces_pods_of_an_earlier_version_at_once() -> None:
    """Pod by pod, the first new one would wait for a JobManager that does not understand it. The store stays with its checkpoints; a pod that
    is up to date stays, too."""
    raw = settled()
    there = tuple(
        a_pod(raw, p, labels={**a_pod(raw, p).labels, naming.LABEL_CONFIG: "old"})
        for p in ("jobmanager", "tm-0", "tm-1")
    )
    there += (a_pod(raw, "store"),)
    newer = Pod(
        {
            **(new := a_pod(raw, "tm-2").raw),
            "metadata": {
                **new["metadata"],
                "annotations": {**new["metadata"]["annotations"], naming.ANNOTATION_IMAGES: "headgate:next"},
            },
        }
    )
    found = look(raw, (*there, newer), settings=UPGRADED)
    assert deleted(found) == ["tm-1-1", "tm-0-1", "jobmanager-1"]
    assert events(found)[0] == ("Normal", "Replacing", "replacing tm-1 for generation 3")
    assert len(deleted(look(raw, (*there, a_pod(raw, "tm-2"))))) == 1


def upgraded(raw: Obj, process: str, **changed: Any) -> Pod:
    """A pod of the version after the upgrade."""
    pod = a_pod(raw, process, **changed)
    images = {**pod.annotations, naming.ANNOTATION_IMAGES: f"{UPGRADED.image} {UPGRADED.agent_image}"}
    return Pod({**pod.raw, "metadata": {**pod.raw["metadata"], "annotations": images}})


def test_a_testbed_whose_store_alone_is_of_an_earlier_version_changes_pod_by_pod() -> None:
    """The store stays across every change, so its version says nothing about the others."""
    raw = settled()
    there = tuple(
        upgraded(raw, p, labels={**a_pod(raw, p).labels, naming.LABEL_CONFIG: "old"})
        for p in ("jobmanager", "tm-0", "tm-1", "tm-2")
    )
    assert len(deleted(look(raw, (*there, a_pod(raw, "store")), settings=UPGRADED))) == 1


def test_a_corrected_image_replaces_all_pods_although_some_could_pull_the_earlier_one() -> None:
    """A replaced pod would get the image of the others otherwise, which its node cannot pull."""
    raw = settled()
    waiting = [{"name": "taskmanager", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]
    stuck = a_pod(raw, "tm-2", phase="Pending", ready=False, status={"containerStatuses": waiting})
    found = look(raw, (*pods(raw, without=("tm-2",)), stuck), settings=replace(UPGRADED, since=NOW + 1))
    assert deleted(found) == ["tm-2-1", "tm-1-1", "tm-0-1", "jobmanager-1"]
    assert "earlier version" in " ".join(text for *_, text in events(found))


def test_a_replaced_pod_has_the_packet_agent_of_its_peers() -> None:
    """Its runner may command an agent of another version otherwise."""
    raw = settled(pods={"packetFaults": True}, taskManagers={"replicas": 3, "replaceLost": "0 s"})
    plan = look(raw, pods(raw, without=("tm-2",)), settings=UPGRADED)
    [made] = [a.manifest for a in plan.actions if isinstance(a, Create)]
    assert [c["image"] for c in made["spec"]["initContainers"]] == [SETTINGS.agent_image]


def test_a_run_that_has_not_begun_gets_the_new_version_and_one_that_has_keeps_its_own() -> None:
    """A runner that waits for a node is replaced with its recorder. A lost recorder has the image of its runner."""
    image = {naming.ANNOTATION_IMAGES: SETTINGS.image}
    recorder = runs.a_pod(runs.RECORDER, annotations=image)
    pending = runs.a_pod(runs.RUNNER, "Pending", annotations=image)
    none = runs.pods(spark=None, recorder=recorder, runner=pending)
    gone = {
        a.name for a in others(runs.look(runs.made(), pods=none, settings=UPGRADED)) if isinstance(a, Delete)
    }
    assert gone == {runs.RECORDER, runs.RUNNER}
    begun = runs.pods(spark=None, recorder=None, runner=runs.a_pod(runs.RUNNER, annotations=image))
    plan = runs.look(runs.made(KNOWN), pods=begun, settings=UPGRADED)
    made = {
        m["metadata"]["name"]: m
        for a in others(plan)
        if isinstance(a, Create) and (m := a.manifest)["kind"] == "Pod"
    }
    assert Pod(made[runs.RECORDER]).image == SETTINGS.image


def test_an_upgrade_does_not_count_as_a_lost_pod_of_a_study() -> None:
    """After six of them, the study would end."""
    pod = studies.a_pod()
    found = Pod({**pod.raw, "spec": {"serviceAccountName": naming.STUDY_ACCOUNT}})
    first = studies.look(pod=found, settings=UPGRADED)
    assert (first.status.pod_starts, first.status.pod_uid) == (0, "")
    assert studies.look(pod=found).status.pod_starts == 1
