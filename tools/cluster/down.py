"""Takes the cluster away: ends its first process, and with it every other one, every mount and the network; then what lies on disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from . import groups, network, processes, settings, state
from .say import say, step
from .settings import ClusterError, Layout


def down(layout: Layout) -> None:
    """Idempotent; leaves only the cache of binaries and images.

    Raises ClusterError when something of ours could not be removed, and names it.
    """
    known = state.read(layout)
    if known is None and not layout.run.exists():
        if os.geteuid() == 0 and groups.remove_abandoned():
            say("removed the control groups of a node that ended without `make cluster-down`")
        say("nothing is up")
        return
    if known is not None and known.kind == state.KIND:
        with step("deleting the kind cluster"):
            subprocess.run(
                ["kind", "delete", "cluster", "--name", settings.NODE], check=False, capture_output=True
            )
    else:
        if os.geteuid() != 0:
            raise ClusterError("the cluster was started by root, so only root can remove it")
        with step("ending the node with all its processes, mounts and links"):
            remove_node(layout, known)
    shutil.rmtree(layout.run)
    say(f"down; what was built stays in {layout.cache}")


def remove_node(layout: Layout, known: state.State | None) -> None:
    """Everything of a node that may be there, whole or in part; the folder stays."""
    groups.thaw()
    if known is not None and known.process is not None:
        processes.end(known.process)
    network.remove()
    groups.remove()
    mounted = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {layout.run}" in line
    ]
    if mounted:
        raise ClusterError(f"mounts below {layout.run} are still there and were left alone: {mounted[0]}")
