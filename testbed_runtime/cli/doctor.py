"""`headgate doctor`: check what this machine is missing."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import typer

from testbed_runtime.cli import access, cluster_doctor, exits
from testbed_runtime.cli.cluster_doctor import BAD, GOOD, WARNING, Finding, noted
from testbed_runtime.cli.options import DEFAULT_OUT
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.vocabulary import PACKET_BACKENDS
from testbed_runtime.process.clock import BOOT_ID
from testbed_runtime.process.machine import cores

MIN_CORES = 2
"""Minimum cores. With fewer, a JobManager, its TaskManagers and the recorder disturb each other's measurements."""
MIN_FREE_BYTES = 1 << 30
"""Minimum free disk space for the folders of runs: 1 GiB. A trial records some ten MiB."""
NAME_WIDTH = 15
"""Characters: the longest name and two spaces."""
LATE_S = 0.005
"""If a sleep of 1 ms takes longer, timers here are too inexact for latencies of milliseconds."""


def doctor(
    namespace: access.Namespace = "", context: access.Context = "", kubeconfig: access.Kubeconfig = ""
) -> None:
    """Check this machine and the cluster of the kubeconfig, and explain each finding.

    With --namespace, --context or --kubeconfig, the cluster comes first, and problems of this machine are only notes: runs in a
    cluster do not need it."""
    login = access.Access(namespace, context, kubeconfig)
    in_cluster = cluster_doctor.findings(login)
    here = [check() for check in CHECKS]
    findings = [*in_cluster, *map(noted, here)] if login.given else [*here, *in_cluster]
    for item in findings:
        typer.echo(
            f"{item.level:>4}  {item.name:<{NAME_WIDTH}}{item.found}\n{'':<{6 + NAME_WIDTH}}{item.means}"
        )
    bad = any(item.level == BAD for item in findings)
    typer.echo("\nfix what is marked BAD" if bad else "\nscenarios can run here")
    raise typer.Exit(exits.ERROR if bad else exits.PASS)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    level = GOOD if sys.version_info >= (3, 11) else BAD
    return Finding("Python", level, version, "3.11 or newer is needed")


def _java() -> Finding:
    from testbed_runtime.evaluation.session import JAVA_MINIMUM, find_java

    try:
        found = find_java(os.environ)
    except HeadgateError as error:
        return Finding("Java", BAD, "none usable", str(error))
    means = f"the evaluation (Spark) needs {JAVA_MINIMUM} or newer"
    return Finding("Java", GOOD, f"{found.version} ({found.binary})", means)


def _spark() -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Finding("Spark", GOOD, f"pyspark {version('pyspark')}", "evaluates the recorded histories")
    except PackageNotFoundError:
        return Finding("Spark", BAD, "none", "install headgate[spark]: without it there is no verdict")


def _cores() -> Finding:
    found = cores()
    level = GOOD if found >= MIN_CORES else WARNING
    means = "every process of a testbed shares them; with one, control runs become unstable"
    return Finding("cores", level, str(found), means)


def _load() -> Finding:
    load = os.getloadavg()[0]
    busy = load > (os.cpu_count() or 1)
    return Finding(
        "load",
        WARNING if busy else GOOD,
        f"{load:.1f}",
        "other programs are busy here: more tasks wait than there are cores, so expect Inconclusive (ControlUnstable)"
        if busy
        else "this machine is mostly idle",
    )


def _disk() -> Finding:
    runs = Path.cwd() / DEFAULT_OUT
    free = f"{(bytes_free := shutil.disk_usage(Path.cwd()).free) / 2**30:.1f} GiB free here"
    if not os.access(runs if runs.exists() else runs.parent, os.W_OK, effective_ids=True):
        hint = f"runs are recorded under {DEFAULT_OUT}/: go to another folder, or name one with --out"
        return Finding("disk", WARNING, f"{free}, but this account cannot write here", hint)
    level = GOOD if bytes_free >= MIN_FREE_BYTES else WARNING
    return Finding("disk", level, free, f"runs are recorded under {DEFAULT_OUT}/")


def _ports() -> Finding:
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            port = listener.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=2):
                means = "all traffic of a local run stays on 127.0.0.1, on free ports"
                return Finding("loopback", GOOD, "connects", means)
    except OSError as error:
        return Finding(
            "loopback", BAD, str(error), "processes on this machine cannot reach each other on 127.0.0.1"
        )


def _clock() -> Finding:
    started = time.monotonic()
    rounds = 20
    for _ in range(rounds):
        time.sleep(0.001)
    took = (time.monotonic() - started) / rounds
    level = GOOD if took < LATE_S else WARNING
    means = "faults and heartbeats cannot be more exact than this"
    return Finding("timers", level, f"a sleep of 1 ms takes {took * 1e3:.2f} ms", means)


def _boot_id() -> Finding:
    level = GOOD if BOOT_ID.exists() else WARNING
    means = "with it, the times of all processes here can be compared exactly"
    return Finding("boot id", level, "available" if level == GOOD else "none", means)


def _signals() -> Finding:
    means = "channel, proxy and process faults need no privilege"
    return Finding("permissions", GOOD, "root" if os.geteuid() == 0 else "no root", means)


def _packets() -> Finding:
    """Check what `run` checks before it refuses a packet fault."""
    from testbed_runtime.local import packets

    offered = asyncio.run(packets.capabilities())
    available = [name for name in PACKET_BACKENDS if name in offered.backends]
    if available:
        means = "network.loss and the like can run here: each process gets a network of its own"
        return Finding("packet faults", GOOD, ", ".join(available), means)
    reasons = dict.fromkeys(offered.missing[name] for name in PACKET_BACKENDS)
    return Finding("packet faults", WARNING, "none", f"network.loss cannot run here: {'; '.join(reasons)}")


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python, _java, _spark, _cores, _load, _disk, _ports, _clock, _boot_id, _signals, _packets,
)  # fmt: skip
