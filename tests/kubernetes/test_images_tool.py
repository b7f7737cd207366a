"""The tool behind `make images`, without a container engine and without a cluster."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.kubernetes import local_registry, rendering
from tools.cluster import packages
from tools.cluster.settings import ClusterError
from tools.images import archive, bare, engine, lay_out, settings
from tools.images.__main__ import main

ROOT = settings.ROOT
CONFIG = {"architecture": "amd64", "os": "linux", "config": {"User": "10001"}, "rootfs": {"type": "layers"}}


def requirements(name: str) -> dict[str, str]:
    """Pinned requirement → everything that is said of it (markers, hashes)."""
    blocks = re.split(r"(?m)^(?=[a-z])", (ROOT / name).read_text())
    return {block.split()[0]: block.strip() for block in blocks if block.strip()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "headgate").write_text("#!/bin/sh\n")
    (made / "code.py").write_text("x = 1\n")
    return made


def made(folder: Path) -> archive.Made:
    base = archive.Base(
        {**CONFIG, "rootfs": {"type": "layers", "diff_ids": ["sha256:a"]}}, (archive.Blob("sha256:a", 7),)
    )
    return archive.Made(
        "headgate", ("headgate:abc", "headgate:dev"), base, archive.layer(folder, "/opt/headgate")
    )


def test_images_are_locked_to_what_the_tests_ran_with():
    """Each pin and each hash of the images' locks is one of the development lock's."""
    whole = requirements("requirements.lock")
    image, spark = requirements("requirements-image.lock"), requirements("requirements-spark.lock")
    assert image.items() <= whole.items()
    assert spark.items() <= whole.items()
    assert not image.keys() & spark.keys()
    assert {name.split("==")[0] for name in spark} == {"pyspark", "py4j"}
    assert "kopf" in {name.split("==")[0] for name in image}


def test_the_same_sources_give_the_same_layer_and_others_another(folder: Path):
    """No time, no owner, no order of the disk in it: a digest means content."""
    first = archive.layer(folder, "/opt/headgate")
    (folder / "code.py").touch()
    assert archive.layer(folder, "/opt/headgate").digest == first.digest
    (folder / "code.py").write_text("x = 2\n")
    assert archive.layer(folder, "/opt/headgate").digest != first.digest


def test_a_layer_takes_away_what_a_build_left_underneath(folder: Path):
    """As an empty file of the name that runtimes understand."""
    content = archive.layer(folder, "/opt/headgate", gone=("/run/left.crt",)).content
    assert content is not None
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        assert opened.getmember("run/.wh.left.crt").size == 0


def test_a_thin_archive_holds_only_what_is_new_and_names_the_rest(folder: Path, tmp_path: Path):
    """The base's layers are named by their digests; the last layer, the configuration and the manifest are there."""
    image, target = made(folder), tmp_path / "thin.tar"
    archive.thin(image, "library/", target)
    with tarfile.open(target) as opened:
        index = json.load(opened.extractfile("index.json"))
        blobs = {n for n in opened.getnames() if n.startswith("blobs/")}
        manifest = json.load(opened.extractfile(blob(index["manifests"][0]["digest"])))
    names = [m["annotations"][archive.NAME_ANNOTATION] for m in index["manifests"]]
    assert names == ["library/headgate:abc", "library/headgate:dev"]
    assert [layer["digest"] for layer in manifest["layers"]] == ["sha256:a", image.top.digest]
    assert blobs == {
        blob(d) for d in (image.top.digest, manifest["config"]["digest"], index["manifests"][0]["digest"])
    }


def blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def test_a_whole_archive_is_read_back_with_the_layer_on_top(folder: Path, tmp_path: Path):
    """A pushed image is the base, the layer on top, and the base's user."""
    source, target = tmp_path / "base.tar", tmp_path / "whole.tar"
    first = made(folder)
    base = archive.Base({**CONFIG, "rootfs": {"type": "layers", "diff_ids": []}}, ())
    archive.stacked(
        archive.Made("base", ("base:1",), base, first.top), empty(source), source.with_suffix(".2")
    )
    read = archive.read(source.with_suffix(".2"))
    archive.stacked(
        archive.Made("headgate", ("headgate:dev",), read, first.top), source.with_suffix(".2"), target
    )
    final = archive.read(target)
    assert [layer.digest for layer in final.layers] == [first.top.digest, first.top.digest]
    assert final.config["config"] == {"User": "10001"}


def empty(path: Path) -> Path:
    """An archive of an image without layers."""
    with tarfile.open(path, "w") as opened:
        archive._add(opened, "manifest.json", json.dumps([{"Layers": []}]).encode())
    return path


