"""Testbeds on a real cluster: made, scaled, changed, broken, deleted."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.spaces import Space, condition, fresh, settle

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

SETTLE_LIMIT_S = 300.0
"""Limit for several pods that start one after the other on a small, busy machine."""
NAME = "bench"


def a_testbed(name: str, *, replicas: int = 3, replace_lost: str = "Never", **spec: Any) -> dict[str, Any]:
    job = {
        "vertices": [
            {"name": "source", "slotSharingGroup": "src", "source": {"recordsPerSecond": 1000}},
            {"name": "sink", "slotSharingGroup": "main", "sink": "ledger"},
        ],
        "edges": [{"from": "source", "to": "sink", "partitioning": "hash"}],
    }
    options = {
        "heartbeat.interval": "1 s",
        "heartbeat.timeout": "6 s",
        "execution.checkpointing.interval": "1 s",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "100",
        "restart-strategy.fixed-delay.delay": "500 ms",
    }
    managers = {"replicas": replicas, "slots": 1, "replaceLost": replace_lost}
    return {
        "apiVersion": "headgate.dev/v1alpha1",
        "kind": "Testbed",
        "metadata": {"name": name},
        "spec": {"taskManagers": managers, "flinkConfiguration": options, "job": job, **spec},
    }


def pods(space: Space, name: str = NAME) -> dict[str, Any]:
    """Those of the Testbed that are not on their way out, by name."""
    found = space.get("pods", "-l", f"headgate.dev/testbed={name}")["items"]
    return {p["metadata"]["name"]: p for p in found if "deletionTimestamp" not in p["metadata"]}


def incarnations(space: Space) -> dict[str, int]:
    return {n: int(p["metadata"]["labels"]["headgate.dev/incarnation"]) for n, p in pods(space).items()}


def config_map_name(space: Space) -> str:
    return f"{NAME}-config-{space.get('testbed', NAME)['metadata']['uid'][:8]}"


def running(space: Space, *, replicas: int = 3, limit: float = SETTLE_LIMIT_S, checkpoints: int = 0) -> Any:
    def holds(obj: Any) -> bool:
        status = obj.get("status") or {}
        return (
            status.get("observedGeneration") == obj["metadata"]["generation"]
            and status.get("jobState") == "RUNNING"
            and status.get("phase") == "Ready"
            and status.get("readyTaskManagers") == replicas
            and status.get("checkpoints", 0) > checkpoints
        )

    return space.until(f"testbed/{NAME}", holds, limit, f"a running job on {replicas} ready TaskManagers")


@pytest.fixture(scope="module")
def shared(installed: Cluster) -> Iterator[Space]:
    """One namespace for the tests that change a testbed and do not mind what happened to it before."""
    with fresh(installed) as made:
        yield made


@pytest.fixture
def bench(shared: Space) -> Space:
    """Its testbed: three ready TaskManagers, `replaceLost: Never`, and a running job."""
    if shared.kubectl("get", "testbed", NAME, "-o", "name", "--ignore-not-found"):
        reset = {"spec": {"taskManagers": {"replicas": 3, "replaceLost": "Never"}}}
        shared.kubectl("patch", "testbed", NAME, "--type=merge", "-p", json.dumps(reset))
    else:
        shared.apply(a_testbed(NAME))
    running(shared)
    return shared


def test_kubectl_scale_adds_and_takes_the_highest_ordinals(bench: Space) -> None:
    """Scaling up to four and down to two replaces no other pod."""
    uid = pods(bench)[f"{NAME}-tm-0"]["metadata"]["uid"]
    bench.kubectl("scale", "testbed", NAME, "--replicas=4")
    running(bench, replicas=4)
    bench.kubectl("scale", "testbed", NAME, "--replicas=2")
    bench.gone(f"pod/{NAME}-tm-3", SETTLE_LIMIT_S)
    bench.gone(f"pod/{NAME}-tm-2", SETTLE_LIMIT_S)
    running(bench, replicas=2)
    assert pods(bench)[f"{NAME}-tm-0"]["metadata"]["uid"] == uid


def test_a_deleted_taskmanager_stays_lost_or_is_replaced_as_replace_lost_says(bench: Space) -> None:
    """`Never`: reported and not replaced. Then `2 s`: the next incarnation starts, and the job continues."""
    before = incarnations(bench)
    bench.kubectl("delete", "pod", f"{NAME}-tm-2", "--grace-period=1")
    bench.until(
        f"testbed/{NAME}", lambda o: "tm-2" in ((o.get("status") or {}).get("lost") or {}), SETTLE_LIMIT_S
    )
    bench.gone(f"pod/{NAME}-tm-2", SETTLE_LIMIT_S)
    bench.until(f"testbed/{NAME}", lambda o: (o["status"]).get("phase") == "Degraded", SETTLE_LIMIT_S)
    assert f"{NAME}-tm-2" not in pods(bench)
    change = {"spec": {"taskManagers": {"replaceLost": "2 s"}}}
    bench.kubectl("patch", "testbed", NAME, "--type=merge", "-p", json.dumps(change))
    running(bench)
    assert incarnations(bench) == {**before, f"{NAME}-tm-2": before[f"{NAME}-tm-2"] + 1}


def delete_jobmanager(space: Space) -> None:
    """Delete its pod and wait for the next one."""
    was = incarnations(space)[f"{NAME}-jobmanager"]
    space.kubectl("delete", "pod", f"{NAME}-jobmanager", "--grace-period=1")
    space.until(
        f"testbed/{NAME}", lambda o: o["status"]["incarnations"].get("jobmanager") == was + 1, SETTLE_LIMIT_S
    )


def test_a_deleted_jobmanager_comes_again_and_goes_on_from_its_checkpoint(bench: Space) -> None:
    """Checkpoints are numbered on: the store kept them."""
    store = incarnations(bench)[f"{NAME}-store"]
    before = running(bench, checkpoints=3)["status"]["checkpoints"]
    delete_jobmanager(bench)
    running(bench, checkpoints=before)
    assert incarnations(bench)[f"{NAME}-store"] == store


def test_a_bad_testbed_disturbs_no_other_and_is_refused_with_the_words_of_the_command_line(
    bench: Space,
) -> None:
    """A rule that the schema cannot express: `Accepted=False`, and nothing is created."""
    bench.apply(a_testbed("bad", flinkConfiguration={"heartbeat.timeot": "5 s"}))
    found = bench.condition("testbed/bad", "Accepted", SETTLE_LIMIT_S, "False")
    assert "did you mean heartbeat.timeout?" in found["message"]
    stalled = condition(bench.get("testbed/bad"), "Stalled")
    assert stalled is not None
    assert condition(bench.get("testbed/bad"), "Reconciling", "False"), "Flux and Argo CD would keep waiting"
    columns = bench.kubectl("get", "testbed", "bad", "--no-headers").split()
    assert columns[:3] == ["bad", "False", stalled["reason"]]
    running(bench)
    assert not pods(bench, "bad")
    bench.kubectl("delete", "testbed", "bad", "--timeout=110s")


def test_a_testbed_that_cannot_be_made_stalls_while_others_go_on(bench: Space) -> None:
    """A15: a quota refuses its pods; the other one, made before, is served all the while."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full"},
        "spec": {"hard": {"pods": "5"}},
    }
    bench.apply(quota)
    bench.apply(a_testbed("poison"))
    try:
        bench.condition("testbed/poison", "Stalled", SETTLE_LIMIT_S)
        delete_jobmanager(bench)
    finally:
        bench.kubectl("delete", "testbed/poison", "resourcequota/full", "--timeout=110s")


