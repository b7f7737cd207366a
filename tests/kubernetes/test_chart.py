"""The chart and the manifests as they are rendered: no cluster is needed."""

from __future__ import annotations

import json

import pytest
import yaml

from testbed_runtime.api import naming
from testbed_runtime.api.validate import validate
from tests.kubernetes.rendering import (
    CHART,
    OVERLAY,
    calls,
    chart,
    helm_lint,
    helm_template,
    images,
    kustomize,
    of_kind,
    pod_specs,
    role,
)

pytestmark = pytest.mark.helm

NAMESPACED = ("--set", "watchNamespaces={one,two}", "--set", "crds.install=false")
DIGEST = "sha256:" + "a" * 64


def test_a13_rendering_twice_gives_the_same_bytes():
    """Nothing is random or of the time: a GitOps tool sees no difference."""
    assert helm_template().stdout == helm_template.__wrapped__().stdout


def test_the_chart_passes_its_linter():
    """Strictly: a warning is an error."""
    done = helm_lint("--kube-version", "1.34.0")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a16_a_namespaced_installation_has_no_cluster_role():
    """Its rights end where its namespaces end."""
    objects = chart(*NAMESPACED)
    assert of_kind(objects, "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition") == []
    roles = {(o["metadata"]["namespace"], o["metadata"]["name"]) for o in of_kind(objects, "Role")}
    for namespace in ("one", "two"):
        ours = ("demo-headgate-operator", naming.RUNNER_ACCOUNT, naming.STUDY_ACCOUNT, naming.SPARK_ACCOUNT)
        assert {(namespace, name) for name in ours} <= roles
    accounts = {
        (o["metadata"]["namespace"], o["metadata"]["name"]) for o in of_kind(objects, "ServiceAccount")
    }
    made = (naming.RUNNER_ACCOUNT, naming.STUDY_ACCOUNT, naming.SPARK_ACCOUNT)
    assert {(n, a) for n in ("one", "two") for a in made} <= accounts


def test_a14_a_mirror_reaches_every_image():
    """Also those that the operator runs later."""
    objects = chart("--set", "global.imageRegistry=mirror.example:5000/apps", "--set-string", "image.tag=7")
    found = images(objects)
    assert len(found) == 3
    assert all(image.startswith("mirror.example:5000/apps/headgate") for image in found)


def test_a_digest_goes_before_the_tag():
    """Per image."""
    found = images(chart("--set", f"sparkImage.digest={DIGEST}"))
    assert found == {"headgate:0.1.0", "headgate-agent:0.1.0", f"headgate-spark@{DIGEST}"}


def test_pull_secrets_reach_every_pod_and_the_operator():
    """The operator hands them on to the pods that it makes."""
    objects = chart("--set", "global.imagePullSecrets={mine}")
    assert all(spec["imagePullSecrets"] == [{"name": "mine"}] for spec in pod_specs(objects))
    assert '"mine"' in helm_template("--set", "global.imagePullSecrets={mine}").stdout


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("image.tagg=1", "tagg"),
        ("replicaCount=0", "replicaCount"),
        ("watchNamespaces={Bad_Name}", "watchNamespaces"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("image.digest=sha256:12", "digest"),
        ("healOnUninstall.timeoutSeconds=0", "timeoutSeconds"),
        ("somethingElse=1", "somethingElse"),
    ],
)
def test_a_value_that_is_not_known_or_not_possible_is_refused_by_its_name(value, named):
    """A typo in the values is found before anything is installed."""
    done = helm_template("--set", value, check=False)
    assert done.returncode != 0
    assert named in done.stderr


