"""The command line against a cluster: flags, and errors that say what is missing and how to fix it. Needs no cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from typer.testing import CliRunner

from testbed_runtime.api import naming, rbac
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.views import Fault, Run
from testbed_runtime.cli import access, cluster_doctor, cluster_report, commands, exits, heal, kubectl
from testbed_runtime.cli.cluster_doctor import BAD, GOOD, WARNING, Finding
from testbed_runtime.core.errors import UserError
from testbed_runtime.entry import uninstall
from testbed_runtime.kube.api import ApiError


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (404, "the server could not find the requested resource", "kubectl apply -k manifests/"),
        (403, 'pods "x" is forbidden: exceeded quota: compute', "ResourceQuota"),
        (401, "Unauthorized", "does not accept the credentials"),
        (0, "connection refused", "KUBECONFIG"),
        (404, 'namespaces "x" not found', "--namespace"),
        (500, "etcd is away", "etcd is away"),
        (
            400,
            'ScenarioRun in version "v1alpha1" cannot be handled as a ScenarioRun: strict decoding error: unknown field "spec.new"',
            "upgrade Headgate in the cluster",
        ),
    ],
)
def test_a_refusal_of_the_cluster_is_explained_with_its_fix(status, text, said):
    """Each HTTP status has its own sentence and fix."""
    assert said in str(access.explained(ApiError(status, "Reason", text), server="https://there"))


async def test_a_refusal_of_the_cluster_is_printed_once(monkeypatch):
    """Not again as the cause of the error that explains it."""

    class Api:
        server = "https://there"

    @contextlib.asynccontextmanager
    async def connect(**_):
        yield Api()

    monkeypatch.setattr("testbed_runtime.kube.api.connect", connect)
    with pytest.raises(UserError) as caught:
        async with access.connected(access.Access()):
            raise ApiError(403, "Forbidden", "exceeded quota: compute", call="create /apis")
    assert exits.explain(caught.value).count("exceeded quota: compute") == 1


MINE = 'scenarioruns.headgate.dev is forbidden: User "eve" cannot {} resource "scenarioruns" in API group "headgate.dev"'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MINE.format("create") + ' in the namespace "demo"', "the rules of headgate-edit in the namespace demo"),
        (MINE.format("list") + ' in the namespace "demo"', "the rules of headgate-view in the namespace demo"),
        (MINE.format("list") + " at the cluster scope", "the right to list scenarioruns.headgate.dev in the whole cluster"),
        (
            'pods "r-recorder" is forbidden: User "eve" cannot get resource "pods/log" in API group "" in the namespace "demo"',
            "the right to get pods/log in the namespace demo",
        ),
        (
            'deployments.apps is forbidden: User "eve" cannot list resource "deployments" in API group "apps" at the cluster scope',
            "the right to list deployments.apps in the whole cluster",
        ),
        ('forbidden: User "eve" cannot get path "/metrics"', "the right to get /metrics in the whole cluster"),
        ('forbidden: User "system:anonymous" cannot get path "/api"', "look at KUBECONFIG and --context"),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged', "pod-security.kubernetes.io/enforce"),
        ('pods "x" is forbidden: unable to create new content in namespace demo because it is being terminated', "wait until"),
        ('admission webhook "policy.example" denied the request: no images of strangers', "that admission webhook"),
        ("no", "its message names the cause"),
    ],
)  # fmt: skip
def test_what_is_forbidden_names_the_right_that_is_missing_or_the_rule_that_refuses(text, said):
    """The texts are the API server's: verb, resource, API group and namespace."""
    assert said in str(access.explained(ApiError(403, "Forbidden", text), server="https://there"))


