"""docs/kubernetes.md with a registry, from an empty cluster to the uninstall: its `console` blocks are run as they stand."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kubernetes import local_registry
from tests.kubernetes.cluster import LAYOUT, ROOT, UP_LIMIT_S, Cluster, tool
from tests.kubernetes.test_local_cluster import eventually
from tools.cluster import settings
from tools.images import engine
from tools.images import settings as images

pytestmark = [pytest.mark.cluster, pytest.mark.disruptive, pytest.mark.timeout(UP_LIMIT_S)]

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
PREFIX = "registry.example/headgate"
COMMAND_LIMIT_S = 900
TEAMS = ("team-a", "team-b")
WITHOUT_PACKET_FAULTS = ("headgate", "headgate-spark")
STAYS = {
    "CustomResourceDefinition",
    "APIService",
    "ScenarioRun",
    "ConfigMap",
    "Secret",
    "Service",
    "Endpoints",
    "EndpointSlice",
}
"""Kinds of what an uninstall leaves: the definitions, the runs, and what belongs to the runs."""
CHANGING = ("events", "events.events.k8s.io", "leases.coordination.k8s.io")
OF_A_NAMESPACE = {
    "Namespace  headgate-system",
    "ServiceAccount headgate-system default",
    "ConfigMap headgate-system kube-root-ca.crt",
}
"""Kubernetes makes the last two of every namespace. `helm uninstall` does not delete the one that it created."""
RUN = """
headgate run helm/headgate/files/mini.yaml --on kubernetes --namespace team-b --out "$OUT"
"""


@dataclass(frozen=True)
class Page:
    """Runs commands of the page in the checkout, with the reader's registry for the page's."""

    cluster: Cluster
    registry: local_registry.Registry
    out: Path

    def run(self, commands: str) -> str:
        more = {"SSL_CERT_FILE": str(self.out / "ca.crt"), "OUT": str(self.out / "runs")}
        script = commands.replace(PREFIX, f"{self.registry.address}/headgate")
        done = self.cluster.shell(script, ROOT, COMMAND_LIMIT_S, **more)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout


def block(containing: str) -> str:
    """Return the only `console` block with these words."""
    [found] = [
        text
        for text in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        if containing in text
    ]
    return str(found)


def line(containing: str) -> str:
    """Return the only line of a `console` block with these words."""
    [found] = [text for text in block(containing).splitlines() if containing in text]
    return found


def objects(cluster: Cluster) -> set[str]:
    """Return kind, namespace and name of everything that the cluster can list, but for what changes by itself."""
    kinds = set(cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()) - set(CHANGING)
    columns = "custom-columns=K:.kind,S:.metadata.namespace,N:.metadata.name"
    listed = cluster.kubectl("get", ",".join(sorted(kinds)), "-A", "--no-headers", "-o", columns)
    return {" ".join(one.split()).replace("<none>", "") for one in listed.splitlines()}


@pytest.fixture
def page(nothing_up: None, tmp_path: Path) -> Iterator[Page]:
    """An empty cluster, and a registry with a certificate that its node trusts."""
    if engine.find():
        pytest.skip(
            "the container engine of this machine does not know the certificate of this test's registry"
        )
    done = subprocess.run(
        [sys.executable, "-m", "tools.images", "build"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tool("up", "--bare", limit=UP_LIMIT_S)
    cluster = Cluster(str(LAYOUT.kubeconfig), own=True, started=True)
    tls = local_registry.certificate(tmp_path, settings.HOST_ADDRESS)
    with local_registry.serving(tmp_path / "registry", settings.HOST_ADDRESS, tls=tls) as registry:
        trusted = LAYOUT.run / "config" / "certs.d" / registry.address
        trusted.mkdir(parents=True)
        shutil.copy(tmp_path / "ca.crt", trusted)
        (trusted / "hosts.toml").write_text(f'[host."https://{registry.address}"]\nca = "ca.crt"\n')
        yield Page(cluster, registry, tmp_path)


def until(holds: Callable[[], object], what: str) -> None:
    eventually(holds, what, 90)


def test_images_are_pulled_from_a_registry_and_an_uninstall_leaves_what_the_page_says(page: Page):
    """Push, install, `helm test`, a run, an upgrade, the uninstall; the cluster before and after is compared object by object."""
    cluster, registry = page.cluster, page.registry
    namespaces, installation = block("make images PUSH=").split("make images", 1)
    page.run(namespaces)
    for team in TEAMS:
        cluster.kubectl(
            "-n", team, "wait", "--for=create", "serviceaccount/default", "configmap/kube-root-ca.crt"
        )
    before = objects(cluster)
    said = page.run(f"make images{installation}")
    assert "POD LOGS:" in said
    page.run(RUN)
    page.run(line("helm upgrade"))
    assert {f"headgate/{image}:{images.VERSION}" for image in images.IMAGES} <= registry.tags.keys()
    used = (f"headgate/{image}:{images.VERSION}" for image in WITHOUT_PACKET_FAULTS)
    assert {registry.tags[name] for name in used} <= registry.pulled
    own = cluster.kubectl("get", "pods", "-A", "-o", "jsonpath={..image}").split()
    assert {one for one in own if "/headgate" in one and not one.startswith(registry.address)} == set()

    page.run(line("helm uninstall"))
    until(
        lambda: (
            not cluster.kubectl(
                "get", "pods", "-A", "-l", "app.kubernetes.io/managed-by=headgate", "-o", "name"
            )
        ),
        "its pods are gone",
    )
    stays = {one.split()[0] for one in objects(cluster) - before - OF_A_NAMESPACE}
    assert stays <= STAYS
    page.run("kubectl delete crd -l app.kubernetes.io/name=headgate")
    until(lambda: objects(cluster) == before | OF_A_NAMESPACE, "the cluster is as before")
