"""The Java that Spark needs: found, or asked for clearly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation.session import find_java, parse_java_version, settings


def java(folder: Path, banner: str, *, code: int = 0) -> Path:
    """A `java` that prints a banner, as the real one does: on stderr."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho '{banner}' >&2\nexit {code}\n")
    binary.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("text", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_402"', 8), ('openjdk version "21" 2023-09-19', 21),
     ("bash: java: not found", None)],
)  # fmt: skip
def test_the_version_is_read_from_what_java_prints(text: str, version: int | None):
    """Old and new numbering."""
    assert parse_java_version(text)[1] == version


def test_java_home_comes_before_the_path(tmp_path: Path):
    """The user's value wins; a JAVA_HOME without a java is passed over."""
    home = java(tmp_path / "home", 'openjdk version "21.0.1"')
    other = java(tmp_path / "other", 'openjdk version "17.0.1"')
    path = str(other / "bin")
    assert find_java({"JAVA_HOME": str(home), "PATH": path}).home == home
    assert find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": path}).home == other


@pytest.mark.parametrize(
    ("banner", "problem"),
    [
        ('java version "1.8.0_402"', "is Java 8"),
        ("nonsense", "is Java of an unknown version"),
        (None, "neither JAVA_HOME nor PATH has java"),
    ],
)
def test_a_java_that_will_not_do_is_answered_with_what_to_install(
    tmp_path: Path, banner: str | None, problem: str
):
    """One message says what is needed, what was found and how to fix it."""
    path = str(java(tmp_path / "j", banner) / "bin") if banner else str(tmp_path)
    with pytest.raises(HeadgateError, match=problem) as caught:
        find_java({"PATH": path})
    assert "apt-get install openjdk-17-jre-headless" in str(caught.value)


def test_spark_keeps_to_this_machine_and_to_its_scratch_folder(tmp_path: Path):
    """Loopback, no UI, nothing written elsewhere."""
    found = settings(tmp_path)
    assert found["spark.driver.bindAddress"] == found["spark.driver.host"] == "127.0.0.1"
    assert found["spark.ui.enabled"] == "false"
    assert found["spark.local.dir"] == str(tmp_path)
    assert found["spark.jars.ivy"].startswith(str(tmp_path))
    assert f"-Djava.io.tmpdir={tmp_path}" in found["spark.driver.extraJavaOptions"]


def test_spark_without_enough_open_files_names_the_limit(tmp_path: Path):
    """Java then ends in the middle of a stack trace about JARs, and PySpark only knows that it has ended."""
    home = java(tmp_path / "home", 'openjdk version "17.0.15" 2025-04-15')
    code = (
        "import pathlib, resource, sys\n"
        "from testbed_runtime.evaluation.session import spark_session\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "with spark_session(pathlib.Path(sys.argv[1])): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {"JAVA_HOME": str(home)},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.stderr.splitlines()[-1].endswith(
        "A process here may open 256 files, and Spark needs 1024: raise the limit (`ulimit -n`)."
    )
