"""Decisions of the tool behind `make cluster`, without a cluster."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from tools.cluster import (
    build,
    certificates,
    components,
    files,
    groups,
    images,
    manifests,
    network,
    packages,
    processes,
    settings,
    state,
    up,
)

ROOT = Path(__file__).resolve().parents[2]
OWN = Path("/cache/kubeconfig")


@pytest.mark.parametrize(
    ("environment", "kind_works", "bare", "wanted"),
    [
        ({"KUBECONFIG": "/given"}, True, False, state.GIVEN),
        ({"HEADGATE_KUBECONFIG": "/given"}, False, False, state.GIVEN),
        ({"KUBECONFIG": str(OWN)}, False, False, state.OWN),
        ({}, True, False, state.KIND),
        ({}, False, False, state.OWN),
        ({"KUBECONFIG": "/given"}, True, True, state.OWN),
    ],
)
def test_a_given_cluster_comes_first_then_kind_then_the_bare_machine(environment, kind_works, bare, wanted):
    """Our own kubeconfig in the environment is not somebody else's cluster."""
    assert state.choose(environment, OWN, kind_works=kind_works, bare=bare).kind == wanted


def test_the_kubeconfig_named_for_headgate_wins():
    """`KUBECONFIG` may be the production cluster's."""
    given = {"KUBECONFIG": "/production", "HEADGATE_KUBECONFIG": "/test"}
    assert state.choose(given, OWN, kind_works=False, bare=False).kubeconfig == "/test"


def test_every_program_that_the_plan_starts_is_built_or_a_package():
    """Every program of the plan is built or in a package."""
    started = [step["command"][0] for step in components.plan(["pause-1.tar"])["steps"]]
    built = {str(components.BINARIES / b.name) for b in build.BINARIES}
    installed = {p.program for p in packages.PACKAGES} | {"ctr"}  # ctr is in Debian's containerd
    assert set(started) <= built | installed


def test_images_are_loaded_before_the_kubelet_could_look_for_them_elsewhere():
    """A pod that starts without its image waits ten seconds for the next try."""
    steps = components.plan(["pause-1.tar"])["steps"]
    loaded = next(n for n, step in enumerate(steps) if "pause-1.tar" in step.get("until", ""))
    kubelet = next(n for n, step in enumerate(steps) if step.get("start") == "kubelet")
    assert loaded < kubelet


def test_every_certificate_that_a_command_line_names_is_made():
    """Names of keys are the same on both sides."""
    texts = "".join(
        json.dumps([plan, components.configurations(Path("/cni"), node, nodes=2)])
        for node, plan in (
            (settings.FIRST, components.plan([], second=["node"])),
            (settings.SECOND, components.second_plan([])),
        )
    )
    named = set(re.findall(r"/pki/([\w.-]+)", texts))
    pairs = [
        *certificates.SERVERS,
        certificates.API_TO_KUBELET,
        *certificates.CLIENTS,
    ]
    made = {f"{i.name}.{end}" for i in pairs for end in ("crt", "key", "conf")}
    made |= {"ca.crt", "ca.key", "sa.key", "sa.pub"}
    assert len(named) > 8
    assert named <= made


def test_staging_modules_are_replaced_by_what_was_published():
    """Only what has the version of a folder is replaced."""
    requires = [{"Path": "k8s.io/api", "Version": "v0.0.0"}, {"Path": "k8s.io/klog/v2", "Version": "v2.1.0"}]
    assert build.replacements(requires) == [f"replace k8s.io/api => k8s.io/api v0{settings.KUBERNETES[1:]}"]


@pytest.mark.parametrize(
    ("version", "enough"), [("go1.24.0", True), ("go1.26.8", True), ("go1.19.8", False), ("", False)]
)
def test_an_old_go_is_not_taken(version, enough):
    """Kubernetes names the least version in its go.mod."""
    assert build.new_enough(version) is enough


