"""Installing, upgrading and taking away, on a real cluster; it is compared before and after."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed_runtime.api import naming
from tests.kubernetes.cluster import ROOT, Cluster, pod
from tests.kubernetes.rendering import CHART, KUBE_VERSION
from tests.kubernetes.spaces import OPERATOR, OPERATOR_NAMESPACE, Space, condition, fresh, names
from tests.kubernetes.test_faults import PAUSE, a_fault, a_testbed
from tests.kubernetes.test_images import pod as restricted_pod

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

HELM_LIMIT = "100s"  # helm gives up before its caller does
TEST_LIMIT_S = 300
"""Limit for `helm test`, which starts Spark and makes a whole run."""
RELEASE = "mini"
RESTRICTED_POD: dict[str, Any] = {
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "container": {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}},
}


COLLECTOR = """
import gzip
from http.server import BaseHTTPRequestHandler, HTTPServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    print(self.headers["x-tenant"], span.name, flush=True)
        self.send_response(200)
        self.end_headers()

HTTPServer(("", 4318), Collector).serve_forever()
"""
"""Receives OTLP over HTTP as a collector does, and prints a tenant and the name of each span."""


def test_the_operator_of_the_manifests_is_ready_in_a_restricted_namespace(installed: Cluster):
    """Pod Security `restricted` is enforced, not only asked for."""
    labels = installed.get("namespace", OPERATOR_NAMESPACE)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    installed.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", OPERATOR, "--timeout=110s")


@pytest.fixture(scope="module")
def alone(installed: Cluster) -> Iterator[Cluster]:
    """The operator of the session rests, so that others can be seen at work. Once it is back it frees what a failed test left in the
    namespaces that are being deleted."""
    _scale(installed, 0)
    yield installed
    _scale(installed, 1)


def _scale(cluster: Cluster, replicas: int) -> None:
    cluster.kubectl("-n", OPERATOR_NAMESPACE, "scale", OPERATOR, f"--replicas={replicas}")
    if replicas:
        cluster.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", OPERATOR, "--timeout=110s")
    else:
        pods = "app.kubernetes.io/component=operator"
        cluster.kubectl("-n", OPERATOR_NAMESPACE, "wait", "--for=delete", "pod", "-l", pods, "--timeout=110s")


OF_RELEASE = f"{naming.LABEL_INSTANCE},{naming.LABEL_MANAGED_BY}!={naming.MANAGED_BY}"
"""Selects the objects of the chart, and not those of the operator."""


def left(space: Space) -> str:
    """Return what a release could leave in its namespace, without the runs, which are the user's."""
    every = "deployments,poddisruptionbudgets,roles,rolebindings,networkpolicies,jobs,leases"
    mine = space.kubectl("get", every, "-o", "name")
    labelled = ("get", "pods,services,configmaps,secrets,serviceaccounts", "-l", OF_RELEASE)
    return mine + space.kubectl(*labelled, "-o", "name")


def helm(cluster: Cluster, space: str, *arguments: str) -> str:
    return cluster.run("helm", "--namespace", space, *arguments, limit=TEST_LIMIT_S + 40)


def values(space: str, scope: str = "watchNamespaces") -> list[str]:
    chosen = [f"{scope}={{{space}}}", "crds.install=false"]
    chosen += [f"{image}.tag=dev" for image in ("image", "agentImage", "sparkImage")]
    return [part for value in chosen for part in ("--set", value)]


def install(cluster: Cluster, space: Space, *more: str, scope: str = "watchNamespaces") -> None:
    arguments = ("upgrade", "--install", RELEASE, str(CHART), *values(space.name, scope), *more)
    helm(cluster, space.name, *arguments, "--wait", "--timeout", HELM_LIMIT)


def _may(space: Space, namespace: str, *what: str) -> str:
    """Return whether the API server allows it to the release's operator."""
    account = f"--as=system:serviceaccount:{space.name}:{RELEASE}-headgate-operator"
    return space.cluster.kubectl("-n", namespace, "auth", "can-i", *what, account, check=False).strip()


