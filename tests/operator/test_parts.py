"""The queue, health, conditions, settings and the builders, each by itself."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from headgate_operator import objects, objects_runs
from headgate_operator.agents import Jobs
from headgate_operator.handler import keys_of
from headgate_operator.health import STALLED_WATCH_S, Health, Metrics
from headgate_operator.plan import conditions
from headgate_operator.plan.model import Key
from headgate_operator.queue import STALLED_AFTER, STALLED_RETRY_S, KeyedQueue, retry_after
from headgate_operator.settings import Settings, from_environment
from testbed_runtime.api import naming
from testbed_runtime.api.status import Status
from testbed_runtime.api.views import Resource, Run, Study, seconds
from testbed_runtime.core.errors import UserError
from testbed_runtime.http import bearer_token, serve
from testbed_runtime.kube.manifests import config_map
from testbed_runtime.kube.spark import executors
from testbed_runtime.ports.hosts import JOB_PATH
from testbed_runtime.process import clock
from testbed_runtime.simulation.loop import run_virtual
from tests.operator.actors import a_run
from tests.operator.test_scenario_study import a_study
from tests.operator.world import a_testbed


def with_uid() -> dict[str, object]:
    bench = a_testbed()
    bench["metadata"]["uid"] = "u1"
    return bench


def test_retries_double_up_to_a_minute_and_a_stalled_key_waits_for_five() -> None:
    """1, 2, 4 … 60 s, then every 300 s."""
    assert [retry_after(n) for n in range(1, 8)] == [1, 2, 4, 8, 16, 32, 60]
    assert retry_after(STALLED_AFTER) == STALLED_RETRY_S


def test_a_key_is_never_worked_on_twice_at_once_and_what_comes_meanwhile_is_done_after() -> None:
    """Ten events while it runs are one more run; two keys run side by side."""

    async def main() -> None:
        running: dict[str, int] = {}
        most: dict[str, int] = {}
        runs: list[str] = []

        async def work(key: Key) -> None:
            running[key.name] = running.get(key.name, 0) + 1
            most[key.name] = max(most.get(key.name, 0), running[key.name])
            most["all"] = max(most.get("all", 0), sum(running.values()))
            await asyncio.sleep(1)
            running[key.name] -= 1
            runs.append(key.name)

        async def stalled(key: Key, text: str) -> None: ...

        queue = KeyedQueue(work, stalled, workers=3, metrics=Metrics())
        task = asyncio.create_task(queue.run())
        for name in ("a", "b"):
            queue.add(Key("Testbed", "lab", name))
        for _ in range(10):
            await asyncio.sleep(0.05)
            queue.add(Key("Testbed", "lab", "a"))
        await asyncio.sleep(5)
        task.cancel()
        assert runs.count("a") == 2
        assert runs.count("b") == 1
        assert most == {"a": 1, "b": 1, "all": 2}

    run_virtual(main())


def test_keys_that_wait_for_pods_that_are_going_hold_up_no_other() -> None:
    """Twelve of them, 14 s each, as an installation is set by default."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        done: dict[str, float] = {}

        async def work(key: Key) -> None:
            await asyncio.sleep(14 if key.name.startswith("slow") else 0.1)
            done[key.name] = loop.time()

        async def stalled(key: Key, text: str) -> None: ...

        queue = KeyedQueue(work, stalled, workers=Settings().workers, metrics=Metrics())
        task = asyncio.create_task(queue.run())
        begun = loop.time()
        for name in [*(f"slow-{n}" for n in range(12)), "quick"]:
            queue.add(Key("ScenarioRun", "lab", name))
        await asyncio.sleep(20)
        task.cancel()
        assert len(done) == 13
        assert done["quick"] - begun < 1

    run_virtual(main())


