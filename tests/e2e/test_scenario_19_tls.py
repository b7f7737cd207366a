"""`scenarios/19-tls` on this machine."""

from __future__ import annotations

from tests.e2e.shipped import MARKS, Finished, shortcomings

pytestmark = MARKS


def test_the_scenario_passes_and_writes_all_its_files(finished: Finished):
    """Pass, with exit code 0."""
    assert shortcomings(finished) == []


def test_neither_the_certificate_nor_its_key_is_in_the_runs_folder(finished: Finished):
    """They were in the testbed's own folder, which is deleted with the testbed."""
    files = [path for path in finished.folder.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if b"PRIVATE KEY" in path.read_bytes()] == []
