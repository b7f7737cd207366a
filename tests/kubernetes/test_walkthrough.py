"""docs/kubernetes.md does what it says: its commands are run as they stand, in their order."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.cluster import ROOT, Cluster
from tests.kubernetes.spaces import Space

PAGE = ROOT / "docs" / "kubernetes.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT_S = 600
"""One block; the longest is a whole run."""


def blocks() -> list[str]:
    return BLOCK.findall(PAGE.read_text())


def test_the_page_has_commands_and_they_are_shell():
    """Each block is accepted by bash."""
    found = blocks()
    assert len(found) >= 8
    for block in found:
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_every_command_of_the_walk_through_works(installed: Cluster, tmp_path: Path):
    """The commands are run as a reader would type them, from an empty namespace to its deletion."""
    # what runs leave behind goes elsewhere; the rest of the checkout is read only
    for name in ("manifests", "helm", "scenarios"):
        (tmp_path / name).symlink_to(ROOT / name)
    installed.kubectl("delete", "namespace", "demo", "--ignore-not-found", "--timeout=90s")
    try:
        for number, block in enumerate(blocks(), 1):
            done = installed.shell(block, tmp_path, LIMIT_S)
            if done.returncode:
                said = f"{block}\n{done.stdout}\n{done.stderr}"
                pytest.fail(f"block {number}:\n{said}\n{Space(installed, 'demo').story()}", pytrace=False)
    finally:
        installed.kubectl("delete", "namespace", "demo", "--ignore-not-found", "--wait=false")
