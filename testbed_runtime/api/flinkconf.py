"""Flink's own configuration: flink-conf.yaml, the nested config.yaml, a deployment of the Flink Kubernetes operator, or a ConfigMap."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import yaml
from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.api.catalogue import SLOTS_KEY, Standing, judge, value_problem
from testbed_runtime.api.document import compose
from testbed_runtime.api.option_rules import Collected, doubts_together, judge_key, judge_together
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.restore import STATE_RECOVERY
from testbed_runtime.core.options import ALIASES, BY_KEY, Options
from testbed_runtime.core.processmemory import PROCESS, SEGMENT, segment_problem
from testbed_runtime.core.values import java_double, parse_memory
from testbed_runtime.core.versions import LATEST, number

PLAIN = "Flink configuration"
"""The kind of a file that Flink itself reads."""
DEPLOYMENT = "FlinkDeployment"
BLUE_GREEN = "FlinkBlueGreenDeployment"
DEPLOYED = (DEPLOYMENT, "FlinkSessionJob", BLUE_GREEN)
"""Kinds of the operator with options."""
FILES = ("config.yaml", "flink-conf.yaml")
"""Names of Flink's configuration files, in a `conf` folder and in a ConfigMap."""
LAST_LEGACY = "1.20"
"""The last version of Flink that reads a flink-conf.yaml."""
FIRST_STANDARD = "1.19"
"""The first version of Flink that reads a config.yaml."""
PARTLY_MODELLED = ("high-availability.type", "state.backend.type", "taskmanager.load-balance.mode")
"""Options for which Flink has more values than Headgate supports."""
OTHER_SCHEDULERS = {"jobmanager.scheduler": "adaptive", "scheduler-mode": "reactive"}
"""Values with which a job in Flink recovers in another way than in a testbed."""
PATH = "flinkConfiguration"
"""Path of the options in messages, as in a scenario and in a FlinkDeployment."""
_DEPLOYED = re.compile(rf"^kind: *([\"']?)(?:{'|'.join(DEPLOYED)})\1\s*(?:#.*)?$", re.MULTILINE)
_TEMPLATE = "{{"
"""Text that shows that a file is a Helm template, which is not YAML yet."""
_NAMED = re.compile(r"\[([^\]]+)\]")
_PAIR = re.compile(r"^(\S.*?): \s*(\S.*)$")
_LEGACY = re.compile(r"^([^\s:#][^:#]*): \s*(\S.*)$")
"""A line that shows that a file is probably a flink-conf.yaml, whatever its name."""
_QUANTITY = re.compile(r"^(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti)$")
_TAG = "tag:yaml.org,2002:"
_NULL, _TEXT = f"{_TAG}null", f"{_TAG}str"
_SCHEMA = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]{1,99}|0o[0-7]{1,99}|0x[0-9a-fA-F]{1,99}",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}
"""Tag of a plain value → what it looks like in YAML 1.2's core schema."""
_BUILT = (*_SCHEMA, "str", "seq", "map", "set", "binary")
"""The tags for which Flink's parser has a constructor."""
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


NOTHING: Mapping[int, str] = MappingProxyType({})


class _Loader(yaml.SafeLoader):
    """Reads a config.yaml as Flink's parser does: with YAML 1.2's core schema, in which `yes` and `1_000` are words."""


class _Dumper(yaml.SafeDumper):
    """Writes the list of an option as Flink shows it."""


for _class in (_Loader, _Dumper):
    _class.yaml_implicit_resolvers = {}
    for _name, _pattern in _SCHEMA.items():
        _class.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), None)


