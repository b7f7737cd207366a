"""The files of Python functions on their way into a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from headgate_operator import objects
from headgate_operator.settings import Settings
from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.models import Scenario
from testbed_runtime.api.validate_kinds import validate_kind
from testbed_runtime.api.views import Pod
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.job.functions import FIELD
from testbed_runtime.kube import functions
from testbed_runtime.kube.api import Api
from tests.api import documents
from tests.collecting import Collected
from tests.kube.test_checkpoint import LAB, Following
from tests.operator.model import ModelApi
from tests.operator.world import a_testbed

EXAMPLES = Path(__file__).resolve().parents[2] / "scenarios" / "examples"


def example(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    return document


def references(document: dict[str, Any]) -> set[str]:
    vertices = document["spec"]["testbed"]["job"]["vertices"]
    found = {v.get("function") for v in vertices} | {
        (v.get("iteration") or {}).get("criterion") for v in vertices
    }
    return {reference for reference in found if reference}


@pytest.mark.parametrize("name", ["python-function", "bulk-iteration", "delta-iteration"])
async def test_a_run_in_pods_brings_the_files_of_its_functions(name: str) -> None:
    """One ConfigMap, which the run owns and the operator does not watch. The run names it, and is accepted."""
    document = example(name)
    api = ModelApi()
    scenario = Scenario.model_validate(document)
    client = Following(cast("Api", api), LAB, Collected())
    files = functions.files_of(document, EXAMPLES)
    plan = compile_run(scenario, scenario_folder=EXAMPLES)
    with pytest.raises(HeadgateError, match="followed"):
        await client.run(scenario, document, plan=plan, out=cast("Any", None), files=files)
    (run,) = api.select("ScenarioRun", LAB)
    assert validate_kind(run).errors == ()
    (config_map,) = api.select("ConfigMap", LAB)
    map_name = f"{run['metadata']['name']}-functions"
    assert config_map["metadata"]["name"] == map_name
    assert config_map["immutable"] is True
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == run["metadata"]["uid"]
    assert not any("managed-by" in label for label in config_map["metadata"]["labels"])
    written = references(document)
    assert written
    assert references({"spec": run["spec"]["scenario"]}) == {f"configmap://{map_name}/{w}" for w in written}
    assert config_map["data"] == {
        file: (EXAMPLES / file).read_text() for file in {w.partition(":")[0] for w in written}
    }


def test_functions_of_variants_are_brought_too_and_those_in_a_cluster_stay(tmp_path: Path) -> None:
    """A variant with a job of its own has functions of its own."""
    document = example("python-function")
    own = example("python-function")["spec"]["testbed"]["job"]
    own["vertices"][1]["function"] = "deep/other.py:f"
    kept = example("python-function")["spec"]["testbed"]["job"]
    kept["vertices"][1]["function"] = "configmap://mine/f.py:f"
    document["spec"]["variants"] = [
        {"name": "own", "job": own},
        {"name": "kept", "job": kept},
        {"name": "same"},
    ]
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "other.py").write_text("def f(record): return record\n")
    (tmp_path / "buckets.py").write_text("def bucket(record): return 1\n")
    assert functions.files_of(document, tmp_path).keys() == {"buckets.py", "other.py"}
    (tmp_path / "alias.py").symlink_to("buckets.py")
    document["spec"]["testbed"]["job"]["vertices"][1]["function"] = "alias.py:bucket"
    assert functions.files_of(document, tmp_path).keys() == {"alias.py", "other.py"}
    placed = functions.in_cluster(document, "run-functions")
    (moved,) = references(placed)
    assert moved == "configmap://run-functions/alias.py:bucket"
    named = [v["job"]["vertices"][1]["function"] for v in placed["spec"]["variants"] if "job" in v]
    assert named == ["configmap://run-functions/other.py:f", "configmap://mine/f.py:f"]
    assert functions.in_cluster(placed, "again") == placed


def test_modules_beside_a_function_that_it_imports_are_brought_too(tmp_path: Path) -> None:
    """Also those that these import; not the installed ones, and not the other files of the folder."""
    (tmp_path / "buckets.py").write_text("import json\nfrom helpers import f as bucket\n")
    (tmp_path / "helpers.py").write_text("import buckets, numbers_of.x\ndef f(record): return 1\n")
    (tmp_path / "numbers_of.py").write_text("")
    (tmp_path / "other.py").write_text("")
    assert functions.files_of(example("python-function"), tmp_path).keys() == {
        "buckets.py",
        "helpers.py",
        "numbers_of.py",
    }


BAD = {
    "a package": (
        {"buckets.py": "import deep.part", "deep/__init__.py": ""},
        "'buckets.py' imports the folder 'deep', which a ConfigMap cannot hold",
    ),
    "a large file": ({"buckets.py": "#" * 900_001}, "have 900001 bytes, more than 900000"),
    "no text": ({"buckets.py": b"\xff\xfe"}, "'buckets.py' cannot be read as UTF-8"),
    "two files with one name": ({"buckets.py": "", "a/buckets.py": ""}, "two files are named 'buckets.py'"),
    "no key": ({"my buckets.py": ""}, "'my buckets.py' cannot be the key of a ConfigMap"),
}


@pytest.mark.parametrize("case", BAD)
def test_files_that_a_configmap_cannot_hold_are_refused(case: str, tmp_path: Path) -> None:
    """With the file and the reason, before anything is created."""
    files, reason = BAD[case]
    document = example("python-function")
    vertices = document["spec"]["testbed"]["job"]["vertices"]
    vertices[:] = [{"name": f"v{n}", "function": f"{file}:f"} for n, file in enumerate(files)]
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=FIELD) as refused:
        functions.files_of(document, tmp_path)
    assert reason in str(refused.value)


def test_only_taskmanagers_mount_the_configmaps_of_functions() -> None:
    """Each at its own folder, read-only. A pod that waits says which it needs, because Kubernetes says so in an Event only."""
    testbed = a_testbed()
    testbed["metadata"]["uid"] = "u1"
    testbed["spec"]["job"]["vertices"] += [
        {"name": "a", "operator": "python", "function": "configmap://one.two/f.py:f"},
        {"name": "b", "operator": "python", "function": "/opt/f.py:f"},
        {"name": "c", "iteration": {"kind": "bulk", "criterion": "configmap://last/g.py:g"}},
    ]

    def made(process: str) -> dict[str, Any]:
        return objects.pod(testbed, process, incarnation=1, secret_uid="s", settings=Settings())

    spec = made("tm-0")["spec"]
    maps = {v["name"]: v["configMap"]["name"] for v in spec["volumes"] if "functions" in v["name"]}
    assert maps == {"functions-0": "last", "functions-1": "one.two"}
    mounts = [m for m in spec["containers"][0]["volumeMounts"] if "functions" in m["name"]]
    assert [(m["mountPath"], m["readOnly"]) for m in mounts] == [
        ("/etc/headgate/functions/last", True),
        ("/etc/headgate/functions/one.two", True),
    ]
    for process in ("jobmanager", "store", "proxy"):
        assert "functions" not in str(made(process)["spec"]["volumes"])
    waiting = made("tm-0") | {"status": {"phase": "Pending"}}
    assert Pod(waiting).problem == "ContainerCreating: it needs the ConfigMap last, one.two"
    assert Pod(waiting | {"status": {"phase": "Running"}}).problem == ""


def test_a_function_in_a_file_beside_the_scenario_is_refused_in_pods() -> None:
    """The file is on the machine of the user only. A function that an image or a ConfigMap has is accepted."""
    run, testbed = (documents.good(kind) for kind in ("ScenarioRun", "Testbed"))
    job = testbed["spec"]["job"]
    vertex = next(v for v in job["vertices"] if "operator" in v)
    vertex |= {"operator": "python", "function": "buckets.py:bucket"}
    index = job["vertices"].index(vertex)
    run["spec"]["scenario"]["testbed"] = {"job": job, "taskManagers": testbed["spec"]["taskManagers"]}
    refused = [error for document in (testbed, run) for error in validate_kind(document).errors]
    where = f"job.vertices[{index}].function"
    assert [error.path for error in refused] == [f"spec.{where}", f"spec.scenario.testbed.{where}"]
    assert all("which pods do not have" in error.problem for error in refused)
    for there in ("/opt/functions/buckets.py:bucket", "configmap://functions/buckets.py:bucket"):
        vertex["function"] = there
        assert [error for document in (testbed, run) for error in validate_kind(document).errors] == []
    for malformed in (
        "configmap://functions:bucket",
        "configmap://Functions/buckets.py:bucket",
        "configmap://f/../b.py:b",
        "configmap://f/b.py",
    ):
        vertex["function"] = malformed
        refused = [error for document in (testbed, run) for error in validate_kind(document).errors]
        assert [error.path for error in refused] == [f"spec.{where}", f"spec.scenario.testbed.{where}"]
        assert all("is not a function in a ConfigMap" in error.problem for error in refused)
