"""`headgate new`, `headgate validate`, and what `run` says about a document that it cannot run."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from testbed_runtime.api.validate import validate
from testbed_runtime.cli import exits, loading, questions, running, starting
from testbed_runtime.core.judgement.verdict import EXIT_CODES, Verdict
from testbed_runtime.core.trial.manifest import MANIFEST_SCHEMA
from testbed_runtime.faults.registry import LOCAL, Capabilities
from testbed_runtime.local import packets

NS = 1_000_000_000
ROOT = Path(__file__).resolve().parents[2]
SCENARIOS, STUDY = ROOT / "scenarios", ROOT / "studies" / "late-producer.yaml"
PAUSED = (SCENARIOS / "03-taskmanager-paused" / "scenario.yaml").read_text()


@pytest.mark.parametrize("version", ["1.12", "1.17", "1.18", "1.20", "2.x"])
@pytest.mark.parametrize("question", questions.questions().values(), ids=lambda q: q.name)
def test_every_question_becomes_a_valid_document(question, version):
    """Each profile and a larger job, without a warning."""
    shape = starting.Shape(flink_version=version, parallelism=8, records_per_second=20_000)
    text = starting.document(question, shape)
    findings = validate(yaml.safe_load(text))
    assert (findings.errors, findings.warnings, findings.without_effect) == ((), (), ())
    assert f"# {question.question}" in text
    assert text.count("#") >= 15, "it explains itself"


@pytest.mark.virtual
@pytest.mark.parametrize("question", questions.questions().values(), ids=lambda q: q.name)
def test_every_question_is_answered_in_virtual_time(headgate, tmp_path, question):
    """`headgate new` and `headgate simulate`, without an edit between them. Real processes have 2 s more to recover."""
    path = tmp_path / "scenario.yaml"
    made = headgate("new", question.name, "-o", path, "--records-per-second", 200)
    assert (made.returncode, "next: headgate simulate" in made.stdout) == (0, True)
    loaded = loading.load(path)
    result = running.simulate_loaded(loaded, out=tmp_path, quiet=True)
    assert result.verdict.verdict == "Pass", result.verdict.summary
    (folder,) = (found.parent for found in tmp_path.glob("*/recovery.json"))
    found = json.loads((folder / "recovery.json").read_text())
    for trial in json.loads((folder / "manifest.json").read_text())["trials"]:
        (observed,) = (phase["end_ns"] for phase in trial["phases"] if phase["name"] == "observation")
        ends = [recovery["end_ns"] for recovery in found[trial["trial"]]["recoveries"]]
        assert max(ends, default=0) + 2 * NS <= observed


def test_new_lists_its_questions(headgate):
    """Each with its name."""
    said = headgate("new", "--list").stdout
    for question in questions.questions().values():
        assert f"{question.name} " in said
        assert question.question in " ".join(said.split())
    assert "In Flink's log: PartitionNotFoundException\n" in said


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("PartitionNotFoundException", "late-producer"),
        (
            "java.util.concurrent.TimeoutException: Heartbeat of TaskManager with id tm-3 timed out.",
            "taskmanager-paused",
        ),
        (
            "akka.pattern.AskTimeoutException: Ask timed out on [Actor[...]] after [10000 ms].",
            "slow-deployment",
        ),
    ],
)
def test_new_knows_the_question_for_an_error_in_flinks_log(headgate, error, name):
    """The class of the exception or a whole line."""
    said = headgate("new", error, "-o", "-")
    assert (said.returncode, yaml.safe_load(said.stdout)["metadata"]["name"]) == (exits.PASS, name)


@pytest.mark.parametrize(
    ("version", "maximum", "budget"),
    [
        ("1.17", "10000", "22.7"),
        ("1.17", "3000", "6.10"),
        ("1.20", "10000", "22.7"),
        ("2.x", "3000", "6.10"),
    ],
)
def test_a_late_producer_names_the_delay_that_its_options_do_not_survive(
    headgate, tmp_path, version, maximum, budget
):
    """The options are the reader's own: 100 + 200 + … ms up to the maximum. With a delay just above that, the deployment fails; just
    below, it does not, and the observation is long enough to see that."""
    conf = tmp_path / "config.yaml"
    conf.write_text(f"taskmanager.network.request-backoff.max: {maximum}\n")
    said = headgate("new", "late-producer", "--flink-conf", conf, "--flink-version", version, "-o", "-")
    comment = f"above {budget} s, the deployment fails with PartitionNotFoundException"
    assert f"# how late the partitions are; {comment}" in said.stdout
    below_ms = round(float(budget) * 1000) - 50
    for delay_ms, code in ((below_ms, exits.PASS), (below_ms + 100, EXIT_CODES[Verdict.FAIL])):
        path = tmp_path / "scenario.yaml"
        late = said.stdout.replace("delay: 3 s", f"delay: {delay_ms} ms")
        path.write_text(late.replace("duration: 6 s", "duration: 30 s"))
        assert headgate("simulate", path, "--quiet").returncode == code


def test_a_slow_store_is_slow_for_a_checkpoint_of_the_readers_own_interval(headgate, tmp_path):
    """With a fixed length, a checkpoint every 90 s would never meet the fault. The comments name the reader's timeouts."""
    conf = tmp_path / "flink-conf.yaml"
    conf.write_text("execution.checkpointing.interval: 90 s\nexecution.checkpointing.timeout: 5 min\n")
    slow = headgate("new", "slow-checkpoints", "--flink-conf", conf, "-o", "-").stdout
    spec = yaml.safe_load(slow)["spec"]
    assert (spec["faults"][0]["duration"], spec["timeline"]["observation"]) == ("110 s", "120 s")
    assert "a checkpoint expires after execution.checkpointing.timeout = 300 s\n" in slow
    paused = headgate("new", "taskmanager-paused", "--flink-conf", conf, "-o", "-").stdout
    assert "a failover from about heartbeat.timeout = 50 s on\n" in paused