class FlinkConf(Struct, frozen=True, kw_only=True):
    """The options of a Flink configuration, and the size of its cluster if the file states it (0 if not)."""

    kind: str
    name: str = ""
    file: str = ""
    """The key of a ConfigMap that holds it, which is the name of the file."""
    options: Mapping[str, str]
    lines: Mapping[str, int]
    """Line of each option in the file."""
    flink_version: str = ""
    """The version of a FlinkDeployment, as in `1.20`; empty if the file does not state one."""
    legacy: bool = False
    """Whether it is a flink-conf.yaml, which Flink reads until 1.20."""
    ignored: Mapping[int, str] = NOTHING
    """Lines of it that are no `key: value` pairs, by their number."""
    refused: Mapping[int, str] = NOTHING
    """Problems of a config.yaml with which Flink does not start, by the number of their line."""
    taskmanagers: int = 0
    parallelism: int = 0

    @property
    def version(self) -> str:
        """Return the version of Flink to assume: the one that the file states, or the newest that reads such a file."""
        return self.flink_version or (LAST_LEGACY if self.legacy else LATEST)

    def not_read_by(self, version: str, file: str) -> str:
        """Return the warning that this version of Flink does not read a file of this name, or a key of a ConfigMap; empty if it does."""
        standard, legacy = FILES
        if self.kind in DEPLOYED:
            return ""
        file = self.file or file
        if self.legacy and file == legacy and number(version) > number(LAST_LEGACY):
            return f"Flink {version} reads {standard} instead of {legacy} (Flink's bin/migrate-config-file.sh converts it)"
        if not self.legacy and file == standard and number(version) < number(FIRST_STANDARD):
            return f"Flink {version} reads {legacy} instead of {standard} (write each option as one `key: value` line)"
        return ""

    def place(self, message: str, before: str, after: str) -> str:
        """Return the line of a message's option between two texts, or nothing if the file does not set the option."""
        line = self.line(message)
        return f"{before}{line}{after}" if line else ""

    def sets(self, path: str, prefix: str) -> bool:
        """Return whether an error is about the value of a known option that begins with `prefix`."""
        named = _NAMED.search(path)
        key = ALIASES.get(named[1], named[1]) if named else ""
        return key.startswith(prefix) and key in BY_KEY

    def line(self, message: str) -> int | None:
        """Return the line of the option that a message such as `flinkConfiguration[heartbeat.timeout]: …` names."""
        named = _NAMED.search(message)
        return self.lines.get(named[1]) if named else None

    @property
    def is_certain(self) -> bool:
        """Return whether only Flink has such a file. Other programs have a config.yaml too, perhaps with sections such as `rest` or
        `client`, whose keys have no effect here."""
        effective = (judge(key, LATEST).standing is Standing.EFFECTIVE for key in self.options)
        return self.kind in DEPLOYED or self.legacy or any(effective)

    @property
    def slots(self) -> int:
        """Return the slots of a TaskManager."""
        text = self.options.get(SLOTS_KEY, "")
        return int(text) if text.isdecimal() and int(text) else 1


def read(text: str, name: str) -> FlinkConf:
    """Read the text of a file. Raises UserError if it is none of the four kinds, or has several configurations. Pure."""
    first, *others = read_all(text, name)
    if others:
        names = ", ".join(f"{conf.kind} {conf.name}".strip() for conf in (first, *others))
        raise UserError(
            name, f"has more than one Flink configuration: {names}", "write each into a file of its own"
        )
    return first


def read_all(text: str, name: str) -> list[FlinkConf]:
    """Read the text of a file that may have several objects of Kubernetes. Raises UserError if it is none of the four kinds. Pure."""
    if name.endswith(FILES[1]) and (found := _legacy(text, lenient=True)):
        return [found]
    is_yaml = re.split("[/ ]", name)[-1] == FILES[0]
    try:
        nodes = compose(text, name, _Loader)
    except UserError:  # flink-conf.yaml is read line by line, and need not be YAML
        if not is_yaml and (found := _legacy(text)):
            return [found]
        raise
    if objects := list(_in_kubernetes(nodes, name)):
        return objects
    if (
        len(nodes) == 1
        and _at(nodes[0], "kind") is None
        and (options := dict(_options(nodes[0], typed=True)))
    ):
        return [_plain(options, refused=dict(_refused(nodes[0])))]
    raise UserError(
        name,
        "is not a Flink configuration",
        f"name a {FILES[1]}, a {FILES[0]}, a {DEPLOYMENT}, or a ConfigMap with one of these files",
    )


