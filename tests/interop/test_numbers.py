"""Flink's own arithmetic beside Headgate's: memory of a TaskManager, key groups, default max parallelism, values of options, files."""

from __future__ import annotations

import base64
import json
import random
import subprocess

import numpy as np
import pytest

from testbed_runtime.api import flinkconf
from testbed_runtime.core.job.keygroups import (
    compute_default_max_parallelism,
    group_range,
)
from testbed_runtime.core.options import EFFECTIVE, HEAP_MB, OWN_PREFIX, Options
from testbed_runtime.core.processmemory import NETWORK, OVERHEAD, PREFIX
from testbed_runtime.core.values import NS, PARSERS, parse_duration
from testbed_runtime.core.versions import number
from testbed_runtime.workload.keys import murmur_hashes
from tests.api.test_flinkconf import PLAIN
from tests.core.test_processmemory import VECTORS, as_flink_names_it, as_flink_said_it
from tests.interop.flink import LIMIT_S

pytestmark = pytest.mark.processes
DRAWN = 300
NUMBERS = (
    "",
    "0",
    "007",
    "12",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "-1",
    "+5",
    "1.5",
    ".5",
    "1e3",
    "1_0",
)
UNITS = ("", "ms", " s", " min", "days", " us", "b", " kb", "mebibytes", "kib", "MB", "S")
WORDS = (
    "true",
    "FALSE",
    "yes",
    "PT1.5S",
    "pt2m",
    "P1DT2H3M4.5S",
    "-PT1S",
    "PT1M-5S",
    "PT",
    "P1W",
    "PT5.S",
    "PT9223372036854775807S",
)
PADDED = ("{}", " {}", "{}\n", "\u00a0{}", "\x1f{}")
FLINK_CONFS = (
    "heartbeat:\n  timeout: 5 s\n",
    "a.b: 1 # a note\na.b: 2#b\nc:3\nd : 4\n e:  'x y' \n",
    'a: b: c\nf=g\nh: \n--- \ni: &j 5\nk:l: "m"\r\nn:\t7\no: \tp',
)

OTHER_JARS = ("high-availability.kubernetes.", "state.backend.rocksdb.")
READ_BY_HAND = {"security.ssl.enabled", "taskmanager.heap.size", HEAP_MB}
"""Older names that are not deprecated keys of Flink's options: its code reads them."""
OWN_DEFAULTS = (
    "taskmanager.memory.process.size", "execution.checkpointing.num-retained", "cluster.evenly-spread-out-slots",
    "resourcemanager.standalone.start-up-time",
)  # fmt: skip
"""Options whose default differs on purpose, as docs/options.md says."""
DEFAULTS_IN_CODE = (
    "restart-strategy.type",
    "state.backend.type",
    "execution.checkpointing.interval",
    "taskmanager.cpu.cores",
)
"""Options without a default in Flink, whose code decides what unset means."""
TYPES = {
    "Duration": "duration", "MemorySize": "memory", "Boolean": "boolean", "Integer": "integer", "Double": "double", "Float": "double",
}  # fmt: skip