def test_a_failing_key_waits_for_its_retry_unless_something_new_is_asked_of_it() -> None:
    """Events of what it owns do not hurry it; a new generation does, and its count of failures begins anew."""

    async def main() -> None:
        times: list[float] = []
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def work(key: Key) -> None:
            times.append(round(loop.time() - begun, 2))
            raise UserError("x", "no")

        async def stalled(key: Key, text: str) -> None: ...

        metrics = Metrics()
        queue = KeyedQueue(work, stalled, workers=1, metrics=metrics)
        task = asyncio.create_task(queue.run())
        key = Key("Testbed", "lab", "a")
        queue.add(key)
        await asyncio.sleep(4)
        queue.add(key)
        await asyncio.sleep(1)
        assert times == [0, 1, 3]
        queue.add(key, fresh=True)
        await asyncio.sleep(0.5)
        assert times == [0, 1, 3, 5]
        assert queue._failures[key] == 1
        task.cancel()
        text = metrics.text(depth=0, leader=True, info={"version": '1"2'})
        assert 'headgate_reconcile_errors_total{kind="Testbed"} 4' in text
        assert 'headgate_reconcile_duration_seconds_count{kind="Testbed"} 4' in text
        assert 'version="1\\"2"' in text

    run_virtual(main())


def test_a_watch_that_does_not_tell_what_lists_show_is_stalled() -> None:
    """A15: unhealthy after three server limits, with the kind and the name; a later version is as good as the same."""
    health = Health(["Testbed"])
    assert "Testbed" in health.not_ready
    health.listed("Testbed")
    assert not health.not_ready
    health.expect("Lease", "ns/l", "7", 0.0)
    health.expect("Testbed", "ns/t", "5", 0.0)
    assert not health.stalled(STALLED_WATCH_S)
    health.delivered("Testbed", "ns/t", "6")
    assert "the watch of Lease has not delivered ns/l at 7" in health.stalled(STALLED_WATCH_S + 1)
    health.delivered("Lease", "ns/l", "8")
    health.expect("Lease", "ns/l", "7", 500.0)
    assert not health.stalled(1000.0)


def test_what_was_deleted_while_a_list_was_read_is_not_waited_for() -> None:
    """The list still shows it, but the watch has already delivered its deletion. An object of the same name may be created later."""
    health = Health([])
    health.delivered("Testbed", "ns/t", "5")
    health.delivered("Testbed", "ns/t", "6", gone=True)
    health.expect("Testbed", "ns/t", "5", 0.0)
    assert not health.stalled(10_000.0)
    before = health.known("Testbed")
    assert health.gone("Testbed", before, []) == ["ns/t"]
    health.expect("Testbed", "ns/t", "8", 0.0)
    assert "at 8" in health.stalled(10_000.0)
    before = health.known("Testbed")
    health.delivered("Testbed", "ns/t", "8")
    assert health.gone("Testbed", before, []) == []  # the list is older
    health.expect("Testbed", "ns/t", "8", 20_000.0)
    assert not health.stalled(40_000.0)


def test_what_is_gone_is_not_waited_for() -> None:
    """An object that a later list no longer shows was deleted; its watch owes nothing."""
    health = Health([])
    health.expect("Testbed", "ns/t", "5", 0.0)
    assert health.gone("Testbed", health.known("Testbed"), []) == ["ns/t"]
    assert not health.stalled(10_000.0)


def test_what_was_seen_while_another_replica_acted_is_forgotten() -> None:
    """Nothing was watched meanwhile: the deletion of an object would never be delivered, and the new leader would end."""
    health = Health([])
    health.expect("Testbed", "ns/t", "5", 0.0)
    health.forget()
    assert not health.stalled(10_000.0)


def changed(generation: int) -> Resource:
    return Resource({"kind": "Fault", "metadata": {"name": "f", "generation": generation}})


def test_a_condition_s_time_moves_only_with_its_status() -> None:
    """A new reason or message is no transition; conditions of others are kept."""
    kept = conditions.yes("Other", "Valid")
    first = conditions.merged(changed(1), Status(), [conditions.yes("Ready", "A")], 0.0)
    second = conditions.merged(changed(2), first, [conditions.yes("Ready", "B", "text")], 60.0)
    before = replace(second, conditions=(*second.conditions, kept))
    third = conditions.merged(changed(2), before, [conditions.no("Ready", "C")], 120.0)
    ready = second.conditions[0]
    assert ready.last_transition_time == first.conditions[0].last_transition_time == "1970-01-01T00:00:00Z"
    assert ready.observed_generation == 2
    assert [c.type for c in third.conditions] == ["Ready", "Other"]
    assert third.conditions[0].last_transition_time == "1970-01-01T00:02:00Z"
    assert seconds(conditions.moment(12.345)) == 12.345


