"""Start a cluster: the given one, kind's, or a node on this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import (
    build,
    certificates,
    components,
    files,
    groups,
    images,
    manifests,
    network,
    packages,
    processes,
    settings,
    state,
)
from .command import run
from .down import remove_node
from .say import complain, say, step
from .settings import ClusterError, Layout

ROOT = Path(__file__).resolve().parents[2]
NODE_LIMIT_S = 120.0  # until all programs of the node have started; usually 5 to 10
WORKING_LIMIT_S = 90  # until the node is Ready and names resolve
KIND_LIMIT = "180s"
POLL_S = 0.05
UNSHARE = ["unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--mount", "--propagation", "private", "--uts"]  # fmt: skip
LOG_LINES = 8  # of each program; shown when the start fails


def up(layout: Layout, *, bare: bool, nodes: int = 1) -> None:
    """Start the cluster unless it is running, and print its kubeconfig. Raises ClusterError with what is missing or failed."""
    begun = time.monotonic()
    choice = state.choose(os.environ, layout.kubeconfig, kind_works=_kind_works(), bare=bare)
    known = state.read(layout)
    if choice.kind != state.OWN and nodes > 1:
        raise ClusterError(f"--nodes {nodes} needs a cluster on this machine, but {choice.why}: add --bare")
    if choice.kind == state.GIVEN:
        _check_given(layout, choice)
        return
    if _is_whole(layout, known):
        if nodes > 1 and not (layout.run / settings.SECOND.folder).exists():
            raise ClusterError("the running cluster has one node: `make cluster-down` first")
        say("already running")
    elif choice.kind == state.KIND:
        _up_kind(layout)
    else:
        _up_own(layout, known, nodes)
    say(f"ready after {time.monotonic() - begun:.0f} s. Remove it with `make cluster-down`. To use it:")
    say(f"  export KUBECONFIG={layout.kubeconfig} PATH={layout.binaries}:$PATH")


def kubectl(layout: Layout, *arguments: str, text: str = "") -> str:
    """Run kubectl against this cluster and return stdout. Raises ClusterError with its error."""
    command = [_kubectl(layout) or "kubectl", "--kubeconfig", str(layout.kubeconfig), *arguments]
    return run(command, text=text, named=shlex.join(["kubectl", *arguments]))


def load(layout: Layout, archives: Sequence[Path]) -> None:
    """Load images (archives of `docker save` or `buildah push … docker-archive:`) into the cluster's node.

    Raises ClusterError when the cluster is not running or an archive is not an image.
    """
    known = state.read(layout)
    if known is None or not state.runs(known):
        raise ClusterError("the cluster is not running: run `make cluster` first")
    for archive in archives:
        with step(f"loading {archive}"):
            commands = [["kind", "load", "image-archive", str(archive), "--name", settings.NODE]]
            if known.kind != state.KIND:
                imported = [*components.CTR, "images", "import", "-"]
                commands = [inside(layout, imported, node) for node in state.nodes(layout)]
            for command in commands:
                with archive.open("rb") as content:
                    done = subprocess.run(command, stdin=content, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise ClusterError(f"{archive} could not be loaded: {done.stderr.strip()}")


def inside(layout: Layout, command: Sequence[str], node: str = settings.NODE) -> list[str]:
    """Return the command to run on the host so that `command` runs in the node's namespaces. Raises ClusterError without a node."""
    if (first := state.nodes(layout).get(node)) is None:
        raise ClusterError(f"the node {node} is not running: run `make cluster` first")
    return ["nsenter", "--target", str(first), "--mount", "--net", "--pid", "--uts", "--", *command]


def _is_whole(layout: Layout, known: state.State | None) -> bool:
    """Return whether the cluster is running and its `up` was not killed half-way."""
    if known is None or not state.runs(known):
        return False
    return known.kind == state.KIND or (layout.run / "whole").exists()


