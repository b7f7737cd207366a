"""Write images without a registry and a container engine: an archive is a tar file with one layer and two documents."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import packages, settings
from .settings import ClusterError, Layout

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
FORMAT = 1  # increase it when an image is built differently, so that cached archives are replaced


@dataclass(frozen=True)
class Image:
    """The content of an archive: files by their absolute path, links, empty folders."""

    name: str
    entrypoint: Sequence[str]
    programs: Mapping[str, Path]
    texts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, int] = field(default_factory=dict)


def prepared(layout: Layout) -> list[Path]:
    """Return the archives of the cluster's own images. Missing ones are written first."""
    layout.images.mkdir(parents=True, exist_ok=True)
    made = []
    for name, describe in (("pause", _pause), ("coredns", _coredns), ("busybox", _busybox)):
        version = f"{settings.COREDNS}-{FORMAT}" if name == "coredns" else str(FORMAT)
        target = layout.images / f"{name}-{version}.tar"
        if not target.exists():
            write_archive(describe(layout), target)
        made.append(target)
    return made


def architecture() -> str:
    """Return the architecture as images name it. Raises ClusterError for an unsupported one."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise ClusterError(f"{machine} is not supported; supported are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[machine]


def write_archive(image: Image, target: Path) -> None:
    """Write an archive as `docker save` does, with one layer. The same content gives the same bytes."""
    layer = _layer(image)
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Entrypoint": list(image.entrypoint),
                "Env": [f"PATH={packages.SYSTEM_PATH}"],
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created_by": "headgate cluster"}],
        },
        sort_keys=True,
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [image.name], "Layers": [f"{digest}.tar"]}]
    new = target.with_suffix(".new")
    with tarfile.open(new, "w") as archive:
        _add(archive, config_name, config, 0o644)
        _add(archive, f"{digest}.tar", layer, 0o644)
        _add(archive, "manifest.json", json.dumps(manifest).encode(), 0o644)
    new.replace(target)


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        named = [*image.programs, *image.texts, *image.links]
        parents = {str(p) for name in named for p in Path(name).parents if str(p) != "/"}
        for folder, mode in sorted({**dict.fromkeys(parents, 0o755), **image.folders}.items()):
            entry = tarfile.TarInfo(folder.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            layer.addfile(entry)
        for name, path in sorted(image.programs.items()):
            _add(layer, name.lstrip("/"), path.read_bytes(), 0o755)
        for name, text in sorted(image.texts.items()):
            _add(layer, name.lstrip("/"), text.encode(), 0o644)
        for name, aim in sorted(image.links.items()):
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, aim
            layer.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _pause(layout: Layout) -> Image:
    program = packages.extracted(layout, "catatonit", "usr/bin/catatonit")
    return Image(settings.PAUSE_IMAGE, ("/pause", "-P"), {"/pause": program})


def _coredns(layout: Layout) -> Image:
    return Image(settings.COREDNS_IMAGE, ("/coredns",), {"/coredns": layout.binaries / "coredns"})


def _busybox(layout: Layout) -> Image:
    """Describe an image with a shell and the usual small programs, for tests."""
    program = packages.extracted(layout, "busybox-static", "bin/busybox")
    listed = subprocess.run([str(program), "--list"], capture_output=True, text=True, check=True).stdout
    return Image(
        settings.BUSYBOX_IMAGE,
        ("/bin/sh",),
        {"/bin/busybox": program},
        texts={
            "/etc/passwd": "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
            "/etc/group": "root:x:0:\nnogroup:x:65534:\n",
        },
        links={f"/bin/{applet}": "busybox" for applet in listed.split() if applet != "busybox"},
        folders={"/tmp": 0o1777},
    )
