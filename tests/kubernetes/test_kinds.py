"""The kinds at a real API server: accepted, explained, and of one mind with the models about what is well formed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from kubernetes.client import CustomObjectsApi
from kubernetes.client.exceptions import ApiException
from kubernetes.config import new_client_from_config

from testbed_runtime.api import naming
from testbed_runtime.api.crds import definitions
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.validate_kinds import validate_kind
from tests.api import documents
from tests.kubernetes.cluster import ROOT, Cluster
from tests.kubernetes.spaces import fresh

pytestmark = pytest.mark.cluster
SCENARIOS = sorted(
    [*ROOT.glob("scenarios/*/scenario.yaml"), *ROOT.glob("scenarios/examples/*.yaml")],
    key=str,
)
ANSWER_LIMIT_S = 20.0
CONFLICT = 409
CONFLICTS_MAX = 20


class Api:
    """POST and PUT with `fieldValidation=Strict`, straight to the API server."""

    def __init__(self, client: CustomObjectsApi, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    def ask(self, document: Any, *, method: str = "POST", dry: bool = True) -> tuple[bool, str, Any]:
        """(accepted, the server's message, its answer)."""
        plural = CUSTOM_RESOURCES[document["kind"]].plural
        how: dict[str, Any] = {"field_validation": "Strict", "_request_timeout": ANSWER_LIMIT_S}
        if dry:
            how["dry_run"] = "All"
        where = (naming.GROUP, naming.VERSION, self.namespace, plural)
        try:
            if method == "POST":
                answer = self._client.create_namespaced_custom_object(*where, document, **how)
            else:
                name = document["metadata"]["name"]
                answer = self._client.replace_namespaced_custom_object(*where, name, document, **how)
        except ApiException as error:
            if error.status not in (400, 422):
                raise
            body = json.loads(error.body)
            return False, body["message"], body
        return True, "", answer

    def change(self, document: Any, merge: Callable[[Any], None]) -> tuple[bool, str]:
        """Send the newest state with a change and return the server's answer. An operator may change the same object."""
        where = (naming.GROUP, naming.VERSION, self.namespace, CUSTOM_RESOURCES[document["kind"]].plural)
        for _ in range(CONFLICTS_MAX):
            newest = self._client.get_namespaced_custom_object(*where, document["metadata"]["name"])
            merge(newest)
            try:
                accepted, message, _ = self.ask(newest, method="PUT")
            except ApiException as error:
                if error.status != CONFLICT:
                    raise
                continue
            return accepted, message
        raise AssertionError(f"written by others {CONFLICTS_MAX} times between a read and a write")


@pytest.fixture(scope="module")
def ready(cluster: Cluster) -> Cluster:
    """The definitions of this checkout are there, and served."""
    text = yaml.safe_dump_all(definitions(), sort_keys=False)
    cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "--field-manager=headgate-crds", "-f", "-", text=text
    )
    names = [f"crd/{d['metadata']['name']}" for d in definitions()]
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=110s", *names)
    return cluster


@pytest.fixture(scope="module")
def api(ready: Cluster) -> Iterator[Api]:
    with fresh(ready) as space, new_client_from_config(config_file=ready.kubeconfig) as client:
        yield Api(CustomObjectsApi(client), space.name)


def test_the_definitions_are_accepted_and_structural(ready: Cluster):
    """Established, and no condition says what is wrong with a schema."""
    for definition in definitions():
        conditions = ready.get("crd", definition["metadata"]["name"])["status"]["conditions"]
        by_type = {c["type"]: c["status"] for c in conditions}
        assert by_type["Established"] == by_type["NamesAccepted"] == "True"
        assert "NonStructuralSchema" not in by_type


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.parent.name + "-" + p.stem)
def test_every_scenario_of_the_repository_is_taken(api: Api, path: Path):
    """As it stands in its file, and back again as the models read it."""
    document = yaml.safe_load(path.read_text())
    accepted, message, answer = api.ask(document)
    assert accepted, message
    findings = validate_kind(answer)
    assert findings.errors == ()


@pytest.mark.parametrize("kind", sorted(documents.GOOD))
def test_a_good_object_of_each_kind_is_taken_and_read_back(api: Api, kind: str):
    """With the server's defaults it means what it meant."""
    accepted, message, answer = api.ask(documents.good(kind))
    assert accepted, message
    findings, before = validate_kind(answer), validate_kind(documents.good(kind))
    assert findings.errors == ()
    assert findings.resource is not None
    assert before.resource is not None
    assert findings.resource.spec == before.resource.spec  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(documents.BAD))
def test_a_bad_object_is_refused_with_the_field_and_a_hint(api: Api, name: str):
    """The API server refuses it before Headgate sees it; the models refuse it too."""
    document, words = documents.bad(name)
    accepted, message, _ = api.ask(document)
    assert not accepted
    for word in words:
        assert word in message
    assert validate_kind(document).errors