@pytest.mark.disruptive
def test_a16_helm_installs_tests_upgrades_and_leaves_nothing(bare_space: Space, alone: Cluster):
    """A namespaced installation: its rights end at its namespace, a real run passes, and after the uninstall the cluster is as before. No
    finalizer of Headgate's is left without a process that removes it (A2)."""
    before = names(alone)
    bare_space.apply(restricted_pod("collector", "headgate", "python", "-c", COLLECTOR))
    bare_space.kubectl("create", "secret", "generic", "collector", "--from-literal=headers=x-tenant=streams")
    install(alone, bare_space, "--set", f"test.timeoutSeconds={TEST_LIMIT_S}", *_traced(bare_space))
    assert names(alone) == before, "a namespaced installation made something of the whole cluster"
    asked = [
        (bare_space.name, "create", "pods"),
        ("default", "create", "pods"),
        (bare_space.name, "list", "secrets"),
    ]
    assert [_may(bare_space, *one) for one in asked] == ["yes", "no", "no"]
    said = helm(alone, bare_space.name, "test", RELEASE, "--logs", "--timeout", f"{TEST_LIMIT_S + 20}s")
    assert said.count("TEST SUITE:") == 1, said
    assert "POD LOGS:" in said
    verdicts = bare_space.kubectl("get", "scenarioruns", "-o", "jsonpath={.items[*].status.verdict}")
    assert verdicts == "Pass", bare_space.story()
    assert "streams trial main-1" in bare_space.kubectl("logs", "collector")
    bare_space.kubectl("delete", "pod/collector", "secret/collector", "--grace-period=0")
    install(alone, bare_space, "--set", "logging.level=DEBUG", "--set", "replicaCount=2")
    ready = bare_space.get("deployment", f"{RELEASE}-headgate-operator")["status"]["readyReplicas"]
    assert ready == 2
    held = _run("waits", suspend=True)
    held["metadata"]["finalizers"] = [naming.FINALIZER]  # as a run has that was begun
    bare_space.apply(held)
    bare_space.until("scenariorun/waits", lambda o: o.get("status"), 120, "the operator looked at it")
    helm(alone, bare_space.name, "uninstall", RELEASE, "--wait", "--timeout", HELM_LIMIT)
    bare_space.kubectl("delete", "scenariorun", "waits", "--timeout=110s")
    assert left(bare_space) == ""
    assert names(alone) == before
    bare_space.kubectl("wait", "--for=delete", "pods", "--all", "--timeout=110s")  # those of the run, too


