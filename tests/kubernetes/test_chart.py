"""The chart and the manifests as they are rendered: no cluster is needed."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
import yaml
from cryptography import x509

from headgate_operator.exposition import process_lines
from headgate_operator.health import Metrics
from headgate_operator.population import Population
from headgate_operator.settings import from_environment
from testbed_runtime.api import naming, podsettings
from testbed_runtime.api.admission import policies
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.validate import validate
from tests.kubernetes.rendering import (
    CHART,
    OVERLAY,
    Call,
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
EMPTY = ("", [], {})
"""Defaults of values that are not set."""


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
        ("resources.limits.memory=lots", "memory"),
        ("podDisruptionBudget.maxUnavailable=banana", "maxUnavailable"),
        ("image.tag=a b", "tag"),
        ("image.repository=Head Gate", "repository"),
        ("fullnameOverride=Bad_Name", "fullnameOverride"),
        ("serviceAccount.name=Bad_Name", "name"),
        ("priorityClassName=A_B", "priorityClassName"),
        ("pods.tolerations[0].efect=NoSchedule", "efect"),
        ("extraEnv[0].name=A,extraEnv[0].value=x,extraEnv[1].name=A,extraEnv[1].value=y", "A is set twice"),
        ("extraEnv[0].name=POD_NAME,extraEnv[0].value=x", "POD_NAME is set twice"),
        ("runner.extraEnv[0].name=A,runner.extraEnv[1].name=A,runner.extraEnv[1].value=y", "A is set twice"),
        ("runner.extraEnv[0].name=HEADGATE_RUN,runner.extraEnv[0].value=x", "HEADGATE_RUN is set twice"),
        ("runner.extraEnv[0].name=1", "runner/extraEnv/0/name"),
        ("resources.limits.memory=-5", "memory"),
        ("image.repository=a//b", "repository"),
        ("fullnameOverride=9abc", "fullnameOverride"),
        ("serviceAccount.name=a..b", "name"),
        ("priorityClassName=a..b", "priorityClassName"),
        ("podAnnotations.a b=c", "invalid propertyName 'a b'"),
        ("podLabels.app\\.kubernetes\\.io/name=other", "invalid propertyName 'app.kubernetes.io/name'"),
        (
            "priorityClasses.create=true,priorityClasses.operator=1,priorityClasses.pods=2",
            "priorityClasses.operator",
        ),
        ("watchNamespaces={a},rbac.testbedNamespaces={b}", "rbac.testbedNamespaces"),
        ("somethingElse=1", "somethingElse"),
        ("crds.keep=null", "missing property 'keep'"),
        ("healOnUninstall=null", "missing property 'healOnUninstall'"),
    ],
)
def test_a_value_that_is_not_known_or_not_possible_is_refused_by_its_name(value, named):
    """A typo in the values is found before anything is installed."""
    done = helm_template("--set", value, check=False)
    assert done.returncode != 0
    assert named in done.stderr


def test_every_value_is_described_by_the_schema():
    """Keys of values.yaml and of the schema are the same, down to the last. One whose default is not empty may not be null or missing, as
    with `--reuse-values` after an upgrade: without `crds.keep`, an uninstall would delete every object."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def same(value, described, path):
        assert described.get("additionalProperties") is not True, path
        properties = described.get("properties")
        if properties is None or path == "resources":  # its values are not all set
            return
        assert set(value) == set(properties), path
        maps = {
            key
            for key, inner in properties.items()
            if inner.get("type") == "object" and "properties" not in inner
        }
        unset = {key for key in properties if value[key] in EMPTY}
        assert set(described.get("required", ())) == set(properties) - maps - unset - {"resources"}, path
        for key, inner in properties.items():
            if isinstance(value[key], dict):
                same(value[key], inner, key)

    same(values, schema, "")


