"""Strings with a syntax: durations, decimals, `at`, `replaceLost`. Errors contain the value and how to fix it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, Field, StringConstraints
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from testbed_runtime.api import limits
from testbed_runtime.core.trial.plan import NEVER
from testbed_runtime.core.values import DURATION_LABELS, missing_unit, parse_duration

AT_DEPLOY = "deploy"
"""`at: deploy`: the fault is injected before the job is submitted."""

_DECIMAL = re.compile(r"^\d{1,6}(\.\d{1,9})?$")
_NO_DECIMAL = "is not a decimal number such as '1.1'"
RULES = "x-kubernetes-validations"
"""The keyword of a schema for rules of the API server. It shows a rule's message instead of the pattern."""


DURATION_HINT = "write an integer and a unit, as in '500 ms' or '10 s'"
_NO_DURATION = f"is not a duration: {DURATION_HINT}"


def _duration(text: str) -> str:
    if not re.fullmatch(DURATION_SCHEMA, text, re.IGNORECASE):
        raise PydanticCustomError("duration", "{problem}", {"problem": duration_problem(text)})
    try:
        parse_duration(text)
    except ValueError as error:  # too large for a Duration
        raise PydanticCustomError("duration", "{problem}", {"problem": str(error)}) from None
    return text


def duration_problem(text: str) -> str:
    """Return why a text is not a duration, and how to fix it."""
    if text.strip().startswith("-"):
        return f"{text!r} is negative: a duration is 0 or more, as in '500 ms' or '10 s'"
    if re.match(r"^\s*\d+\.\d+", text):
        return f"{text!r} has a fraction: write a smaller unit, as in '1500 ms' for 1.5 s"
    return f"{text!r} {_NO_DURATION}"


def _at(text: str) -> str:
    return _word_or_duration(text, AT_DEPLOY)


def _replace_lost(text: str) -> str:
    return _word_or_duration(text, NEVER)


def _word_or_duration(text: str, word: str) -> str:
    if text == word:
        return text
    if not re.search(r"\d", text):
        raise PydanticCustomError("duration", "{problem}", {"problem": f"{text!r} {_neither(word)}"})
    return _duration(text)


def _neither(word: str) -> str:
    return f"is neither {word} nor a duration such as '10 s'"


def _decimal(text: str) -> str:
    if not _DECIMAL.match(text):
        raise PydanticCustomError("decimal", "{problem}", {"problem": f"{text!r} {_NO_DECIMAL}"})
    return text


DURATION_SCHEMA = rf"\s*[0-9]+\s*({'|'.join(DURATION_LABELS)})?\s*"
"""The syntax of a duration in a document, as a case-insensitive pattern: that of parse_duration without ISO 8601."""
_Short = StringConstraints(max_length=limits.MAX_DURATION_TEXT)


def _shown(pattern: str, problem: str) -> Any:
    """Add a rule to the schema only, because the validator has more detailed messages. In them, `problem` follows the value, which the API
    server does not show."""
    rule: JsonDict = {
        "rule": f"self.matches(r'^({pattern})$')",
        "message": problem,
        "messageExpression": f'"\'" + self + "\' {problem}"',
    }
    return Field(json_schema_extra={RULES: [rule]})


_ANY_CASE = f"(?i:{DURATION_SCHEMA})"
Duration = Annotated[str, _Short, AfterValidator(_duration), _shown(_ANY_CASE, _NO_DURATION)]
AtText = Annotated[str, _Short, AfterValidator(_at), _shown(f"{AT_DEPLOY}|{_ANY_CASE}", _neither(AT_DEPLOY))]
ReplaceLostText = Annotated[
    str, _Short, AfterValidator(_replace_lost), _shown(f"{NEVER}|{_ANY_CASE}", _neither(NEVER))
]
FractionText = Annotated[
    str, _Short, AfterValidator(_decimal), _shown(r"[0-9]{1,6}(\.[0-9]{1,9})?", _NO_DECIMAL)
]
"""A decimal as a string: floats do not survive JSON readers and YAML writers unchanged."""


def nested(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and all inside it, as in `X | None`, `list[X]` or `Annotated[X, …]`."""
    yield annotation
    for inner in get_args(annotation):
        yield from nested(inner)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation."""
    return (part for part in nested(annotation) if inspect.isclass(part) and issubclass(part, BaseModel))


def constraints(field: FieldInfo) -> Iterator[Any]:
    """Yield the bounds, patterns and validators of a field, also those inside `X | None`."""
    yield from field.metadata
    for part in nested(field.annotation):
        yield from getattr(part, "__metadata__", ())


def is_duration(field: FieldInfo) -> bool:
    """Return whether a field of a model holds a duration."""
    validators = (c.func for c in constraints(field) if isinstance(c, AfterValidator))
    return any(function in (_duration, _at, _replace_lost) for function in validators)


def without_unit(part: BaseModel, path: str) -> Iterator[str]:
    """Yield a warning for each duration of a document that is a bare number, with its path."""
    for name, field in type(part).model_fields.items():
        value, where = getattr(part, name), f"{path}.{field.alias or name}".lstrip(".")
        items = value if isinstance(value, list) else [value]
        for index, item in enumerate(items):
            place = f"{where}[{index}]" if isinstance(value, list) else where
            if isinstance(item, BaseModel):
                yield from without_unit(item, place)
            elif isinstance(item, str) and is_duration(field) and (warning := missing_unit(item)):
                yield f"{place}: {warning}"
