"""Debian packages: what the node and the making of images need, installed only where the program itself is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .say import say, step
from .settings import ClusterError, Layout

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("ptp", "host-local", "portmap", "loopback")


@dataclass(frozen=True)
class Package:
    """A Debian package, a program by which it is known, and why it is wanted."""

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
    """The path of a system program, also where sbin is not on PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def cni_folder() -> Path | None:
    """Where all wanted network plugins lie."""
    for folder in CNI_FOLDERS:
        if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
            return folder
    return None


def missing() -> list[Package]:
    """What has to be installed: a program from elsewhere (Docker's containerd) counts as there."""
    return [p for p in PACKAGES if (cni_folder() if not p.program else find(p.program)) is None]


def install_missing() -> None:
    """Install with apt, never removing anything. Raises ClusterError when that cannot be done."""
    wanted = missing()
    if not wanted:
        return
    names = " ".join(p.name for p in wanted)
    if find("apt-get") is None:
        lacking = ", ".join(f"{p.program or p.name} ({p.why})" for p in wanted)
        raise ClusterError(f"missing, and this is no Debian where they could be installed: {lacking}")
    for package in wanted:
        say(f"Debian package {package.name}: {package.why}")
    with step(f"installing {names}"):
        _apt(["update", "-qq"])
        _apt(["install", "-y", "-qq", "--no-install-recommends", "--no-remove", *(p.name for p in wanted)])
    if left := missing():
        raise ClusterError(f"still missing after the installation: {' '.join(p.name for p in left)}")


def extracted(layout: Layout, package: str, file: str) -> Path:
    """One file of a Debian package, taken into the cache without installing the package (it goes into an image).

    Raises ClusterError when the package cannot be had.
    """
    folder = layout.images / package
    wanted = folder / file
    if wanted.exists():
        return wanted
    if find("apt-get") is None or find("dpkg-deb") is None:
        raise ClusterError(
            f"{file} of Debian's package {package} is needed for an image: apt-get and dpkg-deb are not here"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with step(f"fetching Debian's {package}"):
        try:
            _apt(["download", "-qq", package], folder)
        except ClusterError:  # lists may be old or absent
            _apt(["update", "-qq"])
            _apt(["download", "-qq", package], folder)
        archive = next(folder.glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(archive), str(folder)], check=True, capture_output=True)
        archive.unlink()
    if not wanted.exists():
        raise ClusterError(f"Debian's package {package} has no {file} on this machine")
    return wanted


def _apt(arguments: list[str], folder: Path | None = None) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["nice", "apt-get", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise ClusterError(f"apt-get {arguments[0]} failed:\n" + "\n".join(said))