@pytest.mark.parametrize(
    "command",
    [
        ["run", "x", "-n", "demo"],
        ["ci", "x", "--context", "c"],
        ["heal", "--all", "--kubeconfig", "f"],
        ["report", "x", "-n", "d"],
    ],
)
def test_flags_of_a_cluster_without_one_are_a_mistake(command):
    """Rather than a run on the wrong machine."""
    said = CliRunner().invoke(commands.build(), command)
    assert isinstance(said.exception, UserError)
    assert "--on kubernetes" in str(said.exception)


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--on", "kubernetes"],
        ["heal", "--all", "--on", "kubernetes"],
        ["report", "x", "--on", "kubernetes"],
    ],
)
def test_a_missing_login_is_reported_with_the_flags_that_fix_it(command, tmp_path, monkeypatch):
    """Before anything else happens; `run` has read its scenario first."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    scenario = ["scenarios/06-no-fault"] if command[0] == "run" else []
    flags = ["--kubeconfig", str(tmp_path / "none")]
    said = CliRunner().invoke(commands.build(), [*command, *scenario, *flags])
    assert "--kubeconfig" in str(said.exception)


def run_object(name="r", **status):
    return Run({"metadata": {"name": name, "namespace": "demo"}, "spec": {}, "status": status})


def complete(status):
    return {"type": "Complete", "status": status, "reason": "Test", "message": ""}


def test_a_run_is_active_until_it_is_complete():
    """One without any status too: it will begin."""
    assert heal.is_active(run_object())
    assert heal.is_active(run_object(conditions=[complete("False")]))
    assert not heal.is_active(run_object(conditions=[complete("True")]))


FILES = {
    "report.html": b"<html>",
    "report.md": b"# Pass",
    "junit.xml": b"<x/>",
    "verdict.json": json.dumps({"verdict": "Pass"}).encode(),
}


def test_a_report_is_written_by_the_ending_of_its_name(tmp_path):
    """One file, or all of them."""
    assert cluster_report.write(FILES, str(tmp_path / "a.xml"), tmp_path).read_bytes() == b"<x/>"
    assert cluster_report.write(FILES, "", tmp_path / "run").name == "report.html"
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == sorted(FILES)
    with pytest.raises(UserError, match="no known suffix"):
        cluster_report.write(FILES, "report.pdf", tmp_path)


def test_the_plugin_has_the_commands_that_kubectl_users_need():
    """`kubectl headgate --help`."""
    said = CliRunner().invoke(kubectl.build(), ["--help"])
    assert said.exit_code == exits.PASS
    for command in ("run", "report", "heal", "faults"):
        assert f" {command} " in said.output


def test_faults_of_runs_are_listed_beside_the_stand_alone_ones():
    """A fault of a run has the run as its target."""
    alone = Fault(
        {
            "metadata": {"name": "f", "namespace": "demo"},
            "spec": {"testbedRef": {"name": "tb"}},
            "status": {"phase": "Active", "backend": "process", "targets": ["tm-1"]},
        }
    )
    assert kubectl.row_of(alone) == ("demo", "f", "Active", "process", "tm-1")
    faults = [{"name": "late", "backend": "channel"}]
    assert kubectl.rows_of_run(run_object(faults=faults)) == [("demo", "late", "Running", "channel", "run r")]


class Cluster:
    """A model of the API server for uninstall tests. It records the calls, and the operator is gone once it is scaled to 0."""

    def __init__(self):
        self.objects = {
            ("ScenarioRun", "r"): {
                "metadata": {"name": "r", "namespace": "demo", "finalizers": ["other", naming.FINALIZER]},
                "status": {"conditions": [complete("True")]},
            },
            ("Fault", "f"): {"metadata": {"name": "f", "namespace": "demo"}, "status": {}},
        }
        for kind, name, labels in (
            ("Pod", "r-recorder", {naming.LABEL_MANAGED_BY: naming.MANAGED_BY}),
            ("Pod", "mine", {}),
            ("Pod", "headgate-test", {**uninstall.TEST, "app.kubernetes.io/instance": "headgate"}),
            ("Pod", "other-test", {**uninstall.TEST, "app.kubernetes.io/instance": "other"}),
            ("ServiceAccount", "headgate-runner", {naming.LABEL_MANAGED_BY: naming.MANAGED_BY}),
            ("RoleBinding", "headgate-runner", {naming.LABEL_MANAGED_BY: naming.MANAGED_BY}),
            ("RoleBinding", "of-a-chart", {naming.LABEL_MANAGED_BY: "Helm"}),
        ):
            metadata = {"name": name, "namespace": "demo", "labels": labels}
            self.objects[kind, name] = {"kind": kind, "metadata": metadata}
        self.scaled = False
        self.deployment = {"metadata": {"annotations": {uninstall.OF_HELM: "headgate"}}}

    async def get(self, kind, namespace, name):
        assert (kind, namespace, name) == ("Deployment", "headgate-system", "headgate-operator")
        return self.deployment

    async def list(self, kind, namespace, *, labels=None):
        wanted = (labels or {}).items()
        found = [o for (k, _), o in self.objects.items() if k == kind]
        return [{"kind": kind, **o} for o in found if wanted <= o["metadata"].get("labels", {}).items()]

    async def delete(self, kind, namespace, name):
        self.objects.pop((kind, name))

    async def patch(self, kind, namespace, name, patch):
        if kind == "Deployment":
            self.scaled = patch == {"spec": {"replicas": 0}}
        else:
            assert self.scaled, "the operator would put its finalizer back"
            self.objects[kind, name]["metadata"] |= patch["metadata"]

    async def watch(self, kind, namespace, *, labels):
        from testbed_runtime.kube.api import WatchEvent

        pod = {"metadata": {"name": "operator-x"}}
        for type_, obj in (("LISTED", pod), ("SYNCED", {}), ("DELETED", pod)):
            yield WatchEvent(type_, obj)


async def test_a_heal_suspends_studies_and_stops_the_runs_that_they_still_made():
    """A study's next run comes between the look and its suspension: it is stopped too."""

    class WithStudy(Cluster):
        def __init__(self):
            super().__init__()
            study = {"metadata": {"name": "s", "namespace": "demo"}, "spec": {}, "status": {}}
            self.objects = {("TuningStudy", "s"): study, ("ScenarioRun", "one"): run_object("one").raw}

        async def patch(self, kind, namespace, name, patch):
            if kind == "TuningStudy":
                self.objects[kind, name]["spec"] |= patch["spec"]
            elif naming.ANNOTATION_HEAL in patch["metadata"]["annotations"]:
                del self.objects[kind, name]
                if name == "one":
                    self.objects["ScenarioRun", "two"] = run_object("two").raw

    cluster = WithStudy()
    asked, remaining = await heal.heal_all(cluster, [None], 5.0)
    assert cluster.objects["TuningStudy", "s"]["spec"] == {"suspend": True}
    assert [one.name for one in asked] == ["one", "two"]
    assert not remaining