def _in_kubernetes(nodes: Iterable[yaml.Node], name: str) -> Iterator[FlinkConf]:
    """Yield the configurations in objects of Kubernetes, also in a List, as `kubectl get -o yaml` prints several."""
    for node in nodes:
        kind = _text(_at(node, "kind"))
        items = _at(node, "items")
        if kind in DEPLOYED:
            yield _deployment(node)
        elif kind == "ConfigMap" and (inner := _in_config_map(node, name)):
            yield inner
        elif kind == "List" and isinstance(items, yaml.SequenceNode):
            yield from _in_kubernetes(items.value, name)


def find(text: str, name: str) -> tuple[FlinkConf, ...]:
    """Return the Flink configurations in the text of a file that was named as something else; none if it is something else. Pure."""
    try:
        found = read_all(text, name)
    except UserError:
        return ()
    known = (Standing.EFFECTIVE, Standing.WITHOUT_EFFECT)
    certain = any(
        conf.kind in DEPLOYED or any(judge(key, LATEST).standing in known for key in conf.options)
        for conf in found
    )
    return tuple(found) if certain else ()


def is_deployment(text: str) -> bool:
    """Return whether a text has an object of the Flink Kubernetes operator with options, even if the text cannot be parsed. Pure."""
    return _TEMPLATE not in text and _DEPLOYED.search(text) is not None


class ConfFindings(Struct, frozen=True, kw_only=True):
    """The result of checking a Flink configuration."""

    errors: tuple[UserError, ...]
    """Keys and values that Flink does not read. They are not among the usable ones."""
    contradictions: tuple[UserError, ...]
    """Usable options with which Flink does not start together."""
    warnings: tuple[str, ...]
    without_effect: tuple[str, ...]
    """Keys that change nothing here."""
    usable: Mapping[str, str]
    """The options that a scenario can have: those with an effect and a valid value. Durations have a unit, if Flink reads one."""


def judge_options(conf: FlinkConf, version: str) -> ConfFindings:
    """Check the options for a version of Flink. Pure."""
    collected, written, usable = Collected(), dict[str, str](), dict[str, str]()
    options = Options(conf.options, flink_version=version)
    for line, plain in conf.ignored.items():
        problem = f"{plain!r} is not a `key: value` pair, so Flink ignores it"
        collected.errors.append(UserError(f"line {line}", problem, _as_pair(plain)))
    for line, why in conf.refused.items():
        problem = f"{why}, so Flink does not start (Error parsing YAML configuration.)"
        collected.errors.append(
            UserError(f"line {line}", problem, "write a name as the key and a value after it")
        )
    for key, value in conf.options.items():
        standing, canonical = judge(key, version).standing, ALIASES.get(key, key)
        if standing in (Standing.WITHOUT_EFFECT, Standing.UNKNOWN):
            collected.without_effect.append(key)  # this applies to secrets too, whose values are not recorded
            if value.lower() == OTHER_SCHEDULERS.get(key):
                why = "is not modelled: here a job restarts with its own parallelism, and waits for all of its slots"
                collected.warnings.append(f"{PATH}[{key}]: {value!r} {why}")
        elif canonical == SLOTS_KEY:
            if not (value.isdecimal() and int(value)):
                problem = f"{value!r} is not a number of slots"
                collected.errors.append(UserError(f"{PATH}[{key}]", problem, "write a whole number from 1"))
        elif doubt := _not_modelled(canonical, value, version):
            collected.warnings.append(f"{PATH}[{key}]: {doubt}")
        else:
            before = len(collected.errors)
            judge_key(
                key,
                value,
                version=version,
                where=f"{PATH}[{key}]",
                written=written,
                collected=collected,
                flink_reads=True,
            )
            if len(collected.errors) == before and canonical != STATE_RECOVERY:
                in_millis = BY_KEY[canonical].in_millis(version)
                usable[key] = options.text(canonical) if in_millis else options.shown(canonical)
    together = Options(usable, flink_version=version)
    problem = segment_problem(together)
    contradictions = (
        (UserError(f"{PATH}[{SEGMENT}]", problem),)
        if problem
        else tuple(judge_together(together, PATH, written))
    )
    if not contradictions:
        collected.warnings += doubts_together(together, PATH, written)
    return ConfFindings(
        errors=tuple(collected.errors),
        contradictions=contradictions,
        warnings=tuple(collected.warnings),
        without_effect=tuple(collected.without_effect),
        usable=usable,
    )