def test_a_changed_configuration_rolls_every_pod_but_the_store(bench: Space) -> None:
    """One at a time; afterwards the job runs on the new configuration, from its checkpoint."""
    running(bench, checkpoints=1)
    before = incarnations(bench)
    change = {"spec": {"flinkConfiguration": {"heartbeat.timeout": "7 s"}}}
    bench.kubectl("patch", "testbed", NAME, "--type=merge", "-p", json.dumps(change))
    rolled = {name: number + (not name.endswith("-store")) for name, number in before.items()}
    names = {name.removeprefix(f"{NAME}-"): number for name, number in rolled.items()}
    bench.until(f"testbed/{NAME}", lambda o: names.items() <= o["status"]["incarnations"].items(), 240)
    running(bench)
    assert incarnations(bench) == rolled


@pytest.mark.disruptive
def test_what_is_deleted_while_the_operator_is_away_is_made_again(bench: Space) -> None:
    """Service, ConfigMap and a pod; and the operator's absence disturbed nothing that ran."""
    was = incarnations(bench)[f"{NAME}-jobmanager"]
    operator = ("-n", "headgate-system", "scale", "deployment/headgate-operator")
    bench.cluster.kubectl(*operator, "--replicas=0")
    try:
        bench.kubectl("delete", "service", NAME)
        config = config_map_name(bench)
        bench.kubectl("delete", "configmap", config)
        bench.kubectl("delete", "pod", f"{NAME}-jobmanager", "--grace-period=1")
    finally:
        bench.cluster.kubectl(*operator, "--replicas=1")
    bench.until(
        f"testbed/{NAME}", lambda o: o["status"]["incarnations"].get("jobmanager") == was + 1, SETTLE_LIMIT_S
    )
    running(bench)
    assert bench.get("service", NAME)
    assert bench.get("configmap", config)