OF_UNINSTALL = {
    "POD_NAMESPACE": "headgate-system",
    "HEADGATE_DEPLOYMENT": "headgate-operator",
    "HEADGATE_RELEASE": "headgate",
    "HEADGATE_NAMESPACES": "",
    "HEADGATE_UNINSTALL_LIMIT": "5",
}


def settings_of_uninstall(namespaces: str = "") -> uninstall.Settings:
    return uninstall.from_environment({**OF_UNINSTALL, "HEADGATE_NAMESPACES": namespaces})


@pytest.mark.parametrize("variable", OF_UNINSTALL)
def test_an_uninstall_needs_every_variable(variable):
    """A variable that is missing by mistake does not mean the whole cluster. Only an empty list of namespaces does."""
    environment = {name: value for name, value in OF_UNINSTALL.items() if name != variable}
    with pytest.raises(UserError, match=f"{variable}: is not set"):
        uninstall.from_environment(environment)


async def test_an_uninstall_heals_then_stops_the_operator_then_removes_finalizers():
    """In this order; finalizers of others stay."""
    cluster = Cluster()
    said = await uninstall.uninstall(cluster, settings_of_uninstall())
    assert said[:2] == ["healed 1 of 1", "scenariorun demo/r: finalizer removed"]
    assert cluster.objects["ScenarioRun", "r"]["metadata"]["finalizers"] == ["other"]


async def test_an_uninstall_goes_on_without_the_end_of_the_operators_pod(monkeypatch: pytest.MonkeyPatch):
    """Kubernetes never reports the end of a pod on a lost node. Helm removes the operator all the same, and then nothing removes finalizers."""

    class Lost(Cluster):
        async def watch(self, kind, namespace, *, labels):
            async for event in super().watch(kind, namespace, labels=labels):
                if event.type != "DELETED":
                    yield event
            await asyncio.Event().wait()

    monkeypatch.setattr(uninstall, "OPERATOR_GONE_S", 0.05)
    cluster = Lost()
    said = await uninstall.uninstall(cluster, settings_of_uninstall())
    assert "the operator's pods were not gone after 0.05 s: operator-x" in said
    assert cluster.objects["ScenarioRun", "r"]["metadata"]["finalizers"] == ["other"]
    assert ("Pod", "r-recorder") not in cluster.objects


