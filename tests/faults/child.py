"""A stand-in for a testbed process: reports ready, then sleeps. `--fail` exits before that, `--stubborn` ignores SIGTERM and stdin."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    if "--fail" in sys.argv:
        print("the disk is on fire", file=sys.stderr)  # noqa: T201
        sys.exit(3)
    if "--stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready = {"pid": 0}
    if len(sys.argv) > 1 and sys.argv[1].endswith(".json"):
        ready = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({"ready": ready}), flush=True)  # noqa: T201
    if "--stubborn" in sys.argv:
        time.sleep(600)
    sys.stdin.read()


main()
