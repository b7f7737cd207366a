"""`make setup`, as far as it can be tried without an installation."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_setup_does_not_replace_the_environment_that_a_link_names(tmp_path: Path):
    """It is another checkout's. The error names it, and its files stay."""
    checkout, other = tmp_path / "checkout", tmp_path / "other"
    for folder in (checkout / "tools", other):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "setup.sh", checkout / "tools")
    for name in ("requirements.lock", "pyproject.toml"):
        (checkout / name).touch()
    (other / "kept").touch()
    (checkout / ".venv").symlink_to(other)
    done = subprocess.run(
        ["bash", "tools/setup.sh"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert str(other) in done.stderr
    assert (other / "kept").exists()
