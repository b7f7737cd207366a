"""Remove the cluster: kill its first process, and with it all others, its mounts and its network; then delete its files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from . import files, groups, network, processes, settings, state
from .say import say, step
from .settings import ClusterError, Layout


def down(layout: Layout) -> None:
    """Remove the cluster if it exists. Only the cache of programs and images stays.

    Raises ClusterError that names what could not be removed.
    """
    known = state.read(layout)
    if known is None and not layout.run.exists():
        if os.geteuid() == 0 and groups.remove_abandoned():
            say("removed the control groups of a node that was killed without `make cluster-down`")
        say("no cluster is running")
        return
    if known is not None and known.kind == state.KIND:
        with step("deleting the kind cluster"):
            subprocess.run(
                ["kind", "delete", "cluster", "--name", settings.NODE], check=False, capture_output=True
            )
    else:
        if os.geteuid() != 0:
            raise ClusterError("the cluster was started by root, so only root can remove it")
        with step("stopping the node with all its processes, mounts and links"):
            remove_node(layout, known)
    files.remove(layout.run)
    say(f"removed; the build results stay in {layout.cache}")


def remove_node(layout: Layout, known: state.State | None) -> None:
    """Remove everything of a node, even a partly started one, except its folder."""
    groups.thaw()
    if known is not None and known.process is not None:
        processes.end(known.process)
    network.remove()
    groups.remove()
    mounted = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {layout.run}" in line
    ]
    if mounted:
        raise ClusterError(f"mounts below {layout.run} still exist and were not touched: {mounted[0]}")
