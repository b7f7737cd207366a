"""What is fixed (names, what goes into which layer) and where the cache lies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("headgate", "headgate-agent", "headgate-spark")
TAG = "dev"  # beside the content's hash: what manifests for development name
SUITE = "bookworm"  # of the base that is made here; its Python is 3.11
BASE_PACKAGES = ("ca-certificates", "python3", "python3-venv")
BASE_FORMAT = 2  # counted up when the base is made differently
SOURCES_BEGIN = "# What `--target` names"  # the Dockerfile's part that adds only /opt/headgate
DEPENDENCY_FILES = (
    "requirements-image.lock",
    "requirements-spark.lock",
    "tools/images/slim.py",
    "tools/images/spark-entry.sh",
)
SOURCE_FOLDERS = ("testbed_runtime", "operator")
SOURCE_FILES = ("pyproject.toml", "tools/images/lay_out.py")
HASH_LENGTH = 12  # hexadecimal digits: enough to tell builds apart, short enough to read


class ImagesError(Exception):
    """What is missing or went wrong, as a sentence that names the mend."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Folders of the cache; all of it may be removed at any time."""

    cache: Path

    @property
    def store(self) -> Path:
        """buildah's: layers of the Dockerfile's steps, so that a changed lock repeats only what follows it."""
        return self.cache / "store"

    def base(self) -> Path:
        """The base's root file system."""
        return self.cache / f"base-{base_hash()}"

    def dependencies(self, image: str) -> Path:
        """The archive of an image without the sources."""
        return self.cache / f"{image}-deps-{dependency_hash()}.tar"


def layout(environment: Mapping[str, str]) -> Layout:
    """By the usual variable or below the home folder. Raises ImagesError when the environment names neither."""
    if cache := environment.get("XDG_CACHE_HOME"):
        return Layout(Path(cache) / "headgate" / "images")
    if home := environment.get("HOME"):
        return Layout(Path(home) / ".cache" / "headgate" / "images")
    raise ImagesError("neither XDG_CACHE_HOME nor HOME is set: there is no place for the cache")


def base_hash() -> str:
    return _hash([SUITE.encode(), " ".join(BASE_PACKAGES).encode(), str(BASE_FORMAT).encode()])


def dependency_hash(root: Path = ROOT) -> str:
    """Of everything that the images hold besides the sources."""
    stages = (root / "Dockerfile").read_text().split(SOURCES_BEGIN)[0]
    files = [(root / name).read_bytes() for name in DEPENDENCY_FILES]
    return _hash([base_hash().encode(), stages.encode(), *files])


def _hash(parts: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(f"{len(part)}:".encode() + part)
    return whole.hexdigest()[:HASH_LENGTH]
