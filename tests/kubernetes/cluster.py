"""The real cluster of these tests: how it is reached, and what traces one could leave on this machine."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cluster import build, groups, settings, state, up

ROOT = Path(__file__).resolve().parents[2]
UP_LIMIT_S = 3600  # a first time builds Kubernetes
DOWN_LIMIT_S = 60
COMMAND_LIMIT_S = 120
# any busybox, for a cluster that is given
IMAGE = os.environ.get("HEADGATE_TEST_IMAGE", settings.BUSYBOX_IMAGE)
LAYOUT = settings.layout(os.environ)


def tool(
    *arguments: str, limit: float = COMMAND_LIMIT_S, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """`python -m tools.cluster …`, as make calls it."""
    command = [sys.executable, "-m", "tools.cluster", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
    assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done


def is_up() -> bool:
    return state.runs(state.read(LAYOUT))


@dataclass(frozen=True)
class Cluster:
    """`own`: a node that the tool made on this machine. `started`: by these tests."""

    kubeconfig: str
    own: bool
    started: bool

    def kubectl(self, *arguments: str, text: str = "", check: bool = True) -> str:
        """Gives stdout; a failure is a failed assertion with kubectl's words."""
        return self.run("kubectl", *arguments, text=text, check=check)

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", "-o", "json", *arguments))

    def apply(self, namespace: str, *documents: dict[str, Any]) -> None:
        whole = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.kubectl("-n", namespace, "apply", "-f", "-", text=json.dumps(whole))

    def refused(self, *arguments: str, text: str = "") -> str:
        """kubectl's words for what is not done; fails when it is."""
        done = self._done("kubectl", arguments, text)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)} was not refused: {done.stdout}"
        return done.stderr

    def program(self, name: str) -> str:
        """Ours first: it has the cluster's version."""
        own = LAYOUT.binaries / name
        return str(own) if own.exists() else shutil.which(name) or name

    def run(
        self,
        program: str,
        *arguments: str,
        text: str = "",
        check: bool = True,
        limit: float = COMMAND_LIMIT_S,
    ) -> str:
        done = self._done(program, arguments, text, limit)
        assert not check or done.returncode == 0, (
            f"{program} {' '.join(arguments)}: {done.stderr}{done.stdout}"
        )
        return done.stdout

    def _done(
        self, program: str, arguments: Sequence[str], text: str, limit: float = COMMAND_LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program(program), *arguments],
            input=text,
            env={**os.environ, "KUBECONFIG": self.kubeconfig},
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )

    def shell(
        self, commands: str, folder: Path, limit: float, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run commands as a reader of the documentation types them, with the programs of the checkout and of the cluster tool."""
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=folder,
            env={**os.environ, "KUBECONFIG": self.kubeconfig, "PATH": search_path(), **variables},
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )

    @contextmanager
    def namespace(self) -> Iterator[str]:
        """A namespace of one test, with its default service account; removed without waiting for it."""
        name = f"headgate-test-{secrets.token_hex(4)}"
        self.kubectl("create", "namespace", name)
        self.kubectl("-n", name, "wait", "--for=create", "serviceaccount/default", "--timeout=110s")
        try:
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false")


def search_path() -> str:
    """Return PATH with the programs of the checkout and of the cluster tool first."""
    return f"{Path(sys.executable).parent}:{LAYOUT.binaries}:{os.environ['PATH']}"


def lacking() -> str | None:
    """Why no cluster can be had here; None if one is given, or can be made (perhaps after building it)."""
    if state.choose(os.environ, LAYOUT.kubeconfig, kind_works=False, bare=False).kind == state.GIVEN:
        return None
    if shutil.which("kind"):
        return None
    if reason := up.refusal(sys.platform, os.geteuid()):
        return reason
    try:
        build.find_go(os.environ.get("PATH", "")) if build.missing(LAYOUT) else None
    except settings.ClusterError as error:
        return str(error)
    return None


def connect() -> Cluster:
    """Use or start a cluster; fails with the tool's own words."""
    was_up = is_up()
    chosen = state.choose(os.environ, LAYOUT.kubeconfig, kind_works=False, bare=False)
    tool("up", limit=UP_LIMIT_S)
    if chosen.kind == state.GIVEN:
        return Cluster(chosen.kubeconfig, own=False, started=False)
    known = state.read(LAYOUT)
    assert known is not None
    return Cluster(str(LAYOUT.kubeconfig), own=known.kind == state.OWN, started=not was_up)


def disconnect(cluster: Cluster) -> None:
    if cluster.started and is_up():
        tool("down", limit=DOWN_LIMIT_S)


def pod(name: str, command: Sequence[str], **spec: Any) -> dict[str, Any]:
    """A pod of one busybox container that ends fast when it is deleted."""
    extra = spec.pop("container", {})
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        **extra,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }


def traces() -> dict[str, set[str]]:
    """Return what a cluster could leave on this machine, by the place where it is visible."""
    return {
        "mounts": {line.split(" ", 4)[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()},
        "links": _lines("ip", "-brief", "link"),
        "addresses": _lines("ip", "-brief", "address"),
        "routes": _lines("ip", "route", "show", "table", "all"),
        "nftables": _lines("nft", "list", "ruleset"),
        "iptables": _lines("iptables-save", without="#"),
        "groups": _groups(),
        "processes": _foreign_processes(),
        "sockets": _sockets(),
        "files": _files(),
        "kernel": _kernel(),
    }


def left(before: dict[str, set[str]], after: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return what exists only afterwards, and what no longer exists."""
    return {where: after[where] ^ before[where] for where in before if after[where] != before[where]}


def _lines(*command: str, without: str = "\0") -> set[str]:
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {line.strip() for line in said.splitlines() if line.strip() and not line.startswith(without)}


def _groups() -> set[str]:
    """Control groups that are ours or a kubelet's."""
    tops = [point for point, _ in groups.mounts(Path("/proc/self/mountinfo").read_text())]
    names = (settings.CGROUP, "kubepods")
    return {str(folder) for top in tops for folder in top.iterdir() if folder.name in names}


def _foreign_processes() -> set[str]:
    """Processes in other namespaces than ours, and those that were started from the cache."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            spaces = [(entry / "ns" / kind).readlink() for kind in ("pid", "net", "mnt")]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        ours = [Path("/proc/self/ns", kind).readlink() for kind in ("pid", "net", "mnt")]
        if spaces != ours or str(LAYOUT.cache) in command:
            found.add(f"{entry.name} {command}")
    return found


def _sockets() -> set[str]:
    names = ("containerd", "kubelet", "etcd", str(LAYOUT.cache))
    paths = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    return {path for path in paths if any(name in path for name in names)}


def _files() -> set[str]:
    """Return folders that Kubernetes uses, and Headgate's folders that are removed with the cluster."""
    folders = (
        "/run",
        "/run/netns",
        "/var/lib",
        "/var/lib/cni",
        "/var/lib/kubelet",
        "/var/log",
        "/etc",
        "/etc/cni",
    )
    here = {str(path) for folder in folders if Path(folder).is_dir() for path in Path(folder).iterdir()}
    return here | ({str(LAYOUT.run)} if LAYOUT.run.exists() else set())


def _kernel() -> set[str]:
    """Settings of the whole machine that a kubelet or kube-proxy would like to change."""
    names = (
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/keys/root_maxkeys",
        "kernel/keys/root_maxbytes",
        "net/ipv4/ip_forward",
        "net/netfilter/nf_conntrack_max",
    )
    there = [Path("/proc/sys") / name for name in names]
    return {f"{path}={path.read_text().strip()}" for path in there if path.exists()}
