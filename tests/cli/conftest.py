"""The command as a shell calls it, in this process."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from testbed_runtime.cli import main


@dataclass
class Said:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def headgate(monkeypatch, capsys):
    """The command as the shell calls it, in this process."""

    def call(*arguments, **environment):
        monkeypatch.setattr(sys, "argv", ["headgate", *map(str, arguments)])
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main.main()
        said = capsys.readouterr()
        return Said(int(ended.value.code or 0), said.out, said.err)

    return call