def test_a_value_whose_default_is_empty_may_be_null():
    """`watchNamespaces:` without a value, in a file, is as the default."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def empty(value, path):
        for key, inner in value.items():
            if inner in EMPTY:
                yield f"{path}{key}=null"
            elif isinstance(inner, dict):
                yield from empty(inner, f"{path}{key}.")

    nulls = [part for setting in empty(values, "") for part in ("--set", setting)]
    assert len(nulls) > 50
    assert chart(*nulls) == chart()


def test_definitions_come_with_the_chart_are_kept_and_can_be_left_out():
    """Kept on uninstall; a second installation leaves them to the first; an upgrade brings new fields, since they are templates."""
    found = of_kind(chart(), "CustomResourceDefinition")
    assert {o["spec"]["names"]["kind"] for o in found} == set(CUSTOM_RESOURCES)
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
    of_chart = role(chart(), f"demo-headgate-{name}")
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


def _reached(objects: list[dict[str, Any]], account: str) -> dict[str, set[Call]]:
    """Return the calls that an account may make, by namespace; `*` is the whole cluster."""
    roles = {(o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): calls(o["rules"])
             for o in of_kind(objects, "Role", "ClusterRole")}  # fmt: skip
    found: dict[str, set[Call]] = {}
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        if account not in [subject["name"] for subject in binding["subjects"]]:
            continue
        namespace = binding["metadata"].get("namespace", "*")
        ref = binding["roleRef"]
        where = namespace if ref["kind"] == "Role" else ""
        found.setdefault(namespace, set()).update(roles[ref["kind"], where, ref["name"]])
    return found


def test_a_namespaced_operator_can_neither_read_a_secret_nor_touch_a_pod_outside():
    """In its own namespace it has its Lease and nothing else; it grants no rights anywhere."""
    reached = _reached(chart(*NAMESPACED), "demo-headgate-operator")
    assert set(reached) == {"one", "two", "headgate-system"}
    lease = ("coordination.k8s.io", "leases")
    assert {(group, resource) for group, resource, _ in reached["headgate-system"]} == {lease}
    for namespace in ("one", "two"):
        assert lease not in {(group, resource) for group, resource, _ in reached[namespace]}
        groups = {group for group, _, _ in reached[namespace]}
        assert "rbac.authorization.k8s.io" not in groups
        assert ("", "serviceaccounts", "create") not in reached[namespace]
        assert {verb for _, resource, verb in reached[namespace] if resource == "secrets"} == {
            "get", "create", "patch"
        }  # fmt: skip


@pytest.mark.parametrize("watched", [("headgate-system",), ("headgate-system", "one")])
def test_an_operator_that_watches_its_own_namespace_may_watch_leases_where_it_watches(
    watched: tuple[str, ...],
):
    """It watches the same kinds in each of its namespaces, and ends if one of them refuses."""
    reached = _reached(chart("--set", f"watchNamespaces={{{','.join(watched)}}}"), "demo-headgate-operator")
    for namespace in watched:
        assert {("coordination.k8s.io", "leases", verb) for verb in ("list", "watch")} <= reached[namespace]


def test_the_account_of_a_run_reaches_its_namespace_only_and_no_secret():
    """Runner, study and Spark pods."""
    objects = chart(*NAMESPACED)
    for account in (naming.RUNNER_ACCOUNT, naming.STUDY_ACCOUNT, naming.SPARK_ACCOUNT):
        reached = _reached(objects, account)
        assert set(reached) == {"one", "two"}
        assert not [c for allowed in reached.values() for c in allowed if c[1] == "secrets"]


def test_admission_policies_come_on_request():
    """One for each kind with rules, each with its binding; the namespaces' policy is of the operator's account only."""
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    assert of_kind(chart(), *kinds) == []
    found = of_kind(chart("--set", "admissionPolicy.validate=true"), kinds[0])
    assert {o["metadata"]["name"]: o["spec"] for o in found} == {
        f"demo-headgate-{plural}": spec for plural, spec in policies().items()
    }
    label = ("--set", "admissionPolicy.namespaceLabel=example.com/headgate")
    objects = chart(*label)
    [policy] = of_kind(objects, kinds[0])
    [binding] = of_kind(objects, kinds[1])
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    [condition] = policy["spec"]["matchConditions"]
    user = "system:serviceaccount:headgate-system:demo-headgate-operator"
    assert condition["expression"] == f"request.userInfo.username == '{user}'"
    assert of_kind(chart(*NAMESPACED, *label), *kinds) == []


def test_the_webhook_comes_on_request_with_a_certificate_of_its_service():
    """The configuration trusts the CA that signed it, the pods mount it and serve on the Service's port; nothing of it otherwise."""
    assert of_kind(chart(), "ValidatingWebhookConfiguration", "Secret") == []
    objects = chart(*NAMESPACED, "--set", "webhook.enabled=true")
    [configuration], [secret] = of_kind(objects, "ValidatingWebhookConfiguration"), of_kind(objects, "Secret")
    [hook] = configuration["webhooks"]
    assert hook["clientConfig"]["caBundle"] == secret["data"]["ca.crt"]
    assert hook["clientConfig"]["service"]["path"] == naming.WEBHOOK_PATH
    [expression] = hook["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["one", "two"]
    changed, suspended = hook["matchConditions"]
    conditions = policies()["testbeds"]["matchConditions"]
    assert ([changed], suspended["name"]) == (conditions, "not-suspended")
    assert hook["failurePolicy"] == "Ignore"
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    ca = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["ca.crt"]))
    certificate.verify_directly_issued_by(ca)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    service = hook["clientConfig"]["service"]
    assert names.get_values_for_type(x509.DNSName) == [f"{service['name']}.{service['namespace']}.svc"]
    [deployment] = of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["webhook"] == naming.WEBHOOK_PORT
    [served] = [
        p for o in of_kind(objects, "Service") for p in o["spec"]["ports"] if p["port"] == service["port"]
    ]
    assert served["targetPort"] == "webhook"
    policy = next(
        o for o in of_kind(objects, "NetworkPolicy") if o["metadata"]["namespace"] == "headgate-system"
    )
    assert {"port": naming.WEBHOOK_PORT, "protocol": "TCP"} in [
        p for i in policy["spec"]["ingress"] for p in i["ports"]
    ]
    settings = from_environment({e["name"]: e.get("value", "") for e in container["env"]})
    [mount] = [m for m in container["volumeMounts"] if m["mountPath"] == settings.webhook_folder]
    [volume] = [v for v in pod["volumes"] if v["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("webhook.certificate.secretName=mine", "set caBundle, or webhook.annotations"),
        (f"webhook.certificate.caBundle={'A' * 44}", "has no effect without secretName"),
        ("webhook.certificate.secretName=a..b", "does not match pattern"),
        ("webhook.failurePolicy=Perhaps", "failurePolicy"),
    ],
)
def test_a_webhook_that_nothing_would_trust_is_not_rendered(values: str, words: str):
    """The API server would ignore it without a word."""
    done = helm_template("--set", "webhook.enabled=true", "--set", values, check=False)
    assert done.returncode != 0
    assert words in done.stderr


