"""`python -m tools.cluster up | down | status | packages | build | prepare | load FILE… | exec COMMAND…` (from the checkout)."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import build, packages, settings, state
from .down import down
from .say import complain, say
from .settings import ClusterError, Layout
from .up import ROOT, facts, inside, load, refusal, up


def main(arguments: list[str]) -> int:
    """Run a command and return its exit code: 0, 1 with an error on stderr, or that of the program for `exec`."""
    asked = _parser().parse_args(arguments)
    try:
        layout = settings.layout(os.environ)
        if asked.command == "status":
            print(json.dumps(facts(layout), indent=2))
            return 0 if state.runs(state.read(layout)) else 1
        if asked.command == "exec":
            return subprocess.run(inside(layout, asked.words, asked.node), check=False).returncode
        with _alone(layout):
            if asked.command == "up":
                up(layout, bare=asked.bare, nodes=asked.nodes)
            elif asked.command == "down":
                down(layout)
            elif asked.command == "packages":
                _packages()
            elif asked.command == "build":
                build.build_missing(layout)
            elif asked.command == "prepare":
                _prepare(layout)
            else:
                load(layout, asked.archives)
    except ClusterError as error:
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.cluster", description="A Kubernetes of one or two nodes for tests."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    started = commands.add_parser(
        "up", help="use the given cluster or kind, or else build (once) and start one on this machine"
    )
    started.add_argument(
        "--bare",
        action="store_true",
        help="start one on this machine, even if a cluster is given or kind is available",
    )
    started.add_argument(
        "--nodes", type=int, choices=(1, 2), default=1, help="how many; two only on this machine (default: 1)"
    )
    commands.add_parser("down", help="remove the cluster; only the cache stays")
    commands.add_parser(
        "status",
        help="show whether it is running, and the process id of each program; exit code 1 if it is not",
    )
    commands.add_parser(
        "packages", help="only install the Debian packages; does nothing without root or on another system"
    )
    commands.add_parser("build", help="only build what is missing in the cache")
    commands.add_parser(
        "prepare",
        help="build what `up` and the images need, with progress; does nothing where a cluster is not possible",
    )
    loaded = commands.add_parser("load", help="load images into the node")
    loaded.add_argument(
        "archives", nargs="+", type=Path, metavar="FILE", help="an archive written by `docker save`"
    )
    done = commands.add_parser("exec", help="run a command in a node's namespaces")
    done.add_argument(
        "--node", default=settings.NODE, help=f"{settings.NODE} (default) or {settings.SECOND.name}"
    )
    done.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    return parser


def _hindrance(layout: Layout) -> str | None:
    """Return why this machine cannot run its own cluster, or None if it can."""
    if reason := refusal(sys.platform, os.geteuid()):
        return reason
    try:
        if build.missing(layout):
            build.find_go(os.environ.get("PATH", ""))
    except ClusterError as error:
        return str(error)
    return None


def _packages() -> None:
    """Install the Debian packages. The tests of packet faults need them too, without a cluster."""
    if reason := refusal(sys.platform, os.geteuid()):
        say(f"no Debian package is installed, tests that need one will be skipped: {reason}")
    elif packages.find("apt-get") is not None:
        packages.install_missing()


def _prepare(layout: Layout) -> None:
    """Build everything that takes long the first time, before tests with a time limit need it. Raises ClusterError when a build fails."""
    choice = state.choose(
        os.environ, layout.kubeconfig, kind_works=shutil.which("kind") is not None, bare=False
    )
    if choice.kind == state.GIVEN:
        return
    if choice.kind == state.OWN and not state.runs(state.read(layout)):
        if reason := _hindrance(layout):
            say(f"nothing is prepared, tests that need a cluster will be skipped: {reason}")
            return
        packages.install_missing()
        build.build_missing(layout)
    command = [sys.executable, "-m", "tools.images", "build"]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise ClusterError("the images could not be built: see the lines above")


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """Let one command at a time use a cache."""
    layout.cache.mkdir(parents=True, exist_ok=True)
    with (layout.cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another command that uses the cache")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
