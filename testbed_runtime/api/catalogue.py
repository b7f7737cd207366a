"""Flink's option keys: those with an effect here (core.options.EFFECTIVE), and all others that Flink knows (catalogue.json).

`judge` classifies a key: effective, known without effect, a typo of a known key, or unknown. Defaults, versions and aliases are
those of Flink's configuration reference and its `*Options` classes.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from testbed_runtime.core.options import (
    ALIASES,
    BY_KEY,
    HEAP_MB,
    OWN_PREFIX,
    REQUIRED_PER_GATE,
    SAMPLES,
    SORT_MIN_BUFFERS,
    Option,
)
from testbed_runtime.core.values import SIGNED, is_bare, missing_unit
from testbed_runtime.core.versions import LATEST, number

SLOTS_KEY = "taskmanager.numberOfTaskSlots"
TYPO_EDITS = 2
"""Largest edit distance (insertions, deletions, substitutions, swaps) at which a key counts as a typo of a known one."""


class KnownKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A Flink option. `since` and `removed` are Flink versions; empty: since the first one, or not removed. `aliases` are older names."""

    key: str
    default: str = ""
    since: str = ""
    removed: str = ""
    aliases: tuple[str, ...] = ()


KNOWN = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=tuple[KnownKey, ...])
"""Keys that Flink knows and that have no effect on a testbed."""

WITHOUT_EFFECT: dict[str, KnownKey] = {
    **{k.key: k for k in KNOWN},
    **{a: k for k in KNOWN for a in k.aliases if a not in ALIASES},
}
AREAS_WITHOUT_EFFECT = (
    "akka.", "blob.", "classloader.", "cleanup-strategy", "client.", "containerized.", "dstl.", "env.", "external-resource",
    "flink.hadoop.", "fs.", "high-availability.kubernetes.", "high-availability.zookeeper.", "historyserver.", "jmx.", "job-event.",
    "job-result-store.", "job.autoscaler.", "jobstore.", "kubernetes.", "metrics.", "pekko.", "process.", "python.", "queryable-state.",
    "rest.", "s3.", "security.", "slow-task-detector.", "sql-client.", "sql-gateway.", "state.", "table.", "traces.", "user.", "web.",
    "yarn.", "zookeeper.",
)  # fmt: skip
"""Prefixes of keys about components that a testbed does not have, for example a REST server, metric reporters, or file systems. A key
with such a prefix that is neither effective nor a typo of a known key has no effect."""
_TYPO_TARGETS = sorted({*BY_KEY, *ALIASES, *WITHOUT_EFFECT})


class Standing(enum.Enum):
    """How a key is classified."""

    EFFECTIVE = "effective"
    WITHOUT_EFFECT = "without effect here"
    TYPO = "typo"
    UNKNOWN = "unknown"


class Judgement(Struct, frozen=True):
    """The classification of a key. `canonical` is the key to use instead of an alias or a typo; `note` is a message, often empty."""

    standing: Standing
    canonical: str
    note: str = ""
    is_read: bool = False
    """Whether this version of Flink reads an option by this key."""


def judge(key: str, flink_version: str) -> Judgement:
    """Classify a key for a version of Flink. Pure and total."""
    known: Option | KnownKey | None = BY_KEY.get(ALIASES.get(key, key)) or WITHOUT_EFFECT.get(key)
    if known is not None:
        return _known(key, known, flink_version)
    near = _typo_of(key) or _shortened(key)
    if near:
        return Judgement(Standing.TYPO, near)
    if key.startswith(AREAS_WITHOUT_EFFECT):
        return Judgement(Standing.WITHOUT_EFFECT, key)
    if key.startswith(OWN_PREFIX):
        own = [k for k in _TYPO_TARGETS if k.startswith(OWN_PREFIX)]
        return Judgement(Standing.TYPO, difflib.get_close_matches(key, own, n=1, cutoff=0.0)[0])
    return Judgement(Standing.UNKNOWN, key)


def _typo_of(key: str) -> str:
    """Return the nearest known key within TYPO_EDITS of this one, or an empty string."""
    candidates = difflib.get_close_matches(key, _TYPO_TARGETS, n=5, cutoff=0.8)
    near = min(candidates, key=lambda known: edits(key, known), default="")
    return near if near and edits(key, near) <= TYPO_EDITS else ""


def _shortened(key: str) -> str:
    """Return the only option with an effect of which this key lacks parts in the middle, or an empty string."""
    given, found = key.split("."), set[str]()
    for known in (*BY_KEY, *ALIASES):
        parts = known.split(".")
        ends_alike = (parts[0], parts[-1]) == (given[0], given[-1]) and len(given) > 1
        if ends_alike and _is_within(given[1:-1], parts[1:-1]):
            found.add(ALIASES.get(known, known))
    return found.pop() if len(found) == 1 else ""


