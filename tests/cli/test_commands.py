"""The command line: help, completion, bad input, exit codes, reports of runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed_runtime.api.naming import API_VERSION
from testbed_runtime.cli import commands, doctor, exits, loading, running
from testbed_runtime.cli.cluster_doctor import BAD, GOOD, Finding
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.trial.manifest import MANIFEST_SCHEMA
from testbed_runtime.faults.registry import LOCAL, Capabilities
from testbed_runtime.history.manifest import MANIFEST
from testbed_runtime.local import packets, registry
from testbed_runtime.simulation import entry
from tests.report.recoveries import killed

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
STUDIES = SCENARIOS.parent / "studies"
HEAVY = ("numpy", "pyarrow", "pyspark", "aiohttp", "pydantic", "jinja2")


def because(text, cause):
    error = HeadgateError(text)
    error.__cause__ = cause
    return error


def test_help_names_every_command_and_hides_the_internal_one():
    """Each with one line."""
    said = CliRunner().invoke(commands.build(), ["--help"])
    assert said.exit_code == 0
    for command in (
        "new",
        "validate",
        "run",
        "ci",
        "simulate",
        "evaluate",
        "report",
        "faults",
        "heal",
        "doctor",
        "exchange",
    ):
        assert f" {command} " in said.output
    assert "supervise" not in said.output


def test_a_paragraph_of_help_is_as_wide_as_the_terminal():
    """The line breaks of its docstring are not those of the screen; paragraphs stay apart."""
    said = CliRunner().invoke(commands.build(), ["trace", "--help"], env={"COLUMNS": "500"})
    lines = [line.strip() for line in said.output.splitlines()]
    about = next(line for line in lines if line.startswith("Each line is a step"))
    assert about.endswith("the buffers in use on both sides.")
    assert any(line.startswith("With --sent") and line.endswith("an event followed it.") for line in lines)


def test_help_imports_nothing_heavy():
    """So that it is there at once."""
    code = (
        "import sys; sys.argv = ['headgate', '--help']\n"
        "from testbed_runtime.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"found = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "sys.exit(f'imported {found}' if found else 0)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert said.returncode == 0, said.stderr


def test_a_shell_can_complete_commands(headgate):
    """Typer's completion of bash."""
    said = headgate(_HEADGATE_COMPLETE="complete_bash", COMP_WORDS="headgate do", COMP_CWORD="1")
    assert said.stdout.split() == ["doctor"]


@pytest.mark.parametrize(
    ("words", "count", "found"),
    [
        (f"headgate run {SCENARIOS}/02-taskmanager-killed --variant ", 4, ["downstream", "upstream"]),
        (f"headgate simulate {SCENARIOS}/02-taskmanager-killed --variant up", 4, ["upstream"]),
        ("headgate run nosuch --variant ", 4, []),
        ("headgate new late", 2, ["late-producer"]),
        ("headgate mem --p", 2, []),
    ],
)
def test_a_shell_can_complete_variants_and_questions(headgate, words, count, found):
    """The names are read from the document that the command line already names; a wrong name completes nothing."""
    said = headgate(_HEADGATE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(count))
    assert said.stdout.split() == found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", "x", "--seed", "abc"], "Invalid value for '--seed': 'abc' is not a whole number"),
        (["simulate", "x", "--seeds", "0"], "Invalid value for '--seeds': 0 is out of range: write 1 or more"),
        (["simulate", "x", "--seeds", "1001"], "Invalid value for '--seeds': 1001 is out of range: write 1000 or less"),
        (["new", "slow-network", "--records-per-second", "99999999"], "Invalid value for '--records-per-second': 99999999 is out of range: write 10000000 or less"),
        (["trace", "--rate", "nan"], "Invalid value for '--rate': nan is out of range: write 0 or more"),
        (["trace", "--rate", "fast"], "Invalid value for '--rate': 'fast' is not a number"),
        (["run", "x", "--on", "mars"], "Invalid value for '--on': 'mars' is not one of 'local', 'kubernetes'"),
        (["exchange", "fetch", "--port", "abc"], "Invalid value for '--port': 'abc' is not a whole number"),
    ],
)  # fmt: skip
def test_an_option_with_a_wrong_value_names_the_value_and_what_to_write(headgate, words, said):
    """In Headgate's words, not in those of the library that parses options."""
    done = headgate(*words)
    assert done.returncode == 2
    shown = " ".join(re.findall(r"^│ (.*?) *│$", done.stderr, re.MULTILINE))
    assert shown == said