async def test_a_finalizer_that_an_uninstall_may_not_remove_is_reported_and_delays_no_other():
    """Such as by an admission policy that refuses every change of one object."""

    class Guarded(Cluster):
        def __init__(self):
            super().__init__()
            other = {"name": "a", "namespace": "demo", "finalizers": [naming.FINALIZER]}
            ended = {"conditions": [complete("True")]}
            self.objects = {("ScenarioRun", "a"): {"metadata": other, "status": ended}, **self.objects}

        async def patch(self, kind, namespace, name, patch):
            if name == "a":
                raise ApiError(403, "Forbidden", "a policy says no")
            await super().patch(kind, namespace, name, patch)

    cluster = Guarded()
    said = await uninstall.uninstall(cluster, settings_of_uninstall())
    assert "scenariorun demo/a: finalizer not removed: 403 Forbidden: a policy says no" in said
    assert cluster.objects["ScenarioRun", "r"]["metadata"]["finalizers"] == ["other"]


@pytest.mark.parametrize(
    ("namespaces", "left"),
    [
        ("", {"mine", "other-test", "of-a-chart"}),
        ("demo", {"mine", "other-test", "of-a-chart", "headgate-runner"}),
    ],
)
async def test_an_uninstall_deletes_what_the_operator_created(namespaces, left):
    """Its pods and the pod of `helm test`; cluster-wide also the accounts and bindings that it made for runs."""
    cluster = Cluster()
    await uninstall.uninstall(cluster, settings_of_uninstall(namespaces))
    assert {name for kind, name in cluster.objects if kind not in ("ScenarioRun", "Fault")} == left


class Refusing(Cluster):
    """Refuses to delete a pod."""

    async def delete(self, kind, namespace, name):
        if name == "r-recorder":
            raise ApiError(403, "Forbidden", "no")
        await super().delete(kind, namespace, name)


async def test_an_object_that_an_uninstall_may_not_delete_is_reported_and_delays_no_other():
    """The others go."""
    cluster = Refusing()
    said = await uninstall.uninstall(cluster, settings_of_uninstall())
    assert "pod demo/r-recorder: not deleted: 403 Forbidden: no" in said
    assert ("RoleBinding", "headgate-runner") not in cluster.objects


class WithOperator:
    """A model of the API server with one operator, which is ready, and one namespace."""

    server, namespace = "https://there", "demo"

    def __init__(self, watched):
        environment = [{"name": "POD_NAME"}, {"name": "HEADGATE_NAMESPACES", "value": watched}]
        self.deployment = {
            "metadata": {"namespace": "headgate-system", "name": "headgate-operator"},
            "spec": {"template": {"spec": {"containers": [{"env": environment}]}}},
            "status": {"readyReplicas": 1},
        }

    async def list(self, kind, namespace, *, labels=None):
        return [self.deployment] if kind == "Deployment" else []

    async def get(self, kind, namespace, name):
        return {"kind": kind} if name == "demo" else None

    async def create(self, review):
        return {"status": {"allowed": True}}


@pytest.mark.parametrize(("namespace", "level"), [("demo", "ok"), ("", "note")])
def test_doctor_waits_longer_for_a_cluster_that_the_user_named(
    monkeypatch: pytest.MonkeyPatch, namespace: str, level: str
) -> None:
    """A busy machine answers all checks later than in 10 s. A cluster that the user may not know of does not hold them up that long."""

    async def slow(_: access.Access) -> list[Finding]:
        await asyncio.sleep(0.2 if namespace else 3600)
        return [Finding("Kubernetes", GOOD, "https://slow", "namespace demo")]

    monkeypatch.setattr(cluster_doctor, "_ask", slow)
    assert cluster_doctor.GIVEN_LIMIT_S > cluster_doctor.LIMIT_S
    monkeypatch.setattr(cluster_doctor, "LIMIT_S", 0.01)
    (found,) = cluster_doctor.findings(access.Access(namespace=namespace))
    assert (found.level, "no answer within 0.01 s" in found.means) == (level, level != "ok")


@pytest.mark.parametrize(
    ("watched", "namespace", "bad"),
    [
        ("", "demo", {}),
        ("other, demo", "demo", {}),
        ("one,two", "demo", {"operator": "headgate-system/headgate-operator watches only one, two"}),
        ("", "demmo", {"namespace": "demmo does not exist"}),
    ],
)
async def test_doctor_checks_that_the_namespace_exists_and_is_watched(monkeypatch, watched, namespace, bad):
    """An object in any other namespace would never have a status."""
    api = WithOperator(watched)
    api.namespace = namespace

    @contextlib.asynccontextmanager
    async def connected(_):
        yield api

    monkeypatch.setattr(cluster_doctor, "connected", connected)
    found = await cluster_doctor._ask(access.Access(namespace=namespace))
    assert {f.name: f.found for f in found if f.level == BAD} == bad


