"""Build with a container engine (docker or podman), which keeps its own cache."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.cluster import command as command_line
from tools.cluster.settings import ClusterError

from . import settings
from .say import step

ENGINES = ("docker", "podman")
ANSWER_LIMIT_S = 20
REFUSED = (
    "unauthorized", "authentication required", "no basic auth credentials", "unauthenticated", "denied:", "is denied", "access denied",
    "403 forbidden",
)  # fmt: skip
"""Words of a registry that accepts no push without a login, in lower case: of Docker Hub, GitHub and the cloud providers."""


def find() -> str | None:
    """Return the first engine that answers, or None. A client whose daemon does not answer is skipped."""
    for name in ENGINES:
        if (path := shutil.which(name)) is None:
            continue
        try:
            asked = subprocess.run([path, "info"], capture_output=True, check=False, timeout=ANSWER_LIMIT_S)
        except subprocess.TimeoutExpired:
            continue
        if asked.returncode == 0:
            return path
    return None


def build(engine: str, base: str | None) -> dict[str, tuple[str, ...]]:
    """Build every image and return its names. `base` replaces the Dockerfile's base image."""
    built = {}
    for image in settings.IMAGES:
        with step(f"{image} by {Path(engine).name}"):
            chosen = ["--build-arg", f"BASE={base}"] if base else []
            development = f"{image}:{settings.TAG}"
            run([engine, "build", "--target", image, "-t", development, *chosen, "."])
            image_id = run([engine, "image", "inspect", "--format", "{{.Id}}", development])
            content = image_id.strip().removeprefix("sha256:")[: settings.HASH_LENGTH]
            built[image] = settings.names(image, content)
            for name in built[image]:
                run([engine, "tag", development, name])
    return built


def push(engine: str, built: dict[str, tuple[str, ...]], prefix: str) -> list[str]:
    """Push each image under all its names below `prefix` and return the references."""
    references = []
    for name in (name for names in built.values() for name in names):
        reference = f"{prefix}/{name}"
        with step(f"pushing {reference}"):
            run([engine, "tag", name, reference])
            with login_named(f"{Path(engine).name} login", reference):
                run([engine, "push", reference])
        references.append(reference)
    return references


@contextmanager
def login_named(login: str, reference: str, hint: str = "") -> Iterator[None]:
    """Add the command that logs in to the error of a push that the registry refused. A reference without a registry is one of the
    command's default registry."""
    try:
        yield
    except ClusterError as error:
        if not any(word in str(error).lower() for word in REFUSED):
            raise
        first = reference.partition("/")[0]
        named = f" {first}" if set(first) & {".", ":"} or first == "localhost" else ""
        raise ClusterError(f"{error}\nthe registry refused the push: run `{login}{named}`{hint}") from None


def save(engine: str, built: dict[str, tuple[str, ...]], folder: Path) -> list[Path]:
    """Write one archive per image, for `python -m tools.cluster load`."""
    folder.mkdir(parents=True, exist_ok=True)
    archives = []
    for image, names in built.items():
        target = folder / f"{image}.tar"
        run([engine, "save", "-o", str(target), *names])
        archives.append(target)
    return archives


def run(command: list[str]) -> str:
    """Run a command in the checkout and return its stdout. Raises ClusterError with the last lines of its output."""
    return command_line.run(command, folder=settings.ROOT)
