"""`headgate memory`: the sizes of a TaskManager, as text and as JSON."""

from __future__ import annotations

import json

import pytest

GUIDE = (
    "--process-size", "16384m", "--flink-ratio", "0.9", "--metaspace-ratio", "0.25", "--task-off-heap-fraction", "0.01",
    "-D", "taskmanager.memory.network.fraction=0.3", "-D", "taskmanager.memory.network.max=5120m",
    "-D", "taskmanager.memory.managed.fraction=0.25",
)  # fmt: skip


def test_a_default_process_has_128_mb_of_network_memory(headgate):
    """128 MB of 32 KB are 4096 buffers."""
    said = headgate("memory", "--process-size", "1728m", "--json")
    found = json.loads(said.stdout)
    assert (said.returncode, found["mb"]["network"], found["networkBuffers"]) == (0, 128.0, 4096)
    assert found["warnings"] == []


@pytest.mark.parametrize(
    ("version", "warning"),
    [("1.20", ""), ("2.x", "taskmanager.heap.size was removed in Flink 2.0; 2.x reads only")],
)
def test_the_size_of_flinks_memory_has_an_older_name(headgate, version, warning):
    """Flink's start scripts read it until 1.20. It is not the JVM's heap."""
    said = headgate("memory", "-D", "taskmanager.heap.size=4g", "--flink-version", version, "--json")
    assert json.loads(said.stdout)["mb"]["flink"] == 4096
    assert warning in said.stderr
    assert bool(said.stderr) is bool(warning)


def test_the_guides_example_says_what_does_not_add_up(headgate):
    """204.8 MB are in no part, and Flink would take 1228.8 MB as overhead, more than 1024."""
    found = json.loads(headgate("memory", *GUIDE, "--json").stdout)
    assert found["mb"]["taskHeap"] == 6232.064
    assert found["mb"]["network"] == 4423.68
    unassigned, refused = found["warnings"]
    assert unassigned.startswith("204.8 MB of the process are in no part: 16384 − 14745.6")
    assert "1228.8 MB, as overhead, and taskmanager.memory.jvm-overhead.max is 1024 MB" in refused


def test_the_text_has_every_part_and_the_young_generation(headgate):
    """`--xmn-ratio 0.5` is half of -Xmx."""
    said = headgate("memory", *GUIDE, "--xmn-ratio", "0.5")
    words = said.stdout.split()
    xmx, xmn = (int(w[4:]) for flag in ("-Xmx", "-Xmn") for w in words if w.startswith(flag))
    assert xmn == xmx // 2
    assert "  in no part                       204.800     214748366" in said.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--flink-size", "64m"],
            "taskmanager.memory.flink.size: TaskManager memory configuration failed: Sum",
        ),
        (
            ["--process-size", "20g", "-D", "taskmanager.memory.flink.size=30g"],
            "(raise it to 31168 mb, or leave it out)",
        ),
        (["--process-size", "many"], "--process-size: 'many' is not a memory size"),
        (["--flink-size", "many"], "--flink-size: 'many' is not a memory size"),
        (["-D", "taskmanager.numberOfTaskSlots=4"], "write --slots"),
        (["-D", "=1g"], "-D: '=1g' is not an option (write KEY=VALUE)"),
        (["--flink-ratio", "90"], "--flink-ratio: 90 is not a share (write 0 to 1"),
        (["--metaspace-ratio", "0.2"], "--flink-ratio: is missing"),
        (["--flink-ratio", "0.9", "--flink-size", "1g"], "--flink-size: is what --flink-ratio calculates"),
        (
            ["--flink-ratio", "0.9", "-D", "taskmanager.memory.flink.size=1g"],
            "--flink-size: is what --flink-ratio calculates",
        ),
        (["-D", "taskmanager.memory.segment-size=0"], "'0' is too small: it must be at least 1 byte"),
        (
            ["-D", "taskmanager.memory.proces.size=1g"],
            "is not a Flink option (did you mean taskmanager.memory.process.size?)",
        ),
        (
            ["--process-size", "1g", "-D", "taskmanager.memory.process.size=2g"],
            "--process-size: is the same option as taskmanager.memory.process.size (keep one of them)",
        ),
        (["-D", "env.java.opts=x", "-D", "env.java.opts=y"], "-D env.java.opts: is a duplicate"),
        (
            [
                "-D",
                "state.backend.type=rocksdb",
                "-D",
                "state.backend.rocksdb.memory.write-buffer-ratio=0.95",
            ],
            "write-buffer-ratio: Invalid configuration: writeBufferRatio 0.95 with highPriPoolRatio 0.1",
        ),
        (
            [
                "-D",
                "state.backend.type=rocksdb",
                "-D",
                "state.backend.rocksdb.memory.write-buffer-ratio=-0.5",
            ],
            "write-buffer-ratio: must be between 0 and 1 (the default is 0.5)",
        ),
    ],
)
def test_bad_input_is_refused_with_the_option_to_change(headgate, arguments, text):
    """Exit 2, one line."""
    said = headgate("memory", *arguments)
    assert said.returncode == 2
    assert text in said.stderr
    assert said.stderr.count("\n") == 1


