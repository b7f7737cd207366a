"""Turn pydantic's errors into UserErrors, with the path as the user wrote it, the value and how to fix it."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from testbed_runtime.api.fields import DURATION_HINT, constraints, is_duration, models_in, nested
from testbed_runtime.api.models import NAME_PATTERN, QUANTITY_PATTERN
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.judgement.quantities import counted
from testbed_runtime.core.options import ALIASES, BY_KEY, unknown_version
from testbed_runtime.core.values import with_units
from testbed_runtime.core.versions import LATEST, VERSIONS, nearest_version

NAME_HINT = "lower-case letters, digits and dashes, beginning with a letter"
MAX_VALUE_SHOWN = 60
"""Characters of a value in a message."""
_BOUNDS = {
    "greater_than_equal": ("must be at least", "ge"),
    "less_than_equal": ("must be at most", "le"),
    "greater_than": ("must be greater than", "gt"),
    "less_than": ("must be less than", "lt"),
}
_KINDS_OF_VALUE = {
    "string_type": "text",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def model_errors(model: type[BaseModel], error: ValidationError, data: Any) -> list[UserError]:
    """Return every error of pydantic about `data` as a UserError. The two alternatives of a union are reported once."""
    found: dict[str, UserError] = {}
    for item in error.errors(include_url=False):
        loc = [step for step in item["loc"] if not _is_union_step(step)]
        problem = _user_error(model, loc, item, data)
        found.setdefault(
            f"{problem.path}|{item['type'] if item['type'] == 'extra_forbidden' else ''}", problem
        )
    return list(found.values())


def without_refused(data: Any, error: ValidationError) -> Any:
    """Return a copy of the document without the fields that the models refuse, so that the others can be judged.

    None if a field is missing, or if an item of a list would be dropped, which would change the paths of later items. Faults may be
    dropped, because no other field is checked against them."""
    kept = copy.deepcopy(data)
    for item in error.errors(include_url=False):
        loc = [step for step in item["loc"] if not _is_union_step(step)]
        if "faults" in loc and loc.index("faults") < len(loc) - 1:
            loc = loc[: loc.index("faults") + 1]
        if item["type"] == "missing" or not _drop(kept, loc):
            return None
    return kept


def _drop(data: Any, loc: Sequence[int | str]) -> bool:
    for step in loc[:-1]:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return True  # an enclosing field was dropped before
    if not isinstance(data, dict) or not loc:
        return False
    data.pop(loc[-1], None)
    return True


def _is_union_step(step: int | str) -> bool:
    return isinstance(step, str) and ("constrained-" in step or step in ("int", "str") or "[" in step)


def path_of(loc: Sequence[int | str]) -> str:
    """Return a path such as `spec.testbed.job.edges[1].to`; keys with dots are in brackets."""
    text = ""
    for step in loc:
        if isinstance(step, int) or "." in step:
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def _user_error(model: type[BaseModel], loc: list[int | str], item: Any, data: Any) -> UserError:
    path, kind, value, context = path_of(loc), item["type"], item["input"], item.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return _unknown_field(model, loc)
        case "missing":
            return UserError(path, "is missing", _hint_of_missing(model, loc))
        case "exactly_one" | "duration" | "decimal":
            return UserError(path, str(item["msg"]))
        case "literal_error":
            return _not_one_of(path, value, str(context.get("expected", "")))
        case "string_pattern_mismatch":
            return _pattern_error(path, value, str(context.get("pattern")))
        case "string_type":
            return _text_error(model, loc, value, data)
        case "too_long" | "string_too_long" | "too_short" | "string_too_short":
            return _length(path, value, context)
        case _ if kind in _BOUNDS:
            words, bound = _BOUNDS[kind]
            return UserError(path, f"{words} {context[bound]}, got {show(value)}", _number_hint(model, loc))
        case _ if kind in _KINDS_OF_VALUE and isinstance(value, float):
            takes_text = _is_union_step(item["loc"][-1])
            hint = f"write it in quotes: '{value}'" if takes_text else _number_hint(model, loc)
            hint = f"write {value:.0f}" if value.is_integer() and not takes_text else hint
            return UserError(path, f"{value} is not an integer", hint)
        case _ if kind in _KINDS_OF_VALUE:
            hint = _value_hint(model, loc, kind, value)
            return UserError(path, f"must be {_KINDS_OF_VALUE[kind]}, got {show(value)}", hint)
        case _:
            return UserError(path, f"{item['msg']}, got {show(value)}")


def _pattern_error(path: str, value: Any, pattern: str) -> UserError:
    if pattern == QUANTITY_PATTERN:
        problem = f"{show(value)} is not a quantity of Kubernetes"
        return UserError(path, problem, "write it as in 500m, 2 or 1Gi")
    return UserError(path, f"{show(value)} is not a valid name", f"use {NAME_HINT}")


def _text_error(model: type[BaseModel], loc: list[int | str], value: Any, data: Any) -> UserError:
    path = path_of(loc)
    if isinstance(value, dict) and "Configuration" in str(loc[-2:]):
        return UserError(path, "is nested", f"write the whole key in one line: {_flat(loc[-1], value)}")
    hint = _unit_hint(value) if _is_duration(model, loc, data) else _quote_hint(value)
    if hint and "options" in loc and isinstance(loc[-1], int):  # the path of an option's value in a study
        hint += ", a duration with its unit"
    return UserError(path, f"must be text, got {show(value)}", hint)


def show(value: Any) -> str:
    """Return a value for a message, shortened to a readable length."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= MAX_VALUE_SHOWN else text[: MAX_VALUE_SHOWN - 1] + "…"


