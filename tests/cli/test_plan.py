"""`headgate plan`: the buffers of a document's job, before it runs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from testbed_runtime.core.documents import SCHEMA

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
FULL_SIZE = SCENARIOS / "10-network-buffers" / "full-size.yaml"
FIFTH = ("-D", "taskmanager.memory.network.fraction=0.2", "-D", "taskmanager.memory.network.max=3g")


def test_the_guides_job_starts_with_three_tenths(headgate):
    """330 + 10 × 400 = 4,330 subtasks; 132,000 + 11 × 160,000 = 1,892,000 channels."""
    said = headgate("plan", FULL_SIZE, "--json")
    document = json.loads(said.stdout)
    (found,) = document["variants"]
    assert (document["schema"], found["variant"]) == (SCHEMA, "network-buffers-full")
    assert (said.returncode, found["subtasks"], found["channels"]) == (0, 4330, 1_892_000)
    assert (found["available"], found["missing"]) == (141_557, 0)
    shares = [t["share"] for t in found["perTaskManager"]]
    assert 0.73 < sum(shares) / len(shares) < 0.78
    most = max(t["most"] for t in found["perTaskManager"])
    assert found["warnings"][0].startswith(
        f"under load the pools of tm-0 could use {most} buffers; only 141557 are available"
    )


def test_the_guides_job_lacks_buffers_with_a_fifth_and_the_options_to_raise_suffice(headgate):
    """Exit 1, and exit 0 with the proposed values."""
    said = headgate("plan", FULL_SIZE, *FIFTH)
    assert said.returncode == 1
    assert "the job fails with `Insufficient number of network buffers`" in said.stdout
    assert "This is enough: -D 'taskmanager.memory.network.max=" in said.stdout
    assert "(task heap: " in said.stdout
    (found,) = json.loads(headgate("plan", FULL_SIZE, *FIFTH, "--json").stdout)["variants"]
    proposed = [word for key, value in found["raise"].items() for word in ("-D", f"{key}={value}")]
    assert headgate("plan", FULL_SIZE, *proposed).returncode == 0


def test_a_warning_about_buffers_under_load_proposes_what_is_enough(headgate):
    """With the proposed values, the warning is gone."""
    arguments = ("plan", SCENARIOS / "10-network-buffers", "--variant", "fraction-03")
    said = headgate(*arguments).stdout
    words = shlex.split(said[said.index("(enough is: ") + len("(enough is: ") :].rstrip().rstrip(")"))
    assert words[::2] == ["-D", "-D"]
    assert "warning" not in headgate(*arguments, *words).stdout


def test_variants_with_the_same_plan_share_a_table(headgate):
    """Those of this scenario differ only in their faults. JSON has each variant."""
    said = headgate("plan", SCENARIOS / "02-taskmanager-killed").stdout
    assert said.startswith("downstream, upstream: 6 subtasks, ")
    assert said.count("max parallelism") == 1
    found = json.loads(headgate("plan", SCENARIOS / "02-taskmanager-killed", "--json").stdout)["variants"]
    assert [one["variant"] for one in found] == ["downstream", "upstream"]


def test_the_buffers_of_a_gate_are_those_of_its_remote_channels(headgate):
    """6 → 6 on 3 TaskManagers of 2 slots: 2 of 6 channels are local, and have no exclusive buffers. 4 × 2 + 8 = 16 at most.
    Two subtasks of each vertex need 2 × (3 × (7 + 4 × 2 + 1) + 2 + 1) = 102: what the table says adds up."""
    path = SCENARIOS / "10-network-buffers"
    said = headgate("plan", path, "--variant", "fraction-03")
    rows = {line.partition(" (")[0]: line for line in said.stdout.splitlines()}
    assert "4 × 2 + 1 to 8" in rows["source → parse"]
    assert "0 × 2 + 1 to 8" in rows["totals → sink"]
    (found,) = json.loads(headgate("plan", path, "--variant", "fraction-03", "--json").stdout)["variants"]
    assert [e["gate"]["most"] for e in found["exchanges"]] == [16, 16, 16, 8]
    per_subtask = [
        e["gate"]["remoteChannels"][0] * 2 + e["gate"]["floating"][0] + e["partition"]["required"]
        for e in found["exchanges"]
    ]
    assert 2 * sum(per_subtask) == found["perTaskManager"][0]["required"] == 102


def test_each_variant_of_a_scenario_is_planned(headgate):
    """All of them, or the named one, with its own Flink version."""
    path = SCENARIOS / "04-late-producer"
    found = json.loads(headgate("plan", path, "--json").stdout)["variants"]
    assert [p["variant"] for p in found] == ["old-small", "old-large", "new-small", "new-large"]
    (one,) = json.loads(headgate("plan", path, "--variant", "old-small", "--json").stdout)["variants"]
    assert (one["flinkVersion"], one["vertices"][0]["maxParallelism"]) == ("1.12", 128)


@pytest.mark.parametrize(
    ("change", "arguments", "text"),
    [
        (lambda d: d["spec"]["taskManagers"].update(slots=1), [], "slots"),
        (lambda d: d, ["-D", "taskmanager.memory.network.fraction=2"], "write at least 0 and less than 1"),
        (lambda d: d, ["-D", "taskmanager.numberOfTaskSlots=1"], "write it as taskManagers.slots"),
        (lambda d: d, ["-D", "taskmanager.network.memory.buffers-per-channel=-1"], "it must be at least 0"),
        (lambda d: d.update(kind="Fault"), [], "Fault"),
    ],
)
def test_a_document_that_cannot_be_planned_is_refused(headgate, tmp_path, change, arguments, text):
    """Exit 2 with the reason."""
    document = yaml.safe_load(FULL_SIZE.read_text())
    change(document)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    said = headgate("plan", path, *arguments)
    assert said.returncode == 2
    assert text in said.stderr


def test_an_unknown_variant_is_refused(headgate):
    """With its name."""
    said = headgate("plan", SCENARIOS / "06-no-fault", "--variant", "fast")
    assert (said.returncode, "'fast'" in said.stderr) == (2, True)


def test_an_option_that_the_plan_does_not_consider_is_a_warning(headgate, tmp_path: Path):
    """It would change Flink's answer. What the document sets is named too; its other warnings are not."""
    option = "taskmanager.memory.framework.off-heap.batch-shuffle.size"
    path = tmp_path / "job.yaml"
    document = yaml.safe_load(FULL_SIZE.read_text())
    document["spec"]["flinkConfiguration"][option] = "10 mb"
    document["spec"]["flinkConfiguration"].pop("execution.checkpointing.interval", None)
    path.write_text(yaml.safe_dump(document))
    said = headgate("plan", path, "-D", f"{option}=10 mb")
    assert f"warning: -D {option}: has no effect here" in said.stderr
    assert f"warning: Flink options without effect here: {option}" in said.stderr
    assert "execution.checkpointing" not in said.stderr


