"""The configuration of a supervisor, and the file by which it is found: JSON."""

from __future__ import annotations

from msgspec import Struct

from testbed_runtime.core.faults.vocabulary import PROCESS_BACKENDS
from testbed_runtime.ports.network import Address
from testbed_runtime.process.config import ConfigFile


class SupervisorConfig(ConfigFile, frozen=True, kw_only=True):
    name: str = "supervisor"
    environment: str = "local"
    bind: tuple[str, int] = ("127.0.0.1", 0)
    work_folder: str = ""
    """Folder of the children's configurations; removed at the end if `remove_work_folder` is set."""
    remove_work_folder: bool = False
    logs_folder: str = ""
    state_file: str = ""
    """Written when ready, removed at the end. `headgate heal --all` finds this supervisor by it."""
    run: str = ""
    trial: str = ""
    owned: bool = True
    """Whether the process ends when stdin closes. In a pod, stdin is not a pipe of the parent."""
    seed: int = 1
    backends: tuple[str, ...] = PROCESS_BACKENDS
    """The fault backends that this supervisor carries out."""
    echo_bind: tuple[str, int] = ("127.0.0.1", 0)
    first_incarnation: int = 1
    """The incarnation of a child that was never started here."""
    starts_file: str = ""
    """File with the number of starts, so that a restarted supervisor continues counting. Empty: counted in memory."""


class SupervisorState(Struct, frozen=True):
    """A running supervisor: the content of its `state_file`."""

    pid: int
    control: Address
    token_file: str
    work_folder: str
    """The folder to remove if the supervisor can no longer do that; empty: none."""
    run: str
    trial: str
