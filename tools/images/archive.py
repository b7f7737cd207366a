"""Images as files: read an archive of `docker save` and add a layer, without an engine and a registry."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WHITEOUT = ".wh."
"""Prefix of the name of a path that a layer removes."""
NAME_ANNOTATION = "io.containerd.image.name"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, slots=True)
class Blob:
    """Content with its digest. `content` is None if the receiver is known to have it."""

    digest: str
    size: int
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Base:
    """The base of an image: its configuration, and the digest and size in bytes of each uncompressed layer."""

    config: Mapping[str, Any]
    layers: tuple[Blob, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """An image: its name, its tags (`name:tag`, the content hash first), its base and its last layer."""

    name: str
    tags: tuple[str, ...]
    base: Base
    top: Blob

    @property
    def size(self) -> int:
        """Bytes, uncompressed."""
        return sum(blob.size for blob in self.layers)

    @property
    def layers(self) -> tuple[Blob, ...]:
        return (*self.base.layers, self.top)


def read(archive: Path) -> Base:
    """Read the single image of an archive written by `docker save` or `buildah push … docker-archive:`."""
    with tarfile.open(archive) as opened:
        members = {member.name: member for member in opened.getmembers()}
        (manifest,) = json.loads(_text(opened, "manifest.json"))
        config = json.loads(_text(opened, manifest["Config"]))
        sizes = [members[name].size for name in manifest["Layers"]]
    digests = config["rootfs"]["diff_ids"]
    return Base(config, tuple(Blob(d, s) for d, s in zip(digests, sizes, strict=True)))


def _text(opened: tarfile.TarFile, name: str) -> bytes:
    found = opened.extractfile(name)
    assert found is not None, f"{name} is not a file"
    return found.read()


def layer(folder: Path, below: str, gone: Sequence[str] = ()) -> Blob:
    """Return a layer that shows the content of `folder` below the path `below`, owned by root and without times.

    The same content has the same digest. `gone`: paths of lower layers to hide."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as written:
        for parent in reversed(Path(below).parents[:-1]):
            _folder(written, str(parent))
        _folder(written, below)
        for path in sorted(folder.rglob("*")):
            entry = written.gettarinfo(path, f"{below}/{path.relative_to(folder)}".lstrip("/"))
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            with path.open("rb") if entry.isreg() else io.BytesIO() as content:
                written.addfile(entry, content if entry.isreg() else None)
        for name in gone:
            path = Path(name.lstrip("/"))
            _add(written, str(path.with_name(WHITEOUT + path.name)), b"")
    return _blob(buffer.getvalue())


def _folder(written: tarfile.TarFile, name: str) -> None:
    entry = tarfile.TarInfo(name.lstrip("/"))
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    written.addfile(entry)


def _blob(content: bytes) -> Blob:
    return Blob(f"sha256:{hashlib.sha256(content).hexdigest()}", len(content), content)


def thin(image: Made, library: str, target: Path) -> None:
    """Write an OCI archive with only the last layer and the configuration. The receiver must have the base.

    `library`: the prefix of the tags there when they are written in full.
    """
    config = _blob(_json(_config(image)))
    layers = [_descriptor(LAYER_TYPE, blob) for blob in image.layers]
    manifest = _blob(
        _json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": _descriptor(CONFIG_TYPE, config),
                "layers": layers,
            }
        )
    )
    described = _descriptor(MANIFEST_TYPE, manifest)
    index = [{**described, "annotations": {NAME_ANNOTATION: f"{library}{tag}"}} for tag in image.tags]
    new = target.with_suffix(".new")
    with tarfile.open(new, "w") as written:
        _add(written, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        for blob in (image.top, config, manifest):
            assert blob.content is not None
            _add(written, f"blobs/sha256/{blob.digest.removeprefix('sha256:')}", blob.content)
        _add(written, "index.json", _json({"schemaVersion": 2, "manifests": index}))
    new.replace(target)


def stacked(image: Made, source: Path, target: Path) -> None:
    """Write a complete archive as `docker save` does: the layers of `source`, from which the base was read, and the last one."""
    config = _blob(_json(_config(image)))
    paths = [f"{blob.digest.removeprefix('sha256:')}.tar" for blob in image.layers]
    config_path = f"{config.digest.removeprefix('sha256:')}.json"
    assert config.content is not None
    assert image.top.content is not None
    new = target.with_suffix(".new")
    with tarfile.open(source) as old, tarfile.open(new, "w") as written:
        (manifest,) = json.loads(_text(old, "manifest.json"))
        for path, was in zip(paths, manifest["Layers"], strict=False):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = old.getmember(was).size, 0o644
            written.addfile(entry, old.extractfile(was))
        _add(written, paths[-1], image.top.content)
        _add(written, config_path, config.content)
        manifests = [{"Config": config_path, "RepoTags": list(image.tags), "Layers": paths}]
        _add(written, "manifest.json", _json(manifests))
    new.replace(target)


def _config(image: Made) -> dict[str, Any]:
    """Return the base's configuration with one more layer."""
    old = image.base.config
    rootfs = {"type": "layers", "diff_ids": [*old["rootfs"]["diff_ids"], image.top.digest]}
    history = [*old.get("history", []), {"created_by": "COPY --from=sources /opt/headgate /opt/headgate"}]
    return {**old, "rootfs": rootfs, "history": history}


def _descriptor(media_type: str, blob: Blob) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": blob.digest, "size": blob.size}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))
