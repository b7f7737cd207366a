"""Load and validate scenarios. All problems of all files are reported at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from testbed_runtime.api import models
from testbed_runtime.api.document import Document, only, read_documents
from testbed_runtime.api.kinds import KINDS
from testbed_runtime.api.naming import GROUP
from testbed_runtime.api.validate import Findings, InvalidScenario, validate
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.job.restore import STATE_RECOVERY
from testbed_runtime.core.options import ALIASES

if TYPE_CHECKING:
    from testbed_runtime.api.flinkconf import FlinkConf

P = TypeVar("P", bound=models.Part)
SCENARIO_FILE = "scenario.yaml"
OTHER_KINDS = ("Testbed", "Fault", "ScenarioRun")
"""Kinds of documents that only a cluster runs."""
SHOWN_FILES = 12
"""Maximum files of a folder that an error names."""


WITHOUT_EFFECT = "Flink options without effect here"
_NO_TEXT = ("is not UTF-8 text", "save it as UTF-8")
_NO_JAR = (
    "is a JAR, and your code does not run here",
    "`headgate new QUESTION` writes a scenario, in which you describe the shape of your job",
)


class Loaded(Struct, frozen=True):
    """A valid scenario."""

    path: Path
    scenario: models.Scenario
    document: dict[str, Any]
    warnings: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return self.path.parent


def find(path: Path) -> Path:
    """Return the scenario file at a path, which is a file or a folder that contains one."""
    if path.is_dir() and not (path / SCENARIO_FILE).is_file():
        raise UserError(str(path), f"contains no {SCENARIO_FILE}", _hint_for_folder(path))
    if path.is_dir():
        path /= SCENARIO_FILE
    if not path.is_file():
        raise UserError(str(path), "does not exist", f"name a folder with a {SCENARIO_FILE}, or a file")
    return path


def _hint_for_folder(folder: Path) -> str:
    """Return a hint about a folder that contains no scenario file."""
    from testbed_runtime.cli.tune import STUDY_FILE

    if any(folder.glob(f"*/{SCENARIO_FILE}")):
        return f"`headgate ci {folder}` runs all scenarios of a folder"
    if (folder / STUDY_FILE).is_file():
        return f"`headgate tune {folder}` runs the study in it"
    files = sorted(p.name for p in folder.glob("*.yaml"))
    if files:
        return f"name one of its files: {', '.join(files[:SHOWN_FILES])}"
    return "`headgate new` writes a scenario to start from"


def find_all(folder: Path) -> list[Path]:
    """Return every scenario file of a folder, sorted by name. Raises UserError if there is none."""
    if folder.is_file():
        raise UserError(str(folder), "is a file, not a folder", f"`headgate run {folder}` runs one scenario")
    if not folder.is_dir():
        raise UserError(str(folder), "does not exist", "name a folder of scenarios, such as scenarios/")
    if (folder / SCENARIO_FILE).is_file():
        return [folder / SCENARIO_FILE]
    found = sorted(folder.glob(f"*/{SCENARIO_FILE}"))
    if not found:
        raise UserError(
            str(folder), f"contains no */{SCENARIO_FILE}", "name a folder of scenarios, such as scenarios/"
        )
    return found


def load(path: Path) -> Loaded:
    """Read and validate one file. Raises InvalidScenario with every problem, or UserError."""
    document = read(find(path))
    path = Path(document.name)
    _require_scenario(document)
    findings = validate(document.data)
    return Loaded(path, valid(document, findings), document.data, notes(findings))


class FlinkConfGiven(UserError):
    """The file contains configurations of Flink instead of a document of Headgate."""

    def __init__(self, path: Path, found: Sequence[FlinkConf]) -> None:
        problem = f"is a {found[0].kind}, not a document of Headgate"
        hint = f"`headgate new QUESTION --flink-conf {path}` writes a scenario with its options"
        if len(found) > 1:
            problem = f"has {len(found)} Flink configurations, and no document of Headgate"
            hint = "write one into a file of its own, from which `headgate new QUESTION --flink-conf FILE` writes a scenario"
        super().__init__(str(path), problem, hint)


def read(path: Path) -> Document:
    """Read the document of Headgate in a YAML file. Raises UserError, and FlinkConfGiven for configurations of Flink."""
    documents, confs = read_all(path)
    if not documents:
        raise FlinkConfGiven(path, confs)
    return only(documents)


def read_all(path: Path) -> tuple[list[Document], Sequence[FlinkConf]]:
    """Read the documents of Headgate and the configurations of Flink in a YAML file. Other objects beside them, such as a Namespace, are
    left out. A file with neither gives its documents. Raises UserError."""
    from testbed_runtime.api import flinkconf

    text = read_text(path)
    try:
        documents = read_documents(text, name=str(path))
    except UserError:
        if found := flinkconf.find(text, str(path)):
            return [], found
        raise
    own = [document for document in documents if _is_own(document)]
    confs = flinkconf.find(text, str(path)) if len(own) < len(documents) else ()
    return (own if own or confs else documents), confs


def _is_own(document: Document) -> bool:
    """Return whether a document is Headgate's, although perhaps of an unknown kind or version."""
    kind, version = str(document.data.get("kind")), str(document.data.get("apiVersion"))
    return kind in KINDS or version.startswith(f"{GROUP}/")