def test_ctrl_c_in_a_command_without_a_cleanup_is_said_in_one_line(tmp_path):
    """Not with typer's `Aborted.`, nor with nothing at all. The command reads a pipe, so it is at work when it is interrupted."""
    pipe = tmp_path / "document.yaml"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "testbed_runtime.cli.main", "validate", str(pipe)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with started, pipe.open("w"):  # opens as soon as the command reads it
        started.send_signal(signal.SIGINT)
        said = started.communicate(timeout=60)
    assert (started.returncode, *said) == (130, "", "headgate: interrupted\n")


@pytest.mark.parametrize("command", [("new", "--list"), ("--help",), ("run", "--help")], ids=" ".join)
def test_a_reader_that_stops_reading_is_not_the_verdict_fail(command):
    """With `| head`, the exit code is that of an error, and nothing is said, because nothing reads it."""
    read, written = os.pipe()
    os.close(read)
    with os.fdopen(written, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "testbed_runtime.cli.main", *command],
            check=False,
            stdout=closed,
            stderr=subprocess.PIPE,
        )
    assert (done.returncode, done.stderr) == (exits.ERROR, b"")


def write(folder, text):
    path = folder / "scenario.yaml"
    path.write_text(text)
    return path


def changed(folder, old, new):
    """Scenario 03 with one thing wrong."""
    text = (SCENARIOS / "03-taskmanager-paused" / "scenario.yaml").read_text()
    assert old in text
    return write(folder, text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed: 7", "sed: 7", "spec.sed: is an unknown field (did you mean seed?"),
        (
            "heartbeat.timeout: 5 s",
            "heartbeat.timout: 5 s",
            "is not a Flink option (did you mean heartbeat.timeout?)",
        ),
        ("process: {pause", "proces: {pause", "is neither a fault kind"),
        ("to: count,", "to: cuont,", "spec.testbed.job.edges[0].to: vertex 'cuont' does not exist"),
        ("replicas: 5", "replicas: 1", "the job needs 4 slots"),
        ("duration: 8 s", "duration: -8 s", "is negative"),
        ("{from: count, to: sink", "[from: count, to: sink", "is not YAML"),
    ],
    ids=["field", "option", "fault kind", "edge", "slots", "duration", "yaml"],
)
def test_bad_input_names_file_line_field_and_fix_and_exits_2(headgate, tmp_path, old, new, words):
    """No stack trace, nothing started, no folder made."""
    path = changed(tmp_path, old, new)
    said = headgate("run", path, "--out", tmp_path / "runs")
    assert said.returncode == exits.ERROR
    assert words in said.stderr
    assert "Traceback" not in said.stderr
    assert str(path) in said.stderr
    line = 1 + path.read_text().split(new)[0].count("\n")
    assert f":{line}:" in said.stderr or f"line {line}" in said.stderr
    assert not (tmp_path / "runs").exists()


def test_a_fault_that_needs_a_cluster_is_refused_before_anything_starts(headgate, tmp_path):
    """pod.delete on this machine: the reason and how to fix it; no folder is left."""
    path = changed(tmp_path, "process: {pause: {}}", "pod: {delete: {}}")
    said = headgate("run", path, "--out", tmp_path / "runs")
    assert said.returncode == exits.ERROR
    assert "pod.delete is not possible in the environment 'local'" in said.stderr
    assert list((tmp_path / "runs").iterdir()) == []


