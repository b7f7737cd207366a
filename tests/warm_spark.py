"""One Spark for every command that the tests run: `python -m tests.warm_spark run …` is `headgate run …` with it.

The process that started pytest listens on a Unix socket, and starts Spark with the first evaluation. A command run through this module
starts a relay to that socket instead of a worker of its own; the protocol and everything else are the same.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

from testbed_runtime.cli import main, session
from testbed_runtime.evaluation import process, worker

RELAY = "HEADGATE_TEST_SPARK_RELAY"
"""Environment variable: the program that takes the place of Python in `SparkWorker`."""
PROGRAM = """#!{python}
import socket, sys, threading
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
answers, requests = connection.makefile("r"), connection.makefile("w")
def pass_on():
    for line in sys.stdin:
        requests.write(line)
        requests.flush()
    connection.shutdown(socket.SHUT_WR)
threading.Thread(target=pass_on, daemon=True).start()
for line in answers:
    sys.stdout.write(line)
    sys.stdout.flush()
"""


class WarmSpark:
    """The listening end. `close` stops Spark."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headgate-tests-")
        relay = Path(self._folder.name, "relay")
        address = str(relay.with_name("socket"))
        relay.write_text(PROGRAM.format(python=sys.executable, address=address))
        relay.chmod(0o755)
        os.environ[RELAY] = str(relay)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, name="warm-spark", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with worker.lazily(worker.own_spark) as spark:
            while True:
                try:
                    connection, _ = self._listener.accept()
                except OSError:
                    return  # closed
                with (
                    connection,
                    suppress(OSError),  # the command was killed
                    connection.makefile("r") as requests,
                    connection.makefile("w") as answers,
                ):
                    worker.serve(spark, requests, answers)

    def close(self) -> None:
        os.environ.pop(RELAY, None)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        self._thread.join(timeout=process.GRACE_S)
        self._folder.cleanup()


if __name__ == "__main__":
    session.SparkWorker = partial(process.SparkWorker, python=os.environ[RELAY])  # type: ignore[misc,assignment]
    main.main()