def has_own(text: str) -> bool:
    """Return whether a document of a file is Headgate's. True if the file is not YAML, so that its check reports the problem. A ConfigMap
    or an annotation may contain such a document as text."""
    try:
        return any(map(_is_own, read_documents(text)))
    except UserError:
        return True


def read_text(path: Path) -> str:
    """Return the text of a file. Raises UserError."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(str(path), "the file or folder does not exist") from None
    except IsADirectoryError:
        raise UserError(str(path), "is a folder", "name a file") from None
    except UnicodeDecodeError:
        raise UserError(str(path), *_NO_JAR if path.suffix.lower() == ".jar" else _NO_TEXT) from None
    except PermissionError as error:
        raise UserError(str(path), f"cannot be read: {error.strerror}") from None


def _require_scenario(document: Document) -> None:
    """Refuse a document of another kind, and name the command for it."""
    kind = document.data.get("kind")
    if kind == "TuningStudy":
        hint = f"`headgate tune {document.name}` runs a study"
    elif kind in OTHER_KINDS:
        hint = f"`kubectl apply -f {document.name}` creates it in a cluster"
    else:
        return
    raise UserError(f"{document.name}: kind", f"is {kind}, not Scenario", hint)


def with_seed(loaded: Loaded, seed: int) -> Loaded:
    """Return the scenario with another seed. Raises UserError if the seed is invalid."""
    try:
        return changed(loaded, {**loaded.document["spec"], "seed": seed}, "")
    except InvalidScenario as invalid:
        refused = invalid.errors[0]  # the scenario was valid with its own seed
        raise UserError("--seed", refused.problem, refused.hint) from None


def with_checkpoint(loaded: Loaded, folder: Path | None) -> Loaded:
    """Return the scenario whose jobs start from a kept checkpoint; None: as it is written."""
    if folder is None:
        return loaded
    spec = loaded.document["spec"]
    testbed = spec.get("testbed") or {}
    written = testbed.get("flinkConfiguration") or {}
    configuration = {key: value for key, value in written.items() if ALIASES.get(key) != STATE_RECOVERY}
    configuration[STATE_RECOVERY] = str(folder.resolve())
    return changed(
        loaded, {**spec, "testbed": {**testbed, "flinkConfiguration": configuration}}, "--from-checkpoint"
    )


def changed(loaded: Loaded, spec: dict[str, Any], name: str) -> Loaded:
    """Return the scenario with another spec. Raises InvalidScenario that calls it `name`."""
    data = {**loaded.document, "spec": spec}
    findings = validate(data)
    return Loaded(loaded.path, findings.valid(name=name), data, notes(findings))


def load_all(paths: Sequence[Path]) -> list[Loaded]:
    """Load all files, or raise one error with the problems of all of them."""
    loaded: list[Loaded] = []
    problems: list[str] = []
    for path in paths:
        try:
            loaded.append(load(path))
        except HeadgateError as error:
            problems.append(str(error))
    if problems:
        raise HeadgateError("\n".join(problems))
    return loaded


def valid(document: Document, findings: Findings[P]) -> P:
    """Return the validated content of a document. Raises InvalidScenario with line numbers if it is invalid."""
    lines = {e.path: line for e in findings.errors if (line := document.line(e.path))}
    return findings.valid(name=document.name, lines=lines)


def notes(findings: Findings[models.Part]) -> tuple[str, ...]:
    """Return the warnings, and one line for options without effect here."""
    listed = ", ".join(findings.without_effect)
    return (*findings.warnings, *([f"{WITHOUT_EFFECT}: {listed}"] if listed else []))
