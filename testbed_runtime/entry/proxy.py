"""`python -m testbed_runtime.entry.proxy CONFIG.json`: the userspace proxy of a testbed.

Its loop waits in select(): epoll rounds timers up to whole milliseconds, and a latency fault is made of timers. That also means at most
1,024 descriptors.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import sys

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.entry.lifeline import Lifeline
from testbed_runtime.faults.http import serve
from testbed_runtime.faults.proxy.server import Proxy, application
from testbed_runtime.process.clock import loop_factory
from testbed_runtime.process.config import ProcessConfig

EXIT_ERROR = 2


async def run(config: ProcessConfig) -> None:
    """Until the lifeline is cut."""
    async with Lifeline() as lifeline:
        proxy = Proxy(host=config.bind[0], seed=config.seed, first_port=first_port(config))
        runner, address = await serve(application(proxy, config.token()), config.bind)
        try:
            print(json.dumps({"ready": {"control": list(address)}}), flush=True)  # noqa: T201
            await lifeline.cut.wait()
        finally:
            await proxy.close()
            await runner.cleanup()


PORTS_PER_START = 1_000
STARTS_APART = 10


def first_port(config: ProcessConfig) -> int:
    """Another range for each start, so that a route of the last one that somebody remembers leads nowhere, not elsewhere."""
    if not config.route_port:
        return 0
    return config.route_port + config.incarnation % STARTS_APART * PORTS_PER_START


def main() -> int:
    try:
        with asyncio.Runner(loop_factory=loop_factory(selectors.SelectSelector)) as runner:
            runner.run(run(ProcessConfig.load(sys.argv[1])))
    except HeadgateError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
