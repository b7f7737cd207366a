"""Print progress: what is being done, and how long each step took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    print(f"cluster: {text}", flush=True)


def complain(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Print what starts, and after success how many seconds it took."""
    begun = time.monotonic()
    print(f"cluster: {text} …", end="", flush=True)
    try:
        yield
    except BaseException:
        print(f" failed after {time.monotonic() - begun:.1f} s", flush=True)
        raise
    print(f" {time.monotonic() - begun:.1f} s", flush=True)