def test_a_testbed_leaves_nothing_when_it_is_deleted(bench: Space) -> None:
    """The job runs, also after all that happened to it in this file; deletion removes every object."""
    running(bench, checkpoints=1)
    bench.kubectl("delete", "testbed", NAME, "--wait=true", "--timeout=110s")
    bench.kubectl(
        "wait",
        "--for=delete",
        "pods,services,configmaps,secrets",
        "-l",
        f"headgate.dev/testbed={NAME}",
        "--timeout=110s",
    )
    left = bench.get("pods,services,configmaps,secrets")["items"]
    assert [o["metadata"]["name"] for o in left if o["metadata"]["name"] != "kube-root-ca.crt"] == []


def test_a_namespace_with_a_testbed_terminates(installed: Any) -> None:
    """Nothing of Headgate's delays it: no finalizer, and no pod that is recreated meanwhile."""
    with fresh(installed, emptied=False) as made:
        made.apply(a_testbed(NAME))
        made.condition(f"testbed/{NAME}", "Accepted", 60)
        settle(installed)
    settle(installed)


@pytest.mark.disruptive
def test_of_two_operators_exactly_one_acts(space: Space) -> None:
    """A15: the second is Ready and waits; when the first is deleted it takes over."""
    cluster, operator = space.cluster, ("-n", "headgate-system")
    cluster.kubectl(*operator, "scale", "deployment/headgate-operator", "--replicas=2")
    try:
        cluster.kubectl(*operator, "rollout", "status", "deployment/headgate-operator", "--timeout=90s")
        holder = cluster.get(*operator, "lease", "headgate-operator")["spec"]["holderIdentity"]
        cluster.kubectl(*operator, "delete", "pod", holder, "--grace-period=0", "--force")
        space.apply(a_testbed(NAME, replicas=2))
        running(space, replicas=2)
        second = cluster.get(*operator, "lease", "headgate-operator")["spec"]["holderIdentity"]
        assert second != holder
        creations = cluster.get("-n", space.name, "events")["items"]
        assert len([e for e in creations if e["reason"] == "Creating" and e.get("count", 1) == 1]) == 1
    finally:
        cluster.kubectl(*operator, "scale", "deployment/headgate-operator", "--replicas=1")


HANDSHAKE = """
import os, socket, ssl
for certificate in ("", "/etc/headgate/certificate/certificate.pem"):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate)
    try:
        with socket.create_connection((os.environ["POD_IP"], 6121), timeout=10) as plain:
            with context.wrap_socket(plain) as encrypted:
                print(encrypted.version(), encrypted.cipher()[0])
    except ssl.SSLError as error:
        print(error.reason)
"""
"""Run in a TaskManager's pod: connect to its data port without a certificate, then with the one that the pod mounts."""
GCM = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"


def test_taskmanagers_exchange_data_over_tls_with_a_certificate_of_their_testbed(space: Space) -> None:
    """The operator makes it. The data port speaks TLS and refuses a client that has none. The Secret goes with the Testbed, and the
    key is in nothing else that the namespace holds."""
    wanted = a_testbed(NAME, replicas=2)
    options = {"security.ssl.internal.enabled": "true", "security.ssl.algorithms": GCM}
    wanted["spec"]["flinkConfiguration"] |= options
    space.apply(wanted)
    running(space, replicas=2, checkpoints=2)
    said = space.kubectl("exec", f"{NAME}-tm-0", "--", "python", "-c", HANDSHAKE)
    assert said.split("\n") == ["SSLV3_ALERT_HANDSHAKE_FAILURE", "TLSv1.2 ECDHE-RSA-AES128-GCM-SHA256", ""]
    name = f"{NAME}-tls-{space.get('testbed', NAME)['metadata']['uid'][:8]}"
    key = space.get("secret", name)["data"]["certificate.pem"]
    assert b"PRIVATE KEY" in base64.b64decode(key)
    mounting = {
        pod for pod, found in pods(space).items() if name in json.dumps(found["spec"].get("volumes") or [])
    }
    assert mounting == {f"{NAME}-tm-0", f"{NAME}-tm-1"}
    others = space.kubectl("get", "headgate,pods,configmaps,events", "-o", "json")
    assert key not in others
    assert "PRIVATE KEY" not in others
    space.kubectl("delete", "testbed", NAME, "--wait=false")
    space.gone(f"secret/{name}", SETTLE_LIMIT_S)
