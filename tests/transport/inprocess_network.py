"""The network of virtual time as a network within one event loop, without sockets and latency."""

from __future__ import annotations

from random import Random

from testbed_runtime.transport.links import LinkProfile
from testbed_runtime.transport.simulated import SimulatedFabric, SimulatedNetwork


class InProcessNetwork(SimulatedNetwork):
    """A `ports.network.Network`. Each object is a separate network with its own ports, and one process at both ends."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__(SimulatedFabric(Random(0), LinkProfile(latency_s=0.0)), host, host)
