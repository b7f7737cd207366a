"""Pods as processes on loopback: a testbed runs its job, and each part of it may end and restart."""

import itertools
import ssl

import pytest

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.exchange.tls import ALGORITHMS, INTERNAL
from testbed_runtime.core.faults.model import Fault, Target
from testbed_runtime.local.testbed import write_certificate
from tests.entry.pods import CONFIGURATION, SPEC, Pods
from tests.transport.encrypted import first_bytes

pytestmark = pytest.mark.processes
_numbers = itertools.count(11)


@pytest.fixture
async def pods(tmp_path):
    pods = Pods(tmp_path, next(_numbers))
    yield pods
    await pods.close()


def fault(kind, duration_s, target="tm-0", **params):
    return Fault(
        name="f", kind=kind, at_s=0, duration_s=duration_s, target=Target(names=(target,)), params=params
    )


async def test_a_testbed_of_pods_runs_its_job_and_its_recorder_seals_the_history(pods):
    """Started all at once: names that do not resolve yet are tried again. The job submits itself."""
    await pods.start_all()
    job = await pods.until_running(beyond=1)
    assert sorted(job["registered"]) == ["tm-0", "tm-1"]
    assert set(job["placement"].values()) == {"tm-0", "tm-1"}
    for name in ("tm-0", "tm-1", "jobmanager", "store"):
        code = await pods.stop(name)
        assert code == 0, name
    recorder = pods.addresses["recorder"], 6126
    sealed = await pods.control.call("POST", recorder, "/t/main-1/seal", timeout_s=20)
    assert sealed["problems"] == []
    assert sealed["rows"]["events"] > 10
    assert {name.split("~")[0] for name in sealed["streams"]} == {"jobmanager-1", "tm-0-1", "tm-1-1"}


async def test_pods_of_an_encrypted_testbed_exchange_data_with_the_certificate_that_they_mount(pods):
    """A client without it is refused by the data port."""
    write_certificate(pods.folder / "certificate.pem")
    options = {INTERNAL: "true", ALGORITHMS: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}
    pods.spec = {**SPEC, "flinkConfiguration": {**CONFIGURATION, **options}}
    pods.write()
    await pods.start_all()
    await pods.until_running(beyond=1)
    with pytest.raises(ssl.SSLError):
        await first_bytes(pods.addresses["tm-0"], naming.DATA_PORT)


async def test_a_job_manager_s_pod_that_is_gone_goes_on_with_the_job_under_another_address(pods):
    """The store keeps the job, the TaskManagers find the new pod by its name; a job is not submitted twice."""
    await pods.start_all()
    await pods.until_running(beyond=1)
    await pods.kill("jobmanager")
    await pods.start("jobmanager", incarnation=2)
    job = await pods.until_running(beyond=1)
    assert job["restarts"] == 1
    keys = list((pods.folder / "data-store" / "objects" / "jobs").iterdir())
    assert len(keys) == 1


async def test_a_store_s_pod_that_comes_again_costs_checkpoints_and_not_the_job(pods):
    """Same volume, another address."""
    await pods.start_all()
    before = await pods.until_running(beyond=1)
    await pods.kill("store")
    await pods.start("store", incarnation=2)
    job = await pods.until_job(
        lambda j: j["state"] == "RUNNING" and j["checkpoints"] > before["checkpoints"] + 1,
        "checkpoints go on",
    )
    assert job["running"] == job["total"]


async def said(client, state):
    """Whether a fault's row says this."""
    return state in await fault_states(client)


async def fault_states(client):
    """Return the states of the fault rows; the journal also has the waits of the supervisor."""
    return [row["row"]["state"] for row in await client.journal(0) if row["table"] == "faults"]


async def test_a_paused_child_leaves_the_pod_alive_and_not_ready(pods):
    """Liveness is the supervisor's; it is ready again when the pause is over."""
    await pods.start_all()
    await pods.until_running()
    client = pods.faults("tm-0")
    try:
        await client.inject(fault("process.pause", 60.0), fault_id="p", targets=["tm-0"], lease_s=None)
        assert await pods.probe("tm-0", "healthz")
        assert not await pods.probe("tm-0", "readyz")
        await pods.until(lambda: said(client, "verified"), "it stands still")
        await client.heal("p")
        await pods.until_ready("tm-0")
        assert await client.residue() == {}
        states = await fault_states(client)
        assert states == ["asked", "injected", "verified", "ended", "clean"]
    finally:
        await client.close()


