"""Install the Debian packages for the node and for building images, unless their programs already exist."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from .command import run
from .say import say, step
from .settings import ClusterError, Layout

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("ptp", "host-local", "portmap", "loopback")


@dataclass(frozen=True)
class Package:
    """A Debian package, a program that shows it is installed, and why it is needed."""

    name: str
    program: str
    why: str


PACKAGES = (
    Package("containerd", "containerd", "runs the containers"),
    Package("runc", "runc", "starts them"),
    Package("containernetworking-plugins", "", "connects pods"),
    Package("iptables", "iptables", "kube-proxy's rules, in the node's own network namespace"),
    Package("nftables", "nft", "rules of packet faults"),
    Package("openssl", "openssl", "the cluster's certificates"),
    Package("iproute2", "ip", "the link to the node"),
    Package("debootstrap", "debootstrap", "a base image without a registry"),
    Package("buildah", "buildah", "images from the Dockerfile without a container engine"),
)


def find(program: str) -> str | None:
    """Return the path of a system program, also if sbin is not on PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def cni_folder() -> Path | None:
    """Return the folder with all needed network plugins, or None."""
    for folder in CNI_FOLDERS:
        if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
            return folder
    return None


def missing() -> list[Package]:
    """Return the packages to install. A program from another source (Docker's containerd) counts as installed."""
    return [p for p in PACKAGES if (cni_folder() if not p.program else find(p.program)) is None]


def install_missing() -> None:
    """Install with apt; nothing is removed. Raises ClusterError when that is not possible."""
    wanted = missing()
    if not wanted:
        return
    names = " ".join(p.name for p in wanted)
    if find("apt-get") is None:
        lacking = ", ".join(f"{p.program or p.name} ({p.why})" for p in wanted)
        raise ClusterError(f"missing, and this is not Debian, so they cannot be installed: {lacking}")
    for package in wanted:
        say(f"Debian package {package.name}: {package.why}")
    with step(f"installing {names}"):
        _apt(["update", "-qq"])
        _apt(["install", "-y", "-qq", "--no-install-recommends", "--no-remove", *(p.name for p in wanted)])
    if left := missing():
        raise ClusterError(f"still missing after the installation: {' '.join(p.name for p in left)}")


def extracted(layout: Layout, package: str, file: str) -> Path:
    """Return one file of a Debian package for an image. It is downloaded into the cache, the package is not installed.

    Raises ClusterError when the package is not available.
    """
    folder = layout.images / package
    wanted = folder / file
    if wanted.exists():
        return wanted
    if find("apt-get") is None or find("dpkg-deb") is None:
        raise ClusterError(
            f"{file} of Debian's package {package} is needed for an image, but apt-get or dpkg-deb is missing"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with step(f"fetching Debian's {package}"):
        try:
            _apt(["download", "-qq", package], folder)
        except ClusterError:  # the package lists may be old or missing
            _apt(["update", "-qq"])
            _apt(["download", "-qq", package], folder)
        archive = next(folder.glob("*.deb"))
        run(["dpkg-deb", "-x", str(archive), str(folder)])
        archive.unlink()
    if not wanted.exists():
        raise ClusterError(f"Debian's package {package} has no {file} on this machine")
    return wanted


def _apt(arguments: list[str], folder: Path | None = None) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["nice", "apt-get", *arguments], folder=folder, environment=environment)
