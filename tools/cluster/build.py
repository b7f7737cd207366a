"""Build programs from Go modules: once per version, each replaced only when its build has finished."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import settings
from .command import run
from .say import say, step
from .settings import ClusterError, Layout

KUBERNETES_MODULE = "k8s.io/kubernetes"
# staging modules are published as 0.minor.patch
STAGING_VERSION = "v0." + settings.KUBERNETES.split(".", 1)[1]
UNPUBLISHED = "v0.0.0"  # the version of staging modules in Kubernetes's own go.mod
GO_FOLDER = "/usr/local/go/bin"  # where Go's own archive is unpacked
JOBS_VARIABLE = "HEADGATE_BUILD_JOBS"  # how many cores a build may use; default: all
NICE = ("nice", "-n", "19")


@dataclass(frozen=True)
class Binary:
    """One program, its version and its main package."""

    name: str
    version: str
    package: str
    module: str
    minutes: int  # on one core, with downloads, in the order of BINARIES; shown so that a long build does not look stuck


def _kubernetes(name: str, minutes: int) -> Binary:
    return Binary(name, settings.KUBERNETES, f"{KUBERNETES_MODULE}/cmd/{name}", KUBERNETES_MODULE, minutes)


BINARIES = (
    Binary("etcd", settings.ETCD, "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", 4),
    _kubernetes("kubectl", 7),
    _kubernetes("kubelet", 8),
    _kubernetes("kube-apiserver", 4),
    _kubernetes("kube-controller-manager", 2),
    _kubernetes("kube-scheduler", 1),
    _kubernetes("kube-proxy", 1),
    Binary("coredns", settings.COREDNS, "github.com/coredns/coredns", "github.com/coredns/coredns", 6),
    Binary("helm", settings.HELM, "helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3", 5),
)


def missing(layout: Layout) -> list[Binary]:
    """Return the programs that the cache does not have in the right version."""
    return [
        b for b in BINARIES if not (_versioned(layout, b).exists() and (layout.binaries / b.name).exists())
    ]


def build_missing(layout: Layout) -> None:
    """Build the missing programs and remove everything else that the build wrote.

    Raises ClusterError when Go is missing or too old, or when a build fails (with the end of its output).
    """
    wanted = missing(layout)
    if not wanted:
        return
    go = find_go(os.environ.get("PATH", ""))
    minutes = sum(b.minutes for b in wanted)
    say(
        f"building {', '.join(b.name for b in wanted)} from Go modules, once: about {minutes} min on one core, half of it on two;"
    )
    say(f"  needs some 6 GB below {layout.cache} meanwhile, 0.6 GB afterwards")
    layout.binaries.mkdir(parents=True, exist_ok=True)
    for binary in wanted:
        with step(f"{binary.name} {binary.version} (about {binary.minutes} min)"):
            _build(layout, go, binary)
    with step("removing sources and objects of the build"):
        _run(layout, [go, "clean", "-modcache"])
        shutil.rmtree(layout.scratch, ignore_errors=True)


def find_go(path: str) -> str:
    """Return the `go` on `path` or in its usual folder. Raises ClusterError when it is missing or too old."""
    go = shutil.which("go", path=f"{path}{os.pathsep}{GO_FOLDER}")
    least = ".".join(map(str, settings.GO_MIN))
    if go is None:
        raise ClusterError(
            f"Go {least} or newer is needed to build Kubernetes once, and none is on PATH or in {GO_FOLDER}"
        )
    version = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if not new_enough(version):
        raise ClusterError(
            f"Go {least} or newer is needed to build Kubernetes once; {go} is {version or 'broken'}"
        )
    return go


def new_enough(version: str) -> bool:
    """Return whether `version`, as printed by `go env GOVERSION`, is at least GO_MIN."""
    found = re.match(r"go(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= settings.GO_MIN


def _versioned(layout: Layout, binary: Binary) -> Path:
    return layout.binaries / f".{binary.name}-{binary.version}"


def _build(layout: Layout, go: str, binary: Binary) -> None:
    """Build to a temporary name first, so that an interrupted build is never used."""
    if binary.module == KUBERNETES_MODULE:
        folder = _kubernetes_module(layout, go)
    else:
        folder = _module(layout, go, binary, [binary.package], [])
    made = layout.binaries / f".{binary.name}.new"
    jobs = os.environ.get(JOBS_VARIABLE)
    parallel = [f"-p={jobs}"] if jobs else []
    flags = ["-trimpath", "-buildvcs=false", "-ldflags", linker_flags(binary), *parallel]
    _run(layout, [go, "build", *flags, "-o", str(made), binary.package], folder)
    for old in layout.binaries.glob(f".{binary.name}-*"):
        old.unlink()
    made.replace(layout.binaries / binary.name)
    _versioned(layout, binary).touch()


def linker_flags(binary: Binary) -> str:
    """Return the linker flags: no symbols, and the version of Kubernetes's programs, which do not work without one."""
    if binary.module != KUBERNETES_MODULE:
        return "-s -w"
    major, minor, _ = binary.version.split(".")
    facts = {
        "gitVersion": f"v{binary.version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    settings_of = [f"-X k8s.io/component-base/version.{key}={value}" for key, value in facts.items()]
    return " ".join(["-s -w", *settings_of])


def _kubernetes_module(layout: Layout, go: str) -> Path:
    """Write Kubernetes's module with the published versions of its staging modules: its own go.mod points to its own folders."""
    ours = [b for b in BINARIES if b.module == KUBERNETES_MODULE]
    downloaded = json.loads(
        _run(layout, [go, "mod", "download", "-json", f"{KUBERNETES_MODULE}@v{settings.KUBERNETES}"])
    )
    requires = json.loads(_run(layout, [go, "mod", "edit", "-json", downloaded["GoMod"]]))["Require"]
    return _module(layout, go, ours[0], [b.package for b in ours], replacements(requires))


def replacements(requires: Sequence[Mapping[str, str]]) -> list[str]:
    """Return replace directives for the requirements in a version that was never published."""
    staging = sorted(r["Path"] for r in requires if r["Version"] == UNPUBLISHED)
    return [f"replace {path} => {path} {STAGING_VERSION}" for path in staging]


def _module(
    layout: Layout, go: str, binary: Binary, packages: Sequence[str], replaced: Sequence[str]
) -> Path:
    """Write a scratch module that requires the program's. Blank imports under a build tag tell `go mod tidy` which packages it needs."""
    folder = layout.scratch / f"{binary.module.replace('/', '-')}-{binary.version}"
    if (folder / "go.sum").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    least = ".".join(map(str, settings.GO_MIN))
    lines = [
        "module headgate.local/build",
        f"go {least}.0",
        f"require {binary.module} v{binary.version}",
        *replaced,
    ]
    (folder / "go.mod").write_text("\n".join(lines) + "\n")
    imports = "".join(f'\t_ "{package}"\n' for package in packages)
    (folder / "wanted.go").write_text(f"//go:build wanted\n\npackage build\n\nimport (\n{imports})\n")
    _run(layout, [go, "mod", "tidy", "-e"], folder)
    return folder


def _run(layout: Layout, command: Sequence[str], folder: Path | None = None) -> str:
    """Run Go with its own caches, which the scratch folder contains, and return stdout. With JOBS_VARIABLE it has low priority.

    Raises ClusterError with the last lines of its output.
    """
    own = {
        "CGO_ENABLED": "0",
        "GOMODCACHE": str(layout.scratch / "modules"),
        "GOCACHE": str(layout.scratch / "objects"),
        "GOWORK": "off",
    }
    if jobs := os.environ.get(JOBS_VARIABLE):
        own["GOMAXPROCS"] = jobs
    layout.scratch.mkdir(parents=True, exist_ok=True)
    quiet = NICE if jobs else ()
    return run([*quiet, *command], folder=folder or layout.scratch, environment={**os.environ, **own})
