"""`headgate plan`: the buffers of a document's job, before it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
FULL_SIZE = SCENARIOS / "10-network-buffers" / "full-size.yaml"
FIFTH = ("-D", "taskmanager.memory.network.fraction=0.2", "-D", "taskmanager.memory.network.max=3g")


def test_the_guides_job_starts_with_three_tenths(headgate):
    """330 + 10 × 400 = 4,330 subtasks; 132,000 + 11 × 160,000 = 1,892,000 channels."""
    said = headgate("plan", FULL_SIZE, "--json")
    (found,) = json.loads(said.stdout)
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
    assert "Enough is: -D 'taskmanager.memory.network.max=" in said.stdout
    (found,) = json.loads(headgate("plan", FULL_SIZE, *FIFTH, "--json").stdout)
    proposed = [word for key, value in found["raise"].items() for word in ("-D", f"{key}={value}")]
    assert headgate("plan", FULL_SIZE, *proposed).returncode == 0


def test_each_variant_of_a_scenario_is_planned(headgate):
    """All of them, or the named one, with its own Flink version."""
    path = SCENARIOS / "04-late-producer"
    found = json.loads(headgate("plan", path, "--json").stdout)
    assert [p["variant"] for p in found] == ["old-small", "old-large", "new-small", "new-large"]
    (one,) = json.loads(headgate("plan", path, "--variant", "old-small", "--json").stdout)
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