def edited(tmp_path: Path, edge: int, **fields: str) -> Path:
    """Write the full-size job with fields of one edge changed, and with sources that end."""
    document = yaml.safe_load(FULL_SIZE.read_text())
    document["spec"]["flinkConfiguration"].pop("execution.checkpointing.interval", None)
    job = document["spec"]["job"]
    for vertex in job["vertices"]:
        if "source" in vertex:
            vertex["source"]["limit"] = 1000
    job["edges"][edge].update(fields)
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_a_pipelined_result_can_take_every_buffer(headgate, tmp_path: Path):
    """It is not bounded (NettyShuffleUtils: UNBOUNDED_POOL_SIZE), so its largest pool is that of the TaskManager."""
    said = headgate("plan", edited(tmp_path, -1, result="pipelined"), "--json")
    (found,) = json.loads(said.stdout)["variants"]
    assert found["exchanges"][-1]["partition"]["most"] == found["available"]


def test_a_blocking_result_requires_the_buffers_that_flink_needs_to_sort(headgate, tmp_path: Path):
    """Flink 1.12 sorts none by default. If it does, it requires 64 buffers, or those of the option."""
    path = edited(tmp_path, 0, result="blocking", deployment="on-full-result")
    sort = "taskmanager.network.sort-shuffle"
    sorts = ("-D", f"{sort}.min-parallelism=1")
    for settings, required in (((), 401), (sorts, 64), ((*sorts, "-D", f"{sort}.min-buffers=100"), 100)):
        said = headgate("plan", path, *settings, "--json")
        (found,) = json.loads(said.stdout)["variants"]
        assert found["exchanges"][0]["partition"]["required"] == required


