"""Arguments that another command takes, or that need another option: the error names what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed_runtime.cli.commands import build

SCENARIO = """
apiVersion: headgate.dev/v1alpha1
kind: Scenario
metadata: {name: small}
spec:
  testbed:
    job:
      vertices: [{name: source, source: {}}, {name: sink, sink: ledger}]
      edges: [{from: source, to: sink}]
"""
STUDY = """
apiVersion: headgate.dev/v1alpha1
kind: TuningStudy
metadata: {name: little}
spec:
  scenarios: [{name: small}]
  options: [{key: pekko.ask.timeout, values: [1 s, 10 s]}]
  objectives: [{metric: recovery.total}]
  budget: {runs: 2}
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a scenario, a study and nothing else in it."""
    for name, text in (("small/scenario.yaml", SCENARIO), ("little/study.yaml", STUDY)):
        path = tmp_path / "all" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ci all/small/scenario.yaml", "all/small/scenario.yaml: is a file, not a folder (`headgate run all/small/scenario.yaml` runs one scenario)"),
        ("ci nosuch", "nosuch: does not exist (name a folder of scenarios, such as scenarios/)"),
        ("run nosuch", "nosuch: does not exist (name a folder with a scenario.yaml, or a file)"),
        ("run all", "all: contains no scenario.yaml (`headgate ci all` runs all scenarios of a folder)"),
        ("run all/little/study.yaml", "all/little/study.yaml: kind: is TuningStudy, not Scenario (`headgate tune all/little/study.yaml` runs a study)"),
        ("run all/small -n team-a", "--namespace: needs a cluster, and this command has --on local (add --on kubernetes, or leave it out)"),
        ("run all/small --context a --kubeconfig b", "--context, --kubeconfig: needs a cluster"),
        ("tune nosuch", "nosuch: does not exist (name a study, such as those of studies/)"),
        ("tune all", "all: contains no study.yaml (name one of all/little)"),
        ("tune empty", "empty: contains no study.yaml (name a study, such as those of studies/)"),
        ("tune all/small", "all/small: contains no study.yaml (`headgate run all/small` runs a scenario)"),
        ("tune all/small/scenario.yaml", "all/small/scenario.yaml: kind: is Scenario, not TuningStudy (`headgate run all/small/scenario.yaml` runs a scenario)"),
        ("new nosuch", "QUESTION: no question matches 'nosuch' (there are"),
        ("new late-producer --flink-version 1.9", "--flink-version: '1.9' is not a known version of Flink (the nearest is '1.12'"),
        ("trace --flink-version 9", "--flink-version: '9' is not a known version of Flink"),
        ("plan all/small -D heartbeat.timout=1s", "-D heartbeat.timout: is not a Flink option (did you mean heartbeat.timeout?)"),
        ("state all/small", "all/small: contains no checkpoint (name the folder files/<trial> of a run with"),
        ("state nosuch", "nosuch: is not a folder (name the folder files/<trial> of a run)"),
    ],
)  # fmt: skip
def test_a_wrong_argument_names_the_right_one(headgate, files, words, said):
    """One line, exit 2, and nothing is written."""
    done = headgate(*words.split())
    assert done.returncode == 2
    assert done.stderr.startswith(f"headgate: {said}")
    assert done.stderr.count("\n") == 1
    assert sorted(p.name for p in files.iterdir()) == ["all", "empty"]


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        ("trace --latency 5", "warning: --latency: '5' has no unit, so it is 5 ms (write '5 s' or '5 ms')\n"),
        ("memory -D heartbeat.timeout=5", "warning: -D heartbeat.timeout: '5' has no unit, so it is 5 ms (write '5 s' or '5 ms')\n"),
        ("trace --barriers 0 --latency 0", ""),
    ],
)  # fmt: skip
def test_a_duration_without_a_unit_is_a_warning(headgate, words, warning):
    """As in a document: a bare number is milliseconds in Flink."""
    done = headgate(*words.split())
    assert (done.returncode, done.stderr) == (0, warning)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sim", "No such command 'sim'. Did you mean 'simulate'?"),
        ("s", "No such command 's'. Did you mean 'simulate', 'state'?"),
        ("run", "Missing argument 'SCENARIOS'. Scenario folders, or YAML files."),
        ("exchange fetch", "Missing option '--port'. Port of the producer."),
    ],
)
def test_an_abbreviated_command_and_a_missing_argument_say_what_to_write(headgate, words, said):
    """A command that only the supervisor uses is not suggested."""
    answer = headgate(*words.split())
    assert answer.returncode == 2
    assert said in " ".join(answer.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("command", "usage"), [("plan", "JOB"), ("run", "SCENARIOS..."), ("new", "[QUESTION]")]
)
def test_a_usage_line_names_arguments_as_the_documentation_does(command: str, usage: str):
    """`headgate plan JOB`, with `-h` and in an error."""
    for words in ([command, "-h"], [command, "--nosuch"]):
        shown = CliRunner().invoke(build(), words).output
        assert f"headgate {command} [OPTIONS] {usage}" in shown.replace("root ", "headgate ")
