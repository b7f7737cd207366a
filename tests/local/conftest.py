"""Fixtures of the tests of processes on this machine."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def marker(tmp_path, monkeypatch) -> str:
    """A text in the environment of every process of this test. The state folder is the test's own."""
    text = f"HEADGATE_TEST={tmp_path.name}-{os.getpid()}"
    monkeypatch.setenv(*text.split("=", 1))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return text
