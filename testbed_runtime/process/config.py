"""The configuration of a process: one JSON file, written by the TestbedHost, read by `entry/*`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.options import Options

REGISTERED_PATH = "/v1/registered"
"""Path on a TaskManager's control endpoint: `{"registered": bool}`, whether it is registered at the ResourceManager."""
COUNTERS_PATH = "/v1/counters"
"""Path on a TaskManager's control endpoint: live counters as one JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
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
    scenario_folder: str = ""
    job: JobGraph | None = None
    """Application mode: the job that the JobManager submits itself when its store holds none."""
    token_file: str = ""
    """A file of mode 0600 with the testbed's bearer token."""
    certificate_file: str = ""
    """A file with the testbed's certificate and private key that others cannot read; empty unless the data port uses TLS."""

    def options(self) -> Options:
        return Options(self.configuration, flink_version=self.flink_version)

    def token(self) -> str:
        """Read the token. Raises UserError for an empty file, because then every endpoint would be open."""
        if not self.token_file:
            return ""
        token = Path(self.token_file).read_text().strip()
        if not token:
            raise UserError("token_file", f"{self.token_file} is empty", "write the testbed's token into it")
        return token

    @classmethod
    def load(cls, path: str | Path) -> ProcessConfig:
        return msgspec.json.decode(Path(path).read_bytes(), type=cls)

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(msgspec.json.encode(self))