def _is_within(some: Sequence[str], parts: Iterable[str]) -> bool:
    """Return whether all elements are in another sequence, in this order."""
    left = iter(parts)
    return all(part in left for part in some)


def edits(a: str, b: str) -> int:
    """Return the edit distance: insertions, deletions, substitutions and swaps of neighbours."""
    before, row = list[int](), list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        oldest, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                best = min(best, oldest[j - 2] + 1)
            row.append(best)
    return row[-1]


_NOT_READ_BY_2 = ("security.ssl.enabled", "jobmanager.heap.size", "taskmanager.heap.size", HEAP_MB)
"""Older names of options that Flink 2 does not read. It reads all other older names, as deprecated keys."""


def _known(key: str, option: Option | KnownKey, flink_version: str) -> Judgement:
    """Return the judgement of a known key, with a note if this version of Flink does not read it or prefers another name."""
    version, standing, still = number(flink_version), Standing.WITHOUT_EFFECT, ""
    if option.key in BY_KEY:
        standing, still = Standing.EFFECTIVE, ", but here the key still has its effect"
    is_newest = key == option.key
    note, is_read = "", False
    # before a rename, the older name is right
    if is_newest and option.since and number(option.since) > version:
        advice = f"(leave it out, or choose {option.since} or later)"
        if option.aliases:
            advice = f"and reads {option.aliases[0]}" + (still and ", but here it has its effect")
        else:
            standing = Standing.WITHOUT_EFFECT
        note = f"{key} came with Flink {option.since}; {flink_version} ignores it {advice}"
    elif option.removed and number(option.removed) <= version:
        note = f"{key} was removed in Flink {option.removed}; {flink_version} does not read it{still}"
    elif key in _NOT_READ_BY_2 and version >= (2, 0):
        note = f"{key} was removed in Flink 2.0; {flink_version} reads only {option.key}{still}"
    else:
        is_read = True
        if not is_newest and version >= (2, 0):
            note = f"{key} is called {option.key} today, and Flink {flink_version} still reads {key}"
    return Judgement(standing, option.key, note, is_read)


def value_problem(option: Option, value: str, version: str = LATEST) -> str:
    """Return why a value does not fit its option in a version of Flink, or an empty string if it does."""
    try:
        parsed = option.parse(value, version)
    except ValueError as error:
        if option.in_millis(version):
            default = option.written(option.default_in(version), version)
            return f"{value!r} is not a duration: write whole milliseconds, as in {default!r}"
        return str(error)
    least = _LEAST.get(option.key)
    if option.key == SAMPLES and option.is_removed_in(version):
        return ""  # a value below 1 counts as 1
    if least is not None and float(parsed) < least:
        return (
            f"{value!r} is too small: it must be at least {least}{' byte' if option.type == 'memory' else ''}"
        )
    return ""


_LEAST = {
    "taskmanager.memory.segment-size": 1,
    "taskmanager.network.memory.buffers-per-channel": 0,
    "taskmanager.network.memory.floating-buffers-per-gate": 1,
    REQUIRED_PER_GATE: 1,
    SORT_MIN_BUFFERS: 1,
    "taskmanager.network.request-backoff.initial": 0,
    "taskmanager.network.request-backoff.max": 0,
    SAMPLES: 1,
    "web.backpressure.delay-between-samples": 0,
    "web.backpressure.refresh-interval": 0,
}
"""The smallest values of options from which sizes and times are calculated."""

_SHARES = ("restart-strategy.exponential-delay.jitter-factor",)
"""Options whose value is a share. A value above 1 was probably meant as a percentage."""


def value_doubt(option: Option, value: str, version: str, *, written: str = "") -> str:
    """Return why a value that fits its option was probably not meant, or is not read by this version of Flink; empty without a doubt.
    `written` is the key as the user wrote it."""
    if option.in_millis(version):
        millis = option.written(value, version)
        until = "" if option.millis_until == LATEST else f" {version}"
        return (
            ""
            if is_bare(value) or SIGNED.fullmatch(value)
            else f"Flink{until} reads whole milliseconds here, without a unit (write {millis!r})"
        )
    if option.type == "duration" and not written.endswith("-ms"):
        return missing_unit(value)
    if option.key in _SHARES and option.parse(value) > 1:
        return f"{value} is a share of {option.parse(value) * 100:,.0f} % (write '0.1' for 10 %)"
    return ""
