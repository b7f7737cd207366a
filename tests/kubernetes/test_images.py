"""The images in a real cluster: their user, their content, and how fast a Headgate process starts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from testbed_runtime.api import naming
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.spaces import Space, fresh
from tools.images import archive, settings

pytestmark = pytest.mark.cluster
RUN_LIMIT_S = 400.0
# not compressed; what is there now and a little
SIZES_MB = {
    "headgate": 555,
    "headgate-agent": 565,
    "headgate-spark": 1300,
}
RESTRICTED = {
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
SECRETS = r"""
import os, pathlib, sys
names = [n for n in os.environ if any(w in n.lower() for w in ("proxy", "cert", "ca_bundle", "token", "password", "index_url"))]
found = [p for p in ("/run/build-ca.crt", "/run/pip-cache", "/etc/pip.conf", *(os.path.join("/root", f) for f in (".config", ".pip", ".netrc")), "/etc/resolv.conf.orig") if os.path.exists(p)]
proxies = [str(p) for p in pathlib.Path("/etc/apt").rglob("*") if p.is_file() and "proxy" in p.read_text(errors="replace").lower()]
print(names + found + proxies)
"""


@pytest.fixture(scope="module")
def place(cluster: Cluster, images: str) -> Iterator[Space]:
    """One restricted namespace for pods that do not know of each other."""
    del images
    with fresh(cluster) as made:
        yield made


def pod(name: str, image: str, *command: str, user: dict[str, Any] | None = None) -> dict[str, Any]:
    """Restricted, with the one writable folder that the contract names, unless `user` says otherwise."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
            if user is None
            else {},
            "containers": [
                {
                    "name": "main",
                    "image": f"{image}:{settings.TAG}",
                    "imagePullPolicy": "IfNotPresent",
                    "command": list(command),
                    "securityContext": user or RESTRICTED,
                    # without any, it waits for all others on a busy node
                    "resources": {"requests": {"cpu": "50m"}},
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                }
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }


def said(space: Space, image: str, *command: str, **how: Any) -> str:
    """Return the output of a pod's command. The exit code must be 0."""
    name = f"{image}-{abs(hash(command)) % 10**8}"
    space.apply(pod(name, image, *command, **how))
    ended = space.until(
        f"pod/{name}", lambda p: p["status"].get("phase") in ("Succeeded", "Failed"), RUN_LIMIT_S
    )
    text = space.kubectl("logs", name)
    assert ended["status"]["phase"] == "Succeeded", text
    return text


@pytest.mark.parametrize("image", ["headgate", "headgate-spark"])
def test_it_runs_as_its_own_user_in_a_restricted_namespace_on_a_root_that_cannot_be_written(
    place: Space, image: str
):
    """`runAsNonRoot` accepts the image's user, and Headgate needs no more than /tmp."""
    script = (
        "id -u; id -un; headgate --version; touch /opt/headgate/x 2>&1 || true; touch /tmp/x && echo written"
    )
    lines = said(place, image, "sh", "-c", script).splitlines()
    assert lines[:2] == [str(naming.USER_ID), "headgate"]
    assert lines[2].startswith("headgate ")
    assert "Read-only file system" in lines[3]
    assert lines[4:] == ["written"]


def test_the_small_image_has_the_operator_and_the_runtime_but_no_spark_and_no_test_tools(place: Space):
    """It contains nothing that a TaskManager's pod does not need."""
    script = (
        "import importlib.util as u; import headgate_operator, kopf, kubernetes, testbed_runtime.cli.main, pyarrow.parquet;"
        "print([n for n in ('pyspark','py4j','pytest','hypothesis','mypy','duckdb','pip','setuptools') if u.find_spec(n)])"
    )
    assert said(place, "headgate", "python", "-W", "error", "-c", script) == "[]\n"


@pytest.mark.parametrize("image", ["headgate", "headgate-spark"])
def test_nothing_of_the_machine_that_built_it_is_left_in_it(place: Space, image: str):
    """No certificate bundle, no proxy, no index, no token: not in the environment and not in files."""
    assert said(place, image, "python", "-c", SECRETS) == "[]\n"


def test_the_processes_of_a_pod_compile_nothing_when_they_start(place: Space):
    """The start of a pod is part of each recovery: what they import was compiled when the image was built, Python's own modules too."""
    modules = "testbed_runtime.entry.pod, testbed_runtime.entry.taskmanager, testbed_runtime.entry.runner"
    script = f"python -v -c 'import {modules}; print(\"imported\")' 2>&1 | grep -o -e \"^# code object from '.*'\" -e ^imported"
    *origins, last = said(place, "headgate", "sh", "-c", script).splitlines()
    assert last == "imported"
    assert [one for one in origins if one.endswith(".py'")] == []
    assert sum("/asyncio/" in one for one in origins) > 10


def test_the_agents_tools_make_and_remove_rules_with_net_admin_only(bare_space: Space):
    """Root without any other capability and without a writable root: nftables, the queue target by iptables-nft (iptables-legacy wants a
    raw socket, and so NET_RAW), and tc."""
    bare_space.cluster.kubectl(
        "label", "namespace", bare_space.name, "pod-security.kubernetes.io/enforce=privileged", "--overwrite"
    )
    user = {**RESTRICTED, "runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}
    script = """set -e
nft add table inet t; nft add chain inet t c '{ type filter hook input priority 0; }'
nft add rule inet t c tcp dport 6121 numgen random mod 1000 lt 50 drop; nft list table inet t | grep -c numgen; nft delete table inet t
iptables-nft -A INPUT -p tcp --dport 6121 -j NFQUEUE --queue-num 1 --queue-bypass; iptables-nft -D INPUT 1
ip -brief link | grep -c eth0; tc qdisc show dev eth0 >/dev/null && echo tc
python -c 'import testbed_runtime.faults'; grep CapEff /proc/self/status"""
    lines = said(bare_space, "headgate-agent", "sh", "-c", script, user=user).splitlines()
    assert lines[:3] == ["1", "1", "tc"]
    assert int(lines[3].split()[1], 16) == 1 << 12, "NET_ADMIN and nothing else"


def test_the_image_for_spark_has_java_and_a_session_counts(place: Space):
    """A real session in the pod, with the layer of packages that only this image has."""
    script = (
        "from pyspark.sql import SparkSession as S; s=S.builder.master('local[1]').config('spark.ui.enabled','false')"
        ".config('spark.ui.showConsoleProgress','false').config('spark.local.dir','/tmp').getOrCreate();"
        "print(s.range(10).count()); s.stop()"
    )
    assert said(place, "headgate-spark", "python", "-c", script).splitlines()[-1] == "10"


def test_images_are_as_small_as_they_were(images: str):
    """Somebody notices when a dependency brings another hundred megabytes."""
    layout = settings.layout(os.environ)
    for image, most in SIZES_MB.items():
        if not layout.dependencies(image).exists():
            pytest.skip(f"made by a container engine, not in this cache: {images}")
        size = sum(blob.size for blob in archive.read(layout.dependencies(image)).layers)
        assert size / 1e6 < most, image
        history = json.dumps(archive.read(layout.dependencies(image)).config)
        assert "BEGIN CERTIFICATE" not in history