def test_new_never_overwrites_a_document(headgate, tmp_path):
    """The second call says how to go on."""
    path = tmp_path / "mine.yaml"
    assert headgate("new", "late-producer", "-o", path).returncode == exits.PASS
    path.write_text("edited")
    said = headgate("new", "late-producer", "-o", path)
    assert (said.returncode, path.read_text()) == (exits.ERROR, "edited")
    assert "exists already (name another file with --output)" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["late-produser"], "did you mean late-producer?"),
        (["PartitionNotFoundExeption"], "did you mean PartitionNotFoundException?"),
        ([], "QUESTION: is missing (write one of taskmanager-killed,"),
        (["late-producer", "--flink-version", "3.0"], "--flink-version: '3.0' is not a known"),
    ],
)
def test_new_says_what_it_needs(headgate, tmp_path, monkeypatch, arguments, words):
    """A wrong name, no name without a terminal, an unknown version: nothing is written."""
    monkeypatch.chdir(tmp_path)
    said = headgate("new", *arguments)
    assert (said.returncode, words in said.stderr) == (exits.ERROR, True)
    assert list(tmp_path.iterdir()) == []


def test_new_to_stdout_is_only_the_document(headgate):
    """So that it can be piped."""
    said = headgate("new", "slow-network", "-o", "-")
    assert yaml.safe_load(said.stdout)["metadata"]["name"] == "slow-network"


def offering(monkeypatch, *backends):
    async def capabilities():
        return Capabilities("local", (*LOCAL.backends, *backends), LOCAL.missing)

    monkeypatch.setattr(packets, "capabilities", capabilities)


def test_validate_accepts_everything_that_is_shipped(headgate, monkeypatch):
    """Scenarios, examples and studies, found below folders."""
    offering(monkeypatch, "nfqueue", "nftables")
    said = headgate("validate", SCENARIOS, ROOT / "studies", "--on", "local")
    assert said.returncode == exits.PASS, said.stdout
    shipped = [*SCENARIOS.rglob("*.yaml"), *(ROOT / "studies").rglob("*.yaml")]
    assert said.stdout.count(": valid: ") == len(shipped)
    assert "02-taskmanager-killed/scenario.yaml: valid: Scenario taskmanager-killed (3 trials)" in said.stdout


