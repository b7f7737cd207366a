"""Write the reference pages of docs/ from the code. `--check` only lists outdated ones and exits with 1."""

from __future__ import annotations

import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from typer.models import OptionInfo

from testbed_runtime.api import catalogue, fields, kinds, limits, models
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.descriptions import meaning
from testbed_runtime.cli import questions
from testbed_runtime.cli.commands import build
from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.faults.vocabulary import BACKENDS, PACKET_BACKENDS, Kind
from testbed_runtime.core.job.results import COMBINATIONS, DEPLOYMENTS, RESULTS
from testbed_runtime.core.job.rpcnames import ACTOR_MESSAGES, METHODS
from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.options import EFFECTIVE, OWN_PREFIX, Option
from testbed_runtime.core.versions import CHANGES, LATEST, VERSIONS
from testbed_runtime.faults.registry import LOCAL
from tools import docs_chart, docs_conformance, docs_sources
from tools.docs_texts import GENERATED, text

DOCS = Path(__file__).resolve().parents[1] / "docs"
KINDS_OF_TEXT = {
    "duration": fields.Duration,
    "duration or `deploy`": fields.AtText,
    "duration or `Never`": fields.ReplaceLostText,
    "decimal": fields.FractionText,
}
"""The words for texts with a syntax, which the rules of their schemas tell apart."""
RULES_OF_TEXT = {
    words: TypeAdapter(kind).json_schema()[fields.RULES] for words, kind in KINDS_OF_TEXT.items()
}
Schema = dict[str, Any]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table. `|` within a cell is escaped."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


# ---- scenario.md


