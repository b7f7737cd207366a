"""Image names and tags, what goes into which layer, and where the cache is."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.settings import cache_folder

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("headgate", "headgate-agent", "headgate-spark")
TAG = "dev"  # the tag in manifests/overlays/test
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
"""The tag that the chart and manifests/base use by default."""
SUITE = "bookworm"  # Debian release of the base image; its Python is 3.11
BASE_PACKAGES = ("ca-certificates", "python3", "python3-venv")
BASE_FORMAT = 2  # increase it when the base is built differently
SOURCES_BEGIN = "# What `--target` names"  # from here on, the Dockerfile only adds /opt/headgate
DEPENDENCY_FILES = (
    "requirements-image.lock",
    "requirements-spark.lock",
    "tools/images/slim.py",
    "tools/images/spark-entry.sh",
)
SOURCE_FILES = ("pyproject.toml", "tools/images/lay_out.py")
HASH_LENGTH = 12  # hexadecimal digits: enough to tell builds apart, short enough to read


@dataclass(frozen=True, slots=True)
class Layout:
    """Folders of the cache. All of it may be removed at any time."""

    cache: Path

    @property
    def store(self) -> Path:
        """buildah's storage: one layer per step, so that a changed lock repeats only the steps after it."""
        return self.cache / "store"

    def base(self) -> Path:
        """The root file system of the base image."""
        return self.cache / f"base-{base_hash()}"

    def dependencies(self, image: str) -> Path:
        """The archive of an image without the sources."""
        return self.cache / f"{image}-deps-{dependency_hash()}.tar"


def layout(environment: Mapping[str, str]) -> Layout:
    """Return the layout of the cache. Raises ClusterError when there is no folder for it."""
    return Layout(cache_folder(environment, "images"))


def names(image: str, content: str) -> tuple[str, ...]:
    """Return every name of a built image: by its content hash, for development, and by version."""
    return tuple(f"{image}:{tag}" for tag in (content, TAG, VERSION))


def helm_command(prefix: str) -> str:
    """Return the command that installs the images pushed to `prefix`, for two namespaces of the reader's choice."""
    where = "--namespace headgate-system --create-namespace"
    scope = "--set 'watchNamespaces={team-a,team-b}'"
    return f"helm install headgate ./helm/headgate {where} {scope} --set image.registry={prefix}"


def base_hash() -> str:
    return _hash([SUITE.encode(), " ".join(BASE_PACKAGES).encode(), str(BASE_FORMAT).encode()])


def dependency_hash(root: Path = ROOT) -> str:
    """Return the hash of everything in the images except the sources."""
    stages = (root / "Dockerfile").read_text().split(SOURCES_BEGIN)[0]
    files = [(root / name).read_bytes() for name in DEPENDENCY_FILES]
    return _hash([base_hash().encode(), stages.encode(), *files])


def _hash(parts: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(f"{len(part)}:".encode() + part)
    return whole.hexdigest()[:HASH_LENGTH]