def test_a_long_message_of_a_condition_is_cut() -> None:
    """It keeps 4,096 characters."""
    long = conditions.yes("Ready", "A", "m" * 4097)
    assert conditions.merged(changed(1), Status(), [long], 0.0).conditions[0].message == "m" * 4096


def test_events_wake_whom_their_labels_name() -> None:
    """A pod its Testbed, a Testbed of a run the run as well."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x", "namespace": "lab", "labels": {"headgate.dev/testbed": "bench"}},
    }
    assert keys_of(pod) == (Key("Testbed", "lab", "bench"),)
    bench = a_testbed()
    bench["metadata"]["labels"] = {"headgate.dev/run": "r"}
    assert keys_of(bench) == (Key("Testbed", "lab", "bench"), Key("ScenarioRun", "lab", "r"))
    assert Resource(bench).path == "lab/bench"


def test_every_pod_is_restricted_and_the_agent_is_the_only_exception() -> None:
    """Pod Security `restricted` for each container; NET_ADMIN only in the opt-in agent; no account's token anywhere."""
    bench = with_uid()
    bench["spec"]["pods"] = {"packetFaults": True, "proxy": True}  # type: ignore[index]
    for process in ("jobmanager", "tm-0", "store", "proxy"):
        pod = objects.pod(bench, process, incarnation=2, secret_uid="s", settings=Settings())
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        [main], agents = spec["containers"], spec.get("initContainers") or []
        assert main["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert main["resources"]["limits"]["memory"]
        assert len(agents) == (process in ("jobmanager", "tm-0"))
        for agent in agents:
            assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
            assert agent["restartPolicy"] == "Always"
        assert spec["restartPolicy"] == ("Never" if process == "tm-0" else "Always")


def test_a_taskmanager_can_write_state_files_and_blocking_results() -> None:
    """The root file system is read-only: its own volume is where its configuration says, and the store has the checkpoints' one."""
    for process, kind in (("tm-0", "emptyDir"), ("store", "emptyDir"), ("jobmanager", "")):
        spec = objects.pod(with_uid(), process, incarnation=1, secret_uid="s", settings=Settings())["spec"]
        mounted = [
            m["name"] for m in spec["containers"][0]["volumeMounts"] if m["mountPath"] == naming.DATA_FOLDER
        ]
        assert [k for v in spec["volumes"] if v["name"] in mounted for k in v if k != "name"] == (
            [kind] if kind else []
        )


def test_no_pod_can_fill_the_disk_of_its_node_with_data() -> None:
    """The kubelet would evict other pods. A checkpoint store and a recorder without a volume claim grow with their job."""
    store = objects.pod(with_uid(), "store", incarnation=1, secret_uid="s", settings=Settings())
    manager = objects.pod(with_uid(), "tm-0", incarnation=1, secret_uid="s", settings=Settings())
    recorder = objects_runs.recorder_pod(Run(a_run() | {"metadata": {"name": "r", "uid": "u"}}), Settings())
    for pod in (store, manager, recorder):
        [data] = [v for v in pod["spec"]["volumes"] if v["name"] == "data"]
        assert data["emptyDir"] == {"sizeLimit": objects.LOCAL_STORAGE}


def test_a_pod_s_hash_does_not_change_by_scaling_or_by_what_is_done_with_the_lost() -> None:
    """It does by the configuration and by resources; the store's never."""
    base = with_uid()
    scaled = with_uid() | {"spec": a_testbed(taskManagers={"replicas": 9, "replaceLost": "1 s"})["spec"]}
    changed = with_uid() | {"spec": a_testbed(flinkConfiguration={"heartbeat.timeout": "60 s"})["spec"]}
    bigger = with_uid() | {"spec": a_testbed(pods={"resources": {"memory": "1Gi"}})["spec"]}
    assert objects.pod_hash(base, "tm-0") == objects.pod_hash(scaled, "tm-0")
    assert objects.pod_hash(base, "tm-0") != objects.pod_hash(changed, "tm-0")
    assert objects.pod_hash(base, "tm-0") != objects.pod_hash(bigger, "tm-0")
    assert objects.pod_hash(base, "store") == objects.pod_hash(changed, "store")


def test_the_settings_of_pods_reach_every_pod() -> None:
    """Priority, runtime, tolerations, affinity and metadata; Headgate's own labels and the Testbed's node selector win."""
    text = json.dumps({
        "priorityClassName": "low", "runtimeClassName": "gvisor", "tolerations": [{"key": "test", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}}, "annotations": {"team": "streams"}, "nodeSelector": {"pool": "test", "disk": "hdd"},
        "labels": {"team": "streams", naming.LABEL_ROLE: "none"},
    })  # fmt: skip
    settings = from_environment({"HEADGATE_PODS": text})
    bench = a_testbed(pods={"nodeSelector": {"disk": "ssd"}})
    bench["metadata"]["uid"] = "u"
    obj = a_run(evaluation={"executors": 2, "historyClaim": "history"})
    obj["metadata"]["uid"] = "u"
    run = Run(obj)
    made = [
        objects.pod(bench, "tm-0", incarnation=1, secret_uid="s", settings=settings),
        *(build(run, settings) for build in (objects_runs.recorder_pod, objects_runs.runner_pod, objects_runs.spark_pod)),
    ]  # fmt: skip
    for pod in made:
        spec, metadata = pod["spec"], pod["metadata"]
        assert (spec["priorityClassName"], spec["runtimeClassName"]) == ("low", "gvisor")
        assert spec["tolerations"] == [{"key": "test", "operator": "Exists"}]
        assert metadata["annotations"]["team"] == metadata["labels"]["team"] == "streams"
        assert metadata["labels"][naming.LABEL_ROLE] != "none"
    assert made[0]["spec"]["nodeSelector"] == {"pool": "test", "disk": "ssd"}
    [driver] = made[-1]["spec"]["containers"]
    handed_on = {e["name"]: e.get("value", "") for e in driver["env"]}
    assert json.loads(handed_on["HEADGATE_PODS"]) == settings.pods


def test_every_object_carries_the_labels_that_kubernetes_recommends() -> None:
    """Objects that runs share name no run, so that two runs do not write two values; no selector of the operator's own pods matches."""
    bench, obj = with_uid(), a_run()
    obj["metadata"]["uid"] = "u"
    run = Run(obj)
    made = [
        (
            objects.pod(bench, "tm-0", incarnation=1, secret_uid="s", settings=Settings()),
            "bench",
            "taskmanager",
        ),
        (objects.config_map(bench), "bench", "testbed"),
        (objects_runs.runner_pod(run, Settings()), run.name, "runner"),
        (objects_runs.spark_pod(run, Settings()), "headgate", "spark"),
        (objects_runs.role_binding("lab", naming.RUNNER_ACCOUNT, Settings()), "headgate", "runner"),
        (config_map(run, "x", {}), run.name, "scenariorun"),
    ]
    for manifest, instance, component in made:
        labels = manifest["metadata"]["labels"]
        named = {
            label: labels.get(f"app.kubernetes.io/{label}") for label in ("name", "part-of", "managed-by")
        }
        assert named == {"name": "headgate", "part-of": "headgate", "managed-by": "headgate"}
        found = labels["app.kubernetes.io/instance"], labels["app.kubernetes.io/component"]
        assert found == (instance, component)
        assert not naming.OPERATOR_LABELS.items() <= labels.items()


def test_every_pod_has_the_pull_secrets_and_the_label_that_network_policies_select() -> None:
    """One without them could not be pulled from a registry with a login, or could not be reached by the others."""
    settings = from_environment({"HEADGATE_IMAGE_PULL_SECRETS": "login,mirror"})
    bench, run = with_uid(), a_run()
    bench["spec"]["pods"] = {"packetFaults": True, "proxy": True}  # type: ignore[index]
    run["metadata"]["uid"] = "u"
    study = a_study()
    study["metadata"]["uid"] = "u"
    pods = [
        objects.pod(bench, process, incarnation=1, secret_uid="s", settings=settings)
        for process in ("jobmanager", "tm-0", "store", "proxy")
    ]
    pods += [build(Run(run), settings) for build in (objects_runs.runner_pod, objects_runs.recorder_pod)]
    pods += [objects_runs.spark_pod(Run(run), settings), objects_runs.study_pod(Study(study), settings)]
    for pod in pods:
        assert pod["spec"]["imagePullSecrets"] == [{"name": "login"}, {"name": "mirror"}]
        assert pod["metadata"]["labels"][naming.LABEL_MANAGED_BY] == naming.MANAGED_BY
    executor = executors.pod_template("headgate-spark")
    assert executor["metadata"]["labels"][naming.LABEL_MANAGED_BY] == naming.MANAGED_BY


def test_additional_variables_reach_runner_pods_only() -> None:
    """They come after the operator's own, to which they may refer."""
    collector = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}
    headers = {"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": {"secretKeyRef": {"name": "c", "key": "h"}}}
    settings = from_environment({"HEADGATE_RUNNER_ENV": json.dumps([collector, headers])})
    obj = a_run()
    obj["metadata"]["uid"] = "u"
    runner, recorder, spark = (
        build(Run(obj), settings)["spec"]["containers"][0]["env"]
        for build in (objects_runs.runner_pod, objects_runs.recorder_pod, objects_runs.spark_pod)
    )
    assert runner[-2:] == [collector, headers]
    assert {"HEADGATE_RUN", "POD_NAME"} <= {variable["name"] for variable in runner[:-2]}
    assert from_environment({"HEADGATE_RUNNER_ENV": "null"}).runner_env == (), (
        "the chart's value for a removed list"
    )
    assert not [v for v in (*recorder, *spark) if v["name"].startswith("OTEL_")]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "is not a list of variables"),
        ('{"name": "A"}', "is not a list of variables"),
        ('[{"value": "1"}]', "is not a list of variables"),
        ('["A"]', "is not a list of variables"),
        ('[{"name": "A", "value": "hidden"},]', "is not a list of variables"),
        ('[{"name": "A"}, {"name": "A"}]', "A is set twice"),
        ('[{"name": "HEADGATE_RUN"}]', "HEADGATE_RUN is set twice"),
        ('[{"name": "POD_NAME"}]', "POD_NAME is set twice"),
    ],
)
def test_variables_that_no_pod_can_have_are_refused(text: str, named: str) -> None:
    """When the operator starts, with the name of its variable."""
    with pytest.raises(UserError, match=f"HEADGATE_RUNNER_ENV: .*{named}") as refused:
        from_environment({"HEADGATE_RUNNER_ENV": text})
    assert "hidden" not in str(refused.value)