def test_validate_reports_every_problem_of_every_file(headgate, tmp_path):
    """With its line; nothing stops at the first one, and other YAML files of the folder are not Headgate's."""
    (tmp_path / "bad.yaml").write_text(PAUSED.replace("seed: 7", "sed: 7").replace("8 s", "-8 s"))
    (tmp_path / "broken.yaml").write_text("apiVersion: headgate.dev/v1alpha1\nkind: [")
    (tmp_path / "good.yaml").write_text(PAUSED)
    (tmp_path / "compose.yaml").write_text("services: {}")
    said = headgate("validate", tmp_path)
    assert said.returncode == exits.ERROR
    assert "error: line 7: spec.sed: is an unknown field (did you mean seed?" in said.stdout
    assert "duration: '-8 s' is negative" in said.stdout
    assert "broken.yaml: invalid" in said.stdout
    assert "good.yaml: valid: Scenario" in said.stdout
    assert "compose.yaml" not in said.stdout


def test_validate_checks_every_document_of_a_file_and_names_its_number(headgate, tmp_path):
    """`kubectl apply` accepts such files. Objects of other kinds are not Headgate's to check, so a run of the one scenario accepts them too."""
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team-a}\n"
    bad = PAUSED.replace("seed: 7", "sed: 7")
    path = tmp_path / "bundle.yaml"
    path.write_text(f"{namespace}---\n{PAUSED}---\n{bad}")
    said = headgate("validate", tmp_path)
    line = f"{namespace}---\n{PAUSED}---\n{bad}".splitlines().index("  sed: 7") + 1
    assert said.returncode == exits.ERROR
    heads = [line.partition(" (")[0] for line in said.stdout.splitlines() if line.startswith(str(path))]
    assert heads == [
        f"{path}: document 2: valid: Scenario taskmanager-paused",
        f"{path}: document 3: invalid: Scenario taskmanager-paused",
    ]
    assert f"error: line {line}: spec.sed: is an unknown field" in said.stdout
    documents = json.loads(headgate("validate", path, "--json").stdout)["documents"]
    assert [found["document"] for found in documents] == [2, 3]
    assert "`headgate validate` checks them together" in headgate("run", path).stderr
    path.write_text(f"{namespace}---\n{bad}")
    assert f"{path}:{line - PAUSED.count(chr(10)) - 1}: spec.sed" in headgate("run", path).stderr


def test_validate_checks_the_objects_of_a_list(headgate, tmp_path):
    """`kubectl get -o yaml` prints several objects as one `List`."""
    path = tmp_path / "list.yaml"
    item = textwrap.indent(PAUSED.replace("seed: 7", "sed: 7"), "  ").replace("  ", "- ", 1)
    path.write_text(f"apiVersion: v1\nkind: List\nitems:\n- kind: Service\n{item}")
    said = headgate("validate", path)
    assert f"{path}: document 2: invalid: Scenario" in said.stdout
    line = path.read_text().splitlines().index("    sed: 7") + 1
    assert f"error: line {line}: spec.sed: is an unknown field" in said.stdout


def test_validate_refuses_a_list_without_objects(headgate, tmp_path):
    """`kubectl get -o yaml` prints it if there are none."""
    path = tmp_path / "list.yaml"
    path.write_text("apiVersion: v1\nkind: List\nitems: []\n")
    said = headgate("validate", path)
    assert said.returncode == exits.ERROR
    assert f"{path}: invalid" in said.stdout


@pytest.mark.parametrize("version", ["headgate.dev", "headgate.dev.v1alpha1"])
def test_validate_checks_a_file_of_a_folder_whose_version_is_wrong(headgate, tmp_path, version):
    """It names the right one."""
    (tmp_path / "run.yaml").write_text(PAUSED.replace("headgate.dev/v1alpha1", version))
    assert "write headgate.dev/v1alpha1" in headgate("validate", tmp_path).stdout