def test_the_dockerfile_lays_out_what_the_tool_does():
    """One script, and the same folders and files handed to it, in both ways of building."""
    text = (ROOT / "Dockerfile").read_text()
    stage = text[text.index("AS sources") : text.index("AS headgate-deps")]
    copied = {word for line in re.findall(r"^COPY (.+) /src", stage, re.MULTILINE) for word in line.split()}
    assert copied == {*lay_out.PACKAGES, *settings.SOURCE_FILES}
    tail = text.split(settings.SOURCES_BEGIN)[1]
    for image in settings.IMAGES:
        assert f"FROM {image}-deps AS {image}\nCOPY --from=sources /opt/headgate /opt/headgate" in tail
    for name in settings.DEPENDENCY_FILES:
        assert f"COPY {name} " in text


def test_a_change_of_a_lock_or_a_stage_makes_other_dependencies_and_one_of_sources_does_not(tmp_path: Path):
    """The cache's key is what goes in."""
    for name in ("Dockerfile", *settings.DEPENDENCY_FILES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    before = settings.dependency_hash(tmp_path)
    assert before == settings.dependency_hash()
    (tmp_path / "Dockerfile").write_text((ROOT / "Dockerfile").read_text() + "# more\n")
    assert settings.dependency_hash(tmp_path) == before, "only the sources' part has changed"
    (tmp_path / "requirements-image.lock").write_text("")
    assert settings.dependency_hash(tmp_path) != before


def test_the_layout_of_an_image_runs_from_its_folder_and_knows_its_version(tmp_path: Path):
    """Compiled, readable by everybody, with the command and the metadata that `headgate --version` reads."""
    for name in lay_out.PACKAGES:
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / "a.py").write_text("x = 1\n")
    (tmp_path / "src" / "pyproject.toml").write_text('[project]\nname = "headgate"\nversion = "9.9"\n')
    lay_out.main(tmp_path / "src", tmp_path / "out")
    assert list((tmp_path / "out").rglob("a.*.pyc"))
    assert "9.9" in (tmp_path / "out" / "headgate-9.9.dist-info" / "METADATA").read_text()
    assert (tmp_path / "out" / "bin" / "headgate").stat().st_mode & 0o777 == 0o755


def test_a_client_whose_engine_does_not_answer_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """docker is often installed and not running; podman beside it may well work."""
    for name, code in (("docker", 1), ("podman", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert engine.find() == str(tmp_path / "podman")
    (tmp_path / "podman").unlink()
    assert engine.find() is None


def chart_defaults() -> set[str]:
    """The images that the chart uses when no value is set: repository from the values, tag from appVersion."""
    chart = yaml.safe_load((ROOT / "helm/headgate/Chart.yaml").read_text())
    values = yaml.safe_load((ROOT / "helm/headgate/values.yaml").read_text())
    images = (values["image"], values["agentImage"], values["sparkImage"])
    return {f"{i['repository']}:{i['tag'] or chart['appVersion']}" for i in images}


def kustomize_defaults() -> set[str]:
    """The images that manifests/base names for the operator and for the pods that it creates."""
    settings_map = yaml.safe_load((ROOT / "manifests/base/kustomization.yaml").read_text())
    literals = dict(one.split("=", 1) for one in settings_map["configMapGenerator"][0]["literals"])
    deployment = yaml.safe_load((ROOT / "manifests/base/deployment.yaml").read_text())
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return {container["image"] for container in containers} | {
        literals[key] for key in ("HEADGATE_IMAGE", "HEADGATE_AGENT_IMAGE", "HEADGATE_SPARK_IMAGE")
    }


@pytest.mark.parametrize("defaults", [chart_defaults, kustomize_defaults])
def test_the_names_of_a_build_contain_the_default_images_of_the_installation(
    defaults: Callable[[], set[str]],
):
    """One version in pyproject.toml: an installation without image values can pull what `make images PUSH=…` pushed."""
    names = {name for image in settings.IMAGES for name in settings.names(image, "abc")}
    assert defaults() <= names
    assert {f"{image}:{tag}" for image in settings.IMAGES for tag in ("abc", settings.TAG)} <= names


def test_a_push_with_an_engine_pushes_every_name_and_prints_the_helm_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The command names the prefix, and the chart's images below the prefix are among the pushed references."""
    calls = tmp_path / "calls"
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\necho sha256:0123456789abcdef\n')
    program.chmod(0o755)
    monkeypatch.setattr(engine, "ENGINES", (str(program),))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["build", "--push", "registry.example:5000/apps/"]) == 0
    pushed = {
        line.removeprefix("push ") for line in calls.read_text().splitlines() if line.startswith("push ")
    }
    assert {f"registry.example:5000/apps/{image}" for image in chart_defaults()} <= pushed
    assert len(pushed) == len(settings.IMAGES) * 3
    assert settings.helm_command("registry.example:5000/apps") in capsys.readouterr().out


def refusing(folder: Path, words: str) -> str:
    """Write a program for docker and buildah whose pushes fail with these words, and return its path."""
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\ncase "$*" in *push*docker://*|push*) echo "{words}" >&2; exit 1;; esac\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    "words",
    [
        "unauthorized: authentication required",
        "no basic auth credentials",
        "denied: requested access to the resource is denied",
        "denied: permission_denied: write_package",
        "received unexpected HTTP status: 403 Forbidden",
    ],
)
def test_a_push_that_the_registry_refuses_names_the_command_that_logs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
):
    """With an engine and with buildah, whose message also says which credentials of Docker it does not read."""
    program = refusing(tmp_path, words)
    with pytest.raises(ClusterError, match=rf"{words}\n.*run `docker login registry.example:5000`$"):
        engine.push(program, {"headgate": ("headgate:dev",)}, "registry.example:5000/apps")
    monkeypatch.setattr(packages, "find", lambda name: program)
    layout, references = settings.Layout(tmp_path), ["registry.example:5000/apps/headgate:dev"]
    with pytest.raises(ClusterError, match=r"run `buildah login registry.example:5000` .*`credsStore`"):
        bare.push(layout, tmp_path / "a.tar", references)