def test_the_webhook_can_use_a_certificate_of_the_user():
    """A Secret that cert-manager writes, and its annotation for the CA: the chart makes no key."""
    own = ("--set", "webhook.enabled=true", "--set", "webhook.certificate.secretName=mine")
    injected = ("--set", "webhook.annotations.cert-manager\\.io/inject-ca-from=headgate-system/mine")
    objects = chart(*own, *injected)
    assert of_kind(objects, "Secret") == []
    [configuration] = of_kind(objects, "ValidatingWebhookConfiguration")
    assert configuration["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": "headgate-system/mine"
    }
    assert "caBundle" not in configuration["webhooks"][0]["clientConfig"]
    [deployment] = of_kind(objects, "Deployment")
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert "mine" in [v["secret"]["secretName"] for v in volumes if "secret" in v]


def test_a_service_monitor_comes_only_when_asked_for():
    """Its kind is not in every cluster."""
    assert of_kind(chart(), "ServiceMonitor") == []
    assert len(of_kind(chart("--set", "metrics.serviceMonitor.enabled=true"), "ServiceMonitor")) == 1


def _exposed() -> set[str]:
    """Return the names of all metrics that the operator can show."""
    metrics, population = Metrics(), Population()
    metrics.reconciled("Testbed", 0.1, failed=False)
    lines = [
        *metrics.text(depth=0, leader=True, info={}).splitlines(),
        *population.lines(0.0),
        *process_lines(),
    ]
    return {line.split()[2] for line in lines if line.startswith("# TYPE")}


@pytest.mark.parametrize("kind", ["PrometheusRule", "ConfigMap"])
def test_alerts_and_dashboard_use_metrics_that_exist(kind):
    """They come on request only, and name what the operator exposes."""
    value = {"PrometheusRule": "prometheusRule", "ConfigMap": "dashboard"}[kind]
    name = {"PrometheusRule": "demo-headgate-operator", "ConfigMap": "demo-headgate-dashboard"}[kind]
    off = [o for o in of_kind(chart(), kind) if o["metadata"]["name"] == name]
    assert off == []
    objects = of_kind(chart("--set", f"metrics.{value}.enabled=true"), kind)
    [found] = [o for o in objects if o["metadata"]["name"] == name]
    if kind == "PrometheusRule":
        asked = [rule["expr"] for group in found["spec"]["groups"] for rule in group["rules"]]
    else:
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        panels = json.loads(found["data"]["headgate.json"])["panels"]
        asked = [target["expr"] for panel in panels for target in panel["targets"]]
    named = {name for text in asked for name in re.findall(r"\b(?:headgate|process)_[a-z_]+", text)}
    assert len(named) >= 4
    assert {name.removesuffix("_bucket") for name in named} <= _exposed()