def test_validate_ignores_objects_in_a_folder_that_contain_a_scenario_as_text(headgate, tmp_path):
    """A ConfigMap, or the annotation of `kubectl apply`."""
    (tmp_path / "map.yaml").write_text(
        f"apiVersion: v1\nkind: ConfigMap\ndata:\n  a.yaml: |\n{textwrap.indent(PAUSED, '    ')}"
    )
    (tmp_path / "pod.yaml").write_text(
        'kind: Pod\nmetadata: {annotations: {last: \'{"apiVersion":"headgate.dev/v1alpha1"}\'}}\n'
    )
    (tmp_path / "run.yaml").write_text(PAUSED)
    said = headgate("validate", tmp_path, "--json")
    assert [one["file"] for one in json.loads(said.stdout)["documents"]] == [str(tmp_path / "run.yaml")]
    assert said.returncode == exits.PASS


def test_validate_skips_folders_that_cannot_be_listed(headgate, tmp_path, monkeypatch):
    """Here because their path is too long for the kernel; others vanish meanwhile, as those of /proc do."""
    (tmp_path / "scenario.yaml").write_text("kind: Nothing\n")
    monkeypatch.chdir(tmp_path)
    for _ in range(20):
        Path("d" * 250).mkdir()
        os.chdir("d" * 250)
    said = headgate("validate", tmp_path)
    assert "'Nothing' is not a kind" in said.stdout, said.stderr


def test_validate_as_json_is_one_object(headgate, tmp_path):
    """Editors and CI read it: file, line, field, problem, how to fix it, warnings."""
    path = tmp_path / "s.yaml"
    path.write_text(
        PAUSED.replace("heartbeat.timeout: 5 s", "heartbeat.timeout: '15'").replace("seed: 7", "sed: 7")
    )
    said = json.loads(headgate("validate", path, "--json").stdout)
    assert said["valid"] is False
    (document,) = said["documents"]
    assert document["file"] == str(path)
    assert document["errors"][0] | {"hint": ""} == {
        "path": "spec.sed", "line": 7, "problem": "is an unknown field", "hint": ""
    }  # fmt: skip
    path.write_text(PAUSED.replace("heartbeat.timeout: 5 s", "pekko.ask.timeout: '15'"))
    (document,) = json.loads(headgate("validate", path, "--json").stdout)["documents"]
    assert (document["valid"], document["trials"]) == (True, 3)
    assert "'15' has no unit, so it is 15 ms" in document["warnings"][0]


