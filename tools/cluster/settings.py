"""Versions, addresses and names, and where files are on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

KUBERNETES = "1.34.4"  # the last minor version whose kubelet accepts cgroup v1 by default
ETCD = "3.6.6"  # older ones lack RequestWatchProgress, without which streaming lists keep failing
HELM = "3.19.2"
COREDNS = "1.12.4"
GO_MIN = (1, 24)  # required by the go.mod of Kubernetes 1.34

NODE = "headgate"
HOST_LINK = "headgate0"  # the host's end of the only link into the node's network namespace
NODE_LINK = "node0"
HOST_ADDRESS = "10.245.0.1"
NODE_ADDRESS = "10.245.0.2"
LINK_PREFIX = 30
POD_RANGE = "10.244.0.0/16"
NODE_POD_RANGE = "10.244.0.0/24"  # assigned to the first node by the controller manager
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
API_PORT = 6443
DNS_DOMAIN = "cluster.local"
PROCESSORS = 32  # that the kubelet sees: its 110 pods request at most 200m each, so no pod waits for a processor on a small machine
CGROUP = "headgate-cluster"  # below each controller of v1, or below the one tree of v2

PAUSE_IMAGE = "headgate.local/pause:1"
COREDNS_IMAGE = f"headgate.local/coredns:{COREDNS}"
BUSYBOX_IMAGE = "headgate.local/busybox:1"

INSIDE = Path("/run/headgate")  # the cache as the node sees it; short, because socket paths hold 107 bytes


@dataclass(frozen=True)
class Node:
    """`router`: the other end of its link. `folder`: below `run`, with its plan, configuration, logs and data."""

    name: str
    address: str
    router: str
    pods: str
    folder: str = ""

    @property
    def suffix(self) -> str:
        """The suffix of the names of the node's keys."""
        return f"-{self.folder}" if self.folder else ""


FIRST = Node(NODE, NODE_ADDRESS, HOST_ADDRESS, NODE_POD_RANGE)
SECOND = Node("headgate-2", "10.245.0.6", "10.245.0.5", "10.244.1.0/24", "second")
"""The second node. Its namespaces are inside those of the first node, to which its link leads."""
SECOND_LINK = "peer0"  # the first node's end of the link


class ClusterError(Exception):
    """An operation of the tools that failed, as a sentence that says how to fix it."""


@dataclass(frozen=True)
class Layout:
    """Folders of the cache. `run` exists from `up` to `down`, everything else is kept."""

    cache: Path

    @property
    def binaries(self) -> Path:
        return self.cache / "bin"

    @property
    def scratch(self) -> Path:
        return self.cache / "build"

    @property
    def images(self) -> Path:
        return self.cache / "images"

    @property
    def run(self) -> Path:
        return self.cache / "run"

    @property
    def kubeconfig(self) -> Path:
        return self.run / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.run / "logs"

    @property
    def state(self) -> Path:
        return self.run / "state.json"


def cache_folder(environment: Mapping[str, str], name: str) -> Path:
    """Return the folder below XDG_CACHE_HOME, or else below HOME.

    Raises ClusterError when the environment names neither.
    """
    if cache := environment.get("XDG_CACHE_HOME"):
        return Path(cache) / "headgate" / name
    if home := environment.get("HOME"):
        return Path(home) / ".cache" / "headgate" / name
    raise ClusterError("no folder for the cache: set XDG_CACHE_HOME or HOME")


def layout(environment: Mapping[str, str]) -> Layout:
    """Return the layout of the cache. Raises ClusterError when there is no folder for it."""
    return Layout(cache_folder(environment, "cluster"))


def filled(name: str, **values: object) -> str:
    """Return the text of a file in config/, with `values` for its `$names`."""
    text = (Path(__file__).with_name("config") / name).read_text()
    return Template(text).substitute(values)