async def test_doctor_reports_several_operators_that_serve_one_namespace():
    """Helm accepts a cluster-wide installation beside one that is limited to namespaces."""
    found = await cluster_doctor._operator(Crowded("demo"))
    assert (found.level, found.found) == (
        BAD,
        "several: headgate-system/headgate-operator, wide/headgate-operator",
    )


class Crowded(WithOperator):
    """Has a second operator, for the whole cluster."""

    async def list(self, kind, namespace, *, labels=None):
        other = WithOperator("").deployment
        return [self.deployment, {**other, "metadata": {**other["metadata"], "namespace": "wide"}}]


@pytest.mark.parametrize(
    ("watched", "answer", "level", "words"),
    [
        ("", True, GOOD, ("headgate-system/headgate-operator", "reconciles")),
        ("", False, BAD, ("headgate-system/headgate-operator has no rights in demo", "add demo to rbac.testbedNamespaces")),
        ("demo", False, BAD, ("headgate-system/headgate-operator has no rights in demo", "repeat `helm upgrade`")),
        ("", None, WARNING, ("headgate-system/headgate-operator", "you are not permitted to ask")),
    ],
    ids=["has rights", "has none", "has none any more", "unknown"],
)  # fmt: skip
async def test_doctor_asks_whether_the_operator_may_act_in_the_namespace(
    watched: str, answer: bool | None, level: str, words: tuple[str, str]
):
    """A cluster-wide operator watches every namespace, and acts where `rbac.testbedNamespaces` lets it: what is applied elsewhere stalls.
    The chart refuses that value for an operator that is limited to namespaces, whose Roles end with a deleted namespace."""

    class Reviewing(WithOperator):
        async def create(self, review):
            if answer is None:
                raise ApiError(403, "Forbidden", "no reviews for you")
            spec = review["spec"]
            assert spec["user"] == "system:serviceaccount:headgate-system:operator"
            assert spec["resourceAttributes"]["namespace"] == review["metadata"]["namespace"] == "demo"
            return {"status": {"allowed": answer}}

    api = Reviewing(watched)
    api.deployment["spec"]["template"]["spec"]["serviceAccountName"] = "operator"
    found = await cluster_doctor._operator(api)
    assert found.level == level
    assert found.found == words[0]
    assert words[1] in found.means


async def test_doctor_names_each_right_that_the_operator_lacks_in_the_namespace():
    """An older Role lacks what a newer operator calls. Every right that the chart's rules declare is checked."""
    asked = set()

    class OlderRole(WithOperator):
        async def create(self, review):
            attributes = review["spec"]["resourceAttributes"]
            right = attributes["verb"], attributes["resource"], attributes["subresource"]
            asked.add(right)
            return {
                "status": {"allowed": right not in {("create", "pods", "eviction"), ("patch", "secrets", "")}}
            }

    found = await cluster_doctor._operator(OlderRole("demo"))
    where = "headgate-system/headgate-operator is not allowed in demo: "
    assert (found.level, found.found) == (BAD, where + "create pods/eviction, patch secrets")
    assert "repeat `helm upgrade`" in found.means
    declared = {(r.verb, *(r.resource.partition("/")[::2])) for r in rbac.rights("operator", "operator-acts")}
    assert asked == declared


async def test_doctor_shows_how_to_look_at_an_operator_that_is_not_ready():
    """Also at one without a pod: its Deployment was scaled to 0."""
    api = WithOperator("")
    api.deployment["status"] = {}
    found = await cluster_doctor._operator(api)
    assert (found.level, found.found) == (BAD, "not ready: headgate-system/headgate-operator")
    assert found.means.startswith("look at it: kubectl -n headgate-system describe deployments,pods -l ")


async def test_the_job_of_an_uninstall_does_nothing_where_helm_installed_nothing():
    """`helm template … | kubectl apply -f -` starts it beside the new operator, which it would stop with every run."""
    cluster = Cluster()
    cluster.deployment = {"metadata": {}}
    before = dict(cluster.objects)
    said = await uninstall.uninstall(cluster, settings_of_uninstall())
    assert "helm template --no-hooks" in said[0]
    assert (cluster.objects, cluster.scaled) == (before, False)