def test_problems_of_all_files_are_reported_before_the_first_one_runs(headgate, tmp_path):
    """`ci` loads everything first."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        changed(tmp_path / name, "seed: 7", f"{name}: 7")
    said = headgate("ci", tmp_path, "--out", tmp_path / "runs")
    assert said.returncode == exits.ERROR
    assert "spec.a:" in said.stderr
    assert "spec.b:" in said.stderr


@pytest.mark.parametrize("command", ["run", "ci", "evaluate", "report", "simulate"])
def test_a_missing_folder_is_reported(headgate, command, tmp_path):
    """Exit 2, with the name."""
    said = headgate(command, tmp_path / "nothing")
    assert said.returncode == exits.ERROR
    assert "nothing" in said.stderr
    assert "Traceback" not in said.stderr


def test_debug_shows_the_trace(headgate):
    """HEADGATE_DEBUG=1."""
    said = headgate("run", "nothing", HEADGATE_DEBUG="1")
    assert "Traceback" in said.stderr
    assert said.returncode == exits.ERROR


@pytest.mark.parametrize(
    ("active", "text"),
    [((), "\nno fault is active on this machine\n"), (("run-1: dead",), "\nactive faults:\n  run-1: dead\n")],
)
def test_faults_lists_every_kind_with_its_backend_or_why_not(headgate, monkeypatch, active, text):
    """And the faults that are active, and the metrics, when asked."""
    monkeypatch.setattr(registry, "active_faults", lambda: active)  # other runs may be on this machine
    kinds = headgate("faults").stdout
    assert "process.pause" in kinds
    assert "pod.delete, pod.evict: need kubernetes" in kinds
    assert kinds.endswith(text)
    metrics = headgate("faults", "--metrics").stdout
    assert re.search(r"^recovery\.detect +s +", metrics, re.MULTILINE)


WITHOUT_ROOT = "packet faults on one machine need a network namespace for each TaskManager"
MISSING = dict.fromkeys(("netem", "nfqueue", "nftables"), WITHOUT_ROOT)


def test_faults_says_each_reason_once(headgate, monkeypatch):
    """Four kinds lack the same backends for the same reason."""
    monkeypatch.setattr(packets, "capabilities", offering(missing=LOCAL.missing | MISSING))
    said = headgate("faults").stdout
    assert "network.loss, network.duplicate, network.reorder, network.corrupt: need netem or nfqueue" in said
    lines = [line.strip() for line in said.splitlines() if len(line) > 40]
    assert len(lines) == len(set(lines))
    assert said.count(WITHOUT_ROOT) == 1
    assert said.count("for the effect that loss has") == 1


def test_doctor_opens_with_the_cluster_when_one_was_requested(headgate, monkeypatch):
    """This machine is only noted then: a run in the cluster needs no Java here."""
    monkeypatch.setattr(doctor, "CHECKS", (lambda: Finding("Java", BAD, "none", "Spark needs it"),))
    reached = [Finding("Kubernetes", GOOD, "https://here", "namespace demo")]
    monkeypatch.setattr(doctor.cluster_doctor, "findings", lambda _: reached)
    asked = headgate("doctor", "--namespace", "demo")
    assert [line.split()[:2] for line in asked.stdout.splitlines() if line[:4].strip()][:2] == [
        ["ok", "Kubernetes"], ["note", "Java"]
    ]  # fmt: skip
    assert asked.returncode == 0
    local = headgate("doctor")
    assert local.stdout.splitlines()[0].split()[:2] == ["BAD", "Java"]
    assert local.returncode == exits.ERROR


def test_faults_and_doctor_know_the_packet_faults_that_run_can_inject(headgate, monkeypatch):
    """As root, `run` gives each process a network of its own. Latency stays with the proxy, as in `run`."""
    monkeypatch.setattr(packets, "capabilities", offering("nfqueue", "nftables"))
    kinds = headgate("faults").stdout
    assert re.search(r"^network\.loss +nfqueue ", kinds, re.MULTILINE)
    assert re.search(r"^network\.latency +proxy ", kinds, re.MULTILINE)
    assert re.search(r"ok  packet faults +nfqueue", headgate("doctor").stdout)
    monkeypatch.setattr(packets, "capabilities", offering(missing=LOCAL.missing | MISSING))
    assert re.search(rf"note  packet faults +none\n.*{WITHOUT_ROOT}", headgate("doctor").stdout)


def offering(*backends, missing=LOCAL.missing):
    """A `packets.capabilities` of a machine with these backends."""

    async def capabilities():
        return Capabilities("local", (*LOCAL.backends, *backends), missing)

    return capabilities


def test_heal_without_all_says_what_to_write(headgate):
    """Nothing is healed by accident."""
    said = headgate("heal")
    assert (said.returncode, "headgate heal --all" in said.stderr) == (exits.ERROR, True)


def test_doctor_says_what_each_finding_means(headgate):
    """Java, Spark, cores, ports, clock, packets."""
    said = headgate("doctor")
    for name in ("Java", "Spark", "cores", "loopback", "timers", "permissions", "packet faults"):
        assert re.search(rf"^ *(ok|note|BAD)  {name}  ", said.stdout, re.MULTILINE)


def test_a_place_that_this_account_cannot_write_to_is_named(headgate, tmp_path, monkeypatch):
    """`doctor` names it before a run, and a run with the option that names another place."""
    (tmp_path / "taken").write_text("")
    simulated = headgate("simulate", SCENARIOS / "06-no-fault", "--out", tmp_path / "taken")
    assert re.search(
        r"^headgate: --out: .*/taken/no-fault-[-0-9]+ cannot be created: Not a directory \(name a",
        simulated.stderr,
    )
    seeds = headgate("simulate", SCENARIOS / "06-no-fault", "--seeds", 2, "--out", tmp_path / "taken")
    assert "headgate: --out: " in seeds.stderr
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.chdir(folder)
        Path(folder).chmod(0o555)
        with unprivileged():
            assert "but this account cannot write here" in headgate("doctor").stdout
        Path(folder).chmod(0o755)
        monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["tune", str(STUDIES / "heartbeat"), "--out"],
        ["ci", str(SCENARIOS), "--out"],
        ["simulate", str(SCENARIOS / "06-no-fault"), "--seeds", "2", "--out"],
        ["new", "slow-network", "--output"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_names_the_option_of_what_it_cannot_write_before_it_works(headgate, tmp_path, words):
    """A file in place of a folder, and a folder of another account: one line with the reason and the fix."""
    (tmp_path / "taken").write_text("")
    there = "taken/x.yaml" if words[0] == "new" else "taken"
    said = headgate(*words, tmp_path / there)
    assert said.returncode == exits.ERROR
    assert re.fullmatch(rf"headgate: {words[-1]}: .*/taken\S* cannot be .*: .* \(name a.*\)\n", said.stderr)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        with unprivileged():
            said = headgate(*words, Path(folder) / "x.yaml" if words[0] == "new" else folder)
        Path(folder).chmod(0o444)  # nor may it look into it
        with unprivileged():
            hidden = headgate(*words, Path(folder) / "x.yaml" if words[0] == "new" else folder)
    assert hidden.stderr.startswith(f"headgate: {words[-1]}: {folder}")
    assert re.fullmatch(
        rf"headgate: {words[-1]}: \S+ (is read-only for this account|cannot be .*: .*) \(name a.*\)\n",
        said.stderr,
    )


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_a_run_that_this_account_cannot_change_is_named_before_spark_starts(headgate, tmp_path, command):
    """With what to do, instead of the name of a temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = {"schema": MANIFEST_SCHEMA, "run": "r", "trials": [], "expectations": {}}
        (Path(folder) / MANIFEST).write_text(json.dumps(manifest))
        Path(folder).chmod(0o555)
        with unprivileged():
            said = headgate(command, folder)
    assert said.stderr == (
        f"headgate: {folder}: is read-only for this account (copy it to a folder that you can write to)\n"
    )