def _traced(space: Space) -> list[str]:
    """Return the arguments of an installation whose runs send their traces to the pod `collector`, with headers from a Secret."""
    pod_of = space.until(
        "pod/collector", lambda o: o["status"].get("podIP"), 120, "the collector has an address"
    )
    variables = [
        {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": f"http://{pod_of['status']['podIP']}:4318"},
        {
            "name": "OTEL_EXPORTER_OTLP_HEADERS",
            "valueFrom": {"secretKeyRef": {"name": "collector", "key": "headers"}},
        },
    ]
    return ["--set-json", f"runner.extraEnv={json.dumps(variables)}"]


def _outside(space: Space) -> None:
    """Real requests of the release's operator in a namespace into which it was not let: reads of its kinds and pods, and nothing else."""
    cluster, account = space.cluster, f"--as=system:serviceaccount:{space.name}:{RELEASE}-headgate-operator"
    with fresh(cluster) as outside:
        outside.kubectl("create", "secret", "generic", "own", "--from-literal=password=1")
        outside.apply(pod("own", ["sleep", "600"], **RESTRICTED_POD))
        where = ("-n", outside.name, account)
        for refused in (
            ("get", "secret", "own"),
            ("get", "secrets"),
            ("delete", "pod", "own"),
            ("label", "pod", "own", "touched=yes"),
            ("create", "configmap", "new"),
            ("create", "rolebinding", "new", "--clusterrole=view", "--serviceaccount=default:default"),
            ("create", "rolebinding", "new", f"--clusterrole={RELEASE}-headgate-runner", "--user=somebody"),
        ):
            assert "orbidden" in cluster.refused(*where, *refused), refused
        assert cluster.kubectl(*where, "get", "pods", "-o", "name") == "pod/own\n"
        outside.apply(a_testbed())
        stalled = outside.condition("testbed/bench", "Stalled", 180)
        assert (stalled["reason"], "rbac.testbedNamespaces" in stalled["message"]) == ("NotAdmitted", True)
        doctor = f"headgate doctor --namespace {outside.name}"
        no_rights = f"{space.name}/{RELEASE}-headgate-operator has no rights in {outside.name}"
        assert no_rights in cluster.shell(f"{doctor} || true", ROOT, TEST_LIMIT_S).stdout
        let_in = f"--serviceaccount={space.name}:{RELEASE}-headgate-operator"
        role = f"--clusterrole={RELEASE}-headgate-acts"
        outside.kubectl("create", "rolebinding", "let-in", role, let_in)
        outside.kubectl("annotate", "testbed", "bench", "seen=again")
        outside.condition("testbed/bench", "Ready", 120)
        assert no_rights not in cluster.shell(f"{doctor} || true", ROOT, TEST_LIMIT_S).stdout
        outside.kubectl("delete", "testbed", "bench", "--timeout=110s")


@pytest.mark.disruptive
def test_a_cluster_wide_operator_acts_only_where_it_was_let_in(bare_space: Space, alone: Cluster):
    """It runs a scenario in the namespace that the chart names, and touches nothing in another until somebody binds its role there."""
    before = names(alone)
    install(alone, bare_space, scope="rbac.testbedNamespaces")
    bare_space.apply(_run("inside"))
    bare_space.condition("scenariorun/inside", "Complete", 180)
    assert bare_space.get("scenariorun", "inside")["status"]["verdict"] == "Pass", bare_space.story()
    _outside(bare_space)
    helm(alone, bare_space.name, "uninstall", RELEASE, "--wait", "--timeout", HELM_LIMIT)
    assert names(alone) - before == set()
    assert left(bare_space) == ""
    created = f"{naming.LABEL_MANAGED_BY}={naming.MANAGED_BY}"
    assert bare_space.kubectl("get", "serviceaccounts,rolebindings", "-l", created, "-o", "name") == ""
    bare_space.kubectl("wait", "--for=delete", "pods", "--all", "--timeout=110s")


@pytest.mark.disruptive
def test_a_watched_namespace_with_an_active_run_and_an_active_fault_can_be_deleted(
    bare_space: Space, alone: Cluster
):
    """Kubernetes deletes the operator's Roles there, perhaps before the run and the fault. The uninstall skips the namespace, as an
    upgrade does with one that was deleted before."""
    with fresh(alone, emptied=False) as watched:
        with fresh(alone, emptied=False) as deleted:
            chosen = ("--set", f"watchNamespaces={{{watched.name},{deleted.name}}}")
            install(alone, bare_space, *chosen)
        long = _run("active")
        long["spec"]["scenario"]["timeline"]["observation"] = "300s"
        watched.apply(long, a_testbed(), a_fault("long", duration="600 s", **PAUSE))
        active = lambda o: (o.get("status") or {}).get("phase") == "Active"  # noqa: E731
        watched.until("fault/long", active, 180, "it acts")
        watched.until("scenariorun/active", lambda o: o["metadata"].get("finalizers"), 120, "it has begun")
        alone.kubectl("wait", "--for=delete", f"namespace/{deleted.name}", "--timeout=110s")
        install(alone, bare_space, *chosen)
    alone.kubectl("wait", "--for=delete", f"namespace/{watched.name}", "--timeout=100s")
    helm(alone, bare_space.name, "uninstall", RELEASE, "--wait", "--timeout", HELM_LIMIT)
    assert left(bare_space) == ""


WITH_ALL = tuple(
    part
    for value in ("priorityClasses.create=true", "webhook.enabled=true", "webhook.failurePolicy=Fail")
    for part in ("--set", value)
)


@pytest.fixture(scope="module")
def release(alone: Cluster, images: str) -> Iterator[Space]:
    """A namespaced installation with priority classes and the webhook, which leaves nothing when it is uninstalled."""
    del images
    with fresh(alone) as space:
        before = names(alone)
        install(alone, space, *WITH_ALL)
        yield space
        helm(alone, space.name, "uninstall", RELEASE, "--wait", "--timeout", HELM_LIMIT)
        assert left(space) == ""
        assert names(alone) == before


@pytest.mark.disruptive
def test_a_replacement_of_the_operator_gets_its_place_on_a_full_node(release: Space, alone: Cluster):
    """Pods of the testbeds' class, large ones first, take all processors, and more wait for them: the scheduler ends one for the operator."""
    cores = [_cores(node["status"]["allocatable"]["cpu"]) for node in alone.get("nodes")["items"]]
    for share, most in ((8, int(8 * sum(cores) / min(cores))), (80, 10 * len(cores)), (800, 10 * len(cores))):
        _crowd(release, f"crowd-{share}", f"{1000 * min(cores) / share:.0f}m", most + 1)
    release.event("FailedScheduling", "Insufficient cpu", 120)
    which = ("pods", "-l", "app.kubernetes.io/component=operator")
    [first] = release.get(*which)["items"]
    release.kubectl("delete", "pod", first["metadata"]["name"], "--grace-period=1")
    release.kubectl("rollout", "status", f"deployment/{RELEASE}-headgate-operator", "--timeout=90s")
    release.event("Preempted", "", 120)
    release.kubectl("delete", "deployment", "-l", "crowd", "--wait=false")


def _crowd(release: Space, name: str, cpu: str, replicas: int) -> None:
    """Create pods until one of them waits for a processor."""
    template = pod("x", ["sleep", "600"], **RESTRICTED_POD, priorityClassName=f"{RELEASE}-headgate-pods")
    template["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    release.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": {"crowd": name}},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": template["spec"]},
            },
        }
    )
    pending = release.watched("pods", "status.phase=Pending", 120)
    own = (p for p in pending if p["metadata"].get("labels", {}).get("app") == name)
    assert any(condition(p, "PodScheduled", "False") for p in own), f"every pod of {name} has a node"