def test_a_recorder_is_named_by_host_port_and_path() -> None:
    """As the runner writes it, as the pods read it; nothing is null."""
    assert objects.recorder_address("r.run.lab.svc:6126/t/main-1") == ["r.run.lab.svc", 6126, "/t/main-1"]
    assert objects.recorder_address("") is None


@pytest.mark.parametrize(
    ("name", "value"), [("HEADGATE_WORKERS", "0"), ("HEADGATE_IMAGE_PULL_POLICY", "Sometimes")]
)
def test_a_bad_setting_names_its_variable(name: str, value: str) -> None:
    """And what to write instead."""
    with pytest.raises(UserError, match=name):
        from_environment({name: value})


def test_settings_come_from_the_environment() -> None:
    """Namespaces as a list; empty is the whole cluster."""
    assert from_environment({}).cluster_wide
    found = from_environment({"HEADGATE_NAMESPACES": "a, b,", "POD_NAME": "p", "HEADGATE_IMAGE": "i"})
    assert (found.namespaces, found.identity, found.image) == (("a", "b"), "p", "i")


def test_every_pod_reads_times_that_mean_the_same_on_every_node() -> None:
    """The setting that the processes' clock looks for: of a testbed's pods, its agent and the runner."""
    run = a_run()
    run["metadata"]["uid"] = "u2"
    bench = a_testbed(pods={"packetFaults": True})
    bench["metadata"]["uid"] = "u1"
    pods = [
        *(
            objects.pod(bench, process, incarnation=1, secret_uid="s1", settings=Settings())
            for process in ("jobmanager", "tm-0")
        ),
        objects_runs.runner_pod(Run(run), Settings()),
        objects_runs.recorder_pod(Run(run), Settings()),
        objects_runs.spark_pod(Run(run), Settings()),
    ]
    containers = [
        c for pod in pods for part in ("initContainers", "containers") for c in pod["spec"].get(part, ())
    ]
    values = [{e["name"]: e.get("value") for e in c["env"]} for c in containers]
    assert {v.get(clock.CLOCK_VARIABLE) for v in values} == {clock.SHARED}
    assert {clock.CLOCK_VARIABLE: clock.SHARED} == naming.SHARED_CLOCK