def _as_pair(line: str) -> str:
    """Return how to write a line that is not a `key: value` pair."""
    if line.endswith(":"):
        return f"this file is not nested: write the whole key in each line, as in {line[:-1]}.key: value"
    if ":" in line:
        return "write a space after the colon"
    key, separator, value = line.partition("=")
    return f"write {key.strip()}: {value.strip()}" if separator else "remove it, or begin it with #"


def _not_modelled(canonical: str, value: str, version: str) -> str:
    """Return why a value that Flink may know has no effect here, or an empty string."""
    if canonical not in PARTLY_MODELLED or not value_problem(option := BY_KEY[canonical], value, version):
        return ""
    return f"{value!r} is not modelled, so it has no effect here (modelled are {', '.join(option.choices)})"


def _plain(
    options: Mapping[str, tuple[str, int]],
    *,
    legacy: bool = False,
    ignored: Mapping[int, str] = NOTHING,
    refused: Mapping[int, str] = NOTHING,
) -> FlinkConf:
    values = {key: value for key, (value, _) in options.items()}
    return FlinkConf(
        kind=PLAIN,
        options=values,
        lines={key: line for key, (_, line) in options.items()},
        legacy=legacy,
        ignored=ignored,
        refused=refused,
        parallelism=_number(values.get("parallelism.default", "")),
    )


def _legacy(text: str, *, lenient: bool = False) -> FlinkConf | None:
    """Return the options of a file of `key: value` lines, as Flink reads it until 1.20; None if it has other lines. `lenient`: like Flink,
    read each line by itself, even if it is indented, and ignore lines that are no pairs."""
    found: dict[str, tuple[str, int]] = {}
    ignored: dict[int, str] = {}
    before = (0, "")
    for at, line in enumerate(text.splitlines(), 1):
        plain = line.partition("#")[0].rstrip()
        if lenient:
            if before[1].endswith(":") and plain[:1].isspace():  # nested, as in a config.yaml
                ignored.setdefault(*before)
            plain = plain.lstrip()
        if not plain or plain == "---":
            continue
        before = (at, plain)
        match = (_PAIR if lenient else _LEGACY).match(plain)
        if match:
            found[match[1].rstrip()] = (match[2], at)
        elif not plain.endswith(":"):
            ignored[at] = plain
    if not found or "kind" in found or (ignored and not lenient):
        return None
    return _plain(found, legacy=True, ignored=ignored)


def _deployment(node: yaml.Node) -> FlinkConf:
    kind = _text(_at(node, "kind"))
    spec = _at(node, *(("spec", "template", "spec") if kind == BLUE_GREEN else ("spec",)))
    options = dict(_options(_at(spec, "flinkConfiguration"), typed=False))
    memory = _at(spec, "taskManager", "resource", "memory")
    if memory is not None and _text(memory):  # the operator overwrites the option with it
        options[PROCESS] = (_resource_memory(_text(memory)), memory.start_mark.line + 1)
    version = _text(_at(spec, "flinkVersion"))
    found = _plain(options)
    return replace(
        found,
        kind=kind,
        name=_text(_at(node, "metadata", "name")),
        flink_version=version.lower().removeprefix("v").replace("_", "."),
        taskmanagers=_number(_text(_at(spec, "taskManager", "replicas"))),
        parallelism=_number(_text(_at(spec, "job", "parallelism"))) or found.parallelism,
    )