@pytest.mark.disruptive
def test_the_webhook_refuses_at_kubectl_apply_what_the_operator_would_reject(release: Space, alone: Cluster):
    """With the texts of the command line. Nothing is blocked that already exists, even while no operator answers."""
    [certificate] = _webhook_secrets(release)
    mistyped = a_testbed("mistyped", flinkConfiguration={"heartbeat.timeot": "50 s"})
    said = _reviewed(release, mistyped)
    assert (
        "spec.flinkConfiguration[heartbeat.timeot]: is not a Flink option (did you mean heartbeat.timeout?)"
        in said
    )
    release.apply(a_testbed("valid", jobState="suspended"))
    release.until("testbed/valid", lambda o: o.get("status"), 120, "the operator looked at it")
    release.kubectl(
        "patch", "testbed", "valid", "--type=merge", "-p", '{"metadata":{"finalizers":["test.dev/held"]}}'
    )
    install(alone, release, *WITH_ALL, "--set", "logging.level=DEBUG")
    assert _webhook_secrets(release) == [certificate], "an upgrade made a new certificate"
    deployment = f"deployment/{RELEASE}-headgate-operator"
    release.kubectl("scale", deployment, "--replicas=0")
    operators = ("pods", "-l", "app.kubernetes.io/component=operator")
    release.kubectl("wait", "--for=delete", *operators, "--timeout=110s")
    assert "failed calling webhook" in release.refused(a_testbed("another"))
    release.kubectl("delete", "testbed", "valid", "--wait=false")
    release.kubectl("patch", "testbed", "valid", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    release.kubectl("wait", "--for=delete", "testbed/valid", "--timeout=110s")
    release.kubectl("scale", deployment, "--replicas=1")
    release.kubectl("rollout", "status", deployment, "--timeout=90s")


def _reviewed(space: Space, document: dict[str, Any]) -> str:
    """Return why it is refused, as soon as the Service has its endpoint."""
    ends = time.monotonic() + 30
    while "failed calling webhook" in (said := space.refused(document)):
        assert time.monotonic() < ends, said
        time.sleep(0.5)
    return said


def _webhook_secrets(space: Space) -> list[dict[str, str]]:
    """Return the contents of the TLS Secrets that the release made."""
    of_release = ("-l", OF_RELEASE, "--field-selector", "type=kubernetes.io/tls")
    return [secret["data"] for secret in space.get("secrets", *of_release)["items"]]


def _cores(quantity: str) -> float:
    """Return processors of `2` or `1900m`."""
    return float(quantity.removesuffix("m")) / (1000 if quantity.endswith("m") else 1)


def _run(name: str, **spec: Any) -> dict[str, Any]:
    scenario = yaml.safe_load((CHART / "files" / "mini.yaml").read_text())
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "ScenarioRun",
        "metadata": {"name": name},
        "spec": {"scenario": scenario["spec"], "scenarioName": "mini", **spec},
    }


def _rendered(cluster: Cluster, *arguments: str) -> str:
    """Without asking the cluster, as a GitOps tool does; it says for which version."""
    return cluster.run("helm", "template", *arguments, "--kube-version", KUBE_VERSION)


