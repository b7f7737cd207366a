"""The first example that a user runs: words from a real socket, counted in windows of 5 s."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.shipped import MARKS, ROOT, run, shortcomings

pytestmark = MARKS

EXAMPLE = ROOT / "scenarios" / "examples" / "word-count.yaml"
LINE = "to be or not to be\n"
LINES = 60
PAUSE_S = 0.1
"""60 lines in 6 s: more than one window of 5 s."""


@contextlib.contextmanager
def typist() -> Iterator[int]:
    """A server of words, as `nc -lk` is: each connection gets all lines, and then `more` until it is closed. Yields its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):  # closed at the end of the test, or by the source
            while True:
                connection, _ = server.accept()
                with connection:
                    for line in itertools.chain([LINE] * LINES, itertools.repeat("more\n")):
                        connection.sendall(line.encode())
                        time.sleep(PAUSE_S)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with server:
        yield server.getsockname()[1]
    thread.join(10)


def test_each_word_of_a_socket_is_counted_once_in_windows(tmp_path: Path):
    """The example as shipped, with a free port and 10 s instead of 30 s: 60 × "to be or not to be" in the published files."""
    text = EXAMPLE.read_text(encoding="utf-8")
    with typist() as port:
        changed = text.replace("127.0.0.1:9999", f"127.0.0.1:{port}").replace(
            "observation: 30 s", "observation: 10 s"
        )
        document = tmp_path / "word-count.yaml"
        document.write_text(changed, encoding="utf-8")
        finished = run(str(document), tmp_path / "runs")
    assert shortcomings(finished) == []
    panes: list[tuple[str, int]] = []
    for part in finished.folder.glob("files/main-1/counts.txt/part-*"):
        for line in part.read_text(encoding="utf-8").splitlines():
            word, _, count = line.strip("()").rpartition(",")
            panes.append((word, int(count)))
    totals: Counter[str] = Counter()
    for word, count in panes:
        totals[word] += count
    assert totals.pop("more", 0) > 0
    assert totals == {"to": 2 * LINES, "be": 2 * LINES, "or": LINES, "not": LINES}
    assert len(panes) >= 2 * len(totals), "6 s of words fall into at least two windows of 5 s"