DEPLOYMENT = """\
kind: FlinkDeployment
spec:
  flinkVersion: v1_17
  flinkConfiguration: {taskmanager.numberOfTaskSlots: "4", taskmanager.memory.network.max: 64m}
  taskManager: {resource: {memory: 16384m}}
"""


def test_the_options_and_slots_can_be_those_of_a_flink_deployment(headgate, tmp_path):
    """A job of 200 subtasks per vertex and 400 slots gets 100 TaskManagers of 4 slots, as Flink's operator starts them. 64 MB are 2048
    buffers, and each source → count gate takes 2 for each remote channel."""
    scenario, conf = tmp_path / "scenario.yaml", tmp_path / "deployment.yaml"
    conf.write_text(DEPLOYMENT)
    assert headgate("new", "taskmanager-killed", "--parallelism", 200, "-o", scenario).returncode == 0
    said = headgate("plan", scenario, "--flink-conf", conf, "--json")
    (found,) = json.loads(said.stdout)["variants"]
    assert (said.returncode, found["flinkVersion"], found["taskManagers"], found["slots"]) == (
        0,
        "1.17",
        100,
        4,
    )
    assert (found["available"], found["exchanges"][0]["gate"]["exclusivePerChannel"]) == (2048, 2)
    setting = ("-D", "taskmanager.memory.network.max=16m", "-D", "taskmanager.memory.network.min=16m")
    assert headgate("plan", scenario, "--flink-conf", conf, *setting).returncode == 1


def test_the_version_of_a_file_that_states_none_is_that_of_the_document(headgate, tmp_path):
    """Unless the command line names one. Without slots in the file, the TaskManagers are those of the document."""
    conf = tmp_path / "flink-conf.yaml"
    conf.write_text("taskmanager.memory.network.fraction: 0.3\n")
    arguments = ("plan", SCENARIOS / "10-network-buffers", "--variant", "fraction-02", "--flink-conf", conf)
    assert "on 3 TaskManagers with 2 slots each (Flink 1.12)" in headgate(*arguments).stdout
    assert "(Flink 2.0)" in headgate(*arguments, "--flink-version", "2.0").stdout


def test_a_file_whose_taskmanagers_are_too_few_or_whose_buffers_are_invalid_is_refused(headgate, tmp_path):
    """The message names the file, the field and what to write."""
    conf = tmp_path / "deployment.yaml"
    arguments = ("plan", SCENARIOS / "10-network-buffers", "--variant", "fraction-02", "--flink-conf", conf)
    conf.write_text(DEPLOYMENT.replace("{resource:", "{replicas: 1, resource:"))
    said = headgate(*arguments)
    assert said.returncode == 2
    assert said.stderr == (
        f"headgate: {conf}: spec.taskManager.replicas: 1 with 4 slots each are fewer than the 6 slots of the job (write 2)\n"
    )
    conf.write_text(DEPLOYMENT.replace("64m", "64 mbb"))
    said = headgate(*arguments)
    assert said.returncode == 2
    assert said.stderr.startswith(f"headgate: {conf}:4: flinkConfiguration[taskmanager.memory.network.max]: ")


def test_a_job_that_has_grown_is_planned_with_the_slots_of_a_configuration(headgate, tmp_path):
    """Its document has one slot for each of its former subtasks. Without the configuration, that is an error."""
    path, conf = tmp_path / "big.yaml", tmp_path / "flink-conf.yaml"
    assert headgate("new", "taskmanager-killed", "-o", path).returncode == 0
    path.write_text(path.read_text().replace("parallelism: 2", "parallelism: 40"))
    conf.write_text("taskmanager.numberOfTaskSlots: 4\n")
    assert ": the job needs 80 slots" in headgate("plan", path).stderr
    said = headgate("plan", path, "--flink-conf", conf)
    assert (said.returncode, said.stdout.count("on 20 TaskManagers with 4 slots each")) == (0, 1)
    conf.write_text("heartbeat.timeout: 50 s\n")
    assert (
        "the job needs 80 slots, and 5 TaskManagers have 5"
        in headgate("plan", path, "--flink-conf", conf).stderr
    )