def _value_hint(model: type[BaseModel], loc: Sequence[int | str], kind: str, value: Any) -> str:
    """Return what to write instead of a value of the wrong type; empty if the problem already says it."""
    if kind == "bool_type" or not loc:
        return ""
    if value is None:  # a key without a value in YAML
        optional = not any(f.is_required() for f in _fields_at(model, loc))
        return f"{'leave it out, or ' if optional else ''}{_below(model, loc, kind)}"
    if kind == "list_type":
        item = _example(model, [*loc, 0]).removeprefix("write ") or (value if isinstance(value, str) else "")
        return f"write [{item}], with as many items as you need" if item else ""
    if "int" not in kind:
        return _example(model, loc)
    text = str(value).strip()
    return f"write it without quotes: {text}" if text.isdigit() else _number_hint(model, loc)


def _below(model: type[BaseModel], loc: Sequence[int | str], kind: str) -> str:
    if "int" in kind:
        return _number_hint(model, loc)
    return f"write its {'items' if kind == 'list_type' else 'fields'} below it"


def _example(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    """Return how to write a mapping, with the fields that it needs; empty for other values, and if it needs none of its fields."""
    part = _model_at(model, loc)
    if part is not None and not part.model_fields:
        return "write {}"
    needed = [f.alias or name for name, f in part.model_fields.items() if f.is_required()] if part else []
    return f"write {{{', '.join(f'{name}: …' for name in needed)}}}" if needed else ""


def _number_hint(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    """Return which whole numbers the field at `loc` takes."""
    bounds = [bound for field in _fields_at(model, loc) for bound in constraints(field)]
    low = next((b.ge for b in bounds if hasattr(b, "ge")), None)
    high = next((b.le for b in bounds if hasattr(b, "le")), None)
    return "write a whole number" if None in (low, high) else f"write a whole number from {low} to {high}"


def _flat(key: int | str, value: Any) -> str:
    """Return the first option of a nested mapping as one key, as in `heartbeat.timeout: '5 s'`."""
    if isinstance(value, dict) and value:
        inner, first = next(iter(value.items()))
        return _flat(f"{key}.{inner}", first)
    return f"{key}: '{value}'"


def _quote_hint(value: Any) -> str:
    if isinstance(value, bool):
        return f"write it in quotes: '{str(value).lower()}'"
    return f"write it in quotes: '{value}'" if isinstance(value, int | float) else ""


def _unit_hint(value: Any) -> str:
    """Return how to write a duration that is a bare number; in quotes it would be milliseconds."""
    return f"write a unit: {' or '.join(with_units(value))}" if isinstance(value, int) else DURATION_HINT


def _is_duration(model: type[BaseModel], loc: Sequence[int | str], data: Any) -> bool:
    """Return whether a duration with a unit belongs at `loc`: the value of an option of Flink, or a field."""
    name = str(loc[-1])
    option = BY_KEY.get(ALIASES.get(name, name))
    if option is not None:
        return option.type == "duration" and not option.in_millis(_flink_version(data, loc))
    return any(is_duration(f) for f in _fields_at(model, loc))


def _flink_version(data: Any, loc: Sequence[int | str]) -> str:
    """Return the version of Flink that reads the option at `loc`: that of its testbed, or the newest."""
    found = LATEST
    for step in loc:
        for part in (data, data.get("testbed") if isinstance(data, dict) else None):
            version = part.get("flinkVersion") if isinstance(part, dict) else None
            found = str(version) if version in VERSIONS else found
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            break
    return found


def _hint_of_missing(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    """Return what may be written, for a field with few values or a duration; empty for others."""
    fields = _fields_at(model, loc)
    literals = [part for field in fields for part in nested(field.annotation) if get_origin(part) is Literal]
    if choices := [str(choice) for literal in literals for choice in get_args(literal)]:
        return _did_you_mean("", choices)
    if any(f.annotation is int for f in fields):
        return _number_hint(model, loc)
    if needed := _example(model, loc):
        return needed
    if any(f.annotation is str and NAME_PATTERN in str(f.metadata) for f in fields):
        return f"write a name: {NAME_HINT}"
    return DURATION_HINT if any(is_duration(f) for f in fields) else ""


def _fields_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[FieldInfo]:
    """Return the field of the model at `loc`, or none for a key of a map."""
    part = _model_at(model, loc[:-1])
    return [f for n, f in part.model_fields.items() if loc[-1] in (n, f.alias)] if part else []


def _length(path: str, value: Any, context: Any) -> UserError:
    has = f"has {counted(len(value), 'character' if isinstance(value, str) else 'item')}"
    if "max_length" in context:
        return UserError(path, has, f"write at most {context['max_length']}")
    return UserError(path, has, f"write at least {context['min_length']}")


def _not_one_of(path: str, value: Any, expected: str) -> UserError:
    choices = [c.strip("' ") for c in expected.replace(" or ", ", ").split(", ")]
    if path.endswith("flinkVersion") and isinstance(value, float):
        text = f"{value:.2f}" if f"{value:.2f}" in VERSIONS else str(value)
        return UserError(
            path, f"{value} is a number", f"write the version in quotes: '{nearest_version(text)}'"
        )
    if path.endswith("flinkVersion") and nearest_version(str(value)):
        return unknown_version(path, value)
    return UserError(path, f"{show(value)} is not valid", _did_you_mean(str(value), choices))


def _did_you_mean(word: str, choices: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if len(choices) == 1:
        return f"write {choices[0]}"
    listed = ", ".join(choices)
    return f"did you mean {near[0]}? valid are {listed}" if near else f"write one of {listed}"


def _unknown_field(model: type[BaseModel], loc: list[int | str]) -> UserError:
    part = _model_at(model, loc[:-1])
    fields = [f.alias or n for n, f in part.model_fields.items()] if part else []
    if part is not None and part.__name__.endswith("FaultSpec") | part.__name__.endswith("Fault"):
        problem = "is neither a fault kind nor a field of a fault"
    else:
        problem = "is an unknown field"
    if "." in str(loc[-1]):
        return UserError(path_of(loc), problem, "write options of Flink below flinkConfiguration")
    return UserError(path_of(loc), problem, _did_you_mean(str(loc[-1]), fields) if fields else "write {}")


def _model_at(model: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel] | None:
    current: Any = model
    for step in loc:
        if isinstance(step, int):
            continue
        field = next((f for n, f in current.model_fields.items() if step in (n, f.alias)), None)
        current = next(models_in(field.annotation), None) if field else None
        if current is None:
            return None
    return current  # type: ignore[no-any-return]