@settings(
    max_examples=250,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(document=documents.any_document())
def test_the_server_and_the_models_agree_on_class_a(api: Api, document: dict[str, Any]):
    """Types, bounds, unknown fields, exactly-one: what one refuses the other refuses."""
    accepted, message, _ = api.ask(document)
    ours = validate_kind(document)
    assert accepted == documents.class_a_holds(ours), (message, [str(e) for e in ours.errors], document)


def test_a_run_does_not_change_but_for_suspend_and_its_time_to_live(api: Api):
    """Anything else is refused with what to do instead."""
    run = documents.good("ScenarioRun")
    run["spec"]["suspend"] = True
    accepted, message, _ = api.ask(run, dry=False)
    assert accepted, message
    allowed = {"suspend": False, "ttlSecondsAfterFinished": 60}
    assert api.change(run, lambda o: o["spec"].update(allowed)) == (True, "")
    for wanted in ({"seed": 9}, {"hypothesis": "another"}, {"trials": 2}):
        accepted, message = api.change(run, lambda o, w=wanted: o["spec"]["scenario"].update(w))
        assert not accepted
        assert "create another ScenarioRun" in message
    accepted, message = api.change(run, lambda o: o["spec"].update(variants=["short"]))
    assert not accepted
    assert "variants of a run cannot change" in message


def test_a_study_that_has_begun_changes_only_what_does_not_touch_its_rows(ready: Cluster, api: Api):
    """Rows that are measured in different ways cannot be compared."""
    study = documents.good("TuningStudy")
    study["metadata"]["name"] = "begun"
    study["spec"]["suspend"] = True
    assert api.ask(study, dry=False)[0]
    ways = "tune/begun", "--subresource=status", "--type=merge", "-p"
    ready.kubectl("-n", api.namespace, "patch", *ways, '{"status": {"phase": "Suspended"}}')
    assert api.change(study, lambda o: o["spec"].update(trials=2)) == (True, ""), "it has not begun"
    started = '{"status": {"phase": "Complete", "startedAt": "2026-01-01T00:00:00Z"}}'
    ready.kubectl("-n", api.namespace, "patch", *ways, started)
    for wanted in ({"trials": 7}, {"references": ["Current"]}, {"variants": ["short"]}):
        accepted, message = api.change(study, lambda o, w=wanted: o["spec"].update(w))
        assert not accepted, wanted
        assert "only budget, apply and suspend can change" in message
    allowed = {"suspend": False, "budget": {"runs": 40, "parallel": 2}, "apply": {"name": "first"}}
    assert api.change(study, lambda o: o["spec"].update(allowed)) == (True, "")


def test_the_scale_subresource_changes_the_task_managers(ready: Cluster, api: Api):
    """`kubectl scale` finds the wanted number."""
    document = documents.good("Testbed")
    document["metadata"]["name"] = "scaled"
    stored, message, _ = api.ask(document, dry=False)
    assert stored, message
    where = ("-n", api.namespace)
    ready.kubectl(*where, "scale", "testbed/scaled", "--replicas=4")
    assert ready.get(*where, "tb", "scaled")["spec"]["taskManagers"]["replicas"] == 4
    ready.kubectl(*where, "delete", "testbed/scaled", "--wait=false")


def test_kubectl_explains_and_lists_the_kinds(ready: Cluster, api: Api):
    """Texts of the reference, the columns, the category and the short names."""
    assert "Bytes arrive later" in ready.kubectl("explain", "fault.spec.network.latency")
    skew = ready.kubectl("explain", "scenario.spec.testbed.job.vertices.source.keySkew")
    assert "The exponent of the keys" in skew
    assert "Default: `0`." in skew
    document = documents.good("TuningStudy")
    assert api.ask(document, dry=False)[0]
    where = ("-n", api.namespace)
    listed = ready.kubectl(*where, "get", "headgate")
    assert "tuningstudy.headgate.dev/good" in listed
    assert "PROGRESS" in ready.kubectl(*where, "get", "tune")
    assert ready.kubectl(*where, "get", "run", "--field-selector=status.verdict=Fail").strip() == ""


def test_an_unchanged_object_that_is_applied_again_is_reported_as_unchanged(ready: Cluster, api: Api):
    """Without `--server-side`, kubectl compares lists as a whole. Server-side apply then finds no conflict."""
    document = documents.good("Scenario")
    document["metadata"]["name"] = "twice"
    text = yaml.safe_dump(document)
    answers = [ready.kubectl("-n", api.namespace, "apply", "-f", "-", text=text) for _ in range(2)]
    assert [answer.split()[1] for answer in answers] == ["created", "unchanged"]
    ready.kubectl("-n", api.namespace, "apply", "--server-side", "-f", "-", text=text)
