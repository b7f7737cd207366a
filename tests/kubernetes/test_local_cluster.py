"""The cluster that `make cluster` gives is a real one: nodes, pods, services, names, volumes, exec, Helm."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.kubernetes.cluster import IMAGE, Cluster, pod, tool
from tools.cluster import settings, state
from tools.cluster.settings import layout

pytestmark = pytest.mark.cluster
SLEEP = ("/bin/sleep", "3600")
POLL_S = 0.1


def eventually(holds, what: str, limit: float = 20.0):
    """Poll until it holds; gives what it gave."""
    until = time.monotonic() + limit
    while not (found := holds()):
        assert time.monotonic() < until, f"not within {limit} s: {what}"
        time.sleep(POLL_S)
    return found


LARGEST_REQUEST = 0.2
"""Processors that the largest pod of these tests requests: a TaskManager (100m) with its agent (100m)."""


def test_the_node_is_ready_of_the_wanted_version_and_has_a_processor_for_each_pod(cluster: Cluster):
    """The running version is the one that was built. No pod of a test waits for a processor, however many files run side by side: as many
    pods as the node runs, each with a TaskManager and an agent, request less than it reports."""
    nodes = cluster.get("nodes")["items"]
    ready = [c["status"] for node in nodes for c in node["status"]["conditions"] if c["type"] == "Ready"]
    assert ready
    assert set(ready) == {"True"}
    if cluster.own:
        assert [n["status"]["nodeInfo"]["kubeletVersion"] for n in nodes] == [f"v{settings.KUBERNETES}"]
        has = nodes[0]["status"]["allocatable"]
        assert int(has["cpu"]) >= int(has["pods"]) * LARGEST_REQUEST


def test_a_pod_runs_and_commands_run_in_it(cluster: Cluster):
    """Scheduler, kubelet, containerd, runc and the network of a pod; then exec through the API server."""
    with cluster.namespace() as space:
        cluster.apply(space, pod("one", SLEEP))
        cluster.kubectl("-n", space, "wait", "--for=condition=Ready", "pod/one", "--timeout=110s")
        said = cluster.kubectl(
            "-n", space, "exec", "-i", "one", "--", "sh", "-c", "hostname; cat", text="hello\n"
        )
        assert said == "one\nhello\n"


def test_what_a_pod_says_is_in_its_log_and_how_it_ended_in_its_status(cluster: Cluster):
    """The kubelet keeps logs and exit codes."""
    with cluster.namespace() as space:
        cluster.apply(space, pod("brief", ["sh", "-c", "echo said; exit 3"], restartPolicy="Never"))
        cluster.kubectl(
            "-n", space, "wait", "--for=jsonpath={.status.phase}=Failed", "pod/brief", "--timeout=110s"
        )
        assert cluster.kubectl("-n", space, "logs", "brief") == "said\n"
        ended = cluster.get("-n", space, "pod/brief")["status"]["containerStatuses"][0]["state"]["terminated"]
        assert ended["exitCode"] == 3


def test_a_service_is_found_by_its_name_and_answers(cluster: Cluster):
    """CoreDNS, endpoints, kube-proxy and routes between pods, also from a pod to itself through its service."""
    serve = ["sh", "-c", "mkdir /www && echo served > /www/index.html && exec httpd -f -p 8080 -h /www"]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    with cluster.namespace() as space:
        cluster.apply(space, pod("server", serve), pod("client", SLEEP), service)
        cluster.kubectl("-n", space, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=110s")
        for caller in ("client", "server"):
            for url in ("http://web/", f"http://web.{space}.svc.{settings.DNS_DOMAIN}/"):
                fetch = ["-n", space, "exec", caller, "--", "timeout", "5", "wget", "-q", "-O", "-", url]
                fetched = partial(cluster.kubectl, *fetch, check=False)
                assert eventually(fetched, f"{caller} fetches {url}") == "served\n"


def test_a_claim_is_bound_and_what_is_written_outlives_the_pod(cluster: Cluster):
    """A static volume (or the storage class of a given cluster) keeps its content from pod to pod."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "kept"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    volumes = [{"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}]
    mounted = {"volumeMounts": [{"name": "kept", "mountPath": "/kept"}]}

    def once(name: str, script: str):
        return pod(name, ["sh", "-c", script], restartPolicy="Never", volumes=volumes, container=mounted)

    with cluster.namespace() as space:
        ended = ["-n", space, "wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=110s"]
        cluster.apply(space, claim, once("writer", "echo written > /kept/file"))
        cluster.kubectl(*ended, "pod/writer")
        cluster.apply(space, once("reader", "grep -x written /kept/file"))
        cluster.kubectl(*ended, "pod/reader")


def test_a_chart_renders_installs_and_goes(cluster: Cluster, tmp_path: Path):
    """Helm works against this cluster."""
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: tiny\nversion: 0.1.0\n")
    (chart / "values.yaml").write_text("word: default\n")
    (chart / "templates" / "map.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}}\ndata: {word: {{ .Values.word }}}\n"
    )
    rendered = cluster.run("helm", "template", "one", str(chart))
    assert "word: default" in rendered
    with cluster.namespace() as space:
        cluster.run("helm", "-n", space, "install", "one", str(chart), "--set", "word=given", "--wait")
        assert cluster.get("-n", space, "configmap/one")["data"] == {"word": "given"}
        cluster.run("helm", "-n", space, "uninstall", "one", "--wait")
        assert "one" not in cluster.kubectl("-n", space, "get", "configmaps", "-o", "name")


def test_restricted_pod_security_is_enforced(cluster: Cluster):
    """The admission that the chart relies on is there."""
    with cluster.namespace() as space:
        label = "pod-security.kubernetes.io/enforce=restricted"
        cluster.kubectl("label", "namespace", space, label)
        refused = pod("refused", SLEEP)
        cluster.kubectl("-n", space, "run", "refused", f"--image={IMAGE}", "--restart=Never", check=False)
        assert cluster.get("-n", space, "pods")["items"] == []
        modest = {
            "allowPrivilegeEscalation": False,
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        refused["spec"]["containers"][0]["securityContext"] = modest
        cluster.apply(space, refused)
        cluster.kubectl("-n", space, "wait", "--for=condition=Ready", "pod/refused", "--timeout=110s")


def test_a_program_of_the_node_that_is_killed_is_started_again(cluster: Cluster):
    """The node's first process looks after its children."""
    if not cluster.own:
        pytest.skip("only the node of our own tool")
    where = layout(os.environ)
    before = state.programs(where)["kube-scheduler"]
    restarts = state.node(where)["restarts"]["kube-scheduler"]
    os.kill(before, signal.SIGKILL)
    eventually(lambda: state.programs(where).get("kube-scheduler", before) != before, "a new scheduler")
    assert state.node(where)["restarts"]["kube-scheduler"] == restarts + 1
    with cluster.namespace() as space:
        cluster.apply(space, pod("after", SLEEP))
        cluster.kubectl("-n", space, "wait", "--for=condition=Ready", "pod/after", "--timeout=110s")


def test_there_is_no_way_from_the_node_to_other_machines(cluster: Cluster):
    """The node knows its pods, its services and this machine; anything else is refused at once."""
    if not cluster.own:
        pytest.skip("only the node of our own tool")
    elsewhere = "198.51.100.1"  # of a range that is reserved for documents
    assert tool("exec", "ip", "route", "get", elsewhere, check=False).returncode != 0
    assert tool("exec", "ip", "route", "get", settings.API_SERVICE).returncode == 0
