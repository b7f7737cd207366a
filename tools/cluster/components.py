"""The node's programs: their command lines and configurations, as pure functions that return texts.

Paths are as seen in the node's own mount namespace (node.py): the cache at INSIDE, private /run, /var/lib, /var/log.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import settings
from .settings import FIRST, INSIDE, SECOND, Node, filled

BINARIES = INSIDE / "bin"
RUN = INSIDE / "run"
KEYS = RUN / "pki"
CONFIG = RUN / "config"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
ETCD = "http://127.0.0.1:2379"
READY_LIMIT_S = 60.0  # seconds that a program may take to answer on a busy machine; usually 2 to 6

# Of every program of the node, all of which are Go's. Their heaps are small, so collecting garbage less often costs little memory,
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
    steps: list[dict[str, Any]] = [_start("etcd", etcd()), _start("containerd", containerd(FIRST))]
    steps += [_start("kube-apiserver", api_server()), *_loaded(images)]
    steps += [_until("the API server is ready", [*kubectl, "get", "--raw", "/readyz"])]
    steps += [
        _start("kubelet", kubelet(FIRST)),
        _start("kube-controller-manager", controller_manager()),
        _start("kube-scheduler", scheduler()),
        _start("kube-proxy", proxy(FIRST)),
    ]
    if second:  # ranges of pods are given in the order of registration
        steps += [
            _until("the first node has its pods", [*kubectl, "wait", f"--for=jsonpath={{.spec.podCIDR}}={FIRST.pods}",
                                                   f"node/{FIRST.name}", "--timeout=2s"]),
            *_link_to_second(),
            _start(SECOND.name, ["nsenter", f"--net=/run/netns/{SECOND.folder}", *second]),
        ]  # fmt: skip
    return _whole(steps)


def second_plan(images: Sequence[str]) -> dict[str, Any]:
    """Return the steps of the second node's first process."""
    steps = [_start("containerd", containerd(SECOND)), *_loaded(images), _start("kubelet", kubelet(SECOND))]
    return _whole([*steps, _start("kube-proxy", proxy(SECOND))])


def _whole(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"sysctls": {"hidden": KUBELET_SYSCTLS, "set": NODE_SYSCTLS}, "steps": steps}


def _loaded(images: Sequence[str]) -> list[dict[str, Any]]:
    ctr = ["ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io"]
    answers = _until("containerd answers", [*ctr, "version"])
    return [answers] + [
        _until(f"image {name} is loaded", [*ctr, "images", "import", str(INSIDE / "images" / name)])
        for name in images
    ]


def _link_to_second() -> list[dict[str, Any]]:
    """The first node's side: a network namespace, the link into it, and the route to its pods."""
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


def _start(name: str, command: Sequence[str]) -> dict[str, Any]:
    return {"start": name, "command": list(command)}


def _until(what: str, command: Sequence[str]) -> dict[str, Any]:
    return {"until": what, "command": list(command), "seconds": READY_LIMIT_S}


def etcd() -> list[str]:
    """Return etcd's command line. Its data is in memory, so nothing is synced."""
    return [
        str(BINARIES / "etcd"),
        "--data-dir=/run/etcd",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def containerd(node: Node) -> list[str]:
    return ["containerd", "--config", str(CONFIG / node.folder / "containerd.toml")]


def api_server() -> list[str]:
    """Return the API server's command line. It is reachable from the host by the link only; logs and exec use the kubelet's address, not its name."""
    return [
        str(BINARIES / "kube-apiserver"),
        f"--advertise-address={settings.NODE_ADDRESS}",
        f"--secure-port={settings.API_PORT}",
        f"--etcd-servers={ETCD}",
        f"--service-cluster-ip-range={settings.SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={KEYS}/ca.crt",
        f"--tls-cert-file={KEYS}/apiserver.crt",
        f"--tls-private-key-file={KEYS}/apiserver.key",
        f"--kubelet-certificate-authority={KEYS}/ca.crt",
        f"--kubelet-client-certificate={KEYS}/apiserver-kubelet.crt",
        f"--kubelet-client-key={KEYS}/apiserver-kubelet.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-issuer=https://kubernetes.default.svc.{settings.DNS_DOMAIN}",
        f"--service-account-key-file={KEYS}/sa.pub",
        f"--service-account-signing-key-file={KEYS}/sa.key",
        "--profiling=false",
        f"--audit-policy-file={CONFIG}/audit.yaml",
        f"--audit-log-path={RUN}/logs/audit.log",
        "--audit-log-mode=batch",  # nothing waits for it
        "--audit-log-maxsize=50",  # megabytes
        "--audit-log-maxbackup=1",
    ]


def controller_manager() -> list[str]:
    """Return the controller manager's command line. The default of 20 requests per second would delay the start by 4 s."""
    return [
        str(BINARIES / "kube-controller-manager"),
        f"--kubeconfig={KEYS}/controller-manager.conf",
        "--allocate-node-cidrs=true",
        f"--cluster-cidr={settings.POD_RANGE}",
        f"--service-cluster-ip-range={settings.SERVICE_RANGE}",
        f"--root-ca-file={KEYS}/ca.crt",
        f"--service-account-private-key-file={KEYS}/sa.key",
        f"--cluster-signing-cert-file={KEYS}/ca.crt",
        f"--cluster-signing-key-file={KEYS}/ca.key",
        "--use-service-account-credentials=true",
        "--flex-volume-plugin-dir=/var/lib/kubelet/plugins-flex",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]


def scheduler() -> list[str]:
    return [
        str(BINARIES / "kube-scheduler"),
        f"--kubeconfig={KEYS}/scheduler.conf",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    ]


def kubelet(node: Node) -> list[str]:
    return [
        str(BINARIES / "kubelet"),
        f"--config={CONFIG / node.folder / 'kubelet.yaml'}",
        f"--kubeconfig={KEYS}/kubelet{node.suffix}.conf",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
    ]


def proxy(node: Node) -> list[str]:
    """Return kube-proxy's command line. It does not change the connection tracking limits, which belong to the whole machine."""
    return [
        str(BINARIES / "kube-proxy"),
        f"--kubeconfig={KEYS}/proxy.conf",
        f"--hostname-override={node.name}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={settings.POD_RANGE}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
    ]


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
        found |= {"resolv.conf": ""}  # no name server of the host: pods resolve only names in the cluster
    return found
