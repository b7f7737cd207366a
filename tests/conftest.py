"""Profiles of Hypothesis, one Spark for all commands that tests run, and the leak check: no test leaves a child process or a thread."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.warm_spark import WarmSpark

settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "deep", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # a shell's background jobs ignore Ctrl-C, and so would every command that a test starts
    signal.signal(signal.SIGINT, signal.default_int_handler)

VIRTUAL_LIMIT_S = 900
"""Limit for a scenario in virtual time: a minute of CPU time takes several on a busy machine."""
FULL_COLLECTIONS_RARELY = (700, 10, 500)
"""A full collection also visits all collected tests, which takes 0.35 s. With Python's thresholds, 367 tests had ten of them in 35 s."""
WARM_SPARK = pytest.StashKey[WarmSpark]()


def pytest_configure(config: pytest.Config) -> None:
    """The process that started pytest owns the Spark; the workers of xdist inherit its address."""
    if not hasattr(config, "workerinput"):
        config.stash[WARM_SPARK] = WarmSpark()


def pytest_unconfigure(config: pytest.Config) -> None:
    # a command's `main` asks for it, and DuckDB would report what is frozen as leaked
    atexit.unregister(gc.freeze)
    if WARM_SPARK in config.stash:
        config.stash[WARM_SPARK].close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first, so that no worker is left with one at the end: files with whole scenarios and those with many
    processes (with `--no-loadscope-reorder`), tests in virtual time (with `--maxschedchunk`)."""
    marks = {item: {mark.name for mark in item.iter_markers()} for item in items}
    for item in items:
        if "virtual" in marks[item] and "timeout" not in marks[item]:
            item.add_marker(pytest.mark.timeout(VIRTUAL_LIMIT_S))
    scenarios = {item.path for item in items if "scenario" in marks[item]}
    processes = Counter(item.path for item in items if "processes" in marks[item])

    def rank(item: pytest.Item) -> tuple[bool, bool, int]:
        return item.path not in scenarios, "virtual" not in marks[item], -processes[item.path]

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage, which takes a quarter of that time and frees nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.set_threshold(*FULL_COLLECTIONS_RARELY)
        gc.enable()


def _children() -> set[int]:
    own = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return {int(pid) for pid in own.read_text().split()} if own.exists() else set()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare child processes and threads before and after. The Spark session that tests share is exempt."""
    children = _children()
    threads = {thread.ident for thread in threading.enumerate()}
    yield
    if request.node.get_closest_marker("spark"):
        return
    assert not _children() - children, "the test left child processes behind"
    left = [t.name for t in threading.enumerate() if t.ident not in threads and not t.daemon and t.is_alive()]
    left = [name for name in left if not name.startswith("asyncio_")]
    assert not left, f"the test left threads behind: {left}"
