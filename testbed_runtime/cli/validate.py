"""`headgate validate`: every check of a document, without running it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed_runtime.api import limits
from testbed_runtime.api.naming import GROUP
from testbed_runtime.cli import exits, options
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.judgement.quantities import counted
from testbed_runtime.history.manifest import MANIFEST, read_manifest

if TYPE_CHECKING:
    from testbed_runtime.api.document import Document
    from testbed_runtime.api.flinkconf import FlinkConf
    from testbed_runtime.api.models import Scenario
    from testbed_runtime.faults.registry import Capabilities

SUFFIXES = (".yaml", ".yml")
_OWN = re.compile(rf"""apiVersion["']?: *["']?{re.escape(GROUP)}\b""")
MAX_FILES = 1_000
"""Maximum files of one command, which limits the damage of a wrong folder."""
Documents = Annotated[
    list[Path], typer.Argument(help="YAML files, or folders with such files.", show_default=False)
]
On = Annotated[
    options.Environment | None,
    typer.Option(
        "--on",
        help="Refuse what cannot run in this environment. Without this option, that is only a warning.",
        show_default=False,
    ),
]


@dataclass(slots=True, kw_only=True)
class Checked:
    """The findings of one document, as the JSON shows them."""

    file: str
    document: int = 0
    """The place of the document in a file that has several, from 1."""
    kind: str = ""
    name: str = ""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """`path`, `line`, `problem` and `hint`."""
    warnings: list[str] = field(default_factory=list)
    trials: int = 0
    size: str = ""
    """A description of what was checked."""

    def add(self, error: UserError, line: int | None = None) -> None:
        self.errors.append({"path": error.path, "line": line, "problem": error.problem, "hint": error.hint})

    @contextmanager
    def collecting(self, *, refused: bool) -> Iterator[None]:
        """Add a UserError of the block to the errors if it is `refused`, else to the warnings."""
        try:
            yield
        except UserError as error:
            if refused:
                self.add(error)
            else:
                self.warnings.append(str(error))


def validate(
    documents: Documents,
    on: On = None,
    flink_version: options.CheckedVersion = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Check scenarios, studies and Flink configurations without running them, and report every problem at once.

    In a Flink configuration (flink-conf.yaml, config.yaml, a FlinkDeployment, a FlinkBlueGreenDeployment or a ConfigMap), it finds misspelt options, values that
    Flink cannot read, and options that contradict each other. A file may have several documents, or a `List`. Objects that are
    not Headgate's are ignored.

    Exit code 0: every document is valid; 2: at least one is not."""
    if flink_version is not None:
        options.known_version(flink_version)
    checked = [item for path in find(documents) for item in check(path, on, flink_version)]
    valid = not any(item.errors for item in checked)
    data = {"valid": valid, "documents": [_as_json(item) for item in checked]}
    options.show(data, (line for item in checked for line in lines_of(item)), as_json=as_json)
    raise typer.Exit(exits.PASS if valid else exits.ERROR)


def find(paths: list[Path]) -> list[Path]:
    """Return the named files, and in named folders the documents of Headgate and the configurations of Flink. Raises UserError."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        below = sorted(_yaml_files(path))
        documents = [p for p in below if _is_document(p)]
        if not documents:
            raise UserError(
                str(path),
                "contains no document of Headgate and no configuration of Flink",
                "`headgate new` writes a scenario to start from",
            )
        found += documents
    return list(dict.fromkeys(found))


def _yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files below a folder. Folders of runs and folders that cannot be listed or that vanish are skipped."""
    found: list[Path] = []
    for at, below, names in os.walk(folder):
        if MANIFEST in names and Path(at) != folder and _is_run(Path(at)):
            below.clear()
            continue
        found += (p for name in names if (p := Path(at, name)).suffix in SUFFIXES and p.is_file())
        if len(found) > MAX_FILES:
            raise UserError(str(folder), f"has more than {MAX_FILES} YAML files", "name a smaller folder")
    return found


def _is_run(folder: Path) -> bool:
    try:
        read_manifest(folder)
    except UserError:
        return False
    return True


def _is_document(path: Path) -> bool:
    """Return whether a file is a document of Headgate, by its name or its apiVersion, or a configuration of Flink."""
    from testbed_runtime.api import flinkconf
    from testbed_runtime.cli.loading import SCENARIO_FILE, has_own

    try:
        with path.open("rb") as file:
            text = file.read(limits.MAX_DOCUMENT_BYTES).decode("utf-8", "replace")
    except OSError:  # the problem is reported when the file is checked, with the problems of the other files
        return True
    if path.name == SCENARIO_FILE or (_OWN.search(text) and has_own(text)):
        return True
    if flinkconf.is_deployment(text):
        return True
    named = (*flinkconf.FILES, *flinkconf.DEPLOYED)  # in a ConfigMap; in a List
    may_be = path.name in flinkconf.FILES or any(name in text for name in named)
    return may_be and any(conf.is_certain for conf in flinkconf.find(text, str(path)))


def check(path: Path, on: options.Environment | None, flink_version: str | None = None) -> list[Checked]:
    """Return everything that is wrong or doubtful about each document of Headgate and each configuration of Flink in a file.
    `flink_version`: the version that reads these."""
    from testbed_runtime.cli import loading

    try:
        documents, confs = loading.read_all(path)
    except UserError as error:
        checked = Checked(file=str(path))
        checked.add(error)
        return [checked]
    found = [_check_document(path, document, on) for document in documents]
    return found + [_check_conf(str(path), conf, flink_version) for conf in confs]


def _check_document(path: Path, document: Document, on: options.Environment | None) -> Checked:
    """Check one document of Headgate."""
    from testbed_runtime.api.models import Scenario
    from testbed_runtime.api.validate_kinds import validate_kind
    from testbed_runtime.cli import loading

    checked = Checked(file=str(path), document=document.number)
    checked.kind = str(document.data.get("kind") or "")
    metadata = document.data.get("metadata")
    checked.name = str(metadata.get("name") or "") if isinstance(metadata, dict) else ""
    findings = validate_kind(document.data)
    for problem in findings.errors:
        checked.add(problem, document.line(problem.path))
    checked.warnings += [_with_line(document, note) for note in loading.notes(findings)]
    if isinstance(findings.resource, Scenario) and not findings.errors:
        _check_plan(checked, findings.resource, path, on)
    return checked


def _with_line(document: Document, note: str) -> str:
    """Return a note with the line of the field that it begins with, if it does."""
    field, separator, _ = note.partition(": ")
    return f"line {document.line(field)}: {note}" if separator and field.startswith("spec") else note


def _check_conf(path: str, conf: FlinkConf, flink_version: str | None) -> Checked:
    """Check the options of a Flink configuration."""
    from testbed_runtime.api import flinkconf
    from testbed_runtime.cli import loading

    checked = Checked(file=path, kind=conf.kind, name=conf.name)
    version = flink_version or conf.version
    try:
        found = flinkconf.judge_options(conf, options.known_version(version))
    except UserError as error:
        checked.add(UserError("spec.flinkVersion", error.problem, error.hint))
        return checked
    checked.size = (
        f"{counted(len(conf.options), 'option')}, {options.version_words(conf, version, flink_version)}"
    )
    for problem in (*found.errors, *found.contradictions):
        checked.add(problem, conf.line(problem.path))
    checked.warnings += filter(None, [conf.not_read_by(version, Path(path).name)])
    checked.warnings += [conf.place(warning, "line ", ": ") + warning for warning in found.warnings]
    if found.without_effect:
        checked.warnings.append(f"{loading.WITHOUT_EFFECT}: {', '.join(found.without_effect)}")
    return checked


def _check_plan(checked: Checked, scenario: Scenario, path: Path, on: options.Environment | None) -> None:
    """Check what a run checks before it starts: the files of Python functions, and a backend for each fault."""
    from testbed_runtime.api.compile import compile_run
    from testbed_runtime.cli.preflight import function_problems
    from testbed_runtime.runner.engine import check_size

    try:
        plan = compile_run(scenario, scenario_folder=path.parent.resolve())
    except UserError as error:
        checked.add(error)
        return
    checked.trials = len(plan.trials)
    checked.size = counted(checked.trials, "trial")
    for problem in function_problems(plan, pods=on is options.Environment.KUBERNETES):
        checked.add(problem)
    with checked.collecting(refused=on is not None):
        check_size(plan)
    if on is options.Environment.KUBERNETES:
        return  # only the operator knows which backends the pods have
    from testbed_runtime.faults.registry import check_fault

    for fault in {f.name: f for f in plan.faults}.values():
        with checked.collecting(refused=on is not None):
            check_fault(fault, _capabilities())


def _capabilities() -> Capabilities:
    import asyncio

    from testbed_runtime.local import packets

    return asyncio.run(packets.capabilities())


def lines_of(checked: Checked) -> list[str]:
    """Return the findings of a document as lines. Pure."""
    file = f"{checked.file}: document {checked.document}" if checked.document else checked.file
    what = " ".join(filter(None, [checked.kind, checked.name]))
    state = "invalid" if checked.errors else "valid"
    size = f" ({checked.size})" if checked.size else ""
    lines = [f"{file}: {state}: {what}{size}" if what else f"{file}: {state}"]
    for error in checked.errors:
        line = f"line {error['line']}: " if error["line"] else ""
        place = f"{error['path']}: " if error["path"] != checked.file else ""
        lines.append(
            f"  error: {line}{place}{error['problem']}" + (f" ({error['hint']})" if error["hint"] else "")
        )
    return [*lines, *(f"  warning: {warning}" for warning in checked.warnings)]


def _as_json(checked: Checked) -> dict[str, Any]:
    found = {**asdict(checked), "valid": not checked.errors}
    del found["size"]  # in words, for the terminal
    return found