def _in_config_map(node: yaml.Node, name: str) -> FlinkConf | None:
    for file in FILES:
        inner = _at(node, "data", file)
        if isinstance(inner, yaml.ScalarNode):
            found = read(inner.value, f"{name}: {file}")
            first = inner.start_mark.line + 1
            return replace(
                found,
                kind="ConfigMap",
                file=file,
                name=_text(_at(node, "metadata", "name")),
                lines={key: first + line for key, line in found.lines.items()},
                ignored={first + line: plain for line, plain in found.ignored.items()},
                refused={first + line: why for line, why in found.refused.items()},
            )
    return None


def _resource_memory(text: str) -> str:
    """Return a size of a FlinkDeployment in Flink's syntax. Units that Flink does not know are read as Kubernetes' units."""
    try:
        parse_memory(text)
    except ValueError:
        if match := _QUANTITY.match(text):
            return f"{int(float(match[1]) * _BINARY[match[2]])} b"
    return text


def _at(node: yaml.Node | None, *steps: str) -> yaml.Node | None:
    for step in steps:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        node = next((value for key, value in pairs if key.value == step), None)
    return node


def _text(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _options(
    node: yaml.Node | None, prefix: str = "", *, typed: bool
) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield (key, (value, line)) of nested or flat options. Keys without a value are left out. `typed`: see `_value`."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        path = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode):
            yield from _options(value, f"{path}.", typed=typed)
        elif value.tag != _NULL and not (typed and _misread(value)):
            yield path, (_value(value, typed=typed), value.start_mark.line + 1)


def _value(node: yaml.Node, *, typed: bool) -> str:
    """Return a value as text: as it is written or, if `typed`, as Flink does after YAML 1.2 has read it."""
    if not typed or isinstance(node, yaml.MappingNode):
        return str(node.value)
    if isinstance(node, yaml.SequenceNode):
        listed = _shown(node)
        return yaml.serialize(listed, Dumper=_Dumper, width=float("inf"), allow_unicode=True).rstrip("\n")
    return _scalar(node)


def _shown(node: yaml.Node) -> yaml.Node:
    """Return a node of a list as Flink writes it."""
    if isinstance(node, yaml.SequenceNode):
        return yaml.SequenceNode(node.tag, [_shown(each) for each in node.value], flow_style=True)
    if isinstance(node, yaml.MappingNode):
        pairs = [(_shown(key), _shown(value)) for key, value in node.value]
        return yaml.MappingNode(node.tag, pairs, flow_style=True)
    return yaml.ScalarNode(node.tag, "null" if node.tag == _NULL else _scalar(node))


def _scalar(node: yaml.Node) -> str:
    """Return a number, a boolean or a text as Java shows it."""
    text = str(node.value)
    match node.tag.removeprefix(_TAG):
        case "int":
            return str(int(text, 0 if text[1:2] in "ox" else 10))
        case "float":
            if text.startswith("+.") and text[-1].isalpha():
                raise ValueError("Flink's parser matches +.inf and cannot read it")
            number = float(text.replace(".", "", 1) if text[-1].isalpha() else text)
            return (
                java_double(number)
                if math.isfinite(number)
                else str(number).replace("inf", ".inf").replace("nan", ".nan")
            )
        case "bool":
            return text.lower()
        case _:
            return text


def _refused(node: yaml.Node) -> Iterator[tuple[int, str]]:
    """Yield the line and the problem of what Flink's parser does not read: keys that have no value or are not strings, and values that do
    not fit their tag."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        line = key.start_mark.line + 1
        if value.tag == _NULL:
            yield line, f"{key.value!r} has no value"
        elif key.tag not in (_TEXT, _NULL):
            yield line, f"the key {key.value!r} is not a string"
        elif not isinstance(value, yaml.MappingNode) and (problem := _misread(value)):
            yield line, f"the value of {key.value!r} {problem}"
        yield from _refused(value)


def _misread(node: yaml.Node) -> str:
    """Return why Flink's parser refuses a value, or nothing."""
    if node.tag.removeprefix(_TAG) not in _BUILT:
        return f"has the unknown tag {node.tag!r}"
    try:
        _value(node, typed=True)
    except ValueError:
        return "is not a number"
    return ""