@pytest.mark.parametrize("deployment", [None, ApiError(403, "Forbidden", "no")], ids=["gone", "not readable"])
async def test_an_uninstall_goes_on_without_the_deployment(deployment, monkeypatch):
    """It was deleted by hand, or the Role for the Job is that of an earlier chart."""
    cluster = Cluster()

    async def get(*_):
        if isinstance(deployment, ApiError):
            raise deployment

    monkeypatch.setattr(cluster, "get", get)
    said = await uninstall.uninstall(cluster, settings_of_uninstall())
    assert said[0] == "healed 1 of 1"


class Gone(Cluster):
    """Refuses every list in the namespace `gone`, as an API server does where the Roles are deleted."""

    async def list(self, kind, namespace, *, labels=None):
        if namespace == "gone":
            raise ApiError(403, "Forbidden", f'{kind} is forbidden: User "u" cannot list it')
        return await super().list(kind, namespace, labels=labels)


async def test_an_uninstall_skips_a_namespace_that_is_gone_and_cleans_the_others():
    """Otherwise one deleted namespace would leave the finalizers of all others."""
    cluster = Gone()
    said = await uninstall.uninstall(cluster, settings_of_uninstall("gone,demo"))
    assert said[0].startswith("namespace gone: skipped")
    assert cluster.scaled
    assert cluster.objects["ScenarioRun", "r"]["metadata"]["finalizers"] == ["other"]
    assert ("Pod", "r-recorder") not in cluster.objects


def test_an_uninstall_without_its_environment_names_the_variable_and_blocks_nothing(monkeypatch, capsys):
    """The exit code is 0, and the text names what is not set."""
    for name in ("POD_NAMESPACE", "HEADGATE_DEPLOYMENT"):
        monkeypatch.delenv(name, raising=False)
    uninstall.main()
    assert "POD_NAMESPACE: is not set" in capsys.readouterr().err


async def test_doctor_does_not_say_that_kinds_are_installed_which_it_may_not_list(monkeypatch):
    """The API server refuses an unknown kind in the same way. The rights are checked all the same."""

    class Refusing(WithOperator):
        async def list(self, kind, namespace, *, labels=None):
            if kind in CUSTOM_RESOURCES:
                raise ApiError(
                    403, "Forbidden", f'User "eve" cannot list resource "{CUSTOM_RESOURCES[kind].plural}"'
                )
            return await super().list(kind, namespace, labels=labels)

    @contextlib.asynccontextmanager
    async def connected(_):
        yield Refusing("")

    monkeypatch.setattr(cluster_doctor, "connected", connected)
    found = {f.name: f for f in await cluster_doctor._ask(access.Access(namespace="demo"))}
    assert (found["kinds"].level, found["kinds"].found) == (WARNING, "unknown")
    assert "ScenarioRun" in found["kinds"].means
    assert {"operator", "rights"} <= found.keys()


async def test_doctor_names_the_rights_that_a_run_needs_and_the_account_lacks():
    """A run's report is in a ConfigMap, which headgate-edit does not allow to read: without it, a run would fail at its end."""

    class Edit(WithOperator):
        async def create(self, review):
            return {"status": {"allowed": review["spec"]["resourceAttributes"]["group"] == "headgate.dev"}}

    found = await cluster_doctor._rights(Edit(""))
    assert (found.level, found.found) == (BAD, "not allowed: get configmaps")
    assert "headgate-edit and the role view" in found.means


@pytest.mark.parametrize(
    ("refused", "level"), [({"scenarioruns": "watch, patch"}, BAD), ({"scenarios": "delete"}, WARNING)]
)
async def test_doctor_names_a_right_that_only_kubectl_needs_as_a_note(refused: dict[str, str], level: str):
    """`headgate run` watches its run. Only kubectl deletes a scenario. Each kind is named once."""

    class Own(WithOperator):
        async def create(self, review):
            asked = review["spec"]["resourceAttributes"]
            return {"status": {"allowed": asked["verb"] not in refused.get(asked["resource"], "")}}

    found = await cluster_doctor._rights(Own(""))
    text = "; ".join(f"{verbs} {resource}" for resource, verbs in refused.items())
    assert (found.level, found.found) == (level, f"not allowed: {text}")


def test_a_server_that_is_not_reached_is_named_once():
    """The client's own text begins with the address, too."""
    error = ApiError(0, "Unreachable", "https://there: TimeoutError: no answer")
    text = str(access.explained(error, server="https://there"))
    assert text.startswith("https://there: is not reached: TimeoutError: no answer")
