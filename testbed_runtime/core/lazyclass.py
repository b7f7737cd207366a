"""`dataclass`, as in the standard library, whose classes with slots are cheap to define.

The standard decorator compiles three functions for each of them, and six if they are frozen: a twentieth of a short command. Here `__init__` is compiled when the first
object is made, and the other methods are shared code. Everything else is as with the standard decorator, which makes all other classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

Values = Callable[[Any], tuple[Any, ...]]

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
    fields = dataclasses.fields(made)
    compared = _values([field.name for field in fields if field.compare])
    hashed = _values([f.name for f in fields if (f.compare if f.hash is None else f.hash)])
    methods = {"__init__": _first_init(made, frozen), "__repr__": _shown, "__eq__": _equality(compared)}
    for name, method in (methods | _FROZEN if frozen else methods).items():
        if name not in own:
            setattr(made, name, method)
    if not has_hash:
        made.__hash__ = _hash(hashed) if frozen else None
    return made


def _values(names: list[str]) -> Values:
    """Return a function that returns these attributes as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda item: (getattr(item, names[0]),)) if names else (lambda _: ())


def _first_init(cls: Any, frozen: bool) -> Callable[..., None]:
    """Return an `__init__` that makes the real one, which replaces it."""

    def first(self: Any, *args: Any, **rest: Any) -> None:
        if cls.__init__ is first:
            cls.__init__ = _init(cls, frozen)
        cls.__init__(self, *args, **rest)

    return first


def _init(cls: Any, frozen: bool) -> Callable[..., None]:
    missing = dataclasses.MISSING
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
    exec("\n".join([f"def __init__({arguments}):", *(body or [" pass"])]), known)  # noqa: S102 - as `dataclasses` does
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _equality(values: Values) -> Callable[[Any, object], Any]:
    def equal(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return equal


def _hash(values: Values) -> Callable[[Any], int]:
    def hashed(self: Any) -> int:
        return hash(values(self))

    return hashed


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
