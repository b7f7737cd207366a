"""Read the environment variables of a process in a cluster. Every error names the variable. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from testbed_runtime.core.errors import UserError

Environment = Mapping[str, str]
NAMESPACES = "HEADGATE_NAMESPACES"
"""The variable with the namespaces to which an installation is limited. Empty: the whole cluster."""


def needed(environment: Environment, name: str, hint: str) -> str:
    """Return the value of a variable. Raises UserError if it is not set."""
    if value := environment.get(name, ""):
        return value
    raise UserError(name, "is not set", hint)


def whole_number(environment: Environment, name: str, default: int, *, least: int | None = 0) -> int:
    """Return a whole number of at least `least`, or the default of a variable that is not set. Raises UserError."""
    text = environment.get(name) or str(default)
    try:
        number = int(text)
    except ValueError:
        raise UserError(name, f"{text!r} is not a whole number", f"leave it unset for {default}") from None
    if least is not None and number < least:
        raise UserError(name, f"{text!r} is less than {least}", f"leave it unset for {default}")
    return number


def names(environment: Environment, name: str, hint: str = "") -> tuple[str, ...]:
    """Return the different names of a list that is separated by commas. With a `hint` the variable has to be set, possibly to no
    names: raises UserError otherwise."""
    if hint and name not in environment:
        raise UserError(name, "is not set", hint)
    listed = (item.strip() for item in environment.get(name, "").split(","))
    return tuple(dict.fromkeys(item for item in listed if item))
