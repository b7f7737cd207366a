"""Arguments and options that several commands share."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed_runtime.api.catalogue import Standing, judge
from testbed_runtime.cli import exits
from testbed_runtime.core.documents import versioned
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.options import ALIASES, Options, unknown_version
from testbed_runtime.core.versions import LATEST, VERSIONS

if TYPE_CHECKING:
    from testbed_runtime.api.flinkconf import ConfFindings, FlinkConf


MEMORY = "taskmanager.memory."
"""The options from which a TaskManager's memory is computed. That computation reports contradictions between them."""


class Policy(enum.StrEnum):
    """The treatment of an Inconclusive verdict: report it (exit 3), fail (exit 1), run once more, or pass (exit 0)."""

    REPORT = "report"
    FAIL = "fail"
    RETRY = "retry"
    PASS = "pass"  # noqa: S105


class Environment(enum.StrEnum):
    """The environment that a scenario runs in."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


def variant_names(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of the variants in the documents that the command line names already. Never raises."""
    import yaml

    # while the value of an option is missing, the other words are not assigned to arguments
    named = [*context.args, *(context.params.get("scenarios") or ()), context.params.get("scenario") or ""]
    found: list[str] = []
    for path in map(Path, filter(None, named)):
        with suppress(OSError, ValueError, yaml.YAMLError, AttributeError, TypeError, KeyError):
            text = (path / "scenario.yaml" if path.is_dir() else path).read_text(encoding="utf-8")
            found += [str(v["name"]) for v in yaml.safe_load(text)["spec"].get("variants") or ()]
    return [name for name in dict.fromkeys(found) if name.startswith(incomplete)]


def show(data: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    """Print a result as JSON with its schema number, or as lines."""
    typer.echo(json.dumps(versioned(data), indent=1, ensure_ascii=False) if as_json else "\n".join(lines))


def known_version(version: str) -> str:
    """Return the value of `--flink-version`. Raises UserError for a version that is not reproduced."""
    if version not in VERSIONS:
        raise unknown_version("--flink-version", version)
    return version


def flink_options(
    settings: list[str], flink_version: str, *, named: Mapping[str, str] | None = None
) -> Options:
    """Read the `-D KEY=VALUE` of a command, and warn about keys without an effect. `named`: options of the command that stand for
    a key, which errors then name. Raises UserError for a key that is a typo."""
    from testbed_runtime.api.option_rules import Collected, judge_key

    version = known_version(flink_version)
    values, written, collected = dict[str, str](), dict[str, str](), Collected()
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise UserError("-D", f"{setting!r} is not an option", "write KEY=VALUE")
        where = (named or {}).get(ALIASES.get(key, key), f"-D {key}")
        judgement = judge(key, version)
        if judgement.standing in (Standing.WITHOUT_EFFECT, Standing.UNKNOWN):
            if key in values:
                raise UserError(where, "is a duplicate", "keep one of them")
            notes = ("has no effect here", judgement.note)
            collected.warnings += [f"{where}: {note}" for note in notes if note]
        else:
            judge_key(key, value, version=version, where=where, written=written, collected=collected)
        values[key] = value
    for error in collected.errors:
        raise error
    for warning in collected.warnings:
        exits.warn(warning)
    return Options(values, flink_version=version)


def flink_conf(
    path: Path, flink_version: str | None, *, needed: str = "", otherwise: str | None = None
) -> tuple[FlinkConf, str, ConfFindings]:
    """Read the file of `--flink-conf`: its options, the version of Flink (that of the command line, else that of the file, else
    `otherwise`), and the findings, which are printed. `path` may be a `conf` folder. Raises UserError if the file cannot be read. A
    command that computes something from the keys that begin with `needed` needs valid values of them, any other one needs options
    that do not contradict each other. Other options with an error are left out, so that one does not hide the others."""
    from testbed_runtime.api import flinkconf
    from testbed_runtime.cli.loading import read_text

    path = next((path / name for name in flinkconf.FILES if (path / name).is_file()), path)
    conf = flinkconf.read(read_text(path), str(path))
    stated = conf.flink_version or otherwise or conf.version
    version = stated if flink_version is None else known_version(flink_version)
    if version not in VERSIONS:
        raise unknown_version(f"{path}: spec.flinkVersion", version)
    found = flinkconf.judge_options(conf, version)
    blocking = [e for e in found.errors if needed and conf.sets(e.path, needed)]
    for error in blocking or (() if needed else found.contradictions):
        raise UserError(f"{path}{conf.place(error.path, ':', '')}: {error.path}", error.problem, error.hint)
    # the command itself reports the errors of these options
    others = [e for e in found.contradictions if not needed or f"[{MEMORY}" not in e.path]
    for message in (*map(str, (*found.errors, *others)), *found.warnings):
        exits.warn(f"{path}{conf.place(message, ':', '')}: {message}")
    return conf, version, found


def version_words(conf: FlinkConf, version: str, flink_version: str | None) -> str:
    """Return the version of Flink whose rules a configuration is read by, and how to change it if neither the file nor the command line sets it."""
    assumed = "" if flink_version or conf.flink_version else " assumed: --flink-version sets it"
    return f"Flink {version}{assumed}"


FlinkVersion = Annotated[str, typer.Option(help=f"Version of Flink: {', '.join(VERSIONS)}.")]


def _optional_version(text: str) -> Any:
    return typer.Option("--flink-version", help=text, show_default=False)


_VERSION_OF_CONF = f"Version of Flink: {', '.join(VERSIONS)}. By default that of --flink-conf, or"
GivenVersion = Annotated[str | None, _optional_version(f"{_VERSION_OF_CONF} {LATEST}.")]
PlannedVersion = Annotated[str | None, _optional_version(f"{_VERSION_OF_CONF} of the document.")]
CheckedVersion = Annotated[
    str | None,
    _optional_version(
        "Check files of Flink as this version reads them, for example before an upgrade. By default the version of a "
        f"FlinkDeployment, 1.20 for a flink-conf.yaml, and {LATEST} for others."
    ),
]
FlinkConfFile = Annotated[
    Path | None,
    typer.Option(
        "--flink-conf",
        help="Read the options from Flink's own file: a flink-conf.yaml, a config.yaml (or their folder), a FlinkDeployment or FlinkBlueGreenDeployment, or a ConfigMap.",
        show_default=False,
    ),
]
Settings = Annotated[list[str], typer.Option("-D", help="A Flink option, as KEY=VALUE; may be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
RunFolders = Annotated[
    list[Path], typer.Argument(help="Folders of runs (headgate-runs/…).", show_default=False)
]
Scenarios = Annotated[list[Path], typer.Argument(help="Scenario folders, or YAML files.", show_default=False)]
Out = Annotated[Path, typer.Option("--out", help="Parent folder of the run folders.")]
InconclusivePolicy = Annotated[
    Policy,
    typer.Option(
        "--inconclusive",
        help="What to do about Inconclusive: report it (exit 3), fail (exit 1), retry (run once more), pass (exit 0).",
    ),
]
Variants = Annotated[
    list[str] | None,
    typer.Option("--variant", help="Only this variant; may be repeated.", autocompletion=variant_names),
]
FromCheckpoint = Annotated[
    Path | None,
    typer.Option(
        "--from-checkpoint",
        "-s",
        help="Start the jobs from a kept checkpoint, as `flink run -s` does: the folder files/<trial> of a run.",
        show_default=False,
    ),
]
OnEnvironment = Annotated[Environment, typer.Option("--on", help="Environment to run in.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the verdict.")]

DEFAULT_OUT = Path("headgate-runs")
