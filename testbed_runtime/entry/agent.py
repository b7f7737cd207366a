"""`python -m testbed_runtime.entry.agent [CONFIG.json]`: packet faults of one network namespace.

In a pod (no argument) it is the agent container: root with NET_ADMIN and nothing else. On one machine the supervisor starts one in each
network namespace with its own configuration. It serves the fault API (token), /healthz, /v1/capabilities and the echo.
Its loop waits in select(), because its timers are a fault's latency.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web
from msgspec.structs import replace

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.links import logical_name
from testbed_runtime.core.faults.vocabulary import PACKET_BACKENDS, POD_BACKEND, PROCESS_BACKENDS
from testbed_runtime.core.ids import JOBMANAGER, task_manager_names
from testbed_runtime.entry.harness import Process, Ready, run_process
from testbed_runtime.faults.agent import FaultAgent
from testbed_runtime.faults.http import fault_routes
from testbed_runtime.faults.packets import backend as packet
from testbed_runtime.faults.packets.commands import PacketSupport
from testbed_runtime.faults.packets.engine import PacketEngine
from testbed_runtime.faults.packets.placing import Surroundings
from testbed_runtime.faults.probes import EchoServer, path_route
from testbed_runtime.faults.registry import Capabilities
from testbed_runtime.http import service
from testbed_runtime.process.config import AgentConfig
from testbed_runtime.transport.names import numeric

ANYWHERE = "0.0.0.0"  # noqa: S104 - a pod's own address space; everything except /healthz needs the token
LOCK_FILE = f"{naming.WORK_FOLDER}/xtables.lock"
NICENESS = -10
"""Niceness of the agent. Its timers produce the requested latency, so they have priority over the processes under the fault."""
UNPRIVILEGED = "the supervisor of the same pod carries these out"


def config_of_pod(environment: Mapping[str, str], testbed: Mapping[str, Any]) -> AgentConfig:
    """Build the configuration from `testbed.json` and the environment of a testbed's pod."""
    return AgentConfig(
        name=logical_name(environment["HEADGATE_NAME"]),
        environment="kubernetes",
        bind=(ANYWHERE, naming.AGENT_PORT),
        ports=naming.PLANE_PORTS,
        token_file=naming.TOKEN_FILE,
        address=environment.get("POD_IP", ""),
        hosts=hosts_of(testbed),
        seed=int(testbed.get("seed") or 1),
        owned=False,
    )


def hosts_of(testbed: Mapping[str, Any]) -> dict[str, str]:
    """Return the host of each process that has an agent, by logical name."""
    spec = testbed.get("spec") or {}
    replicas = int((spec.get("taskManagers") or {}).get("replicas", 1))
    processes = [JOBMANAGER, *task_manager_names(replicas)]
    return {p: naming.dns_name(testbed["name"], p, testbed["namespace"]) for p in processes}


class Neighbours:
    """A `faults.packets.backend.Lookup` by host names. `document`: the file testbed.json, which changes when the testbed is scaled. None: the
    hosts never change."""

    def __init__(self, config: AgentConfig, document: Path | None = None) -> None:
        self._config = config
        self._document = document

    async def surroundings(self) -> Surroundings:
        return Surroundings(self._config.name, tuple(self._hosts()), self._config.ports)

    def _hosts(self) -> Mapping[str, str]:
        if self._document is not None:
            # the file is being written: keep the known hosts
            with contextlib.suppress(OSError, ValueError, KeyError):
                found = hosts_of(json.loads(self._document.read_bytes()))
                self._config = replace(self._config, hosts=found)
        return self._config.hosts

    async def address(self, name: str) -> str:
        host = self._hosts().get(name, "")
        try:
            return await numeric(host, naming.AGENT_PORT)
        except OSError as error:
            raise HeadgateError(f"the address of {name} is not known: {error}") from None


def capabilities(environment: str, support: PacketSupport) -> Capabilities:
    """Return the backends of this agent; the supervisor has the others."""
    missing = dict(support.missing) | dict.fromkeys((*PROCESS_BACKENDS, POD_BACKEND), UNPRIVILEGED)
    return Capabilities(environment, tuple(n for n in PACKET_BACKENDS if n in support.available), missing)


def application(
    agent: FaultAgent, offered: Capabilities, support: PacketSupport, token: str
) -> web.Application:
    async def tell(_: web.Request) -> web.Response:
        return web.json_response(
            {
                "backends": list(offered.backends),
                "how": dict(support.available),
                "missing": dict(offered.missing),
            }
        )

    echo = path_route(lambda: (naming.AGENT_ECHO_PORT, naming.ECHO_PORT))
    return service(token, [web.get("/v1/capabilities", tell), echo, *fault_routes(agent)])


async def start(config: AgentConfig, process: Process) -> Ready:
    """Start the agent. Rules that a killed agent left behind are removed before it is ready."""
    engine = PacketEngine(own_address=config.address, device=config.device)
    await engine.start(config.bind[0])
    echo = EchoServer()
    await echo.start(config.bind[0], naming.AGENT_ECHO_PORT)
    offered = capabilities(config.environment, engine.support)
    neighbours = Neighbours(config, None if config.owned else Path(naming.CONFIG_FILE))
    agent = FaultAgent(packet.backends(engine, neighbours), offered, seed=config.seed)
    address = await process.listen(application(agent, offered, engine.support, config.token()), config.bind)
    for part in (echo, engine, agent):
        process.on_close(part.close)
    return {"control": (config.address or address[0], address[1]), "backends": list(offered.backends)}


def load() -> AgentConfig:
    """Read the file on the command line, or what the operator gives a pod. Raises HeadgateError when neither exists."""
    try:
        if len(sys.argv) > 1:
            return AgentConfig.load(sys.argv[1])
        return config_of_pod(os.environ, json.loads(Path(naming.CONFIG_FILE).read_bytes()))
    except (OSError, KeyError, ValueError) as error:
        raise HeadgateError(f"the agent has no configuration: {error}") from error


def main() -> int:
    if Path(naming.WORK_FOLDER).is_dir():  # for the lock file of iptables: only this is writable in a pod
        os.environ["XTABLES_LOCKFILE"] = LOCK_FILE
    with contextlib.suppress(PermissionError):  # in a pod the container's CPU share has the same effect
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    return run_process(start, load, selector=selectors.SelectSelector, has_parent=lambda config: config.owned)


if __name__ == "__main__":
    sys.exit(main())