def test_a_push_to_the_engines_own_registry_names_no_registry(tmp_path: Path):
    """The first part of `myname/headgate` is an account of that registry."""
    with pytest.raises(ClusterError, match=r"run `docker login`$"):
        engine.push(refusing(tmp_path, "denied: no"), {"headgate": ("headgate:dev",)}, "myname")


def test_another_error_of_a_push_stays_as_it_is(tmp_path: Path):
    """A registry that cannot be reached needs no login."""
    with pytest.raises(ClusterError, match=r"connection refused$"):
        engine.push(
            refusing(tmp_path, "connection refused"), {"headgate": ("headgate:dev",)}, "registry.example/apps"
        )


@pytest.mark.helm
def test_the_printed_helm_command_renders_images_that_were_pushed():
    """The values of the command, given to helm: operator, agent and Spark image are all pushed references."""
    prefix = "registry.example:5000/apps"
    words = shlex.split(settings.helm_command(prefix))
    values = [part for n, word in enumerate(words) if word == "--set" for part in ("--set", words[n + 1])]
    pushed = {f"{prefix}/{name}" for image in settings.IMAGES for name in settings.names(image, "abc")}
    rendered = rendering.images(rendering.chart(*values))
    assert len(rendered) == 3
    assert rendered <= pushed


def test_the_page_on_kubernetes_installs_what_was_pushed():
    """docs/kubernetes.md shows the printed helm command, and its overlay names pushed images."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    prefix = "registry.example/headgate"
    assert f"make images PUSH={prefix}\n{settings.helm_command(prefix)}\n" in page
    pushed = {f"{prefix}/{name}" for image in settings.IMAGES for name in settings.names(image, "abc")}
    named = re.findall(r"HEADGATE_(?:AGENT_|SPARK_)?IMAGE=(\S+)", page)
    assert len(named) == 3
    assert set(named) <= pushed


@pytest.mark.processes
def test_a_push_without_an_engine_reaches_a_registry_under_every_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """buildah pushes small images to a registry in this process: the chart's default images are among its tags."""
    if os.geteuid() != 0 or packages.find("buildah") is None:
        pytest.skip("needs root and buildah")
    top = archive.layer(folder, "/opt/headgate")
    layout = settings.Layout(tmp_path / "headgate" / "images")
    layout.cache.mkdir(parents=True)
    base = archive.Base({**CONFIG, "rootfs": {"type": "layers", "diff_ids": []}}, ())
    for image in settings.IMAGES:
        archive.stacked(
            archive.Made(image, (f"{image}-deps:1",), base, top),
            empty(tmp_path / "empty.tar"),
            layout.dependencies(image),
        )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(bare, "dependencies", lambda layout, image: None)
    monkeypatch.setattr(bare, "sources", lambda layout: top)
    with local_registry.serving(tmp_path / "registry") as registry:
        configuration = tmp_path / "registries.conf"
        configuration.write_text(f'[[registry]]\nlocation = "{registry.address}"\ninsecure = true\n')
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(configuration))
        assert main(["build", "--bare", "--push", f"{registry.address}/apps"]) == 0
    assert {f"apps/{image}" for image in chart_defaults()} <= registry.tags.keys()
    assert len(registry.tags) == len(settings.IMAGES) * 3
    assert settings.helm_command(f"{registry.address}/apps") in capsys.readouterr().out
