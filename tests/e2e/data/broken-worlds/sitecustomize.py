"""Broken on purpose, through PYTHONPATH: a proxy that takes every rule and shapes nothing, and a sink vertex `stutter` that writes one
record twice. Python imports this module at its start, in each process of a run."""

from __future__ import annotations

import sys
from typing import Any


def deaf_proxy() -> None:
    from testbed_runtime.faults.proxy.shaper import FlowShaper

    def reshape(self: Any, shape: Any, now: float) -> None:
        del self, shape

    FlowShaper.reshape = reshape  # type: ignore[method-assign]


def stuttering_sink() -> None:
    from testbed_runtime.workload.sinks import LedgerSink

    whole = LedgerSink.write
    stuttered: list[Any] = []

    def write(self: Any, records: Any, channel: int) -> None:
        whole(self, records, channel)
        if self.context.name.startswith("stutter") and len(records) and self not in stuttered:
            stuttered.append(self)
            whole(self, records[-1:], channel)

    LedgerSink.write = write  # type: ignore[method-assign]


if "testbed_runtime.entry.proxy" in sys.orig_argv:
    deaf_proxy()
if "testbed_runtime.entry.taskmanager" in sys.orig_argv:
    stuttering_sink()