def test_a_file_that_cannot_be_read_does_not_hide_the_problems_of_the_others(headgate):
    """`validate` names it among them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name, mode in (("closed.yaml", 0o000), ("open.yaml", 0o644)):
            (Path(folder) / name).write_text(f"apiVersion: {API_VERSION}\nkind: Nothing\n")
            (Path(folder) / name).chmod(mode)
        with unprivileged():
            said = headgate("validate", folder)
    assert said.returncode == exits.ERROR
    assert "closed.yaml: invalid\n  error: cannot be read: Permission denied" in said.stdout
    assert "'Nothing' is not a kind" in said.stdout


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may read and write everything: take the user id of an ordinary user for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UserError("spec.x", "is wrong", "write y"), "spec.x: is wrong (write y)"),
        (HeadgateError("two\nlines"), "two\nlines"),
        (OSError(28, "No space left on device", "/runs/m.json"), "the disk is full: /runs/m.json"),
        (PermissionError(13, "Permission denied", "/x"), "Permission denied: /x"),
        (ExceptionGroup("g", [HeadgateError("the first"), HeadgateError("the second")]), "the first"),
        (KeyError("x"), "this is a bug in Headgate"),
        (because("the outer one", HeadgateError("the inner one")), "the outer one Caused by the inner one"),
        (because("it says why", OSError(2, "why")), "it says why"),
    ],
)
def test_errors_are_explained_in_words(error, words):
    """Whatever they are."""
    assert words in exits.explain(error)


def run_folder(tmp_path, state="RUNNING"):
    """A folder as an evaluated run leaves it."""
    import yaml

    document = yaml.safe_load((SCENARIOS / "06-no-fault" / "scenario.yaml").read_text())
    expected = [{"metric": "job.state", "equals": "RUNNING"}]
    trial = {
        "trial": "main-1", "variant": "main", "role": "fault", "number": 1, "seed": 7, "flinkVersion": "2.x", "configuration": {},
        "faults": [], "phases": [{"name": "baseline", "start_ns": 0, "end_ns": 10**9}], "voided": False, "drained": True,
        "job_state": "FINISHED", "job": {"vertices": [], "edges": []}, "error": "", "residue": {},
    }  # fmt: skip
    manifest = {
        "schema": 2, "run": "r", "scenario": document, "expectations": {"main": expected}, "place": "local", "seed": 7, "started": "2026-01-01T00:00:00+00:00", "machine": {},
        "trials": [trial], "interrupted": False,
    }  # fmt: skip
    safety = (
        "delivery.lost",
        "delivery.duplicated",
        "delivery.corrupted",
        "delivery.out-of-order",
        "credit.violations",
    )
    judged = [
        *((name, 0.0, "") for name in safety),
        ("history.missing", 0.0, ""),
        ("liveness.at-end", 1.0, ""),
    ]
    values = [*judged, ("job.state", None, state)]
    rows = [
        {
            "run": "r",
            "trial": "main-1",
            "metric": m,
            "phase": "",
            "quantile": None,
            "value": v,
            "text": t,
            "bounded_by": "",
            "reason": "",
        }
        for m, v, t in values
    ]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "metrics.json").write_text(json.dumps(rows))
    return tmp_path


@pytest.mark.parametrize(
    ("state", "policy", "code"), [("RUNNING", "report", 0), ("FAILED", "report", 1), ("FAILED", "pass", 1)]
)
def test_report_judges_again_and_its_exit_code_is_the_verdicts(headgate, tmp_path, state, policy, code):
    """Report and verdict are written anew; a policy for Inconclusive changes no Fail."""
    said = headgate("report", run_folder(tmp_path, state), "--inconclusive", policy)
    assert said.returncode == code, said.stderr
    assert (tmp_path / "report.html").is_file()
    assert json.loads((tmp_path / "verdict.json").read_text())["exitCode"] == code
    assert str(tmp_path / "report.html") in said.stdout


def test_the_terminal_shows_which_wait_cost_each_second(headgate, tmp_path):
    """Below the verdict, from the run's recovery.json."""
    folder = run_folder(tmp_path)
    (folder / "recovery.json").write_text(json.dumps({"main-1": killed("main-1").to_json()}))
    said = headgate("report", folder).stdout.splitlines()
    assert ": Pass: " in said[0]
    assert said[1].startswith(
        "  main-1: down for 2.37 s after `dead`, caught up after 3.28 s: 1.72 s heartbeat.interval ×"
    )
    assert said[2].startswith(
        "  main-1: close to its limit: taskmanager.network.request-backoff.max = 10 s: waited 22.0 s of"
    )


