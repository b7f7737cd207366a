"""The cluster's control groups: one below each controller of v1, or one in the tree of v2."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from . import settings
from .settings import ClusterError

V2_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")
EMPTY_LIMIT_S = 10.0  # until the kernel has let go of the processes that were killed
RETRY_S = 0.05
MOUNT_POINT = 4  # field of a line of /proc/self/mountinfo
DEFAULT_SHARES = {"cpu.shares": 1024, "cpu.weight": 100}  # of one process, in v1 and in v2
PODS_AS_PROCESSES = 8
"""On a busy machine, all pods together get the processor share of this many processes. By default they would get the share of one, and
every program of the cluster and every process of a test would count as much as all pods together."""


def mounts(mountinfo: str) -> list[tuple[Path, str]]:
    """Return (mount point, `cgroup` or `cgroup2`) of every hierarchy, from the text of /proc/self/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        own, _, after = line.partition(" - ")
        if (kind := after.split(" ")[0]) in {"cgroup", "cgroup2"}:
            found.append((Path(own.split(" ")[MOUNT_POINT]), kind))
    return found


def create(nodes: int = 1) -> None:
    """Create the group for each kubelet's pods. Raises ClusterError where control groups are not usable."""
    there = mounts(Path("/proc/self/mountinfo").read_text())
    if not there:
        raise ClusterError("no control groups are mounted at /sys/fs/cgroup, and a kubelet needs them")
    only_v2 = all(kind == "cgroup2" for _, kind in there)
    try:
        for point, kind in there:
            if only_v2:
                _enable(point)
            if only_v2 or kind == "cgroup":
                (point / settings.CGROUP).mkdir(exist_ok=True)
                give_shares(point / settings.CGROUP)
                if nodes > 1:  # a kubelet removes unknown groups within its own group
                    (point / settings.CGROUP / settings.SECOND.folder).mkdir(exist_ok=True)
    except OSError as error:
        raise ClusterError(f"control groups cannot be created: {error}") from error


def _enable(point: Path) -> None:
    """Enable the v2 controllers that a kubelet needs and the root does not delegate yet."""
    offered = (point / "cgroup.controllers").read_text().split()
    given = (point / "cgroup.subtree_control").read_text().split()
    for controller in V2_CONTROLLERS:
        if controller in offered and controller not in given:
            (point / "cgroup.subtree_control").write_text(f"+{controller}")


def give_shares(group: Path) -> None:
    """Set the processor shares of a group that has them (only one of the v1 hierarchies does)."""
    for name, one in DEFAULT_SHARES.items():
        if (group / name).exists():
            (group / name).write_text(str(PODS_AS_PROCESSES * one))


def thaw() -> None:
    """Thaw all v1 groups: a frozen process cannot be killed."""
    for top in _tops():
        for state in top.rglob("freezer.state"):
            state.write_text("THAWED")


def remove() -> None:
    """Remove the cluster's groups, deepest first. Raises ClusterError if one is still in use after EMPTY_LIMIT_S."""
    limit = time.monotonic() + EMPTY_LIMIT_S
    while left := [top for top in _tops() if not _removed(top)]:
        if time.monotonic() > limit:
            raise ClusterError(f"control groups are still in use: {', '.join(map(str, left))}")
        time.sleep(RETRY_S)


def remove_abandoned() -> bool:
    """Remove the groups of a node that was killed without `down`: there is no node, and no process in them."""
    tops = _tops()
    if Path(
        "/sys/class/net", settings.HOST_LINK
    ).exists():  # a running node has this link, perhaps that of another cache
        return False
    if not tops or any(listed.read_text().strip() for top in tops for listed in top.rglob("cgroup.procs")):
        return False
    remove()
    return True


def _tops() -> Sequence[Path]:
    there = mounts(Path("/proc/self/mountinfo").read_text())
    return [point / settings.CGROUP for point, _ in there if (point / settings.CGROUP).is_dir()]


def _removed(top: Path) -> bool:
    below = sorted((p for p in top.rglob("*") if p.is_dir()), key=lambda p: len(p.parts), reverse=True)
    try:
        for folder in [*below, top]:
            folder.rmdir()
    except OSError:
        return False
    return True