def test_alerts_of_two_installations_with_the_same_names_differ():
    """Each rule selects its own operator and keeps the labels by which Alertmanager distinguishes two alerts."""
    objects = of_kind(chart("--set", "metrics.prometheusRule.enabled=true"), "PrometheusRule")
    [found] = [o for o in objects if o["metadata"]["name"] == "demo-headgate-operator"]
    for rule in (rule for group in found["spec"]["groups"] for rule in group["rules"]):
        selectors = set(re.findall(r"headgate_\w+(\{.*?\})", rule["expr"]))
        assert selectors == {'{namespace="headgate-system",job="demo-headgate-operator"}'}
        assert "by (namespace, job)" in rule["expr"]


def test_a_cluster_wide_operator_acts_only_in_the_namespaces_that_are_named():
    """Everywhere it sees its kinds and pods; Secrets, changes of pods and bindings only where its second role is bound."""
    account = "demo-headgate-operator"
    everywhere = _reached(chart(), account)["*"]
    reached = _reached(chart("--set", "rbac.testbedNamespaces={one,two}"), account)
    assert set(reached) == {"*", "one", "two", "headgate-system"}
    assert reached["one"] == reached["two"]
    assert reached["*"] | reached["one"] == everywhere, "a right was lost or is new"
    assert not reached["*"] & reached["one"]
    resources = {resource for group, resource, _ in reached["*"] if group != "headgate.dev"}
    assert resources == {"pods", "configmaps", "namespaces", "events", "leases"}
    changed = {(g, r) for g, r, verb in reached["*"] if verb in ("create", "patch", "delete") and g == ""}
    assert changed == {("", "events")}


def test_a_second_replica_brings_a_disruption_budget():
    """With one, it would only hold up a drain."""
    assert of_kind(chart(), "PodDisruptionBudget") == []
    assert len(of_kind(chart("--set", "replicaCount=2"), "PodDisruptionBudget")) == 1


def test_helm_refuses_a_second_cluster_wide_release_by_the_name_of_its_binding():
    """Two operators would act on the same objects. The other names contain the release's: its operator may bind its own roles only."""
    roles, bindings = (
        [
            {o["metadata"]["name"] for o in of_kind(chart(*arguments), kind)}
            for arguments in ((), ("--set", "fullnameOverride=second"))
        ]
        for kind in ("ClusterRole", "ClusterRoleBinding")
    )
    assert bindings[0] & bindings[1] == {"headgate-cluster-wide"}
    assert roles[0] & roles[1] == set()
    [operator] = [
        o for o in of_kind(chart(), "ClusterRole") if o["metadata"]["name"] == "demo-headgate-operator"
    ]
    [bound] = [rule["resourceNames"] for rule in operator["rules"] if rule["verbs"] == ["bind"]]
    assert bound == ["demo-headgate-runner", "demo-headgate-study", "demo-headgate-spark"]
    assert set(bound) <= roles[0]