def test_a_machine_without_go_hears_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The message names Go, the version and where it was looked for."""
    monkeypatch.setattr(build, "GO_FOLDER", str(tmp_path))
    with pytest.raises(settings.ClusterError, match=r"Go 1\.24 or newer is needed.*none is on PATH"):
        build.find_go(str(tmp_path))


@pytest.mark.parametrize(
    ("platform", "user", "said"),
    [("linux", 1000, "needs root"), ("darwin", 0, "needs Linux"), ("linux", 0, None)],
)
def test_who_cannot_have_a_cluster_here_hears_why_and_what_else_there_is(platform, user, said):
    """No root, no Linux: a sentence with the way out."""
    reason = up.refusal(platform, user)
    if said is None:
        assert reason is None
    else:
        assert reason is not None
        assert said in reason
        assert "KUBECONFIG" in reason


def test_an_archive_is_an_image_and_the_same_content_gives_the_same_bytes(tmp_path: Path):
    """Configuration, layer and name fit together as `docker load` wants them."""
    program = tmp_path / "program"
    program.write_bytes(b"#!")
    image = images.Image(
        "headgate.local/x:1",
        ("/bin/x",),
        {"/bin/x": program},
        links={"/bin/y": "x"},
        folders={"/tmp": 0o1777},
    )
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    images.write_archive(image, first)
    images.write_archive(image, second)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        (manifest,) = json.load(archive.extractfile("manifest.json"))
        config = archive.extractfile(manifest["Config"]).read()
        layer = archive.extractfile(manifest["Layers"][0])
        content = layer.read()
    with tarfile.open(fileobj=io.BytesIO(content)) as files:
        names = files.getnames()
    assert manifest["RepoTags"] == ["headgate.local/x:1"]
    assert manifest["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
    assert json.loads(config)["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    assert names == ["bin", "tmp", "bin/x", "bin/y"]


def test_a_route_that_covers_the_node_is_a_conflict_but_the_default_and_our_own_are_not():
    """A machine in that range hears of it before anything is changed."""
    fine = [{"dst": "default"}, {"dst": "192.0.2.0/24"}, {"dst": "10.245.0.0/30", "dev": settings.HOST_LINK}]
    assert network.conflict(fine) is None
    assert network.conflict([*fine, {"dst": "10.0.0.0/8", "dev": "tun0"}]) == "10.0.0.0/8"


def test_control_groups_of_both_generations_are_found():
    """A hybrid machine has both."""
    text = (
        "30 25 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
        "31 25 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "32 25 0:28 / /proc rw - proc proc rw\n"
    )
    assert groups.mounts(text) == [
        (Path("/sys/fs/cgroup/memory"), "cgroup"),
        (Path("/sys/fs/cgroup/unified"), "cgroup2"),
    ]


@pytest.mark.parametrize(("name", "of_one_process"), [("cpu.shares", 1024), ("cpu.weight", 100)])
def test_all_pods_together_get_more_of_a_busy_machine_than_one_process(
    tmp_path: Path, name: str, of_one_process: int
):
    """The kernel divides processor time between a group and each process beside it; a hierarchy without such a file is left alone."""
    groups.give_shares(tmp_path)
    assert not (tmp_path / name).exists()
    (tmp_path / name).write_text(str(of_one_process))
    groups.give_shares(tmp_path)
    assert int((tmp_path / name).read_text()) >= 4 * of_one_process


def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount_above():
    """A cache on an overlay is refused, because no container could start there."""
    text = (
        "21 1 0:20 / / rw - overlay overlay rw\n"
        "22 21 8:1 / /home rw shared:1 - ext4 /dev/sda1 rw\n"
        "23 21 0:30 / /homes rw - tmpfs tmpfs rw\n"
    )
    assert up.file_system(Path("/home/me/.cache"), text) == "ext4"
    assert up.file_system(Path("/var/cache"), text) == "overlay"


def test_a_folder_is_deleted_with_its_links_but_not_with_what_they_name(tmp_path: Path):
    """Whatever the depth."""
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    for folder in (kept, gone / "a" / "b" / "c", gone / "empty"):
        folder.mkdir(parents=True)
    for path in (kept / "file", gone / "file", gone / "a" / "b" / "c" / "file"):
        path.touch()
    (gone / "a" / "to-a-folder").symlink_to(kept)
    (gone / "to-a-file").symlink_to(kept / "file")
    files.remove(gone)
    assert not gone.exists()
    assert (kept / "file").exists()


def test_volumes_have_places_of_their_own():
    """Two claims never share a folder."""
    objects = yaml.safe_load_all(manifests.everything())
    volumes = [i for i in objects if i["kind"] == "PersistentVolume"]
    assert len({v["spec"]["hostPath"]["path"] for v in volumes}) == len(volumes) == manifests.VOLUMES


def test_a_process_is_known_by_more_than_its_id():
    """A reused id is another process, and what ended is none."""
    own = processes.identify(os.getpid())
    assert own is not None
    assert processes.alive(own)
    assert not processes.alive(processes.Process(own.pid, own.started + 1, own.boot))


@pytest.mark.processes
def test_ending_a_process_ends_its_children_too():
    """The recorded one and whom it started are gone when `end` returns."""
    started = subprocess.Popen(["sh", "-c", "sleep 600 & echo; wait"], stdout=subprocess.PIPE)
    assert started.stdout is not None
    started.stdout.readline()
    known = processes.identify(started.pid)
    below = [processes.identify(pid) for pid in processes.children(started.pid)]
    assert known is not None
    assert below
    assert all(below)
    processes.end(known)
    assert not processes.alive(known)
    assert not any(processes.alive(p) for p in below if p)
    started.stdout.close()
    started.wait()


@pytest.mark.processes
def test_down_where_nothing_is_up_says_so_and_is_fine(tmp_path: Path):
    """Idempotent, with a cache that was never used."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.cluster", "down"],
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.endswith("cluster: no cluster is running\n")


@pytest.mark.processes
def test_a_given_cluster_that_does_not_answer_is_named(tmp_path: Path):
    """The message says which variable is to be mended; nothing is built or started instead."""
    if not any(os.access(Path(folder) / "kubectl", os.X_OK) for folder in os.environ["PATH"].split(":")):
        pytest.skip("no kubectl on PATH")
    given = tmp_path / "kubeconfig"
    given.write_text('{"apiVersion": "v1", "kind": "Config"}')
    done = subprocess.run(
        [sys.executable, "-m", "tools.cluster", "up"],
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "HEADGATE_KUBECONFIG": str(given)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "HEADGATE_KUBECONFIG is set" in done.stderr
    assert "does not answer" in done.stderr
