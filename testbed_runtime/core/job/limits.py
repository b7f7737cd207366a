"""The limits that options set for waits: key, value as text, and the seconds that the value allows."""

from __future__ import annotations

import math
from bisect import bisect_right

from testbed_runtime.core.exchange.backoff import local_backoff, remote_backoff
from testbed_runtime.core.job.restart import settings_in_effect
from testbed_runtime.core.options import STANDALONE_START_UP, Options
from testbed_runtime.core.values import MILLIS, java_int
from testbed_runtime.core.waits import GROWN, PRODUCT, REPLACE_LOST, Limit

BACKOFF_MAX = "taskmanager.network.request-backoff.max"
REQUEST_TIMEOUT = "taskmanager.network.partition-request-timeout"
MAX_BACKOFF = range(2**30 // 100)
"""Values of BACKOFF_MAX that are searched, in tenths of a second. Flink doubles them, in milliseconds, in an int."""
CONNECT_TIMEOUT = "taskmanager.network.netty.client.connectTimeoutSec"
_NETTYS_CONNECT_TIMEOUT_MS = 30_000
"""Netty's own default, which stays in effect if Netty refuses another value."""


def option_limit(options: Options, key: str) -> Limit:
    """Return the limit of a duration option, by the key that this version of Flink has for it."""
    return Limit(options.name_of(key), options.shown(key), options.duration(key))


def start_up_limit(options: Options) -> Limit:
    """Return how long a standalone ResourceManager runs before it fails requests for more slots than there are
    (ConfigurationUtils.getStandaloneClusterStartupPeriodTime)."""
    negative = options.duration(STANDALONE_START_UP) < 0
    return option_limit(options, "slot.request.timeout" if negative else STANDALONE_START_UP)


def restart_delay(options: Options, key: str, seconds: float) -> Limit:
    """Return the limit of a restart strategy's delay, which may have grown from the option's value or carry a jitter."""
    options = settings_in_effect(options)
    configured = options.shown(key)
    # options count in whole milliseconds
    exact = round(options.duration(key) * 1000) == round(seconds * 1000)
    return Limit(key, configured if exact else f"{configured}{GROWN}{seconds:g} s", seconds)


def replacement_limit(seconds: float) -> Limit:
    """Return the limit of a document's `replaceLost`."""
    return Limit(REPLACE_LOST, f"{seconds:g} s", seconds)


def reachability_limit(options: Options) -> Limit:
    """Return how long calls may fail to reach a peer: one call each interval, up to the threshold. The result has no
    seconds when the threshold is turned off."""
    calls = options.integer("heartbeat.rpc-failure-threshold")
    return Limit(
        PRODUCT.join(("heartbeat.interval", "heartbeat.rpc-failure-threshold")),
        f"{options.shown('heartbeat.interval')} × {calls}",
        options.duration("heartbeat.interval") * calls if calls > 0 else None,
    )


def connect_timeout_s(options: Options) -> float | None:
    """Return how long one attempt to connect to another TaskManager may last, in seconds. None: only the operating system ends it.

    Flink multiplies the option in an int, which wraps. Netty refuses a negative timeout with a warning, and 0 is none."""
    millis = java_int(options.integer(CONNECT_TIMEOUT) * MILLIS)
    if millis < 0:
        millis = _NETTYS_CONNECT_TIMEOUT_MS
    return millis / MILLIS if millis else None


def connect_limit(options: Options) -> Limit:
    """Return the limit of one attempt to connect to another TaskManager."""
    return Limit(CONNECT_TIMEOUT, options.shown(CONNECT_TIMEOUT), connect_timeout_s(options))


def partition_limit(options: Options, *, local: bool) -> Limit:
    """Return how long a channel requests its producer's partition before it fails.

    Requests that wait at the producer (from 1.19) expire at a tick of its checker, so they may take up to twice as
    long: the limit is what is guaranteed. The option is the one that decides the number of requests."""
    if local:
        return Limit(BACKOFF_MAX, options.shown(BACKOFF_MAX), local_backoff(options).budget())
    backoff, timeout = remote_backoff(options), options.duration(REQUEST_TIMEOUT)
    if backoff.waits_at_producer and (timeout <= 0 or timeout >= backoff.limit):
        return Limit(REQUEST_TIMEOUT, options.shown(REQUEST_TIMEOUT), timeout if timeout > 0 else None)
    return Limit(BACKOFF_MAX, options.shown(BACKOFF_MAX), backoff.budget())


def enough_backoff(options: Options, *, budget_s: float, needed_s: float) -> str:
    """Return the lowest value of BACKOFF_MAX, to a tenth of a second, with which a channel's requests last longer than `needed_s`, as text.
    `budget_s`: how long they last now. Requests in one TaskManager and to another one may differ. Empty: no value is enough."""

    def budget(tenths: int, *, local: bool) -> float:
        changed = options.with_values({BACKOFF_MAX: f"{tenths * 100} ms"})
        backoff = local_backoff(changed) if local else remote_backoff(changed)
        total = backoff.budget()
        return math.inf if total is None else total

    local = math.isclose(local_backoff(options).budget() or 0.0, budget_s)
    tenths = bisect_right(MAX_BACKOFF, needed_s, key=lambda tenths: budget(tenths, local=local))
    return "" if tenths >= len(MAX_BACKOFF) else f"{tenths * 100} ms"
