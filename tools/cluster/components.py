"""The node's programs: their command lines and configurations, as pure functions that return texts.

Paths are as seen in the node's own mount namespace (node.py): the cache at INSIDE, private /run, /var/lib, /var/log.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from . import settings
from .settings import FIRST, INSIDE, SECOND, Node, filled

BINARIES = INSIDE / "bin"
RUN = INSIDE / "run"
KEYS = RUN / "pki"
CONFIG = RUN / "config"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CTR = ("ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io")
ETCD = "http://127.0.0.1:2379"
READY_LIMIT_S = 60.0  # seconds that a program may take to answer on a busy machine; usually 2 to 6

# Environment of every program of the node. All are Go programs with small heaps, so collecting garbage less often costs little memory,
# and the limit bounds it. The processor time is what a small machine lacks.
GO_ENVIRONMENT = {"GOGC": "400", "GOMEMLIMIT": "512MiB"}
# Settings of the whole kernel that a kubelet writes. It gets private files with these values instead, so that nothing changes.
KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
# Set in the node's own network namespace, because pods are routed.
NODE_SYSCTLS = {"net/ipv4/ip_forward": "1"}


def plan(images: Sequence[str], *, second: Sequence[str] = ()) -> dict[str, Any]:
    """Return the steps of the node's first process, in order. `images`: names of archives in the cache's folder of images.
    `second`: the command of the second node's first process, if there is one."""
    kubectl = [str(BINARIES / "kubectl"), "--kubeconfig", str(KEYS / "admin.conf"), "--request-timeout=2s"]
    steps: list[dict[str, Any]] = [_program("etcd"), _program("containerd")]
    steps += [_program("kube-apiserver"), *_loaded(images)]
    steps += [_until("the API server is ready", [*kubectl, "get", "--raw", "/readyz"])]
    steps += map(_program, ("kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy"))
    if second:  # nodes get their ranges of pod addresses in the order of registration
        steps += [
            _until("the first node has its pods", [*kubectl, "wait", f"--for=jsonpath={{.spec.podCIDR}}={FIRST.pods}",
                                                   f"node/{FIRST.name}", "--timeout=2s"]),
            *_link_to_second(),
            _start(SECOND.name, ["nsenter", f"--net=/run/netns/{SECOND.folder}", *second]),
        ]  # fmt: skip
    return _whole(steps)


def second_plan(images: Sequence[str]) -> dict[str, Any]:
    """Return the steps of the second node's first process."""
    steps = [_program("containerd", SECOND), *_loaded(images)]
    return _whole([*steps, _program("kubelet", SECOND), _program("kube-proxy", SECOND)])


def _whole(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"sysctls": {"hidden": KUBELET_SYSCTLS, "set": NODE_SYSCTLS}, "steps": steps}


def _loaded(images: Sequence[str]) -> list[dict[str, Any]]:
    answers = _until("containerd answers", [*CTR, "version"])
    return [answers] + [
        _until(f"image {name} is loaded", [*CTR, "images", "import", str(INSIDE / "images" / name)])
        for name in images
    ]


def _link_to_second() -> list[dict[str, Any]]:
    """Return the first node's part of the link to the second: a network namespace, the link into it, and the route to its pods."""
    link, folder = settings.SECOND_LINK, SECOND.folder
    address = f"{SECOND.router}/{settings.LINK_PREFIX}"
    commands = (
        ("netns", "add", folder),
        ("link", "add", link, "type", "veth", "peer", "name", settings.NODE_LINK, "netns", folder),
        ("address", "add", address, "dev", link),
        ("link", "set", link, "up"),
        ("route", "add", SECOND.pods, "via", SECOND.address),
    )
    return [_until(f"ip {' '.join(words)}", ["ip", *words]) for words in commands]


def _program(name: str, node: Node = FIRST) -> dict[str, Any]:
    return _start(name, program(name, node))


def _start(name: str, command: Sequence[str]) -> dict[str, Any]:
    return {"start": name, "command": list(command)}


def _until(what: str, command: Sequence[str]) -> dict[str, Any]:
    return {"until": what, "command": list(command), "seconds": READY_LIMIT_S}


def program(name: str, node: Node = FIRST) -> list[str]:
    """Return a program's command line. containerd is the machine's own, the others are from the cache."""
    found = filled(
        "commands.yaml.in",
        etcd=ETCD,
        keys=KEYS,
        config=CONFIG,
        own=CONFIG / node.folder,
        logs=RUN / "logs",
        first=settings.NODE_ADDRESS,
        port=settings.API_PORT,
        services=settings.SERVICE_RANGE,
        pods=settings.POD_RANGE,
        domain=settings.DNS_DOMAIN,
        node=node.name,
        address=node.address,
        suffix=node.suffix,
    )
    return [name if name == "containerd" else str(BINARIES / name), *yaml.safe_load(found)[name]]


def configurations(plugins: Path, node: Node = FIRST, *, nodes: int = 1) -> dict[str, str]:
    """Return the text of each file below CONFIG by its name. `plugins`: the folder of the network plugins.

    Every pod has its own link to its node and is routed, so the kernel needs no bridge filter. Between nodes, a pod has its own
    address, as in other clusters."""
    own = Path(node.folder)
    values = {
        "keys": KEYS,
        "suffix": node.suffix,
        "socket": CONTAINERD_SOCKET,
        "group": Path("/", settings.CGROUP, node.folder),
        "dns": settings.DNS_SERVICE,
        "domain": settings.DNS_DOMAIN,
    }
    found = {
        str(own / "containerd.toml"): filled(
            "containerd.toml.in",
            socket=CONTAINERD_SOCKET,
            pause=settings.PAUSE_IMAGE,
            plugins=plugins,
            config=CONFIG / node.folder,
        ),
        str(own / "kubelet.yaml"): filled("kubelet.yaml.in", config=CONFIG, **values),
        str(own / "cni/10-headgate.conflist"): filled(
            "network.conflist.in", masquerade=str(nodes == 1).lower(), pods=node.pods
        ),
    }
    if node is FIRST:
        found |= {"audit.yaml": filled("audit.yaml")}
        found |= {"resolv.conf": ""}  # so that pods resolve only names in the cluster
    return found