def test_every_value_is_described_by_the_schema():
    """Keys of values.yaml and of the schema are the same, down to the last."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def same(value, described, path):
        assert described.get("additionalProperties") is not True, path
        properties = described.get("properties")
        if properties is None or path == "resources":
            return
        assert set(value) == set(properties), path
        for key, inner in properties.items():
            if isinstance(value[key], dict):
                same(value[key], inner, key)

    same(values, schema, "")


def test_definitions_come_with_the_chart_are_kept_and_can_be_left_out():
    """Kept on uninstall; a second installation leaves them to the first; an upgrade brings new fields, since they are templates."""
    found = of_kind(chart(), "CustomResourceDefinition")
    assert {o["spec"]["names"]["kind"] for o in found} == set(naming.PLURALS)
    assert all(o["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for o in found)
    assert of_kind(chart("--set", "crds.install=false"), "CustomResourceDefinition") == []
    assert all(
        "helm.sh/resource-policy" not in o["metadata"].get("annotations", {})
        for o in of_kind(chart("--set", "crds.keep=false"), "CustomResourceDefinition")
    )


def test_chart_and_manifests_install_the_same_definitions():
    """Two copies of one generated file."""
    specs = [
        {o["metadata"]["name"]: o["spec"] for o in of_kind(objects, "CustomResourceDefinition")}
        for objects in (chart(), kustomize(OVERLAY))
    ]
    assert specs[0] == specs[1]


@pytest.mark.parametrize("name", ["runner", "study", "spark", "view", "edit", "operator", "operator-lease"])
def test_chart_and_manifests_grant_the_same(name):
    """A right that is added in one place only is a bug in the other."""
    names = {"view": "demo-headgate-view", "edit": "demo-headgate-edit"}
    if name.startswith("operator"):
        names[name] = f"demo-headgate-{name}"
    of_chart = role(chart(), names.get(name, f"headgate-{name}"))
    assert of_chart == role(kustomize(OVERLAY), f"headgate-{name}")


@pytest.mark.parametrize("arguments", [(), NAMESPACED])
def test_no_role_says_everything(arguments):
    """No asterisk, and no listing of secrets."""
    for objects in (chart(*arguments), kustomize(OVERLAY)):
        for one in of_kind(objects, "ClusterRole", "Role"):
            allowed = calls(one["rules"])
            assert not [c for c in allowed if "*" in c], one["metadata"]["name"]
            assert not {("", "secrets", "list"), ("", "secrets", "watch")} & allowed, one["metadata"]["name"]


@pytest.mark.parametrize("arguments", [(), NAMESPACED])
def test_every_pod_is_restricted(arguments):
    """Pod Security `restricted`, a read-only root, and memory that ends."""
    for objects in (chart(*arguments), kustomize(OVERLAY)):
        specs = list(pod_specs(objects))
        assert specs
        for spec in specs:
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert "hostNetwork" not in spec
            for container in spec["containers"]:
                context = container["securityContext"]
                assert context["capabilities"] == {"drop": ["ALL"]}
                assert context["allowPrivilegeEscalation"] is False
                assert context["readOnlyRootFilesystem"] is True
                assert container["resources"]["limits"]["memory"]


def test_every_object_has_the_usual_labels():
    """Found by `-l app.kubernetes.io/instance=…`, hooks included."""
    for one in chart("--set", "commonLabels.team=streams"):
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "headgate"
        assert labels["app.kubernetes.io/instance"] == "demo"
        assert labels["team"] == "streams"


def test_policies_can_be_left_out_and_follow_the_namespaces():
    """One for the operator, one for each namespace with testbeds."""
    assert of_kind(chart("--set", "networkPolicy.enabled=false"), "NetworkPolicy") == []
    found = {o["metadata"]["namespace"] for o in of_kind(chart(*NAMESPACED), "NetworkPolicy")}
    assert found == {"headgate-system", "one", "two"}


def test_a_service_monitor_comes_only_when_asked_for():
    """Its kind is not in every cluster."""
    assert of_kind(chart(), "ServiceMonitor") == []
    assert len(of_kind(chart("--set", "metrics.serviceMonitor.enabled=true"), "ServiceMonitor")) == 1


def test_a_second_replica_brings_a_disruption_budget():
    """With one, it would only hold up a drain."""
    assert of_kind(chart(), "PodDisruptionBudget") == []
    assert len(of_kind(chart("--set", "replicaCount=2"), "PodDisruptionBudget")) == 1


def test_the_scenario_of_helm_test_is_a_valid_one():
    """The validation of every scenario accepts it."""
    findings = validate(yaml.safe_load((CHART / "files" / "mini.yaml").read_text()))
    assert not findings.errors
    assert findings.scenario is not None


def test_the_manifests_give_the_operator_its_images():
    """The Deployment refers to the settings that contain them."""
    objects = kustomize(OVERLAY)
    [deployment] = of_kind(objects, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    name = container["envFrom"][0]["configMapRef"]["name"]
    [settings] = [o for o in of_kind(objects, "ConfigMap") if o["metadata"]["name"] == name]
    assert settings["data"]["HEADGATE_IMAGE"] == container["image"] == "headgate:dev"
    assert settings["data"]["HEADGATE_SPARK_IMAGE"] == "headgate-spark:dev"
