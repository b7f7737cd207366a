"""Liveness, readiness and metrics: pure state (Health, Metrics) and the HTTP routes that show it.

The operator is alive while its watches deliver: each renewal of its Lease must come back as a watch event, and each object in a
list must have been delivered by the watch of its kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from aiohttp import web
from msgspec import Struct

from headgate_operator.exposition import Histogram, Samples, by_label, counter, gauge
from testbed_runtime.http import HEALTHZ, READYZ
from testbed_runtime.kube.api import WATCH_SERVER_LIMIT_S, Call

STALLED_WATCH_S = 2.0 * WATCH_SERVER_LIMIT_S
"""How long a watch may take to deliver. It reconnects at least once per server limit. The probe's failure threshold is added on top."""
DURATION_BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
"""Buckets between a reconcile with nothing to do and one that waits for a throttling API server."""
KINDS_MAX = 16
"""Maximum values of the label `kind`. Headgate has five kinds; anything beyond the limit is counted as `other`."""

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of Prometheus' text format."""


class Metrics:
    """Counters by kind, in Prometheus' text format."""

    def __init__(self) -> None:
        self._total: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self._retries: dict[str, int] = {}
        self._durations: dict[str, Histogram] = {}
        self._interruptions = 0
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._reviews = Counter({"allowed": 0, "refused": 0})

    def answered(self, call: Call, status: int) -> None:
        """Count a request to the API server by its result. Status 0: the server was not reached."""
        known = {0: "unreachable", 404: "missing", 409: "conflict"}
        result = known.get(status, "ok" if status < 400 else "error")
        self._calls[call.verb, call.resource, result] += 1

    def reviewed(self, *, allowed: bool) -> None:
        """Count an answer of the validating webhook."""
        self._reviews["allowed" if allowed else "refused"] += 1

    def interrupted(self) -> None:
        """Count a term that ended because the Lease or a watch was lost."""
        self._interruptions += 1

    def reconciled(self, kind: str, seconds: float, *, failed: bool) -> None:
        kind = self._bounded(kind)
        self._total[kind] = self._total.get(kind, 0) + 1
        self._errors[kind] = self._errors.get(kind, 0) + failed
        self._retries.setdefault(kind, 0)
        self._durations.setdefault(kind, Histogram(DURATION_BUCKETS_S)).add(seconds)

    def retried(self, kind: str) -> None:
        kind = self._bounded(kind)
        self._retries[kind] = self._retries.get(kind, 0) + 1

    def _bounded(self, kind: str) -> str:
        return kind if kind in self._total or len(self._total) < KINDS_MAX else "other"

    def text(self, *, depth: int, leader: bool, info: Mapping[str, str]) -> str:
        labels = ",".join(f'{k}="{_escaped(v)}"' for k, v in sorted(info.items()))
        lines = [
            *gauge("headgate_operator_info", "Version and scope of the operator.", {f"{{{labels}}}": 1}),
            *counter(
                "headgate_api_requests_total", "Requests to the API server, by result.", _calls(self._calls)
            ),
            *gauge("headgate_operator_leader", "1 on the active replica.", int(leader)),
            *counter(
                "headgate_operator_interruptions_total",
                "Interruptions of reconciling because the Lease or a watch was lost.",
                self._interruptions,
            ),
            *counter(
                "headgate_admission_reviews_total",
                "Answers of the validating webhook.",
                by_label("answer", self._reviews),
            ),
            *gauge("headgate_queue_depth", "Keys waiting for a worker.", depth),
            *counter("headgate_reconcile_total", "Reconciles.", by_label("kind", self._total)),
            *counter("headgate_reconcile_errors_total", "Failed reconciles.", by_label("kind", self._errors)),
            *counter(
                "headgate_reconcile_retries_total",
                "Retries after a failed reconcile.",
                by_label("kind", self._retries),
            ),
            *self._histograms(),
        ]
        return "\n".join(lines) + "\n"

    def _histograms(self) -> Iterable[str]:
        name = "headgate_reconcile_duration_seconds"
        yield f"# HELP {name} Duration of a reconcile."
        yield f"# TYPE {name} histogram"
        for kind, histogram in sorted(self._durations.items()):
            yield from histogram.samples(name, f'kind="{kind}"')


