"""The configurations of processes: one JSON file each, written by a TestbedHost or a supervisor, read by `entry/*`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct, field

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.vocabulary import PROCESS_BACKENDS
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.options import Options
from testbed_runtime.ports.network import Address

REGISTERED_PATH = "/v1/registered"
"""Path on a TaskManager's control endpoint: `{"registered": bool}`, whether it is registered at the ResourceManager."""
COUNTERS_PATH = "/v1/counters"
"""Path on a TaskManager's control endpoint: live counters as one JSON object."""


def read_token(path: str | Path) -> str:
    """Read a bearer token. Raises UserError for an empty file, because every endpoint would reject every request."""
    token = Path(path).read_text(encoding="utf-8").strip()
    if not token:
        raise UserError("token_file", f"{path} is empty", "write the token into it")
    return token


class ConfigFile(Struct, frozen=True, kw_only=True):
    """The part that the configuration of every process has."""

    token_file: str = ""
    """A file of mode 0600 with the testbed's bearer token."""

    def token(self) -> str:
        """Read the token; empty without a file."""
        return read_token(self.token_file) if self.token_file else ""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        return msgspec.json.decode(Path(path).read_bytes(), type=cls)

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(msgspec.json.encode(self))


class AgentConfig(ConfigFile, frozen=True, kw_only=True):
    """The configuration of a packet agent, one for each network namespace. `hosts`: logical name → host name or address of each
    process that has an agent."""

    name: str
    bind: Address
    ports: Mapping[str, tuple[int, ...]]
    """The TCP ports of each plane (`data`, `rpc`)."""
    environment: str = "local"
    address: str = ""
    """The agent's own numeric address."""
    device: str = "eth0"
    hosts: Mapping[str, str] = field(default_factory=dict)
    seed: int = 1
    owned: bool = True
    """Whether the process ends when stdin closes. In a pod, stdin is not a pipe of the parent."""


class ProcessConfig(ConfigFile, frozen=True, kw_only=True):
    """Addresses are (host, port). Port 0 means a free port, which is in the ready line. Hosts of peers may be names; they are
    resolved for each connection."""

    name: str
    """`tm-0`, `jobmanager`, `recorder`, `proxy`."""
    incarnation: int = 1
    run: str = ""
    trial: str = ""
    seed: int = 1
    flink_version: str = "2.x"
    configuration: dict[str, str] = field(default_factory=dict)
    bind: tuple[str, int] = ("127.0.0.1", 0)
    """Address of Rpc and control."""
    data_bind: tuple[str, int] = ("127.0.0.1", 0)
    jobmanager: tuple[str, int] | None = None
    recorder: tuple[str, int] | None = None
    """None: nothing is recorded."""
    recorder_path: str = ""
    """`/t/<trial>` when one recorder serves a whole run."""
    proxy: tuple[str, int] | None = None
    """The proxy's control address. If set, every peer address is resolved to a route of the proxy."""
    route_port: int = 0
    """First port of a proxy's routes; 0 means free ports."""
    slots: int = 1
    store: tuple[str, int] | None = None
    """Address of a BlobStore over HTTP; None means the folder `blob_folder`."""
    blob_folder: str = ""
    local_folder: str = ""
    """The folder of a TaskManager's state files, local copies and blocking results; empty means the temporary folder."""
    history_folder: str = ""
    job: JobGraph | None = None
    """Application mode: the job that the JobManager submits itself when its store holds none."""
    certificate_file: str = ""
    """A file with the testbed's certificate and private key that others cannot read; empty unless the data port uses TLS."""

    def options(self) -> Options:
        return Options(self.configuration, flink_version=self.flink_version)


class SupervisorConfig(ConfigFile, frozen=True, kw_only=True):
    """The configuration of a supervisor."""

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
