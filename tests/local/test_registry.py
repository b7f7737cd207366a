"""The files of the running supervisors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed_runtime.local import registry


@pytest.mark.parametrize("content", [b"", b"{", b'{"pid": "one"}', b'{"run": "\xff"}'])
def test_a_damaged_file_of_a_supervisor_is_removed(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It must not keep `headgate heal` from the other supervisors."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / f"headgate-{os.getuid()}" / "run.json"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(content)
    assert registry.supervisors() == []
    assert not path.exists()
