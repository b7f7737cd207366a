"""Build without a container engine: the base with debootstrap, dependencies with buildah, the sources' layer by this tool."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import ssl
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tools.cluster import files, packages
from tools.cluster.settings import ClusterError

from . import archive, lay_out, settings
from .engine import login_named, run
from .say import say, step
from .settings import Layout

BUILD_CA = "/run/build-ca.crt"
BUILD_CACHE = "/run/pip-cache"
KEPT_DOCUMENTATION = "copyright"
NEEDLESS = ("usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian", "var/lib/apt/lists", "var/cache/apt", "var/log")  # fmt: skip
OF_THIS_MACHINE = ("etc/resolv.conf", "etc/hostname", "etc/machine-id")
NICE = ("nice", "-n", "5")
MINUTES = {"headgate": 2, "headgate-agent": 1, "headgate-spark": 3}  # on two cores, in this order
NO_STORE = " (buildah also reads `auths` and `credHelpers` of Docker's config.json, but not its `credsStore`)"
LOCAL = "headgate.local/"  # prefix of the names in buildah's storage


def dependencies(layout: Layout, image: str) -> None:
    """Build what the cache lacks: the base, and the archive of `image` without the sources.

    Raises ClusterError when a tool is missing, this is not root, or a step fails (with the end of its output).
    """
    there = layout.dependencies(image).exists()
    if there and layout.base().exists():
        return
    if os.geteuid() != 0:
        raise ClusterError(
            "without docker or podman, images are built with debootstrap and buildah, which need root"
        )
    packages.install_missing()
    if not layout.base().exists():
        say(
            "the first time this takes about 6 minutes and 6 GB of the cache (base, Python packages, Java, PySpark)"
        )
        with step(f"base: Debian {settings.SUITE} by debootstrap (about 1 min)"):
            _bootstrap(layout)
    if there:
        return
    reference = f"{LOCAL}base:{settings.base_hash()}"
    if reference not in _buildah(layout, "images", "--format", "{{.Name}}:{{.Tag}}").split():
        with step("base into buildah"):
            _import(layout, reference)
    with step(f"dependencies of {image} (about {MINUTES[image]} min)"):
        _dependency_image(layout, image, reference)
    for path in layout.cache.glob(f"{image}-deps-*.tar"):
        if path != layout.dependencies(image):
            path.unlink()


def _bootstrap(layout: Layout) -> None:
    new = layout.base().with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    program = packages.find("debootstrap") or "debootstrap"
    include = f"--include={','.join(settings.BASE_PACKAGES)}"
    run([*NICE, program, "--variant=minbase", include, settings.SUITE, str(new)])
    for name in NEEDLESS:
        for path in (new / name).glob("*"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in sorted((new / "usr/share/doc").rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir() if not any(path.iterdir()) else None
        elif path.name != KEPT_DOCUMENTATION:
            path.unlink()
    for name in OF_THIS_MACHINE:
        (new / name).unlink(missing_ok=True)
    new.replace(layout.base())


def _import(layout: Layout, reference: str) -> None:
    container = _buildah(layout, "from", "scratch").strip()
    _buildah(layout, "add", "-q", container, str(layout.base()), "/")
    _buildah(layout, "config", "--cmd", "python3", container)
    _buildah(layout, "commit", "-q", "--rm", "--timestamp", "0", container, reference)


def _dependency_image(layout: Layout, image: str, base: str) -> None:
    """Write to a temporary name first, so that an interrupted build is never used."""
    name = f"{image}-deps:{settings.dependency_hash()}"
    _buildah(layout, "bud", "--isolation", "chroot", "--layers", "--timestamp", "0", "--target", f"{image}-deps",
             "--build-arg", f"BASE={base}", *_mounts(), "-t", f"{LOCAL}{name}", str(settings.ROOT))  # fmt: skip
    target = layout.dependencies(image)
    new = target.with_suffix(".new")
    new.unlink(missing_ok=True)
    _buildah(layout, "push", "-q", f"{LOCAL}{name}", f"docker-archive:{new}:{name}")
    new.replace(target)


def _mounts() -> list[str]:
    """Return the mounts for package downloads: the certificate bundle and pip's cache. They exist only during the build."""
    mounts = []
    bundle = os.environ.get("PIP_CERT") or ssl.get_default_verify_paths().cafile
    if bundle and Path(bundle).exists():
        mounts += ["--volume", f"{bundle}:{BUILD_CA}:ro", "--build-arg", f"PIP_CERT={BUILD_CA}"]
    pip = subprocess.run(
        ["python3", "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=False
    )
    if pip.returncode == 0 and (cache := Path(pip.stdout.strip())).is_dir():
        mounts += ["--volume", f"{cache}:{BUILD_CACHE}", "--build-arg", f"PIP_CACHE_DIR={BUILD_CACHE}"]
    return mounts


def _buildah(layout: Layout, *arguments: str) -> str:
    program = packages.find("buildah")
    if program is None:
        raise ClusterError("buildah is missing. Debian: apt-get install buildah")
    runroot = str(layout.cache / "runroot")
    where = ["--storage-driver", "vfs", "--root", str(layout.store), "--runroot", runroot]
    if configured := os.environ.get("CONTAINERS_REGISTRIES_CONF"):  # `buildah manifest` does not read it
        where += ["--registries-conf", configured]
    return run([*NICE, program, *where, *arguments])


def forget(layout: Layout) -> None:
    """Remove buildah's copies of every step, which take several times the space of the images. The archives stay."""
    if layout.store.exists():
        with step("removing the copies of single steps"):
            files.remove(layout.store)
            shutil.rmtree(layout.cache / "runroot", ignore_errors=True)


def sources(layout: Layout) -> archive.Blob:
    """Return the layer with the current sources, compiled by the base's Python. Raises ClusterError when one does not compile."""
    root = layout.base()
    with tempfile.TemporaryDirectory(dir=root / "tmp") as work:
        source = Path(work) / "src"
        for name in lay_out.PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(settings.ROOT / name, source / name, ignore=ignored)
        for name in settings.SOURCE_FILES:
            shutil.copy(settings.ROOT / name, source)
        inside = Path("/", Path(work).relative_to(root))
        words = [str(inside / name) for name in ("src/lay_out.py", "src", "out")]
        run(["chroot", str(root), "python3", *words])
        # buildah leaves an empty file or folder at each mount point
        return archive.layer(Path(work) / "out", "/opt/headgate", gone=(BUILD_CA, BUILD_CACHE))


def content_tag(base: archive.Base, top: archive.Blob) -> str:
    """Return the hash of everything in the image."""
    digests = [json.dumps(base.config, sort_keys=True), *(blob.digest for blob in (*base.layers, top))]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[: settings.HASH_LENGTH]


def library(source: Path, image: str) -> str:
    """Return the prefix of a short name when it is written in full. An archive of dependencies has both names."""
    with tarfile.open(source) as opened:
        found = opened.extractfile("manifest.json")
        assert found is not None
        tags: list[str] = json.load(found)[0]["RepoTags"]
    short = f"{image}-deps:{settings.dependency_hash()}"
    written = [t.removesuffix(short) for t in tags if t.endswith(short) and not t.startswith(LOCAL)]
    return written[0] if written else ""


def push(layout: Layout, whole: Path, references: list[str]) -> None:
    """Push the image of a complete archive to a registry, under each of the references.

    As the only member of a manifest list it is read from the archive. `buildah push` would unpack it first, each layer with all below it.
    """
    made = f"{LOCAL}pushed:{secrets.token_hex(4)}"
    _buildah(layout, "manifest", "create", made)
    _buildah(layout, "manifest", "add", made, f"docker-archive:{whole}")
    for reference in references:
        with step(f"pushing {reference}"), login_named("buildah login", reference, NO_STORE):
            _buildah(
                layout, "manifest", "push", "-q", "--all", "--format", "v2s2", made, f"docker://{reference}"
            )