def test_only_containers_that_connect_to_pods_alone_load_no_public_authorities() -> None:
    """A TaskManager runs users' functions. Runner, study and Spark call servers outside of the testbed."""
    run, bench = Run(a_run()), a_testbed(pods={"packetFaults": True, "proxy": True})
    run.metadata["uid"], bench["metadata"]["uid"] = "u2", "u1"
    processes = ("jobmanager", "tm-0", "store", "proxy")
    pods = [objects.pod(bench, p, incarnation=1, secret_uid="s1", settings=Settings()) for p in processes]
    pods += [
        make(run, Settings())
        for make in (objects_runs.recorder_pod, objects_runs.runner_pod, objects_runs.spark_pod)
    ]
    containers = [
        c for pod in pods for part in ("initContainers", "containers") for c in pod["spec"].get(part, ())
    ]
    without = {c["name"] for c in containers if {"name": "SSL_CERT_FILE", "value": "/dev/null"} in c["env"]}
    assert without == {"jobmanager", "store", "proxy", "recorder", "agent"}
    assert {c["name"] for c in containers} - without == {"taskmanager", "runner", "spark"}


def test_an_empty_bundle_leaves_the_folder_of_authorities() -> None:
    """So a connection that needs a public authority would still find it, one at a time."""
    code = "import ssl; print(len(ssl.create_default_context().get_ca_certs()), bool(ssl.get_default_verify_paths().capath))"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SSL_CERT_")} | naming.NO_BUNDLE
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert out.stdout.split()[0] == "0"
    assert out.stdout.split()[1] == str(Path(ssl.get_default_verify_paths().openssl_capath).is_dir())


