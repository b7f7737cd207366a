"""`python -m tools.images build [--push PREFIX] [--load]` (from the checkout)."""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import time

from tools.cluster import components, state, up
from tools.cluster import settings as cluster_settings
from tools.cluster.settings import ClusterError

from . import archive, bare, engine, settings
from .say import complain, say, step
from .settings import Layout


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code: 0, 1 with an error on stderr, or 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.images", description="Headgate's images, from the Dockerfile."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    built = commands.add_parser("build", help="build the images that changed")
    built.add_argument("--push", metavar="PREFIX", help="push the images to registry/prefix")
    built.add_argument(
        "--load",
        action="store_true",
        help="load the images into the cluster of `make cluster` if it is running",
    )
    built.add_argument(
        "--bare", action="store_true", help="build without a container engine, even if one answers"
    )
    built.add_argument(
        "--base", metavar="IMAGE", help="base image instead of the Dockerfile's (with an engine)"
    )
    asked = parser.parse_args(arguments)
    begun = time.monotonic()
    try:
        layout = settings.layout(os.environ)
        layout.cache.mkdir(parents=True, exist_ok=True)
        with (layout.cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            program = None if asked.bare else engine.find()
            if program:
                _with_engine(program, layout, asked)
            else:
                _without(layout, asked)
    except ClusterError as error:
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    say(f"done after {time.monotonic() - begun:.1f} s")
    return 0


def _with_engine(program: str, layout: Layout, asked: argparse.Namespace) -> None:
    built = engine.build(program, asked.base)
    if asked.push:
        prefix = asked.push.rstrip("/")
        _report_pushed(engine.push(program, built, prefix), prefix)
    if asked.load and (target := _own_cluster()):
        up.load(target, engine.save(program, built, layout.cache / "saved"))


def _without(layout: Layout, asked: argparse.Namespace) -> None:
    bare.dependencies(layout, settings.IMAGES[0])
    with step("sources, compiled"):
        top = bare.sources(layout)
    target = _own_cluster() if asked.load else None
    prefix, pushed = (asked.push or "").rstrip("/"), list[str]()
    for name in settings.IMAGES:
        bare.dependencies(layout, name)
        source = layout.dependencies(name)
        base = archive.read(source)
        image = archive.Made(name, settings.names(name, bare.content_tag(base, top)), base, top)
        say(f"{image.tags[0]} ({image.size / 1e6:.0f} MB)")
        if asked.push:
            whole = layout.cache / f"{name}.tar"
            archive.stacked(image, source, whole)
            references = [f"{prefix}/{tag}" for tag in image.tags]
            bare.push(layout, whole, references)
            whole.unlink()
            pushed += references
        if target:
            _load(target, layout, image)
    bare.forget(layout)
    if pushed:
        _report_pushed(pushed, prefix)


def _report_pushed(references: list[str], prefix: str) -> None:
    for reference in references:
        say(f"pushed {reference}")
    say(f"install it: {settings.helm_command(prefix)}")


def _own_cluster() -> cluster_settings.Layout | None:
    """Return the cluster of `make cluster`, or None when it is not running."""
    found = cluster_settings.layout(os.environ)
    if state.runs(state.read(found)):
        return found
    say("the cluster of `make cluster` is not running: nothing is loaded")
    return None


def _load(target: cluster_settings.Layout, layout: Layout, image: archive.Made) -> None:
    """Load the dependencies once, then only the layer that changed. kind cannot do this and gets the whole image."""
    known = state.read(target)
    source = layout.dependencies(image.name)
    if known is not None and known.kind == state.KIND:
        whole = layout.cache / f"{image.name}.tar"
        archive.stacked(image, source, whole)
        up.load(target, [whole])
        whole.unlink()
        return
    library = bare.library(source, image.name)
    there = _there(target)
    if f"{library}{image.name}-deps:{settings.dependency_hash()}" not in there:
        up.load(target, [source])
    if f"{library}{image.tags[0]}" in there and _same(target, library, image.tags):
        return
    changed = layout.cache / f"{image.name}.thin.tar"
    archive.thin(image, library, changed)
    up.load(target, [changed])
    changed.unlink()


def _ctr(target: cluster_settings.Layout, *words: str) -> str:
    command = up.inside(target, [*components.CTR, *words])
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _there(target: cluster_settings.Layout) -> set[str]:
    return set(_ctr(target, "images", "ls", "-q").split())


def _same(target: cluster_settings.Layout, library: str, names: tuple[str, ...]) -> bool:
    """Return whether the cluster has all names and they refer to one image."""
    rows = [line.split() for line in _ctr(target, "images", "ls").splitlines()]
    digests = {row[0]: row[2] for row in rows if len(row) > 2}
    found = {digests.get(f"{library}{name}") for name in names}
    return len(found) == 1 and None not in found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