def test_validate_checks_what_a_run_checks_before_it_starts(headgate, tmp_path, monkeypatch):
    """A missing Python file is an error; a fault that is not possible here is one only with --on local."""
    python = (SCENARIOS / "examples" / "python-function.yaml").read_text()
    (tmp_path / "function.yaml").write_text(python)
    said = headgate("validate", tmp_path / "function.yaml")
    assert (said.returncode, "the file 'buckets.py' does not exist beside the scenario" in said.stdout) == (
        2,
        True,
    )
    offering(monkeypatch)
    lossy = SCENARIOS / "07-packet-loss"
    assert headgate("validate", lossy).returncode == exits.PASS
    assert "network.loss is not possible" in headgate("validate", lossy).stdout
    assert headgate("validate", lossy, "--on", "local").returncode == exits.ERROR
    assert headgate("validate", lossy, "--on", "kubernetes").returncode == exits.PASS


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (STUDY, "is TuningStudy, not Scenario (`headgate tune"),
        (ROOT / "studies" / "heartbeat", "contains no scenario.yaml (`headgate tune "),
        (SCENARIOS, "contains no scenario.yaml (`headgate ci"),
        (
            SCENARIOS / "examples",
            "(name one of its files: blocking.yaml, bulk-iteration.yaml, delta-iteration.yaml, first-record.yaml, latency-markers.yaml, python-function.yaml, rescaled.yaml, restored.yaml, word-count.yaml)",
        ),
        (ROOT / "tests" / "cli", "`headgate new` writes a scenario to start from"),
    ],
)
@pytest.mark.parametrize("command", ["run", "simulate"])
def test_run_says_which_command_a_document_is_for(headgate, tmp_path, command, path, words):
    """A study, a folder of scenarios, a folder of files, a folder without any."""
    said = headgate(command, path, "--out", tmp_path / "runs")
    assert (said.returncode, words in said.stderr) == (exits.ERROR, True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.virtual
def test_the_executions_of_a_simulated_run_are_printed(tmp_path, headgate):
    """`headgate executions`: a killed TaskManager fails its tasks, cancels the others, and all run again."""
    loaded = loading.load(SCENARIOS / "02-taskmanager-killed")
    result = running.simulate_loaded(loaded, out=tmp_path, variants=["downstream"], quiet=True)
    found = json.loads(headgate("executions", result.folder, "--json").stdout)["trials"]
    assert found
    for trial, executions in found.items():
        ends = {e["attempt"]: set() for e in executions}
        for execution in executions:
            assert execution["states"][0] == ["CREATED", None]
            times = [at for _, at in execution["states"][1:]]
            assert times == sorted(times)
            ends[execution["attempt"]].add(execution["states"][-1][0])
        assert ends[max(ends)] == {"FINISHED"}
        assert ("FAILED" in ends[0]) == (max(ends) > 0), trial
    assert any(max(e["attempt"] for e in executions) for executions in found.values())
    said = headgate("executions", result.folder, "--trial", "nothing")
    assert (said.returncode, "'nothing' is not a trial of this run" in said.stderr) == (2, True)
    (events,) = result.folder.glob(f"history/{next(iter(found))}/events.parquet")
    table = pq.read_table(events)
    broken = pa.array(["{"] * len(table))
    pq.write_table(table.set_column(table.column_names.index("data"), "data", broken), events)
    said = headgate("executions", result.folder)
    assert (said.returncode, "events.parquet, column data, row 0: is not JSON" in said.stderr) == (2, True)


FLINK_CONF = """\
heartbeat.timeout: 120000
pekko.ask.timeout: 60 s
heartbeat.intervall: 5 s
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 7
taskmanager.numberOfTaskSlots: 4
web.submit.enable: false
"""


def test_new_takes_the_options_of_a_flink_configuration(headgate, tmp_path):
    """Values get units and quotes, a misspelt key is left out with its line, and the scenario waits for their heartbeat timeout."""
    conf, path = tmp_path / "flink-conf.yaml", tmp_path / "scenario.yaml"
    conf.write_text(FLINK_CONF)
    said = headgate("new", "taskmanager-killed", "--flink-conf", conf, "-o", path)
    assert said.returncode == exits.PASS
    assert f"warning: {conf}:3: flinkConfiguration[heartbeat.intervall]: is not a Flink option" in said.stderr
    assert (
        f"{conf}: 4 of 7 options have an effect here (Flink 1.20 assumed: --flink-version sets it)"
        in said.stderr
    )
    spec = yaml.safe_load(path.read_text())["spec"]
    assert spec["testbed"]["flinkVersion"] == "1.20"
    assert spec["testbed"]["flinkConfiguration"] == {
        "heartbeat.timeout": "120000 ms",
        "pekko.ask.timeout": "60 s",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "7",
        "execution.checkpointing.interval": "1 s",
        "headgate.restart.fence-dead-slots": "false",
    }
    assert (spec["faults"][0]["jitter"], spec["timeline"]["observation"]) == ("10 s", "151 s")
    loading.load(path)


@pytest.mark.virtual
def test_a_scenario_with_own_options_is_answered_in_virtual_time(headgate, tmp_path):
    """The option of the file that decided the downtime is named."""
    conf, path = tmp_path / "config.yaml", tmp_path / "scenario.yaml"
    conf.write_text("heartbeat: {interval: 2 s, timeout: 8 s}\nrestart-strategy.type: exponential-delay\n")
    arguments = ("new", "taskmanager-killed", "--flink-conf", conf, "-o", path, "--records-per-second", 200)
    assert headgate(*arguments).returncode == exits.PASS
    result = running.simulate_loaded(loading.load(path), out=tmp_path, quiet=True)
    assert result.verdict.verdict == "Pass", result.verdict.summary
    assert "heartbeat.interval × heartbeat.rpc-failure-threshold = 2 s × 2" in " ".join(result.verdict.answer)


@pytest.mark.virtual
def test_deployments_to_a_lost_taskmanager_use_up_the_restart_attempts_as_in_flink(headgate, tmp_path):
    """Each of the three deployments after the kill of the source fails at once, long before heartbeats show that its TaskManager is lost."""
    conf, path = tmp_path / "config.yaml", tmp_path / "scenario.yaml"
    restarts = "{type: fixed-delay, fixed-delay: {attempts: 3, delay: 200 ms}}"
    conf.write_text(f"heartbeat: {{interval: 2 s, timeout: 8 s}}\nrestart-strategy: {restarts}\n")
    assert headgate("new", "taskmanager-killed", "--flink-conf", conf, "-o", path).returncode == exits.PASS
    path.write_text(path.read_text().replace("{running: sink,", "{running: source,"))
    result = running.simulate_loaded(loading.load(path), out=tmp_path, quiet=True)
    assert result.verdict.verdict == "Fail"
    assert "fixed-delay.attempts" in json.dumps(result.verdict.to_json())


@pytest.mark.parametrize("question", questions.questions().values(), ids=lambda q: q.name)
def test_every_question_takes_a_flink_configuration(headgate, tmp_path, question):
    """Headgate's own options of the question stay."""
    conf, path = tmp_path / "config.yaml", tmp_path / "scenario.yaml"
    conf.write_text("heartbeat:\n  timeout: 30000\n")
    args = ("new", question.name, "--flink-conf", conf, "--flink-version", "1.19", "-o", path)
    assert headgate(*args).returncode == exits.PASS
    testbed = loading.load(path).document["spec"]["testbed"]
    own = {line.key for line in question.options if line.key.startswith("headgate.")}
    assert testbed["flinkVersion"] == "1.19"
    assert set(testbed["flinkConfiguration"]) == {
        "heartbeat.timeout",
        "execution.checkpointing.interval",
        *own,
    }


@pytest.mark.parametrize("command", ["run", "simulate", "plan", "tune"])
def test_a_flink_configuration_instead_of_a_scenario_is_named_as_one(headgate, tmp_path, command):
    """One line with the command that turns it into a scenario, not a complaint about each of its keys."""
    conf = tmp_path / "flink-conf.yaml"
    conf.write_text(FLINK_CONF)
    said = headgate(command, conf)
    assert said.returncode == exits.ERROR
    assert said.stderr.splitlines() == [
        f"headgate: {conf}: is a Flink configuration, not a document of Headgate "
        f"(`headgate new QUESTION --flink-conf {conf}` writes a scenario with its options)"
    ]


def test_validate_checks_a_flink_configuration(headgate, tmp_path):
    """As the version that reads such a file, with the line of each mistake."""
    conf = tmp_path / "flink-conf.yaml"
    conf.write_text(FLINK_CONF)
    said = headgate("validate", conf)
    assert said.returncode == exits.ERROR
    first, error, *warnings = said.stdout.splitlines()
    assert (
        first
        == f"{conf}: invalid: Flink configuration (7 options, Flink 1.20 assumed: --flink-version sets it)"
    )
    assert error == (
        "  error: line 3: flinkConfiguration[heartbeat.intervall]: is not a Flink option (did you mean heartbeat.interval?)"
    )
    assert warnings[-1] == "  warning: Flink options without effect here: web.submit.enable"


def test_validate_checks_flinks_files_in_a_folder(headgate, tmp_path):
    """Their name or kind shows them. Files of other programs, templates of Helm and the scenarios of recorded runs are left out."""
    files = {
        "flink-conf.yaml": "heartbeat.interval: 10000\nheartbeat.timout: 50000\n",
        "deployment.yaml": "kind: FlinkDeployment\nspec: {flinkConfiguration: {heartbeat.timeot: 5 s}}\n",
        "several.yaml": "kind: Service\n---\nkind: FlinkDeployment\nspec: {flinkConfiguration: {heartbeat.timeot: 5 s}}\n",
        "quoted.yaml": "kind: 'FlinkDeployment'  # quoted\nspec: {flinkConfiguration: {heartbeat.timeot: 5 s}}\n",
        "list.yaml": "kind: List\nitems:\n- kind: FlinkDeployment\n  spec: {flinkConfiguration: {heartbeat.timeot: 5 s}}\n",
        "patch.yaml": "kind: Kustomization\npatches:\n- target:\n    kind: FlinkDeployment\n",
        "map.yaml": "kind: ConfigMap\ndata:\n  flink-conf.yaml: |\n    heartbeat.interval: 10000\n    heartbeat.timeuot: 1\n",
        "template.yaml": "kind: FlinkDeployment\nspec: {{ .Values.spec }}\n",
        "other/config.yaml": "listen: 8080\n",
        "rest/config.yaml": "rest: {ports: 8080}\nclient: {timeout: 30}\n",
        "run/manifest.json": json.dumps({"schema": MANIFEST_SCHEMA, "run": "r", "expectations": {}}),
        "run/scenario.yaml": "kind: Scenario\n",
        "web/manifest.json": "{}",
        "web/flink-conf.yaml": "heartbeat.timeout: 5 s\nheartbeat.intervall: 1 s\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    said = json.loads(headgate("validate", tmp_path, "--json").stdout)
    found = {str(Path(one["file"]).relative_to(tmp_path)): one["errors"][0] for one in said["documents"]}
    known = {
        "deployment.yaml",
        "flink-conf.yaml",
        "list.yaml",
        "map.yaml",
        "quoted.yaml",
        "several.yaml",
        "web/flink-conf.yaml",
    }
    assert found.keys() == known
    assert {error["hint"] for error in found.values()} == {
        "did you mean heartbeat.timeout?",
        "did you mean heartbeat.interval?",
    }


def test_validate_checks_each_flink_configuration_of_a_file(headgate, tmp_path):
    """Each by its own version, with the lines of the file. Another command says that there are several."""
    deployment = "kind: FlinkDeployment\nmetadata: {{name: {}}}\nspec: {{flinkVersion: {}, flinkConfiguration: {{{}}}}}\n"
    path = tmp_path / "jobs.yaml"
    path.write_text(
        deployment.format("a", "v1_20", "heartbeat.timeout: 50 s")
        + "---\nkind: Service\n---\n"
        + deployment.format("b", "v2_0", "heartbeat.timeot: 50 s")
    )
    said = headgate("validate", path)
    assert said.returncode == exits.ERROR
    assert said.stdout.splitlines() == [
        f"{path}: valid: FlinkDeployment a (1 option, Flink 1.20)",
        f"{path}: invalid: FlinkDeployment b (1 option, Flink 2.0)",
        "  error: line 9: flinkConfiguration[heartbeat.timeot]: is not a Flink option (did you mean heartbeat.timeout?)",
    ]
    assert (
        "jobs.yaml: has 2 Flink configurations, and no document of Headgate" in headgate("run", path).stderr
    )


def test_validate_checks_a_flink_configuration_as_another_version_reads_it(headgate, tmp_path):
    """Up to 1.19, heartbeat.timeout is a number of milliseconds and a unit is an error; the hint for 1.20 would break 1.17."""
    conf = tmp_path / "flink-conf.yaml"
    conf.write_text("heartbeat.timeout: 50000\n")
    said = headgate("validate", conf, "--flink-version", "1.17")
    assert said.stdout == f"{conf}: valid: Flink configuration (1 option, Flink 1.17)\n"
    assert "(write '50000 ms')" in headgate("validate", conf).stdout
    said = headgate("validate", conf, "--flink-version", "v1_17")
    assert said.returncode == exits.ERROR
    assert "--flink-version: 'v1_17' is not a known version of Flink (the nearest is '1.17'" in said.stderr


@pytest.mark.parametrize(
    ("name", "text", "version", "warning"),
    [
        ("flink-conf.yaml", "heartbeat.timeout: 50000 ms\n", "2.0", "Flink 2.0 reads config.yaml instead of flink-conf.yaml"),
        ("flink-conf.yaml", "heartbeat.timeout: 50000 ms\n", "1.20", ""),
        ("config.yaml", "heartbeat: {timeout: 50000}\n", "1.17", "Flink 1.17 reads flink-conf.yaml instead of config.yaml"),
        ("config.yaml", "heartbeat: {timeout: 50000}\n", "1.19", ""),
        ("options.yaml", "heartbeat.timeout: 50000 ms\n", "2.0", ""),
    ],
)  # fmt: skip
def test_validate_warns_about_a_file_that_the_version_does_not_read(
    headgate, tmp_path, name, text, version, warning
):
    """Flink 2.0 does not start with a flink-conf.yaml, however valid its options are."""
    (tmp_path / name).write_text(text)
    said = headgate("validate", tmp_path / name, "--flink-version", version)
    assert (said.returncode, " instead of " in said.stdout) == (exits.PASS, bool(warning))
    assert warning in said.stdout


def test_a_jar_and_a_text_that_is_not_utf_8_say_what_to_do(headgate, tmp_path):
    """A newcomer passes the JAR of the job."""
    for name, words in {
        "job.jar": "is a JAR, and your code does not run here (`headgate new QUESTION` writes a scenario",
        "scenario.yaml": "is not UTF-8 text (save it as UTF-8)",
    }.items():
        (tmp_path / name).write_bytes(b"PK\x03\x04\xff\xfe")
        assert words in headgate("simulate", tmp_path / name).stderr


def test_a_warning_about_a_scenario_names_its_line(headgate, tmp_path):
    """As errors do."""
    path = tmp_path / "scenario.yaml"
    headgate("new", "late-producer", "-o", path)
    path.write_text(path.read_text().replace("equals: RUNNING", "equals: RUNING"))
    (line,) = (n for n, text in enumerate(path.read_text().splitlines(), 1) if "RUNING" in text)
    words = (
        f"  warning: line {line}: spec.expect[1].equals: job.state is never RUNING (did you mean RUNNING?)"
    )
    assert words in headgate("validate", path).stdout


def test_validate_names_the_version_that_a_flink_deployment_cannot_have(headgate, tmp_path):
    """With the nearest one that is reproduced."""
    path = tmp_path / "deployment.yaml"
    path.write_text(
        "kind: FlinkDeployment\nspec: {flinkVersion: v1_11, flinkConfiguration: {heartbeat.timeout: 5 s}}\n"
    )
    said = headgate("validate", path)
    assert said.returncode == exits.ERROR
    assert "spec.flinkVersion: '1.11' is not a known version of Flink (the nearest is '1.12'" in said.stdout


def test_options_that_contradict_each_other_are_no_scenario(headgate, tmp_path):
    """The error names the file and the option, whose line is unknown if the file does not set it."""
    conf = tmp_path / "config.yaml"
    conf.write_text("heartbeat.interval: 60 s\n")
    said = headgate("new", "late-producer", "--flink-conf", conf, "-o", tmp_path / "x.yaml")
    assert said.returncode == exits.ERROR
    assert said.stderr.startswith(
        f"headgate: {conf}: flinkConfiguration[heartbeat.timeout]: Flink does not start: The heartbeat timeout"
    )
    assert (
        "  error: flinkConfiguration[heartbeat.timeout]: Flink does not" in headgate("validate", conf).stdout
    )
    conf.write_text("heartbeat.interval: 50 s\n")
    assert (
        "  warning: flinkConfiguration[heartbeat.timeout]: is not more" in headgate("validate", conf).stdout
    )