def test_a_jobmanager_that_gives_no_usable_answer_is_no_answer() -> None:
    """A wrong token, another JSON value and a closed port return None, as the planner expects."""

    async def scenario() -> None:
        answers: list[Any] = [{"state": "RUNNING"}, [1]]

        async def job(request: web.Request) -> web.Response:
            assert request.path == JOB_PATH
            return web.json_response(answers.pop(0))

        app = web.Application(middlewares=[bearer_token("right")])
        app.add_routes([web.get(JOB_PATH, job)])
        server, (host, port) = await serve(app, ("127.0.0.1", 0))
        jobs = Jobs(port)
        assert await jobs.job(host, "right") == {"state": "RUNNING"}
        assert await jobs.job(host, "wrong") is None
        assert await jobs.job(host, "right") is None
        await server.cleanup()
        assert await jobs.job(host, "right") is None

    asyncio.run(scenario())


def test_the_page_for_a_quota_names_what_each_pod_needs() -> None:
    """The table in docs/kubernetes.md is what the operator writes into the pods."""
    bench = a_testbed(pods={"proxy": True, "packetFaults": True})
    bench["metadata"]["uid"] = "u1"
    run, study = Run(a_run()), Study(a_study())
    run.raw["metadata"]["uid"] = study.raw["metadata"]["uid"] = "u"
    built = {
        "TaskManager": objects.pod(bench, "tm-0", incarnation=1, secret_uid="s", settings=Settings()),
        "JobManager, checkpoint store": objects.pod(
            bench, "store", incarnation=1, secret_uid="s", settings=Settings()
        ),
        "proxy": objects.pod(bench, "proxy", incarnation=1, secret_uid="s", settings=Settings()),
        "runner, recorder": objects_runs.runner_pod(run, Settings()),
        "Spark": objects_runs.spark_pod(run, Settings()),
        "study": objects_runs.study_pod(study, Settings()),
    }
    needs = {who: pod["spec"]["containers"][0]["resources"] for who, pod in built.items()}
    needs["agent"] = built["TaskManager"]["spec"]["initContainers"][0]["resources"]
    others = [
        objects.pod(bench, "jobmanager", incarnation=1, secret_uid="s", settings=Settings()),
        objects_runs.recorder_pod(run, Settings()),
    ]
    assert [o["spec"]["containers"][0]["resources"] for o in others] == [
        needs["proxy"],
        needs["runner, recorder"],
    ]
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| ")
    ]
    shown = {row[0]: tuple(row[2:]) for row in rows if len(row) == 5 and row[0] in needs}
    assert shown == {
        who: (n["requests"]["cpu"], n["requests"]["memory"], n["limits"]["memory"])
        for who, n in needs.items()
    }