@pytest.mark.parametrize(("policy", "code"), [("report", 3), ("fail", 1), ("pass", 0)])
def test_inconclusive_comes_to_what_the_policy_says(headgate, tmp_path, policy, code):
    """No metric rows: NoData."""
    folder = run_folder(tmp_path)
    (folder / "metrics.json").write_text("[]")
    assert headgate("report", folder, "--inconclusive", policy).returncode == code


def test_evaluate_checks_every_folder_before_it_starts(headgate, tmp_path):
    """A wrong name is an error at once, and no other run is evaluated before it."""
    said = headgate("evaluate", run_folder(tmp_path), tmp_path / "nosuch")
    assert said.returncode == exits.ERROR
    assert "nosuch" in said.stderr
    assert "evaluating" not in said.stderr


def test_evaluate_without_java_keeps_the_results_of_an_earlier_evaluation(headgate, tmp_path):
    """It is an error before anything is written, as in `headgate run`."""
    folder = run_folder(tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    said = headgate("evaluate", folder, PATH=str(tmp_path), JAVA_HOME="")
    assert said.returncode == exits.ERROR
    assert said.stderr.startswith(
        "headgate: Evaluation needs Java 17 or later, and neither JAVA_HOME nor PATH"
    )
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("changes", "possible"), [({}, True), ({"error": "port in use"}, False), ({"phases": []}, False)]
)
def test_an_interrupted_run_says_that_it_can_still_be_evaluated(tmp_path, changes, possible):
    """Only if a trial has a history."""
    folder = run_folder(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["trials"][0] |= changes
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert (f"headgate evaluate {folder}" in running.still_possible(folder)) == possible


def test_an_interrupted_run_without_a_manifest_promises_nothing(tmp_path):
    """Ctrl-C before the first trial."""
    assert running.still_possible(tmp_path) == ""


@pytest.mark.parametrize(
    ("file", "words"),
    [("manifest.json", "is not JSON"), ("metrics.json", "it is damaged; run `headgate evaluate")],
)
def test_a_truncated_file_of_a_run_is_reported(headgate, tmp_path, file, words):
    """Exit 2, with the file's name."""
    folder = run_folder(tmp_path)
    (folder / file).write_text((folder / file).read_text()[:-20])
    said = headgate("report", folder)
    assert said.returncode == exits.ERROR
    assert words in said.stderr
    assert file in said.stderr


def test_an_interrupted_simulation_says_that_it_can_still_be_evaluated(tmp_path, monkeypatch):
    """Its finished trials have histories, as those of real processes."""
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    run_folder(recorded)

    def interrupted(request, progress):
        shutil.copytree(recorded, request.folder, dirs_exist_ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "simulate", interrupted)
    scenario = loading.load(SCENARIOS / "02-taskmanager-killed")
    with pytest.raises(
        exits.Interrupted, match=r"^`headgate evaluate .* judges the trials that were recorded$"
    ):
        running.simulate_loaded(scenario, out=tmp_path / "runs", quiet=True)
