"""The configuration of a packet agent, one for each network namespace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testbed_runtime.ports.network import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """`hosts`: logical name → host name or address of each process that has an agent."""

    name: str
    bind: Address
    ports: Mapping[str, tuple[int, ...]]
    """The TCP ports of each plane (`data`, `rpc`)."""
    token_file: str
    environment: str = "local"
    address: str = ""
    """The agent's own numeric address."""
    device: str = "eth0"
    hosts: Mapping[str, str] = field(default_factory=dict)
    seed: int = 1
    incarnation: int = 1
    owned: bool = True
    """End when stdin closes. In a pod stdin is not a pipe of the parent."""

    def token(self) -> str:
        return Path(self.token_file).read_text().strip()