def _check_given(layout: Layout, choice: state.Choice) -> None:
    """Check that a given cluster answers. Nothing in it is changed."""
    if (program := _kubectl(layout)) is None:
        raise ClusterError(f"{choice.why}, but kubectl is not on PATH")
    environment = {**os.environ, "KUBECONFIG": choice.kubeconfig}
    command = [program, "--request-timeout=10s", "get", "--raw", "/readyz"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(
            f"{choice.why} ({choice.kubeconfig}), but that cluster does not answer: {done.stderr.strip()}. "
            f"Fix the variable or unset it; without it, `make cluster` starts a cluster on this machine."
        )
    say(f"{choice.why}: the cluster of {choice.kubeconfig} answers and is used as it is")


def _kind_works() -> bool:
    if shutil.which("kind") is None:
        return False
    try:
        done = subprocess.run(["kind", "get", "clusters"], capture_output=True, check=False, timeout=20)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _up_kind(layout: Layout) -> None:
    """Start a kind cluster, or reuse the one of this name. kind has its own node image, DNS and storage class."""
    layout.run.mkdir(parents=True, exist_ok=True)
    there = subprocess.run(
        ["kind", "get", "clusters"], capture_output=True, text=True, check=True
    ).stdout.split()
    config = ["--name", settings.NODE, "--kubeconfig", str(layout.kubeconfig)]
    verb = ["export", "kubeconfig"] if settings.NODE in there else ["create", "cluster", "--wait", KIND_LIMIT]
    with step(f"kind {' '.join(verb[:2])}"):
        run(["kind", *verb, *config])
    state.write(layout, state.State(state.KIND))


def _up_own(layout: Layout, known: state.State | None, nodes: int) -> None:
    """Check, build, start, wait. If anything fails, only the node's logs stay."""
    if reason := refusal(sys.platform, os.geteuid()):
        raise ClusterError(reason)
    if known is not None or layout.run.exists():
        remove_node(layout, known)
        files.remove(layout.run)
    packages.install_missing()
    build.build_missing(layout)
    archives = images.prepared(layout)
    network.refuse_conflict()
    _check_overlay(layout)
    try:
        _start_node(layout, [a.name for a in archives], nodes)
        _furnish(layout, nodes)
        (layout.run / "whole").touch()
    except BaseException:
        _keep_logs(layout)
        remove_node(layout, state.read(layout))
        files.remove(layout.run)
        raise


def refusal(platform: str, user: int) -> str | None:
    """Return why this user cannot start a cluster on this machine, or None."""
    if platform == "linux" and user == 0:
        return None
    lacking = "Linux" if platform != "linux" else "root (namespaces, control groups, a network link)"
    return f"a cluster on the bare machine needs {lacking}; otherwise set KUBECONFIG to a cluster, or install kind"


def _check_overlay(layout: Layout) -> None:
    """Check that containers can have overlay file systems. Raises ClusterError."""
    if "overlay" not in Path("/proc/filesystems").read_text():
        subprocess.run([packages.find("modprobe") or "modprobe", "overlay"], capture_output=True, check=False)
    if "overlay" not in Path("/proc/filesystems").read_text():
        raise ClusterError("this kernel has no overlay file system, which containers need")
    kind = file_system(layout.cache, Path("/proc/self/mountinfo").read_text())
    if kind == "overlay":
        raise ClusterError(
            f"{layout.cache} is on an overlay file system, on which containers cannot have another: "
            f"set XDG_CACHE_HOME to a folder on a disk"
        )


def file_system(path: Path, mountinfo: str) -> str:
    """Return the type of the file system that contains `path`, from the text of /proc/self/mountinfo. If a mount point has two, the later one
    counts."""
    best, found = -1, ""
    for line in mountinfo.splitlines():
        own, _, after = line.partition(" - ")
        point = Path(own.split(" ")[4])
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, found = len(point.parts), after.split(" ")[0]
    return found


def _start_node(layout: Layout, archives: Sequence[str], nodes: int) -> None:
    """Write keys and configuration, create namespaces and the link. The node then starts its programs by itself."""
    layout.logs.mkdir(parents=True)
    layout.run.chmod(0o755)
    with step("certificates and configuration"):
        certificates.write_all(layout.run / "pki", layout.kubeconfig)
        first, second = settings.FIRST, settings.SECOND
        command = [*UNSHARE, sys.executable, "-m", "tools.cluster.node", str(layout.cache), second.folder]
        _configure(layout, first, nodes, components.plan(archives, second=command if nodes > 1 else ()))
        if nodes > 1:
            (layout.run / second.folder / "logs").mkdir(parents=True)
            _configure(layout, second, nodes, components.second_plan(archives))
    with step("node: etcd, containerd, images, API server, kubelet, controller manager, scheduler, proxy"):
        groups.create(nodes)
        process = _unshare(layout)
        state.write(layout, state.State(state.OWN, process))
        network.hand_over(_first_of(process, layout))
        _wait_for_node(layout, process)


def _configure(layout: Layout, node: settings.Node, nodes: int, plan: dict[str, Any]) -> None:
    plugins = packages.cni_folder() or packages.CNI_FOLDERS[0]
    for name, text in components.configurations(plugins, node, nodes=nodes).items():
        target = layout.run / "config" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    (layout.run / node.folder / "plan.json").write_text(json.dumps(plan, indent=2))


def _unshare(layout: Layout) -> processes.Process:
    """Start the node's first process and return its parent. When the parent dies, so does the node (--kill-child)."""
    command = [*UNSHARE, "--net", sys.executable, "-m", "tools.cluster.node", str(layout.cache)]
    environment = {
        "PATH": packages.SYSTEM_PATH,
        "HOME": "/",
        "PYTHONDONTWRITEBYTECODE": "1",
        **components.GO_ENVIRONMENT,
    }
    with (layout.logs / "node.log").open("wb") as log:
        started = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    if (found := processes.identify(started.pid)) is None:
        raise ClusterError(f"`unshare` exited at once: {(layout.logs / 'node.log').read_text().strip()}")
    return found


def _first_of(process: processes.Process, layout: Layout) -> int:
    limit = time.monotonic() + NODE_LIMIT_S
    while processes.alive(process) and time.monotonic() < limit:
        if found := processes.children(process.pid):
            return found[0]
        time.sleep(POLL_S)
    raise ClusterError(
        f"the node's first process did not start: {(layout.logs / 'node.log').read_text().strip()}"
    )


def _wait_for_node(layout: Layout, process: processes.Process) -> None:
    limit = time.monotonic() + NODE_LIMIT_S
    while not (report := state.node(layout)).get("ready"):
        if report.get("failed"):
            raise ClusterError(f"the node did not start: {report['failed']}")
        if not processes.alive(process):
            raise ClusterError("the node's first process exited")
        if time.monotonic() > limit:
            raise ClusterError(f"the node did not start within {NODE_LIMIT_S:.0f} s")
        time.sleep(POLL_S)


def _furnish(layout: Layout, nodes: int) -> None:
    """Create DNS and volumes, then wait until the cluster is usable."""
    limit = f"--timeout={WORKING_LIMIT_S}s"
    with step("CoreDNS and static volumes"):
        kubectl(layout, "create", "--validate=false", "-f", "-", text=manifests.everything())
    with step("waiting until the node is Ready and names resolve"):
        there = [f"node/{node.name}" for node in (settings.FIRST, settings.SECOND)[:nodes]]
        for awaited in (*there, "serviceaccount/default"):
            kubectl(layout, "wait", "--for=create", awaited, limit)
        kubectl(layout, "wait", "--for=condition=Ready", *there, limit)
        kubectl(layout, "-n", manifests.SYSTEM, "rollout", "status", f"deployment/{manifests.COREDNS}", limit)


def _keep_logs(layout: Layout) -> None:
    """Show the end of each log and keep the logs in the cache."""
    kept = layout.cache / "failed-logs"
    shutil.rmtree(kept, ignore_errors=True)
    if not layout.logs.exists():
        return
    shutil.copytree(layout.logs, kept)
    for log in sorted(kept.glob("*.log")):
        if lines := log.read_text(errors="replace").splitlines()[-LOG_LINES:]:
            complain(f"--- {log}")
            complain("\n".join(lines))


def _kubectl(layout: Layout) -> str | None:
    """Return the cache's kubectl, which has the cluster's version, or else that on PATH."""
    own = layout.binaries / "kubectl"
    return str(own) if own.exists() else shutil.which("kubectl")


def facts(layout: Layout) -> dict[str, Any]:
    """Return the facts that `status` prints."""
    known = state.read(layout)
    return {
        "up": state.runs(known),
        "kind": known.kind if known else None,
        "kubeconfig": str(layout.kubeconfig) if state.runs(known) else None,
        "programs": state.programs(layout),
        "restarts": state.node(layout).get("restarts", {}),
    }