def asked(flink, lines):
    """Return the answer of Flink to each line."""
    done = subprocess.run(
        flink.java("numbers"),
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def a_configuration(draw: random.Random) -> dict[str, str]:
    """Any mixture of sizes and fractions; about half of them start."""
    sizes = (
        "process.size",
        "flink.size",
        "task.heap.size",
        "managed.size",
        "task.off-heap.size",
        "framework.heap.size",
    )
    found = {PREFIX + draw.choice(["process.size", "flink.size"]): f"{draw.randint(600, 30_000)}m"}
    for size in draw.sample(sizes, draw.choice([0, 0, 1, 2])):
        found[PREFIX + size] = f"{draw.randint(0, 3_000_000_000)}b"
    for key in draw.sample(
        [f"{NETWORK}.fraction", f"{OVERHEAD}.fraction", PREFIX + "managed.fraction"], draw.randint(0, 3)
    ):
        found[key] = f"{draw.random() * 0.6:.6f}"
    for part in draw.sample([NETWORK, OVERHEAD], draw.randint(0, 2)):
        found[f"{part}.max"] = f"{draw.randint(64, 9000)}m"
    return found


def test_memory_is_what_flinks_task_executor_process_utils_calculates(flink):
    """The vectors of the unit tests, and drawn configurations: every byte and every refusal."""
    draw = random.Random(7)
    cases = [{PREFIX + k: v for k, v in vector["configuration"].items()} for vector in VECTORS]
    cases += [a_configuration(draw) for _ in range(DRAWN)]
    answers = asked(flink, ["memory " + ";".join(f"{k}={v}" for k, v in case.items()) for case in cases])
    assert len(answers) == len(cases)
    ours = [as_flink_names_it(Options(case, flink_version=flink.name)) for case in cases]
    assert ours == [as_flink_said_it(answer) for answer in answers]
    assert DRAWN / 4 < sum("errors" not in answer for answer in answers[len(VECTORS) :]) < DRAWN


def test_key_groups_are_those_of_flinks_key_group_range_assignment(flink):
    """Murmur, group, subtask and default max parallelism of 5,000 hashes and the extreme ones."""
    draw = random.Random(7)
    hashes = [0, 1, -1, 2**31 - 1, -(2**31), *(draw.randrange(-(2**31), 2**31) for _ in range(5000))]
    cases = []
    for code in hashes:
        most = draw.choice([1, 7, 128, 512, 1024, 32768])
        cases.append((code, draw.randint(1, most), most))
    answers = asked(flink, [f"group {code} {parallelism} {most}" for code, parallelism, most in cases])
    owners = [answer.pop("subtask") for answer in answers]
    murmurs = murmur_hashes(np.array(hashes, dtype=np.int32)).tolist()
    for owner, murmur, (_, parallelism, most) in zip(owners, murmurs, cases, strict=True):
        assert murmur % most in group_range(owner, parallelism, most)
    assert answers == [
        {
            "murmur": murmur,
            "group": murmur % most,
            "default": compute_default_max_parallelism(parallelism),
        }
        for murmur, (_, parallelism, most) in zip(murmurs, cases, strict=True)
    ]


def as_headgate_has_it(option, flink) -> dict[str, object]:
    """Type, default and older names of an option, as the version of Flink declares them."""
    default, version = option.default_in(flink.name), flink.name
    return {
        "type": "number" if option.in_millis(version) else option.type,
        "default": option.parse(default, version) if default else None,
        "older": {*option.aliases} - READ_BY_HAND - {option.name_in(version)},
    }


def as_flink_has_it(option, row, flink) -> dict[str, object]:
    """The same of a row of Flink's answer. Values have the syntax that the version reads, except durations."""
    in_millis = option.in_millis(flink.name)
    default = str(row["default"])
    if row["type"] == "Duration" and default != "null":
        default = f"{parse_duration(default, '2.x') * 1000:.0f} ms"
    return {
        "type": "number"
        if in_millis and row["type"] in ("Integer", "Long")
        else TYPES.get(row["type"], "string"),
        "default": None if default == "null" else option.parse(default, flink.name),
        "older": {*row["older"]} & {*option.aliases},
    }


def test_every_option_has_the_type_the_default_and_the_older_names_of_flinks(flink):
    """All options with an effect here that this version of Flink has, in all of its *Options classes."""
    theirs = asked(flink, ["options all"])[0]
    compared = 0
    for option in EFFECTIVE:
        key = option.name_in(flink.name)
        gone = option.removed and number(option.removed) <= number(flink.name)
        new = key == option.key and option.since and number(option.since) > number(flink.name)
        assert not new or option.key not in theirs, option.key
        if not gone and not new and not key.startswith((OWN_PREFIX, *OTHER_JARS)):
            ours, flinks = as_headgate_has_it(option, flink), as_flink_has_it(option, theirs[key], flink)
            if option.key in (*OWN_DEFAULTS, *DEFAULTS_IN_CODE):
                flinks["default"] = ours["default"]
            assert (key, ours) == (key, flinks)
            compared += 1
    assert compared > 80


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def as_headgate_reads_it(kind: str, text: str, version: str) -> object:
    """A value of an option, or None if it is refused."""
    try:
        return parse_duration(text, version) if kind == "duration" else PARSERS[kind](text)
    except ValueError:
        return None


def as_flink_reads_it(kind: str, answer: dict[str, object]) -> object:
    """The same of Flink's answer."""
    value = answer.get("value")
    if kind == "duration" and value is not None:
        seconds, nanos = map(int, str(value).split())
        return (seconds * NS + nanos) / NS
    if kind == "boolean" and value is not None:
        return value == "true"
    return float(str(value)) if kind == "double" and value is not None else value


@pytest.mark.parametrize("kind", ["duration", "memory", "integer", "double", "boolean"])
def test_values_of_options_are_those_of_flinks_configuration(flink, kind):
    """Numbers with and without units, ISO 8601 durations and words, with blanks around them."""
    texts = [number + unit for number in NUMBERS for unit in UNITS] + list(WORDS)
    texts = [form.format(text) for text in texts for form in PADDED]
    answers = asked(flink, [f"value {kind} {in_base64(text)}" for text in texts])
    theirs = {text: as_flink_reads_it(kind, answer) for text, answer in zip(texts, answers, strict=True)}
    assert {text: as_headgate_reads_it(kind, text, flink.name) for text in texts} == theirs
    assert None in theirs.values()


def test_a_flink_conf_has_the_options_that_flinks_global_configuration_loads(flink):
    """Nested keys, comments, quotes, duplicates, tabs, and lines that are no pairs."""
    if flink.name != "1.20":
        pytest.skip("2.x reads no flink-conf.yaml")
    answers = asked(flink, [f"file flink-conf.yaml {in_base64(text)}" for text in FLINK_CONFS])
    ours = [flinkconf.read(text, "flink-conf.yaml").options for text in FLINK_CONFS]
    assert ours == [answer["options"] for answer in answers]


def test_a_config_yaml_has_the_options_that_flinks_global_configuration_loads(flink):
    """Numbers in YAML 1.2, words, lists, quotes, nested and flat keys."""
    texts = [f"a: {{b: {written}}}\nc.d: 1\n" for written in PLAIN]
    answers = asked(flink, [f"file config.yaml {in_base64(text)}" for text in texts])
    ours = [flinkconf.read(text, "config.yaml").options for text in texts]
    assert ours == [answer["options"] for answer in answers]
