"""With a container engine: it builds from the Dockerfile, and keeps its own cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from . import settings
from .say import step
from .settings import ImagesError

ENGINES = ("docker", "podman")
ANSWER_LIMIT_S = 20


def find() -> str | None:
    """The first engine that answers; a client without its engine does not count."""
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


def build(engine: str, base: str | None) -> dict[str, str]:
    """Each image's name → its reference by content. `base`: another base than the Dockerfile's."""
    made = {}
    for image in settings.IMAGES:
        with step(f"{image} by {Path(engine).name}"):
            chosen = ["--build-arg", f"BASE={base}"] if base else []
            run([engine, "build", "--target", image, "-t", f"{image}:{settings.TAG}", *chosen, "."])
            told = run([engine, "image", "inspect", "--format", "{{.Id}}", f"{image}:{settings.TAG}"])
            made[image] = f"{image}:{told.strip().removeprefix('sha256:')[: settings.HASH_LENGTH]}"
            run([engine, "tag", f"{image}:{settings.TAG}", made[image]])
    return made


def push(engine: str, made: dict[str, str], prefix: str) -> list[str]:
    """Each image by its content and as `dev` below `prefix`; gives the references that are there now."""
    pushed = []
    for image, by_content in made.items():
        for name in (by_content, f"{image}:{settings.TAG}"):
            with step(f"pushing {prefix}/{name}"):
                run([engine, "tag", name, f"{prefix}/{name}"])
                run([engine, "push", f"{prefix}/{name}"])
            pushed.append(f"{prefix}/{name}")
    return pushed


def save(engine: str, made: dict[str, str], folder: Path) -> list[Path]:
    """An archive of each, for `python -m tools.cluster load`."""
    folder.mkdir(parents=True, exist_ok=True)
    archives = []
    for image, by_content in made.items():
        target = folder / f"{image}.tar"
        run([engine, "save", "-o", str(target), f"{image}:{settings.TAG}", by_content])
        archives.append(target)
    return archives


def run(command: list[str]) -> str:
    """Gives stdout. Raises ImagesError with the end of what was said."""
    done = subprocess.run(command, cwd=settings.ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise ImagesError(f"`{' '.join(command[:3])} …` failed:\n{said}")
    return done.stdout