async def test_a_killed_task_manager_restarts_in_its_pod_with_the_next_number(pods):
    """`replaceLost` applies; a supervisor that restarts in the same pod continues the count."""
    await pods.start_all()
    await pods.until_running()
    client = pods.faults("tm-1")
    await client.inject(fault("process.kill", 1.0, "tm-1"), fault_id="k", targets=["tm-1"], lease_s=None)
    await client.close()
    job = await pods.until_job(
        lambda j: j["restarts"] >= 1 and j["running"] == j["total"] > 0, "the job runs again"
    )
    assert job["state"] == "RUNNING"
    assert (pods.folder / "work-tm-1-1" / "starts-tm-1").read_text() == "2"
    await pods.kill("tm-1")
    await pods.start("taskmanager", "tm-1", fresh=False)
    assert (pods.folder / "work-tm-1-1" / "starts-tm-1").read_text() == "3"


async def test_a_killed_job_manager_is_away_until_its_fault_ends(pods):
    """Its supervisor starts it again at the fault's end, not before, in the same pod."""
    await pods.start_all()
    await pods.until_running(beyond=1)
    client = pods.faults("jobmanager")
    try:
        await client.inject(
            fault("jobmanager.kill", 60.0, "jobmanager"), fault_id="k", targets=["jobmanager"], lease_s=None
        )
        await pods.until(lambda: said(client, "verified"), "it is gone")
        assert await pods.job() == {}
        assert await pods.probe("jobmanager", "healthz")
        starts = pods.folder / "work-jobmanager-1" / "starts-jobmanager"
        assert starts.read_text() == "1"
        await client.heal("k")
        job = await pods.until_running(beyond=0)
        assert job["restarts"] == 1
        assert starts.read_text() == "2"
    finally:
        await client.close()


async def test_a_channel_fault_on_a_link_is_held_and_measured_across_pods(pods):
    """Rules go to the senders in other pods by their names; a lapsed lease ends them; a kind of another pod is refused."""
    await pods.start_all()
    await pods.until_running()
    client = pods.faults("tm-0")
    try:
        delay = fault("frames.delay", 30.0, "tm-0->tm-1", frame_class="records", delay_s=0.2)
        with pytest.raises(HeadgateError, match="frameClass"):
            await client.inject(delay, fault_id="d", targets=["tm-0->tm-1"], lease_s=3.0)
        delay = fault("frames.delay", 30.0, "tm-0->tm-1", frame_class="buffer", delay_s=0.2)
        handle = await client.inject(delay, fault_id="d", targets=["tm-0->tm-1"], lease_s=3.0)
        assert handle.backend == "channel"

        async def ended():
            rows = [r["row"] for r in await client.journal(0) if r["table"] == "faults"]
            return [r["state"] for r in rows][-1:] == ["clean"]

        await pods.until(ended, "the lease lapsed and nothing is left")
        states = [r["row"]["state"] for r in await client.journal(0) if r["table"] == "faults"]
        assert "verified" in states
        assert "voided" in states
        latency = fault("network.latency", 5.0, latency_s=0.01, mode="one-way")
        with pytest.raises(HeadgateError, match="is not possible in the environment 'kubernetes'"):
            await client.inject(latency, fault_id="n", targets=["tm-0"], lease_s=None)
    finally:
        await client.close()


async def test_faults_of_the_proxy_are_held_in_its_pod_and_its_new_pod_is_found(tmp_path):
    """All connections pass through it, a latency is measured; gone and back under another address, the job goes on."""
    pods = Pods(tmp_path, next(_numbers), {**SPEC, "pods": {"proxy": True}})
    try:
        await pods.start_all(proxy=True)
        await pods.until_running()
        client = pods.faults("proxy")
        latency = fault("network.latency", 3.0, latency_s=0.05, mode="one-way")
        handle = await client.inject(latency, fault_id="l", targets=["tm-0"], lease_s=None)
        assert handle.backend == "proxy"

        async def clean():
            return (await fault_states(client))[-1:] == ["clean"]

        await pods.until(clean, "the latency ended")
        states = await fault_states(client)
        assert states == ["asked", "injected", "verified", "ended", "clean"]
        await client.close()
        await pods.kill("proxy")
        await pods.start("proxy", incarnation=2)
        await pods.until_job(
            lambda j: j["restarts"] >= 1 and j["running"] == j["total"] > 0,
            "the job runs through the new proxy",
        )
    finally:
        await pods.close()


async def test_a_pod_whose_input_is_wrong_ends_at_once_and_says_why(pods):
    """2, and the field on stderr. An operator of an earlier version did not compile what it wrote."""
    pods.spec = {**SPEC, "taskManagers": {"replicas": "many"}}
    pods.write(compiled=False)
    with pytest.raises(AssertionError, match=r"spec\.taskManagers\.replicas"):
        await pods.start("jobmanager")
    assert pods.children["jobmanager"].returncode == 2
