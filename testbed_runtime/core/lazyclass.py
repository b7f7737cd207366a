"""`dataclass`, as in the standard library, whose classes with slots are cheap to define.

The standard decorator compiles three functions for each of them, and six if they are frozen: a twentieth of a short command. Here
`__init__`, `__eq__` and `__hash__` are compiled when they are first called, and the other methods are shared code. Everything else is
as with the standard decorator, which makes all other classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - exported
else:

    def dataclass(*, frozen: bool = False, slots: bool = False, kw_only: bool = False, **more: Any) -> Any:
        """Decorate a class. What this module does not know is left to the standard decorator."""

        def decorate(cls: type) -> type:
            inherits = any(hasattr(base, "__dataclass_fields__") for base in cls.__bases__)
            if not slots or more or inherits:
                return dataclasses.dataclass(frozen=frozen, slots=slots, kw_only=kw_only, **more)(cls)
            return _define(cls, frozen=frozen, kw_only=kw_only)

        return decorate


def _define(cls: Any, *, frozen: bool, kw_only: bool) -> Any:
    own = vars(cls)
    has_hash = own.get("__hash__") is not None
    if not cls.__doc__:
        cls.__doc__ = cls.__name__  # otherwise the standard decorator writes a signature
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    made.__dataclass_params__.frozen = frozen
    methods = {"__init__": _first(made, "__init__"), "__repr__": _shown, "__eq__": _first(made, "__eq__")}
    for name, method in (methods | _FROZEN if frozen else methods).items():
        if name not in own:
            setattr(made, name, method)
    if not has_hash:
        made.__hash__ = _first(made, "__hash__") if frozen else None
    return made


def _first(cls: Any, name: str) -> Callable[..., Any]:
    """Return a method that compiles the real one, which replaces it."""

    def first(self: Any, *args: Any, **rest: Any) -> Any:
        if getattr(cls, name) is first:
            setattr(cls, name, _COMPILED[name](cls))
        return getattr(cls, name)(self, *args, **rest)

    return first


def _compiled(
    cls: Any, name: str, arguments: str, body: list[str], known: dict[str, Any]
) -> Callable[..., Any]:
    exec("\n".join([f"def {name}({arguments}):", *(body or [" pass"])]), known)  # noqa: S102 - as `dataclasses` does
    made: Callable[..., Any] = known[name]
    made.__qualname__ = f"{cls.__qualname__}.{name}"
    return made


def _hash(cls: Any) -> Callable[..., Any]:
    fields = [f for f in dataclasses.fields(cls) if (f.compare if f.hash is None else f.hash)]
    return _compiled(cls, "__hash__", "self", [f" return hash({_tuple('self', fields)})"], {})


def _equality(cls: Any) -> Callable[..., Any]:
    fields = [field for field in dataclasses.fields(cls) if field.compare]
    same = f"{_tuple('self', fields)} == {_tuple('other', fields)}"
    body = [f" return {same} if other.__class__ is self.__class__ else NotImplemented"]
    return _compiled(cls, "__eq__", "self, other", body, {})


def _tuple(of: str, fields: list[dataclasses.Field[Any]]) -> str:
    return f"({''.join(f'{of}.{field.name}, ' for field in fields)})"


def _init(cls: Any) -> Callable[..., Any]:
    missing, frozen = dataclasses.MISSING, cls.__dataclass_params__.frozen
    known: dict[str, Any] = {"_unset": missing}
    positional: list[str] = []
    keywords: list[str] = []
    body: list[str] = []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        known[f"_set_{name}"] = getattr(cls, name).__set__
        default = ""
        if field.default_factory is not missing:
            known[f"_make_{name}"] = field.default_factory
            default, value = "=_unset", f"_make_{name}() if {name} is _unset else {name}"
        elif field.default is not missing:
            known[f"_default_{name}"] = field.default
            default = f"=_default_{name}"
        if field.init:
            (keywords if field.kw_only else positional).append(name + default)
        elif default:
            value = f"_make_{name}()" if default == "=_unset" else f"_default_{name}"
        else:
            continue
        body.append(f" _set_{name}(self, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    arguments = ", ".join(["self", *positional, *(["*", *keywords] if keywords else [])])
    return _compiled(cls, "__init__", arguments, body, known)


def _shown(self: Any) -> str:
    shown = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _assign(self: Any, name: str, value: object) -> None:
    del self, value
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> None:
    del self
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_FROZEN: dict[str, Callable[..., Any]] = {
    "__setattr__": _assign,
    "__delattr__": _delete,
    "__getstate__": _state,
    "__setstate__": _restore,
}
_COMPILED = {"__init__": _init, "__eq__": _equality, "__hash__": _hash}