def _type(schema: Schema) -> str:
    """Return the words for the type of a field."""
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{choice}`" for choice in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "array" if "$ref" in schema["items"]:
            return "list of objects"
        case "array":
            return f"list of {_type(schema['items'])}s"
        case "object":
            return "map of texts"
        case "string":
            named = "name" if schema.get("pattern") == models.NAME_PATTERN else "text"
            return next((w for w, rules in RULES_OF_TEXT.items() if rules == schema.get(fields.RULES)), named)
        case plain:
            return plain or ("object" if "$ref" in schema else "integer or text")


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None:
        return f"{low:,} or more" if high is None else f"{low:,} to {high:,}"
    least, most = schema.get("minItems"), schema.get("maxItems", schema.get("maxProperties"))
    if most:
        return f"{least} to {most:,}" if least else f"at most {most:,}"
    is_text = "maxLength" in schema and _type(schema) == "text"
    return f"at most {schema['maxLength']:,} characters" if is_text else ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default()
    if value is None or value in ("", [], {}):
        return "–"
    if isinstance(value, models.Part):
        return "its fields' defaults"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _rows(model: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], str, type[BaseModel] | None, bool]]:
    """Yield the row of each field, its name, the model below it, and whether it is a list."""
    schema = model.model_json_schema(by_alias=True)
    for name, info in model.model_fields.items():
        alias = str(info.alias or name)
        field = schema["properties"][alias]
        choices = [choice for choice in field.get("anyOf", ()) if choice.get("type") != "null"]
        field = choices[0] if len(choices) == 1 else field
        row = (f"`{alias}`", _type(field), _default(info), _bounds(field), meaning(model, name))
        yield row, alias, next(fields.models_in(info.annotation), None), field.get("type") == "array"


def _objects(
    model: type[BaseModel],
    path: str,
    seen: dict[type, str],
    *,
    kind: str = "",
    shared: Set[type] = frozenset(),
) -> Iterator[str]:
    """Yield the table of one object, then those of the objects below it. A model that was already shown is only linked. For a `kind` that
    is not a Scenario, parts that were shown, or that a Scenario has too (`shared`), are left out."""
    seen[model] = path
    found = list(_rows(model))
    if not found:
        return
    head = ("field", "type", "default", "bounds", "meaning")
    title = f"### {kind}: {path}" if kind else f"## {path or 'The document'}"
    yield f"{title}\n\n{table(head, [row for row, *_ in found])}\n"
    for _, alias, below, many in sorted(found, key=lambda row: not kind and row[1] == "variants"):
        where = f"{path}.{alias}".lstrip(".") + ("[]" if many else "")
        if below is None or not below.model_fields or below in shared or (kind and below in seen):
            continue
        if below in seen:
            yield f"## {where}\n\nAs [{seen[below]}](#{_anchor(seen[below])}).\n"
        else:
            yield from _objects(below, where, seen, kind=kind, shared=shared)


def _anchor(heading: str) -> str:
    return "".join(c for c in heading.lower() if c.isalnum() or c in "-_")


def scenario_page() -> str:
    intro = text("scenario", max_name=limits.MAX_NAME, max_bytes=f"{limits.MAX_DOCUMENT_BYTES:,}")
    return "\n".join([intro, *_objects(models.Scenario, "", {}), text("combinations"), combinations()])


# ---- kinds.md


def kinds_page() -> str:
    """Return the page of the other kinds. Parts that a Scenario also has are only on its page."""
    seen: dict[type, str] = {}
    shared = set(_models_below(models.Scenario))
    body = [text("kinds"), table(("kind", "short", "`kubectl get` shows"), _listed())]
    for name, model in kinds.KINDS.items():
        if name == "Scenario":
            continue
        spec = model.model_fields["spec"].annotation
        assert isinstance(spec, type)
        body.append(f"\n## {name}\n\n{inspect.getdoc(spec)}\n")
        body.extend(_objects(spec, "spec", seen, kind=name, shared=shared))
    return "\n".join(body) + "\n"


def _listed() -> list[tuple[str, ...]]:
    return [
        (
            f"`{kind}`",
            f"`{declared.short_name}`",
            ", ".join(c["name"] for c in declared.columns if not c["priority"]),
        )
        for kind, declared in CUSTOM_RESOURCES.items()
    ]


def _models_below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for _, _, below, _ in _rows(model):
        if below is not None:
            yield from _models_below(below)


# ---- options.md


def _defaults_of(option: Option) -> str:
    """Return the default, after older defaults, each with the last version that had it."""
    older = [f"`{text}` until {last}" for last, text in option.until]
    return ", ".join([*older, f"`{option.default}`" if option.default else "–"])


def _profiles() -> str:
    rows = []
    for version in VERSIONS[1:-1]:
        changes = [change.text for change in CHANGES if change.since == version]
        before = VERSIONS[VERSIONS.index(version) - 1]
        changes += [
            f"`{o.key}`: `{o.default_in(before)}` → `{o.default_in(version)}`"
            for o in EFFECTIVE
            if o.default_in(before) != o.default_in(version)
        ]
        rows.append((f"`{version}`", "; ".join(changes) or f"as `{before}`"))
    return table(("`flinkVersion`", "what changes"), rows)


def _since(option: Option | catalogue.KnownKey) -> str:
    since = f"since {option.since}" if option.since else ""
    return ", ".join(filter(None, [since, f"removed in {option.removed}" if option.removed else ""]))


def _millis(option: Option) -> str:
    until = "" if option.in_millis(LATEST) else f" until {option.millis_until}"
    return f"whole milliseconds without a unit{until}"


def _effective(options: list[Option]) -> str:
    rows = []
    for o in options:
        default = _defaults_of(o)
        more = [_since(o)]
        more += [f"also {', '.join(f'`{a}`' for a in o.aliases)}"] if o.aliases else []
        more += [_millis(o)] if o.millis_until else []
        words = o.doc + (f" One of {', '.join(f'`{c}`' for c in o.choices)}." if o.choices else "")
        rows.append((f"`{o.key}`", o.type, default, "; ".join(filter(None, more)), words))
    return table(("key", "type", "default", "in Flink", "meaning"), rows)


def options_page() -> str:
    own = [o for o in EFFECTIVE if o.key.startswith(OWN_PREFIX)]
    flinks = [o for o in EFFECTIVE if o not in own]
    known = [
        (f"`{k.key}`", f"`{k.default}`" if k.default else "–", _since(k), ", ".join(f"`{a}`" for a in k.aliases))
        for k in sorted(catalogue.KNOWN, key=lambda k: k.key)
    ]  # fmt: skip
    return "\n".join(
        [
            text("options", edits=catalogue.TYPO_EDITS, profiles=_profiles()),
            f"## Effective here\n\n{_effective(flinks)}\n",
            f"## Headgate's own\n\nThese are not Flink options. An unknown key under `{OWN_PREFIX}` is an error.\n\n{_effective(own)}\n",
            f"## Known, without effect\n\n{table(('key', 'Flink’s default', 'in Flink', 'older names'), known)}\n\n"
            f"Other keys that begin with one of these have no effect either: {', '.join(f'`{a}`' for a in catalogue.AREAS_WITHOUT_EFFECT)}.\n",
        ]
    )


# ---- metrics.md, faults.md


def metrics_page() -> str:
    rows = []
    for metric in m.METRICS.values():
        better = {True: "lower", False: "higher", None: "–"}[metric.lower_is_better]
        takes = [w for w, on in (("phase", metric.phased), ("quantile", metric.quantiles)) if on]
        takes += ["safety"] if metric.safety else []
        rows.append((f"`{metric.name}`", metric.unit, better, ", ".join(takes), metric.doc, metric.source))
    reasons = [(f"`{reason}`", found.text, found.fix) for reason, found in m.REASONS.items()]
    return "\n".join(
        [
            text("metrics", quantiles=", ".join(f"{q:g}" for q in m.QUANTILES)),
            f"## All of them\n\n{table(('metric', 'unit', 'better', 'takes', 'meaning', 'measured from'), rows)}\n",
            f"## Why there is no value, and what to do\n\n{text('reasons')}\n{table(('reason', 'meaning', 'what to do'), reasons)}\n",
        ]
    )


def _written(kind: Kind) -> str:
    """Return the kind as it is written in a document, with its fields."""
    family, _, name = kind.path.partition(".")
    return f"{family}: {{{name}: {{{', '.join(f'{p.alias}: …' for p in kind.parameters)}}}}}"


def _on_one_machine(backend: str) -> str:
    if backend in PACKET_BACKENDS:
        return "as root"
    return "yes" if backend in LOCAL.backends else "no"


def faults_page() -> str:
    backends = [f"| `{name}` | {what} | {_on_one_machine(name)} |" for name, what in BACKENDS.items()]
    listed = "\n".join(backends)
    parts = [f"{text('faults')}{listed}\n\n{text('packet-backends')}"]
    for kind in KINDS.values():
        rows = [
            ("syntax", f"`{_written(kind)}`"),
            ("backends", ", ".join(f"`{b}`" for b in kind.backends)),
            ("how the effect is measured", kind.measured),
            ("counts as residue", kind.residue),
            ("limits", kind.limits),
        ]
        parts.append(f"## {kind.name}\n\n{kind.doc}\n\n{table(('', ''), rows)}\n")
    return "\n".join(parts)


# ---- cli.md


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command. Without flags it is an argument."""

    name: str
    flags: tuple[str, ...]
    kind: Any
    default: Any
    help: str


def _parameters(callback: Callable[..., Any]) -> Iterator[Parameter]:
    """Yield the parameters of a command from the annotations of its function, as Typer reads them."""
    hints = typing.get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        if typing.get_origin(hints[name]) is not typing.Annotated:
            continue
        annotation, info = typing.get_args(hints[name])[:2]
        kind = typing.get_args(annotation)[0] if isinstance(annotation, types.UnionType) else annotation
        is_option = isinstance(info, OptionInfo)
        declared = [
            d for d in (info.default, *(info.param_decls or ())) if isinstance(d, str) and d.startswith("-")
        ]
        flags = tuple(declared or (f"--{name.replace('_', '-')}",)) if is_option else ()
        yield Parameter(name, flags, kind, parameter.default, info.help or "")


def _metavar(kind: Any) -> str:
    if typing.get_origin(kind) is list:
        kind = typing.get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "|".join(str(c.value) for c in kind)
    return {int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(kind, "TEXT")


def _flag(option: Parameter) -> tuple[str, str, str]:
    value = "" if option.kind is bool else f" {_metavar(option.kind)}"
    default = getattr(option.default, "value", option.default)
    shown = "required" if default is inspect.Parameter.empty else f"`{default}`"
    if option.kind is bool or default in (None, "", []):
        shown = "–"
    return ", ".join(f"`{flag}{value}`" for flag in option.flags), shown, option.help


def _command(path: str, callback: Callable[..., Any]) -> str:
    parameters = list(_parameters(callback))
    arguments = [p for p in parameters if not p.flags]
    words = [f"{p.name.upper()}{'…' if typing.get_origin(p.kind) is list else ''}" for p in arguments]
    required = [
        f"{p.flags[0]} {_metavar(p.kind)}"
        for p in parameters
        if p.flags and p.default is inspect.Parameter.empty
    ]
    body = [f"## {path}", f"```\n{' '.join([path, *words, *required])}\n```", inspect.getdoc(callback) or ""]
    body += [f"`{p.name.upper()}`: {p.help}" for p in arguments]
    options = [_flag(p) for p in parameters if p.flags]
    if options:
        body.append(table(("option", "default", "meaning"), options))
    return "\n\n".join(body) + "\n"


def _incidents() -> str:
    """Return the tables of Flink's errors and options, with the documents that `headgate new` writes for them."""

    def listed(names: tuple[str, ...]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    rows = [(f"`{q.name}`", listed(q.errors), listed(q.keys)) for q in questions.questions().values()]
    others = [(listed(e.errors), listed(e.keys), e.answer) for e in questions.elsewhere()]
    return "\n\n".join(
        (
            table(("`headgate new`", "in Flink's log", "options, or the beginnings of their keys"), rows),
            "These have no scenario:",
            table(("in Flink's log", "options, or the beginnings of their keys", "what helps"), others),
        )
    )


def cli_page() -> str:
    app = build(whole=True)
    listed: list[tuple[str, str]] = []
    sections: list[str] = []
    for command in app.registered_commands:
        if command.hidden or command.callback is None:
            continue
        listed.append((str(command.name), inspect.getdoc(command.callback) or ""))
        sections.append(_command(f"headgate {command.name}", command.callback))
    for group in app.registered_groups:
        assert group.typer_instance is not None
        listed.append((str(group.name), str(group.help)))
        sections += [
            _command(f"headgate {group.name} {c.name}", c.callback)
            for c in group.typer_instance.registered_commands
            if c.callback is not None
        ]
    width = max(len(name) for name, _ in listed) + 2
    lines = [f"headgate {name:<{width}}{doc.partition(chr(10))[0]}" for name, doc in listed]
    return "\n".join([text("cli", help="\n".join(lines), incidents=_incidents()), *sections])


def combinations() -> str:
    """Return the table of result types and deployments."""
    rows = [
        (
            f"`{result}`",
            *("valid" if (no := COMBINATIONS[result, d]) is None else no.reason for d in DEPLOYMENTS),
        )
        for result in RESULTS
    ]
    return table(("result", *(f"`{d}`" for d in DEPLOYMENTS)), rows)


def messages_page() -> str:
    current = [(f"`{name}`", f"`{method}`") for name, method in sorted(METHODS.items())]
    before = [
        (f"`{old}`", f"`{METHODS[message]}`" if message else "–", note)
        for old, (message, note) in ACTOR_MESSAGES.items()
    ]
    return text(
        "messages",
        current=table(("message here", "method of Flink's gateways"), current),
        before=table(("until 1.4", "now", "what else changed"), before),
    )


PAGES: dict[str, Callable[[], str]] = {
    "scenario.md": scenario_page,
    "kinds.md": kinds_page,
    "options.md": options_page,
    "metrics.md": metrics_page,
    "faults.md": faults_page,
    "messages.md": messages_page,
    "cli.md": cli_page,
    "sources.md": docs_sources.page,
    "conformance.md": docs_conformance.page,
    "../helm/headgate/README.md": docs_chart.page,
}


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for name, page in PAGES.items():
        whole = f"{GENERATED}\n{page().rstrip()}\n"
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != whole:
            stale.append(name)
            if not check:
                path.write_text(whole, encoding="utf-8")
    for name in stale:
        print(f"docs/{name} {'is outdated: run make docs' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
