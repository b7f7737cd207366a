"""`python -m tools.cluster up | down | status | build | load FILE… | exec COMMAND…` (from the checkout)."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import build, settings, state
from .down import down
from .say import complain, say
from .settings import ClusterError, Layout
from .up import facts, inside, load, up

USAGE_ERROR = 2


def main(arguments: list[str]) -> int:
    """0 when what was asked for is so; 1 with a sentence on stderr; that of the command for `exec`."""
    asked = _parser().parse_args(arguments)
    try:
        layout = settings.layout(os.environ)
        if asked.command == "status":
            print(json.dumps(facts(layout), indent=2))
            return 0 if state.runs(state.read(layout)) else 1
        if asked.command == "exec":
            return subprocess.run(inside(layout, asked.words), check=False).returncode
        with _alone(layout):
            if asked.command == "up":
                up(layout, bare=asked.bare)
            elif asked.command == "down":
                down(layout)
            elif asked.command == "build":
                build.build_missing(layout)
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
        prog="python -m tools.cluster", description="A Kubernetes of one node, for tests."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    started = commands.add_parser(
        "up", help="use the given cluster or kind, else build (once) and start one here"
    )
    started.add_argument("--bare", action="store_true", help="one on this machine, whatever else is there")
    commands.add_parser("down", help="take it away; nothing is left but the cache")
    commands.add_parser(
        "status", help="is it up? with the process id of each of its programs; exit code 1 if not"
    )
    commands.add_parser("build", help="only build what is missing in the cache")
    loaded = commands.add_parser("load", help="give images to the node")
    loaded.add_argument(
        "archives", nargs="+", type=Path, metavar="FILE", help="an archive as `docker save` writes it"
    )
    done = commands.add_parser("exec", help="run a command in the node's namespaces")
    done.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    return parser


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """One at a time for each cache."""
    layout.cache.mkdir(parents=True, exist_ok=True)
    with (layout.cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another one that is at it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