def test_only_the_pod_of_helm_test_is_a_test_suite_and_its_log_can_be_read():
    """Helm reports each hook as a suite, and `helm test --logs` needs the pod after its end."""
    hooks = [o for o in chart() if o["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"]
    assert [o["kind"] for o in hooks] == ["Pod"]
    assert hooks[0]["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"


def test_the_account_of_helm_test_may_do_what_headgate_run_does():
    """Create a run, follow it, stop it when interrupted, and read its report. It deletes nothing."""
    runs = {("headgate.dev", "scenarioruns", verb) for verb in ("create", "get", "list", "watch", "patch")}
    assert role(chart(*NAMESPACED), "demo-headgate-test") == {*runs, ("", "configmaps", "get")}


def test_the_hooks_need_no_namespace_but_that_of_the_release():
    """Helm creates them before an uninstall, and would not go on if a watched namespace was deleted meanwhile."""
    hooks = [o for o in chart(*NAMESPACED) if "helm.sh/hook" in o["metadata"].get("annotations", {})]
    assert {o["metadata"].get("namespace") for o in hooks} == {"headgate-system"}
    assert {"one", "two"} <= set(_reached(chart(*NAMESPACED), "demo-headgate-uninstall"))


def test_every_pod_of_the_chart_is_let_out_to_the_api_server():
    """Otherwise, an uninstall could heal nothing in a namespace that denies egress by default."""
    objects = chart()
    [policy] = of_kind(objects, "NetworkPolicy")
    labels = policy["spec"]["podSelector"]["matchLabels"]
    [expression] = policy["spec"]["podSelector"]["matchExpressions"]
    pods = [
        o if o["kind"] == "Pod" else o["spec"]["template"]
        for o in of_kind(objects, "Deployment", "Job", "Pod")
    ]
    assert len(pods) == 3
    for pod in pods:
        found = pod["metadata"]["labels"]
        assert found.items() >= labels.items()
        assert (expression["operator"], found[expression["key"]] in expression["values"]) == ("In", True)


def _environment(*arguments: str) -> dict[str, str]:
    return _values_of(chart(*arguments))


def _values_of(objects: list[dict[str, Any]]) -> dict[str, str]:
    [deployment] = of_kind(objects, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return {e["name"]: e["value"] for e in container["env"] if "value" in e}


def test_the_settings_of_pods_reach_the_operator():
    """It reads what the chart writes; values that are not set are left out."""
    assert podsettings.read(_environment()["HEADGATE_PODS"]) == {}
    values = ("pods.runtimeClassName=gvisor", "pods.tolerations[0].key=test", "pods.annotations.team=streams")
    found = from_environment(_environment("--set", ",".join(values)))
    assert found.pods == {
        "runtimeClassName": "gvisor", "tolerations": [{"key": "test"}], "annotations": {"team": "streams"}
    }  # fmt: skip
    assert found.pods_ttl_s == 900
    assert found.role_prefix == "demo-headgate"


def test_priority_classes_put_the_operator_before_its_pods():
    """They are created on request, because they are cluster-scoped, and then used."""
    assert of_kind(chart(), "PriorityClass") == []
    objects = chart("--set", "priorityClasses.create=true")
    values = {o["metadata"]["name"]: o["value"] for o in of_kind(objects, "PriorityClass")}
    assert values["demo-headgate-operator"] > values["demo-headgate-pods"]
    assert {spec["priorityClassName"] for spec in pod_specs(objects)} == {"demo-headgate-operator"}
    pods = podsettings.read(_environment("--set", "priorityClasses.create=true")["HEADGATE_PODS"])
    assert pods == {"priorityClassName": "demo-headgate-pods"}


def test_a_variable_of_a_runner_can_refer_to_others_of_its_pod():
    """In the operator's pod, which hands it on, the kubelet makes `$(POD_NAME)` of `$$(POD_NAME)`."""
    variable = {"name": "OTEL_RESOURCE_ATTRIBUTES", "value": "k8s.pod.name=$(POD_NAME)"}
    passed = _environment("--set-json", f"runner.extraEnv={json.dumps([variable])}")["HEADGATE_RUNNER_ENV"]
    assert json.loads(passed) == [{**variable, "value": "k8s.pod.name=$$(POD_NAME)"}]
    assert _environment("--set-json", "runner.extraEnv=null")["HEADGATE_RUNNER_ENV"] in ("null", "[]")


def test_the_scenario_of_helm_test_is_a_valid_one():
    """The validation of every scenario accepts it."""
    findings = validate(yaml.safe_load((CHART / "files" / "mini.yaml").read_text()))
    assert not findings.errors
    assert findings.resource is not None


def test_the_manifests_give_the_operator_its_images():
    """The Deployment refers to the settings that contain them."""
    objects = kustomize(OVERLAY)
    [deployment] = of_kind(objects, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    name = container["envFrom"][0]["configMapRef"]["name"]
    [settings] = [o for o in of_kind(objects, "ConfigMap") if o["metadata"]["name"] == name]
    assert settings["data"]["HEADGATE_IMAGE"] == container["image"] == "headgate:dev"
    assert settings["data"]["HEADGATE_SPARK_IMAGE"] == "headgate-spark:dev"


def test_chart_and_manifests_give_the_operator_the_same_allocator_settings():
    """With them its memory stays level over many runs."""
    by_chart, by_manifests = _environment(), _values_of(kustomize(OVERLAY))
    assert by_chart["MALLOC_ARENA_MAX"] == "1"
    assert by_manifests == {k: v for k, v in by_chart.items() if k.startswith("MALLOC_")}


def test_without_rbac_the_chart_has_no_role_at_all():
    """`rbac.create=false` is for an installer that may create none, and a dashboard may have no label."""
    objects = chart(
        "--set", "rbac.create=false",
        "--set", "metrics.dashboard.enabled=true",
        "--set", "metrics.dashboard.labels.grafana_dashboard=null",
    )  # fmt: skip
    kinds = {o["kind"] for o in objects}
    assert not kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    assert "ConfigMap" in kinds
