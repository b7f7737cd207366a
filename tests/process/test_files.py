"""Whole files, and the errors of a disk on which they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed_runtime.cli import exits, folders
from testbed_runtime.files import naming, write_whole

FULL = "/dev/full"
"""Each write to it fails as on a full disk."""


def test_a_file_that_does_not_fit_on_its_disk_is_named(tmp_path: Path):
    """The system does not name a file that is open already, and a reader does not know the temporary name of a whole file."""
    (tmp_path / "unfinished").symlink_to(FULL)
    with pytest.raises(OSError, match="No space left") as error:
        write_whole(tmp_path / "metrics.json", b"x", temporary="unfinished")
    assert exits.explain(error.value).startswith(
        f"the disk is full: {tmp_path / 'metrics.json'}; free some space"
    )


def test_a_file_of_an_option_that_does_not_fit_on_its_disk_is_named():
    """`headgate new --out FILE` writes it in place."""
    path = Path(FULL)
    with pytest.raises(OSError, match="No space left") as error, folders.writing("--out", path):
        path.write_text("x", encoding="utf-8")
    assert exits.explain(error.value).startswith(f"the disk is full: {FULL}; free some space")


def test_the_folder_of_a_run_is_named_only_if_no_file_is(tmp_path: Path):
    """The innermost name is the most exact one."""
    path = Path(FULL)
    with pytest.raises(OSError, match="No space left") as error, naming(tmp_path), naming(path):
        path.write_bytes(b"x")
    assert error.value.filename == FULL
    with pytest.raises(FileNotFoundError) as missing, naming(tmp_path):
        (tmp_path / "a").read_bytes()
    assert missing.value.filename == str(tmp_path / "a")
