"""The process of a pod, from its environment and its testbed.json."""

import json
import subprocess
import sys

import pytest
from msgspec.structs import replace

from headgate_operator import objects
from testbed_runtime.api import naming
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.entry import agent
from testbed_runtime.entry.pod_plan import (
    ROUTE_PORT,
    child_spec,
    document_of,
    identity_of,
    peer_addresses,
    process_config,
    supervisor_config,
)
from tests.entry.pods import SPEC

ENVIRONMENT = {
    "POD_IP": "10.1.2.3",
    "POD_NAMESPACE": "ns",
    "HEADGATE_NAME": "tm-1",
    "HEADGATE_INCARNATION": "2",
}


def document(spec=SPEC, **fields):
    whole = {
        "name": "shop",
        "namespace": "ns",
        "run": "r",
        "trial": "main-1",
        "seed": 7,
        "recorder": None,
        "spec": spec,
    }
    return document_of(json.dumps({**whole, **fields}).encode(), "testbed.json")


def place(role, name=""):
    return identity_of(role, {**ENVIRONMENT, "HEADGATE_NAME": name or role})


def test_a_task_manager_says_its_pod_s_address_and_finds_the_others_by_name():
    """Fixed ports; no job, no folder shared with anybody."""
    config = process_config(
        place("taskmanager", "tm-1"), document(recorder=["r-recorder.ns.svc", 6126, "/t/main-1"])
    )
    assert config.bind == ("10.1.2.3", 6122)
    assert config.data_bind == ("10.1.2.3", 6121)
    assert config.jobmanager == ("jobmanager.shop.ns.svc", 6123)
    assert config.store == ("store.shop.ns.svc", 6124)
    assert (config.recorder, config.recorder_path) == (("r-recorder.ns.svc", 6126), "/t/main-1")
    assert config.proxy is None
    assert config.job is None
    assert (config.local_folder, config.blob_folder) == (naming.DATA_FOLDER, "")
    store = process_config(place("store"), document())
    assert (store.local_folder, store.blob_folder) == ("", naming.DATA_FOLDER)


def test_incarnations_of_a_later_pod_never_come_twice():
    """A hundred starts a pod, counted in a file of the pod."""
    config = supervisor_config(place("taskmanager", "tm-1"), document())
    assert config.first_incarnation == 101
    assert config.starts_file == "/run/headgate/starts-tm-1"
    assert not config.owned


def test_a_lost_task_manager_is_replaced_as_the_testbed_says_and_the_others_at_once():
    """Never is never; a JobManager that a fault killed waits for the fault's end."""
    never = {**SPEC, "taskManagers": {"replicas": 2, "replaceLost": "Never"}}
    assert child_spec(place("taskmanager", "tm-0"), document(never)).replace_lost_s is None
    assert child_spec(place("taskmanager", "tm-0"), document()).replace_lost_s == 0.5
    jobmanager = child_spec(place("jobmanager"), document())
    assert (jobmanager.replace_lost_s, jobmanager.replace_killed) == (0.5, False)
    assert child_spec(place("store"), document()).replace_killed


def test_only_a_running_testbed_s_job_manager_submits_its_job():
    """Application mode; a runner's testbeds are suspended and it submits by itself. The job survives its way through the file."""
    spec = child_spec(place("jobmanager"), document())
    assert isinstance(process_config(place("jobmanager"), document()).job, JobGraph)
    assert [v["name"] for v in spec.config["job"]["vertices"]] == ["source", "sink"]
    assert process_config(place("jobmanager"), document({**SPEC, "jobState": "suspended"})).job is None
    assert process_config(place("taskmanager", "tm-0"), document()).job is None


def test_each_supervisor_holds_the_faults_of_its_own_pod():
    """Network faults in the proxy's, processes and channels in the others'; a store's holds none."""
    found = {role: supervisor_config(place(role, name), document()).backends for role, name in ROLES}
    assert found == {
        "jobmanager": ("channel", "supervisor"),
        "taskmanager": ("channel", "supervisor"),
        "proxy": ("proxy",),
        "store": (),
    }


ROLES = (("jobmanager", ""), ("taskmanager", "tm-0"), ("proxy", ""), ("store", ""))


def test_everybody_is_known_by_name_and_the_proxy_is_in_the_path_when_asked():
    """JobManager and ordinals; routes from a port on that a policy can name."""
    with_proxy = document({**SPEC, "pods": {"proxy": True}})
    assert list(peer_addresses(with_proxy)) == ["jobmanager", "tm-0", "tm-1"]
    assert peer_addresses(with_proxy)["tm-1"] == ("tm-1.shop.ns.svc", 6122)
    assert process_config(place("taskmanager", "tm-0"), with_proxy).proxy == ("proxy.shop.ns.svc", 6125)
    assert process_config(place("proxy"), with_proxy).route_port == ROUTE_PORT


def test_only_a_task_manager_of_an_encrypted_testbed_reads_the_certificate():
    """The file exists in its pod only."""
    encrypted = document({**SPEC, "flinkConfiguration": {"security.ssl.internal.enabled": "true"}})
    found = {role: process_config(place(role, name), encrypted).certificate_file for role, name in ROLES}
    assert {role for role, file in found.items() if file} == {"taskmanager"}
    assert found["taskmanager"] == naming.CERTIFICATE_FILE
    assert process_config(place("taskmanager", "tm-0"), document()).certificate_file == ""


