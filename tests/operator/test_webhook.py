"""The validating webhook: what it answers, over real TLS, and that it uses a renewed certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headgate_operator import webhook
from headgate_operator.health import Metrics
from testbed_runtime.api.certificates import make_certificate
from testbed_runtime.api.naming import WEBHOOK_PATH
from tests.operator.actors import a_fault, a_run
from tests.operator.world import a_testbed

LOOPBACK = "127.0.0.1"


def review(obj: Any) -> dict[str, Any]:
    """A review as the API server sends it, with the fields that matter here."""
    request = {"uid": "u-1", "operation": "CREATE", "object": obj}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def a_ring() -> dict[str, Any]:
    """A Testbed with a cycle of three vertices, which no rule in CEL finds."""
    bench = a_testbed()
    job = bench["spec"]["job"]
    ring = ("one", "two", "three")
    job["vertices"] += [
        {"name": name, "slotSharingGroup": "main", "operator": "keyed-count"} for name in ring
    ]
    steps = ("source", *ring, "one"), ("three", "sink")
    job["edges"] = [{"from": a, "to": b} for path in steps for a, b in pairwise(path)]
    return bench


@pytest.mark.parametrize("obj", [a_testbed(), a_fault("slow"), a_run()], ids=lambda obj: str(obj["kind"]))
def test_a_valid_object_is_allowed(obj: dict[str, Any]) -> None:
    """The answer has the review's version, kind and uid, and what a user should know."""
    answered = webhook.answer(review(obj))
    assert (answered["apiVersion"], answered["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = answered["response"]
    assert (response["uid"], response["allowed"], "status" in response) == ("u-1", True, False)


REFUSED = {
    "a typing mistake in an option of Flink": (
        a_testbed(flinkConfiguration={"heartbeat.timeot": "50 s"}),
        "spec.flinkConfiguration[heartbeat.timeot]",
        "did you mean heartbeat.timeout?",
    ),
    "a long cycle": (a_ring(), "spec.job.edges", "cycle"),
    "another kind": ({"kind": "Pod"}, "kind", "'Pod' is no kind of headgate.dev/v1alpha1"),
    "a negative number": (
        a_testbed(taskManagers={"replicas": -1}),
        "spec.taskManagers.replicas",
        "at least 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_object_is_refused_with_the_field_and_the_fix(case: str) -> None:
    """Every error of `headgate validate`, a line each."""
    obj, field, words = REFUSED[case]
    response = webhook.answer(review(obj))["response"]
    assert response["allowed"] is False
    assert field in response["status"]["message"]
    assert words in response["status"]["message"]


def test_what_has_no_effect_is_allowed_with_a_warning() -> None:
    """kubectl prints it."""
    bench = a_testbed(flinkConfiguration={"jobmanager.memory.process.size": "1g"})
    response = webhook.answer(review(bench))["response"]
    assert response["allowed"] is True
    assert "jobmanager.memory.process.size: has no effect here" in response["warnings"]


def write(folder: Path) -> str:
    """Write a new certificate and its key as the kubelet mounts them. Returns the certificate as PEM."""
    both = make_certificate(datetime.now(UTC)).decode()
    key, mark, rest = both.partition("-----BEGIN CERTIFICATE-----")
    (folder / webhook.CERTIFICATE).write_text(mark + rest)
    (folder / webhook.KEY).write_text(key)
    return mark + rest


@asynccontextmanager
async def serving(folder: Path, metrics: Metrics) -> AsyncIterator[str]:
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    server = await webhook.serve(folder, port, metrics.reviewed)
    try:
        yield f"https://{LOOPBACK}:{port}{WEBHOOK_PATH}"
    finally:
        await server.cleanup()


def trusting(certificate: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=certificate)
    context.check_hostname = False  # the certificate names no host
    return context


async def test_it_answers_over_tls_and_counts(tmp_path: Path) -> None:
    """A body that is no review of an object is an error of the request, and not an answer."""
    trusted, metrics = trusting(write(tmp_path)), Metrics()
    async with serving(tmp_path, metrics) as url, aiohttp.ClientSession() as session:
        for obj, allowed in ((a_testbed(), True), (a_ring(), False)):
            async with session.post(url, json=review(obj), ssl=trusted) as answered:
                assert answered.status == 200
                assert (await answered.json())["response"]["allowed"] is allowed
        for body in ({}, {"request": {"uid": "1"}}, [], "text"):
            async with session.post(url, json=body, ssl=trusted) as answered:
                assert answered.status == 400
    text = metrics.text(depth=0, leader=True, info={})
    assert 'headgate_admission_reviews_total{answer="allowed"} 1' in text
    assert 'headgate_admission_reviews_total{answer="refused"} 1' in text


async def test_a_renewed_certificate_is_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New connections get it. One that cannot be read leaves the old one in use."""
    monkeypatch.setattr(webhook, "RENEWAL_CHECK_S", 0.02)
    first = trusting(write(tmp_path))
    async with serving(tmp_path, Metrics()) as url:
        assert await asks(url, first)
        (tmp_path / webhook.CERTIFICATE).write_text("half of a fi")
        await asyncio.sleep(0.1)
        assert await asks(url, first)
        second = trusting(write(tmp_path))
        async with asyncio.timeout(10):
            while not await asks(url, second):
                await asyncio.sleep(0.02)
        assert not await asks(url, first)


async def asks(url: str, trusted: ssl.SSLContext) -> bool:
    """Whether a client that trusts this certificate only gets an answer on a new connection."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.post(url, json=review(a_testbed()), ssl=trusted) as answered:
                return answered.status == 200
        except aiohttp.ClientConnectorCertificateError:
            return False
