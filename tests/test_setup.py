"""`make setup`, as far as it can be tried without an installation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _checkout(folder: Path) -> Path:
    checkout = folder / "checkout"
    (checkout / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "setup.sh", checkout / "tools")
    for name in ("requirements.lock", "pyproject.toml"):
        (checkout / name).touch()
    return checkout


def _setup(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "tools/setup.sh"],
        cwd=checkout,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _executable(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_setup_names_a_python_that_was_asked_for_and_does_not_suit(tmp_path: Path):
    """Another Python is not taken in its place."""
    done = _setup(_checkout(tmp_path), PYTHON="/bin/false")
    assert done.returncode == 2
    assert "PYTHON=/bin/false" in done.stderr


def test_setup_names_the_version_of_a_python_that_is_too_new(tmp_path: Path):
    """The user sees which version was found, beside those that are supported."""
    newer = tmp_path / "python3.14"
    _executable(newer, '[ "$1" = --version ] && echo Python 3.14.0')
    done = _setup(_checkout(tmp_path), PYTHON=str(newer))
    assert done.returncode == 2
    assert f"PYTHON={newer} is not Python 3.11, 3.12 or 3.13" in done.stderr
    assert "(it printed: Python 3.14.0)" in done.stderr


def test_setup_repeats_what_a_python_printed_that_does_not_start(tmp_path: Path):
    """pyenv has a program for each version that it knows. It fails for a version that is not selected, and says so on stderr."""
    shim = tmp_path / "python3.13"
    _executable(shim, 'echo "pyenv: python3.13: command not found" >&2; exit 127')
    done = _setup(_checkout(tmp_path), PYTHON=str(shim))
    assert done.returncode == 2
    assert "(it printed: pyenv: python3.13: command not found)" in done.stderr


def test_setup_does_not_replace_the_environment_that_a_link_names(tmp_path: Path):
    """It is another checkout's. The error names it, and its files stay."""
    checkout, other = _checkout(tmp_path), tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    (checkout / ".venv").symlink_to(other)
    done = _setup(checkout)
    assert done.returncode == 2
    assert str(other) in done.stderr
    assert (other / "kept").exists()


def test_setup_keeps_the_python_that_the_environment_was_made_with(tmp_path: Path):
    """`PYTHON=… make setup` and then `make test` without it: the second one does not replace the environment with another version."""
    checkout, chosen = _checkout(tmp_path), tmp_path / "chosen"
    _executable(chosen, '[ "$1 $2" != "-m venv" ]')  # suits, and cannot create an environment
    _executable(checkout / ".venv/bin/python", f"echo {chosen}")
    done = _setup(checkout, PYTHON="")
    assert done.returncode == 2
    assert "cannot create a virtual environment" in done.stderr


def test_the_lock_has_the_pip_that_setup_installs_first():
    """Without it, the system's pip would install everything, which takes twice the processor time."""
    lock = (ROOT / "requirements.lock").read_text()
    assert re.search(r"^pip==\d+\.\d+\S* \\\n    --hash=sha256:", lock, re.MULTILINE)
    assert "/^pip==/" in (ROOT / "tools/setup.sh").read_text()


def test_every_text_names_the_versions_of_python_that_setup_accepts():
    """`tools/setup.sh`, the classifiers, the first version that pip accepts, and the pages that say what to install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = re.findall(r"Python :: 3\.(\d+)", "\n".join(project["classifiers"]))
    first, last = int(found[0]), int(found[-1])
    assert found == [str(minor) for minor in range(first, last + 1)]
    assert project["requires-python"] == f">=3.{first}"
    assert f"((3, {first}) <= sys.version_info[:2] <= (3, {last}))" in (ROOT / "tools/setup.sh").read_text()
    for page in ("README.md", "docs/ci.md", "CONTRIBUTING.md"):
        assert f"Python 3.{first} to 3.{last}" in (ROOT / page).read_text(), page