def test_a13_an_upgrade_brings_the_new_fields_of_the_definitions(cluster: Cluster, tmp_path: Path):
    """A field that is only in the newer chart is in what the API server would have after the upgrade."""
    newer = tmp_path / "headgate"
    shutil.copytree(CHART, newer)
    path = newer / "files" / "crds" / "faults.yaml"
    crd = yaml.safe_load(path.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    schema["newField"] = {"type": "string", "maxLength": 10}
    path.write_text(yaml.safe_dump(crd))
    rendered = _rendered(cluster, "x", str(newer), "--show-only", "templates/crds.yaml")
    objects = [o for o in yaml.safe_load_all(rendered) if o["metadata"]["name"] == "faults.headgate.dev"]
    apply = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-o", "json", "-f", "-")
    after = json.loads(cluster.kubectl(*apply, text=json.dumps(objects[0])))
    got = after["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert got["newField"] == schema["newField"]


GONE = "headgate-never-created"


@pytest.mark.parametrize("upgrade", [False, True], ids=["install", "upgrade"])
@pytest.mark.parametrize(
    "setting", ["watchNamespaces", "rbac.testbedNamespaces", "networkPolicy.testbedNamespaces"]
)
def test_an_upgrade_leaves_out_namespaces_that_were_deleted(
    cluster: Cluster, bare_space: Space, setting: str, upgrade: bool
):
    """Helm could create nothing there. An installation does not leave them out: its error is how a mistyped one is found."""
    place = ("--namespace", "headgate-other", "--dry-run=server", *(["--is-upgrade"] if upgrade else []))
    values = (f"{setting}={{{GONE},{bare_space.name}}}", "networkPolicy.enabled=true", "crds.install=false")
    rendered = _rendered(cluster, RELEASE, str(CHART), *place, *(p for v in values for p in ("--set", v)))
    objects = [one for one in yaml.safe_load_all(rendered) if one]
    wanted = {"headgate-other", bare_space.name, *([] if upgrade else [GONE])}
    assert {one["metadata"]["namespace"] for one in objects if "namespace" in one["metadata"]} == wanted
    if setting == "watchNamespaces":
        (operator,) = (one for one in objects if one["kind"] == "Deployment")
        (container,) = operator["spec"]["template"]["spec"]["containers"]
        watched = next(e["value"] for e in container["env"] if e["name"] == "HEADGATE_NAMESPACES")
        assert watched.split(",") == [*([] if upgrade else [GONE]), bare_space.name]


@pytest.mark.parametrize("upgrade", [False, True], ids=["install", "upgrade"])
def test_the_notes_of_an_upgrade_name_what_was_left_out(
    cluster: Cluster, bare_space: Space, tmp_path: Path, upgrade: bool
):
    """They show the namespaces that are watched. A mistyped one would otherwise be missed only by its runs, which nothing starts."""
    copied = Path(shutil.copytree(CHART, tmp_path / "headgate"))
    notes = (copied / "templates" / "NOTES.txt").read_text()
    (copied / "templates" / "_notes.tpl").write_text(f'{{{{ define "notes" }}}}{notes}{{{{ end }}}}')
    (copied / "templates" / "notes.yaml").write_text('notes: {{ include "notes" . | quote }}')
    place = ("--namespace", "headgate-other", "--dry-run=server", *(["--is-upgrade"] if upgrade else []))
    chosen = ("--set", f"watchNamespaces={{{GONE},{bare_space.name}}}", "--show-only", "templates/notes.yaml")
    said = yaml.safe_load(_rendered(cluster, RELEASE, str(copied), *place, *chosen))["notes"]
    first = bare_space.name if upgrade else GONE
    assert f"It watches: {first}{'' if upgrade else f', {bare_space.name}'}.\n" in said
    assert f"--namespace {first} SCENARIO" in said
    assert (f"WARNING: the namespace {GONE} does not exist" in said) is upgrade


POLICIES = ("admissionPolicy.validate=true", "admissionPolicy.namespaceLabel=example.com/headgate")


@pytest.mark.parametrize("whole", [False, True], ids=["one namespace", "the whole cluster"])
def test_what_the_chart_renders_is_accepted_by_the_api_server(
    cluster: Cluster, bare_space: Space, whole: bool
):
    """All of it, with every field known; but for the pod of `helm test`, which needs its account first."""
    place = ("--namespace", bare_space.name)
    more = (
        "priorityClasses.create=true",
        "metrics.dashboard.enabled=true",
        "webhook.enabled=true",
        *(POLICIES if whole else ()),
    )
    chosen = [*([] if whole else values(bare_space.name)), *(p for v in more for p in ("--set", v))]
    rendered = _rendered(cluster, RELEASE, str(CHART), *place, *chosen)
    objects = [one for one in yaml.safe_load_all(rendered) if one and one["kind"] != "Pod"]
    apply = (
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
    )
    said = cluster.kubectl(*apply, text=yaml.safe_dump_all(objects))
    assert said.count("serverside-applied") == len(objects)
