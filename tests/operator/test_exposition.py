"""The operator's page of metrics, by the rules of Prometheus' text format and of `promtool check metrics`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import aiohttp
from aiohttp.test_utils import TestServer

from headgate_operator.exposition import process_lines
from headgate_operator.health import Metrics, Pages, application
from headgate_operator.population import Population
from testbed_runtime.kube.api import Call
from tests.operator.test_metrics import SAMPLE, an_object, values

SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
UNITS = ("_milliseconds", "_ms", "_minutes", "_hours", "_kilobytes", "_megabytes", "_percent")
"""Endings that are not base units."""


def a_page() -> str:
    """Return a page on which every family has samples."""
    metrics, population = Metrics(), Population()
    for kind in ("Testbed", "Fault"):
        metrics.reconciled(kind, 0.3, failed=True)
        metrics.retried(kind)
    metrics.answered(Call("get", "", "pods", "lab"), 200)
    acting = {"phase": "Active", "kind": "network.latency", "deadline": "2023-11-14T22:13:20Z"}
    population.seen(an_object("Fault", "slow", **acting, residue={"tm-0": "a rule"}), 0.0, gone=False)
    lines = [*population.lines(0.0), *process_lines()]
    return metrics.text(depth=1, leader=True, info={"version": "1"}) + "\n".join(lines) + "\n"


def families(page: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield name, type and the names of the samples. Fails if a family is not one HELP, one TYPE and its samples, in this order."""
    for text in re.split(r"^(?=# HELP )", page, flags=re.MULTILINE)[1:]:
        first, second, *samples = text.splitlines()
        _, type_word, name, type_ = second.split()
        assert type_word == "TYPE"
        assert re.fullmatch(rf"# HELP {name} \S.*\.", first)
        matched = [SAMPLE.match(sample) for sample in samples]
        yield name, type_, [one[1] if one else "" for one in matched]


def test_every_family_is_named_and_typed_as_prometheus_expects() -> None:
    """Counters end in `_total` and nothing else does; units are base units; HELP and TYPE come once, before the samples."""
    found = list(families(a_page()))
    assert len({name for name, *_ in found}) == len(found) > 15
    for name, type_, samples in found:
        assert re.fullmatch(r"(headgate|process)_[a-z_]+[a-z]", name)
        assert name.endswith("_total") == (type_ == "counter")
        assert not name.endswith(UNITS)
        assert samples
        assert set(samples) == {f"{name}{suffix}" for suffix in SUFFIXES[type_]}


def test_no_series_comes_twice_and_a_histogram_adds_up() -> None:
    """A scrape with a series that comes twice is refused as a whole. The bucket `+Inf` is the count, and buckets never fall."""
    page = a_page()
    samples = [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    found = values(page)
    for labels in ('kind="Testbed"', 'kind="Fault"'):
        name = "headgate_reconcile_duration_seconds"
        buckets = [n for s, n in found.items() if s.startswith(f"{name}_bucket{{{labels},")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == found[f"{name}_count{{{labels}}}"] == 1


def test_counters_with_known_labels_begin_at_0() -> None:
    """Otherwise `increase()` misses the first event of each label: a series that begins with 1 has no increase."""
    metrics, population = Metrics(), Population()
    metrics.reconciled("Testbed", 0.1, failed=False)
    found = values(metrics.text(depth=0, leader=True, info={}) + "\n".join(population.lines(0.0)))
    for verdict in ("Pass", "Fail", "Error", "Inconclusive", "other"):
        assert found[f'headgate_runs_finished_total{{verdict="{verdict}"}}'] == 0
    for answer in ("allowed", "refused"):
        assert found[f'headgate_admission_reviews_total{{answer="{answer}"}}'] == 0
    assert found['headgate_reconcile_errors_total{kind="Testbed"}'] == 0
    assert found['headgate_reconcile_retries_total{kind="Testbed"}'] == 0


async def test_the_page_has_the_content_type_of_the_text_format() -> None:
    """Prometheus 3 refuses a page whose format it does not recognise."""
    page = a_page()
    async with (
        TestServer(application(Pages(lambda: "", lambda: "", lambda: page))) as server,
        aiohttp.ClientSession() as session,
        session.get(server.make_url("/metrics")) as answered,
    ):
        assert answered.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert await answered.text() == page
