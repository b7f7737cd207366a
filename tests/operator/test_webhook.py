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
from tests.waiting import until

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
    """The answer has the review's version, kind and uid."""
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
    "another kind": ({"kind": "Pod"}, "kind", "'Pod' is not a kind of headgate.dev/v1alpha1"),
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


def test_only_new_errors_refuse_a_change() -> None:
    """A study that was accepted before the webhook can be suspended; a second mistake is refused."""
    old = a_testbed(flinkConfiguration={"heartbeat.timeot": "50 s"})
    for more, allowed in (({}, True), ({"heartbeat.intervl": "1 s"}, False)):
        configuration = {**old["spec"]["flinkConfiguration"], **more}
        asked = review(a_testbed(flinkConfiguration=configuration, jobState="suspended"))
        asked["request"] |= {"operation": "UPDATE", "oldObject": old}
        response = webhook.answer(asked)["response"]
        assert response["allowed"] is allowed
        assert any("heartbeat.timeot" in line for line in response["warnings"])
        assert "heartbeat.timeot" not in response.get("status", {}).get("message", "")


def test_a_deletion_is_allowed() -> None:
    """Its review has no object."""
    asked = {
        **review(None),
        "request": {"uid": "u-1", "operation": "DELETE", "object": None, "oldObject": a_ring()},
    }
    assert webhook.answer(asked)["response"] == {"uid": "u-1", "allowed": True}


def write(folder: Path) -> str:
    """Write a new certificate and its key. Returns the certificate as PEM."""
    both = make_certificate(datetime.now(UTC)).decode()
    key, mark, rest = both.partition("-----BEGIN CERTIFICATE-----")
    (folder / webhook.CERTIFICATE).write_text(mark + rest)
    (folder / webhook.KEY).write_text(key)
    return mark + rest


def mount(folder: Path, version: str) -> str:
    """Write them as the kubelet does: a folder for each version, and a link that is exchanged."""
    (folder / version).mkdir()
    certificate = write(folder / version)
    link = folder / "..new"
    link.symlink_to(version)
    link.replace(folder / webhook.SNAPSHOT)
    for name in (webhook.CERTIFICATE, webhook.KEY):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path(webhook.SNAPSHOT) / name)
    return certificate


@asynccontextmanager
async def serving(folder: Path, metrics: Metrics) -> AsyncIterator[str]:
    with socket.socket() as reserved:  # bound, so that no other process gets this port; the webhook reuses it
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((LOOPBACK, 0))
        port = reserved.getsockname()[1]
        task = asyncio.create_task(webhook.serve(folder, port, metrics.reviewed))
        try:
            yield f"https://{LOOPBACK}:{port}{WEBHOOK_PATH}"
        finally:
            task.cancel()
            await asyncio.wait({task})


def trusting(certificate: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=certificate)
    context.check_hostname = False  # the certificate names no host
    return context


async def asks(url: str, trusted: ssl.SSLContext) -> bool:
    """Whether a client that trusts this certificate only gets an answer on a new connection."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.post(url, json=review(a_testbed()), ssl=trusted) as answered:
                return answered.status == 200
        except aiohttp.ClientConnectionError:
            return False


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    await until(lambda: any(text in f"{r.message} {getattr(r, 'error', '')}" for r in caplog.records))


async def eventually(url: str, trusted: ssl.SSLContext) -> None:
    async with asyncio.timeout(10):
        while not await asks(url, trusted):
            await asyncio.sleep(0.02)


async def test_it_answers_over_tls_and_counts(tmp_path: Path) -> None:
    """A body that is no review of an object is an error of the request, and not an answer."""
    trusted, metrics = trusting(write(tmp_path)), Metrics()
    async with serving(tmp_path, metrics) as url, aiohttp.ClientSession() as session:
        await eventually(url, trusted)
        for obj, allowed in ((a_testbed(), True), (a_ring(), False)):
            async with session.post(url, json=review(obj), ssl=trusted) as answered:
                assert answered.status == 200
                assert answered.headers["Connection"] == "close"
                assert (await answered.json())["response"]["allowed"] is allowed
        for body in (b"{}", b'{"request": {"uid": "1"}}', b"[]", b"", b"{", b"\xff"):
            async with session.post(url, data=body, ssl=trusted) as answered:
                assert answered.status == 400, body
    text = metrics.text(depth=0, leader=True, info={})
    assert 'headgate_admission_reviews_total{answer="allowed"} 2' in text
    assert 'headgate_admission_reviews_total{answer="refused"} 1' in text


async def test_a_renewed_certificate_is_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New connections get it, also when it is renewed again."""
    monkeypatch.setattr(webhook, "RENEWAL_CHECK_S", 0.02)
    before = trusting(mount(tmp_path, "1"))
    async with serving(tmp_path, Metrics()) as url:
        await eventually(url, before)
        for version in ("2", "3"):
            renewed = trusting(mount(tmp_path, version))
            await eventually(url, renewed)
            assert not await asks(url, before)
            before = renewed


@pytest.mark.parametrize("damaged", [webhook.CERTIFICATE, webhook.KEY])
async def test_a_certificate_that_cannot_be_used_leaves_the_old_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    """A file is damaged, or a new certificate has the old key: what somebody sees who writes a Secret in two steps."""
    monkeypatch.setattr(webhook, "RENEWAL_CHECK_S", 0.02)
    old = trusting(write(tmp_path))
    (tmp_path / "other").mkdir()
    write(tmp_path / "other")
    async with serving(tmp_path, Metrics()) as url:
        await eventually(url, old)
        for text in ("half of a fi", (tmp_path / "other" / damaged).read_text()):
            caplog.clear()
            (tmp_path / damaged).write_text(text)
            await logged(caplog, "KEY_VALUES_MISMATCH" if "BEGIN" in text else "cannot be used")
            assert await asks(url, old)


async def test_an_operator_without_a_usable_certificate_goes_on_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The check is optional; runs and faults need the operator."""
    monkeypatch.setattr(webhook, "RENEWAL_CHECK_S", 0.02)
    async with serving(tmp_path, Metrics()) as url:
        await logged(caplog, "the webhook is not served")
        await eventually(url, trusting(write(tmp_path)))
