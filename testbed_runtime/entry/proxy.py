"""`python -m testbed_runtime.entry.proxy CONFIG.json`: the userspace proxy of a testbed.

Its loop waits in select(), because its timers are a fault's latency. That limits it to 1,024 descriptors.
"""

from __future__ import annotations

import selectors
import sys

from testbed_runtime.entry.harness import Process, Ready, config_file, run_process
from testbed_runtime.faults.proxy.server import Proxy, application
from testbed_runtime.process.config import ProcessConfig

PORTS_PER_START = 1_000
STARTS_APART = 10


async def start(config: ProcessConfig, process: Process) -> Ready:
    proxy = Proxy(host=config.bind[0], seed=config.seed, first_port=first_port(config))
    address = await process.listen(application(proxy, config.token()), config.bind)
    process.on_close(proxy.close)
    return {"control": address}


def first_port(config: ProcessConfig) -> int:
    """Return the first port of this incarnation's routes, 0 for free ports.

    Each incarnation uses another range of ports, so that a peer with an old route of the previous incarnation cannot reach a wrong one."""
    if not config.route_port:
        return 0
    return config.route_port + config.incarnation % STARTS_APART * PORTS_PER_START


if __name__ == "__main__":
    sys.exit(run_process(start, config_file(ProcessConfig.load), selector=selectors.SelectSelector))