def test_the_slots_share_managed_memory_for_state_in_files(headgate):
    """240 MB in two slots: 2/3 of half of a slot's memory for write buffers, of which 7/8 are used, and 5/6 of it as cache."""
    size = ("-D", "taskmanager.memory.managed.size=240m", "--slots", "2")
    assert "stateBackend" not in json.loads(headgate("memory", *size, "--json").stdout)
    said = headgate("memory", *size, "-D", "state.backend.type=rocksdb").stdout
    assert (
        "RocksDB in each slot: 120 MB managed memory: a block cache of 100 MB, which includes the memtables; they are flushed at 35 MB"
        in said
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("memory.managed=false", "memory.fixed-per-slot=60m"),
            "RocksDB in each slot: 60 MB in addition to all parts above: a block cache of 50 MB, which includes the memtables; "
            "they are flushed at 17.5 MB",
        ),
        (
            ("memory.managed=false",),
            "RocksDB in each task: a block cache of 8 MB, and memtables; they are flushed at 64 MB",
        ),
    ],
)
def test_stores_without_managed_memory_have_a_fixed_one(headgate, options, said):
    """One for the slot, or one for each store. Neither is in the size of the process."""
    keys = [f"state.backend.rocksdb.{option}" for option in options]
    arguments = [part for key in (*keys, "state.backend.type=rocksdb") for part in ("-D", key)]
    assert said in headgate("memory", "--process-size", "1728m", *arguments).stdout


def test_the_sizes_of_a_flink_deployment_are_those_of_its_pods(headgate, tmp_path):
    """The operator's memory, the slots and the version come from the file; an option of the command replaces them."""
    path = tmp_path / "deployment.yaml"
    path.write_text(
        "kind: FlinkDeployment\nspec:\n  flinkVersion: v1_16\n  flinkConfiguration:\n"
        '    taskmanager.numberOfTaskSlots: "4"\n    state.backend.type: rocksdb\n'
        "  taskManager: {resource: {memory: 16g}}\n"
    )
    found = json.loads(headgate("memory", "--flink-conf", path, "--json").stdout)
    assert (found["flinkVersion"], found["mb"]["process"], found["mb"]["network"]) == ("1.16", 16384, 1024)
    assert found["stateBackend"]["slots"] == 4
    args = ("--process-size", "8g", "--slots", 2, "--flink-version", "1.20", "--json")
    found = json.loads(headgate("memory", "--flink-conf", path, *args).stdout)
    assert (found["flinkVersion"], found["mb"]["process"]) == ("1.20", 8192)
    assert found["stateBackend"]["slots"] == 2


def test_a_file_without_flinks_options_is_refused(headgate, tmp_path):
    """The error names the four kinds of files."""
    path = tmp_path / "scenario.yaml"
    path.write_text("kind: Scenario\n")
    said = headgate("memory", "--flink-conf", path)
    assert said.returncode == 2
    assert (
        f"{path}: is not a Flink configuration (name a flink-conf.yaml, a config.yaml, a Flink" in said.stderr
    )


def test_a_size_that_flink_cannot_read_is_an_error_with_its_line(headgate, tmp_path):
    """The sizes of another configuration would be misleading. The path may be Flink's `conf` folder."""
    (tmp_path / "config.yaml").write_text(
        "heartbeat.timeoutt: 5 s\ntaskmanager:\n  memory:\n    process:\n      size: 2Gib\n"
    )
    said = headgate("memory", "--flink-conf", tmp_path)
    assert (said.returncode, said.stdout) == (2, "")
    where = f"{tmp_path}/config.yaml:5: flinkConfiguration[taskmanager.memory.process.size]"
    assert said.stderr.startswith(f"headgate: {where}: '2Gib' is not a memory size")


def test_sizes_of_a_file_that_do_not_fit_are_reported_once_and_can_be_replaced(headgate, tmp_path):
    """Other contradictions of the file are warnings: they do not change the memory."""
    path = tmp_path / "config.yaml"
    path.write_text("heartbeat.interval: 60 s\ntaskmanager.memory.process.size: 600 mb\n")
    said = headgate("memory", "--flink-conf", path)
    assert said.returncode == 2
    assert said.stderr.count("memory configuration failed") == 1
    assert f"warning: {path}: flinkConfiguration[heartbeat.timeout]: Flink does not start" in said.stderr
    assert headgate("memory", "--flink-conf", path, "--process-size", "2g").returncode == 0