def _calls(counts: Mapping[tuple[str, str, str], int]) -> Samples:
    return {
        f'{{verb="{verb}",resource="{resource}",result="{result}"}}': count
        for (verb, resource, result), count in sorted(counts.items())
    }


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


class Health:
    """Compares the events that the watches delivered with those that they must deliver. `now` is seconds of a monotonic clock."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._unlisted = set(kinds)
        self._delivered: dict[tuple[str, str], str] = {}
        self._expected: dict[tuple[str, str], tuple[str, float]] = {}
        self._deleted: set[tuple[str, str]] = set()
        """Objects that were deleted according to the watch, but may still be in a list that is being read."""

    def listed(self, kind: str) -> None:
        """Record that the first list of a kind was read."""
        self._unlisted.discard(kind)

    @property
    def not_ready(self) -> str:
        """The reason for not being ready; empty when ready."""
        return f"no list yet of {', '.join(sorted(self._unlisted))}" if self._unlisted else ""

    def delivered(self, kind: str, name: str, version: str, *, gone: bool = False) -> None:
        """Record a watch event with this version of an object, or its deletion (`gone`). An older list may still contain a deleted object."""
        self._delivered[kind, name] = version
        (self._deleted.add if gone else self._deleted.discard)((kind, name))
        expected = self._expected.get((kind, name))
        if expected and (gone or reaches(version, expected[0])):
            del self._expected[kind, name]

    def expect(self, kind: str, name: str, version: str, now: float) -> None:
        """Record that a list or a write of this process returned this version: the watch must deliver it or a later one."""
        if (kind, name) not in self._expected and not reaches(self._delivered.get((kind, name), ""), version):
            self._expected[kind, name] = (version, now)

    def known(self, kind: str) -> dict[str, str]:
        """Return the version that the watch last delivered of each object; empty for one that only a list showed."""
        names = {name for k, name in (*self._delivered, *self._expected) if k == kind}
        return {name: self._delivered.get((kind, name), "") for name in names}

    def gone(self, kind: str, before: Mapping[str, str], listed: Collection[str]) -> list[str]:
        """Forget and return the objects that a list no longer contains, because the watch may have lost their deletions. `before`: the
        objects that were known when the list began. Objects that were delivered since then are kept, because the list may be older."""
        now = self.known(kind)
        names = [name for name, version in before.items() if name not in listed and now.get(name) == version]
        for name in names:
            self._expected.pop((kind, name), None)
            self._delivered.pop((kind, name), None)
            self._deleted.discard((kind, name))
        return names

    def forget(self) -> None:
        """Drop all expectations: objects that were listed before the watches began may have been deleted since."""
        self._expected.clear()

    def stalled(self, now: float) -> str:
        """Return which watch has not delivered what; empty when alive."""
        for (kind, name), (version, since) in self._expected.items():
            if now - since > STALLED_WATCH_S:
                return f"the watch of {kind} has not delivered {name} at {version} for {now - since:.0f} s"
        return ""


def reaches(delivered: str, expected: str) -> bool:
    """Return whether a version is at least the expected one. Versions that are not numbers must be equal."""
    if delivered.isdecimal() and expected.isdecimal():
        return int(delivered) >= int(expected)
    return delivered == expected


class Pages(Struct, frozen=True):
    """The sources of the pages. `alive` and `ready` return a problem, or an empty text."""

    alive: Callable[[], str]
    ready: Callable[[], str]
    metrics: Callable[[], str]


def application(pages: Pages) -> web.Application:
    """Return the routes /healthz and /readyz (200, or 503 with the reason) and /metrics."""

    async def check(problem: Callable[[], str]) -> web.Response:
        text = problem()
        return web.Response(text=text or "ok", status=503 if text else 200)

    async def healthz(_: web.Request) -> web.Response:
        return await check(pages.alive)

    async def readyz(_: web.Request) -> web.Response:
        return await check(pages.ready)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=pages.metrics().encode(), headers={"Content-Type": TEXT_FORMAT})

    app = web.Application()
    app.router.add_get(HEALTHZ, healthz)
    app.router.add_get(READYZ, readyz)
    app.router.add_get("/metrics", metrics)
    return app
