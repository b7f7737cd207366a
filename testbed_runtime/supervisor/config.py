"""What a supervisor is told at its start: one JSON file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    name: str = "supervisor"
    place: str = "local"
    bind: tuple[str, int] = ("127.0.0.1", 0)
    token_file: str = ""
    """Mode 0600."""
    work_folder: str = ""
    """For the children's configurations; removed at the end when `remove_work_folder`."""
    remove_work_folder: bool = False
    logs_folder: str = ""
    state_file: str = ""
    """Written when ready, removed at the end: by it `headgate heal --all` finds this supervisor."""
    run: str = ""
    trial: str = ""
    owned: bool = True
    """End everything when stdin closes. In a pod nobody holds a pipe."""
    seed: int = 1
    backends: tuple[str, ...] = ("channel", "proxy", "supervisor")
    """Of faults: what this supervisor can hold."""
    echo_bind: tuple[str, int] = ("127.0.0.1", 0)
    first_incarnation: int = 1
    """Of a child that was never started here."""
    starts_file: str = ""
    """Where starts are counted, so that a supervisor that comes again goes on counting. Empty: in memory."""

    def token(self) -> str:
        return Path(self.token_file).read_text().strip() if self.token_file else ""

    @classmethod
    def load(cls, path: str | Path) -> SupervisorConfig:
        return msgspec.json.decode(Path(path).read_bytes(), type=cls)

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(msgspec.json.encode(self))
