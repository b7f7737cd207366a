"""Print progress: what is being done, and how long each step took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    print(f"images: {text}", flush=True)


def complain(text: str) -> None:
    print(f"images: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Print what starts, and how many seconds it took."""
    begun = time.monotonic()
    say(f"{text} …")
    yield
    say(f"{text}: {time.monotonic() - begun:.1f} s")