def test_a_recorder_needs_no_testbed():
    """It serves a run on its volume."""
    spec = child_spec(place("recorder"), None)
    assert spec.argv[2] == "testbed_runtime.entry.run_recorder"
    assert spec.config["history_folder"] == "/var/lib/headgate"
    assert tuple(spec.config["bind"]) == ("10.1.2.3", 6126)
    with pytest.raises(UserError, match="a store needs"):
        child_spec(place("store"), None)


@pytest.mark.parametrize(
    ("role", "changes", "field"),
    [
        ("driver", {}, "role"),
        ("taskmanager", {"HEADGATE_NAME": ""}, "HEADGATE_NAME"),
        ("taskmanager", {"HEADGATE_NAME": "store"}, "HEADGATE_NAME"),
        ("taskmanager", {"HEADGATE_INCARNATION": "0"}, "HEADGATE_INCARNATION"),
        ("taskmanager", {"POD_IP": ""}, "POD_IP"),
    ],
)
def test_a_wrong_environment_names_the_variable(role, changes, field):
    """The error has the problem and a hint."""
    with pytest.raises(UserError) as raised:
        identity_of(role, {**ENVIRONMENT, **changes})
    assert raised.value.path == field
    assert raised.value.hint


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"{", "testbed.json"),
        (b"[]", "testbed.json"),
        (json.dumps({"name": "a"}).encode(), "testbed.json"),
        (json.dumps({"name": "a", "namespace": "b", "spec": {"job": {}}}).encode(), "spec.job.vertices"),
    ],
)
def test_a_damaged_testbed_json_names_the_field(data, field):
    """Never a stack trace."""
    with pytest.raises(UserError) as raised:
        document_of(data, "testbed.json")
    assert raised.value.path == field


def written(**spec):
    """The operator's testbed.json."""
    metadata = {"name": "shop", "namespace": "ns", "uid": "u", "generation": 1}
    whole = {**SPEC, "run": "r", "trial": "main-1", "seed": 7, **spec}
    testbed = {"apiVersion": naming.API_VERSION, "kind": "Testbed", "metadata": metadata, "spec": whole}
    return json.loads(objects.config_map(testbed)["data"]["testbed.json"])


def read(raw):
    return document_of(json.dumps(raw).encode(), "testbed.json")


IMPORTED = """
import sys
from pathlib import Path
from testbed_runtime.entry import pod, pod_plan
for name in sys.argv[1:]:
    document = pod_plan.document_of(Path(name).read_bytes(), name)
    print(document.plan.slots, "pydantic" in sys.modules)
"""


def test_a_pod_starts_without_the_models_of_documents(tmp_path):
    """The operator has compiled the plan. Only one of another version is compiled from the spec."""
    raw = written()
    files = {"own.json": raw, "other.json": {**raw, "plan": {**raw["plan"], "field_of_another_version": 1}}}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    command = [sys.executable, "-c", IMPORTED, *(str(tmp_path / name) for name in files)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["1", "False", "1", "True"]


EVERYTHING = {
    "flinkConfiguration": {"security.ssl.internal.enabled": "true"},
    "pods": {"proxy": True, "packetFaults": True},
    "jobState": "suspended",
    "taskManagers": {"replicas": 3, "slots": 2, "replaceLost": "Never"},
}


@pytest.mark.parametrize("spec", [{}, EVERYTHING])
def test_the_plan_of_the_operator_is_that_of_the_spec(spec):
    """A pod of another version compiles the spec, and does the same."""
    raw = written(**spec)
    compiled = read({k: v for k, v in raw.items() if k != "plan"})
    given = read(raw)
    assert given.plan == replace(compiled.plan, resource={})
    assert replace(given, plan=compiled.plan) == compiled


@pytest.mark.parametrize(
    "changed",
    [
        lambda plan: {**plan, "slots": "two"},
        lambda plan: {**plan, "new": 1},
        lambda plan: {k: v for k, v in plan.items() if k != "frame_faults"},
        lambda plan: {**plan, "job": {**plan["job"], "new": 1}},
        lambda plan: None,
    ],
)
def test_the_plan_of_another_version_is_not_used(changed):
    """A field that is missing, new or of another type may change what the others mean, so the spec is compiled."""
    raw = written()
    wrong = changed({**raw["plan"], "replicas": 99})
    assert read({**raw, "plan": {**raw["plan"], "replicas": 99}}).plan.replicas == 99
    assert read({**raw, "plan": wrong}).plan.replicas == 2


async def test_an_agent_knows_the_taskmanagers_that_came_by_scaling(tmp_path):
    """Its pod stays as it is when the testbed grows: testbed.json tells it, and one that cannot be read changes nothing."""
    file = tmp_path / "testbed.json"
    bench = {"name": "bench", "namespace": "lab", "spec": {"taskManagers": {"replicas": 2}}}
    file.write_text(json.dumps(bench))
    config = agent.config_of_pod({"HEADGATE_NAME": "tm-0"}, bench)
    neighbours = agent.Neighbours(config, file)
    assert (await neighbours.surroundings()).echoes == ("jobmanager", "tm-0", "tm-1")
    file.write_text(json.dumps({**bench, "spec": {"taskManagers": {"replicas": 3}}}))
    assert "tm-2" in (await neighbours.surroundings()).echoes
    file.write_text("{")
    assert "tm-2" in (await neighbours.surroundings()).echoes
