"""The questions that `headgate new` turns into a document, and the errors and options that each of them is about (questions.yaml)."""

from __future__ import annotations

import re
from functools import cache
from operator import itemgetter
from pathlib import Path

import msgspec
import yaml
from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.api.catalogue import judge
from testbed_runtime.core.versions import LATEST

DATA = Path(__file__).with_suffix(".yaml")


class Line(Struct, frozen=True, forbid_unknown_fields=True):
    """An option with its value in YAML and a comment."""

    key: str
    value: str
    why: str
    before_2: bool = False
    """Whether only documents of Flink 1 have it."""


class Question(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question, and what its document contains besides the job."""

    name: str
    question: str
    hypothesis: str
    options: tuple[Line, ...]
    """Lines of flinkConfiguration. In the file, those that all questions have are left out."""
    restarts: bool = True
    """Whether it has a restart strategy of its own."""
    faults: str = ""
    """Items of `spec.faults`, without indentation."""
    expect: tuple[tuple[str, str], ...]
    """(expectation in YAML, comment). In the file, those that all questions have are left out."""
    observation_s: int
    limit_s: int = 0
    """`{limit}`: how long the recovery may take with the options of the question."""
    heartbeats: bool = False
    """Whether heartbeats detect the fault. It then begins at a random moment of their interval. The observation and the limit allow for the
    reader's heartbeat timeout and restart delay."""
    checkpoints: bool = False
    """Whether a checkpoint has to begin during the observation. It and the faults then last one interval of the reader's checkpoints longer."""
    errors: tuple[str, ...] = ()
    """Parts of the lines that Flink logs when the problem occurs. `*` is any text."""
    keys: tuple[str, ...] = ()
    """The options, or beginnings of their keys, that the question is about."""
    baseline: str = "3 s"
    drain_s: int = 10
    spare: int = 1
    """Number of spare TaskManagers, for the tasks of a lost one."""
    replace_lost: str = "Never"
    overload: bool = False
    """Whether the sinks are slower than the sources."""
    control: bool = True


class Elsewhere(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Errors and options that no question is about, and what helps instead."""

    errors: tuple[str, ...]
    keys: tuple[str, ...] = ()
    answer: str


CHECKPOINTS = Line(
    "execution.checkpointing.interval",
    "1 s",
    "yours; a short one keeps the replay after a failover short",
)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of questions.yaml."""

    restarts: tuple[Line, ...]
    survived: tuple[tuple[str, str], ...]
    questions: tuple[Question, ...]
    elsewhere: tuple[Elsewhere, ...]


@cache
def _file() -> _File:
    return msgspec.convert(yaml.safe_load(DATA.read_text(encoding="utf-8")), _File)


@cache
def questions() -> dict[str, Question]:
    """Return the questions by their names, each with the options and expectations that all of them have."""
    read = _file()
    return {
        q.name: replace(
            q,
            options=(*q.options, CHECKPOINTS, *(read.restarts if q.restarts else ())),
            expect=(*q.expect, *read.survived),
        )
        for q in read.questions
    }


def elsewhere() -> tuple[Elsewhere, ...]:
    """Return the errors and options that no question is about."""
    return _file().elsewhere


_SUPPRESSED = re.compile(r"^([ \t]+)Suppressed:.*(\n\1.*)*", re.MULTILINE)
"""Exceptions that a stack trace shows below another one although they did not cause it."""


def about(text: str) -> Question | Elsewhere | None:
    """Return what is about an option, or about an error of Flink's log: its class, a line, or a stack trace, whose last cause decides.
    Pure."""
    topics: tuple[Question | Elsewhere, ...] = (*questions().values(), *elsewhere())
    key = judge(key_in(text), LATEST).canonical
    named = [(len(k), t) for t in topics for k in t.keys if key == k or key.startswith((f"{k}.", f"{k}-"))]
    if named:
        return max(named, key=itemgetter(0))[1]
    text = re.sub(r"`[^`]*`", "", text)  # these are names in an explanation
    text = _SUPPRESSED.sub("", text)
    found = [(m.start(), m.end(), t) for t in topics for e in t.errors for m in _pattern(e).finditer(text)]
    return max(found, key=itemgetter(0, 1))[2] if found else None


def key_in(text: str) -> str:
    """Return the first word, which is a key if the text is an option, with or without its value."""
    return re.split(r"[\s:=]", text.strip(), maxsplit=1)[0]


def _pattern(error: str) -> re.Pattern[str]:
    """Return the pattern of a part of a line."""
    return re.compile(".*?".join(map(re.escape, error.split("*"))), re.IGNORECASE)
