"""The terms in which a fault kind is declared. The declarations themselves are in `kinds`. Pure.

The schema of a document, the CRDs, the reference pages, `headgate faults`, the checks and the wording of the report are derived
from a declaration; none of them repeats it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from testbed_runtime.core.faults.model import Fault

MAX_DELAY_S = 3600.0
"""The longest delay that a parameter accepts."""
WRITE_EMPTY = "Write `{}`."


class Type(enum.Enum):
    """How a parameter is written."""

    DURATION = "duration"
    INTEGER = "integer"
    CHOICE = "choice"
    VERTEX = "vertex"
    """Name of a vertex of the job."""
    MESSAGE = "message"
    """Name of a message of the control plane, as in core.job.messages."""


class Parameter(Struct, frozen=True):
    """One parameter of a kind. Documents write it as `name` in camel case, `Fault.params` holds it under `key`."""

    name: str
    type: Type
    doc: str
    default: int | str | UnsetType | None = UNSET
    """The default as a document would write it. None: without a value, the parameter is not in
    `Fault.params`. UNSET: the parameter must be given."""
    low: float = 0.0
    high: float = 0.0
    above: bool = False
    """The value must be greater than `low`."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """Maps each allowed value to its wording in the report's sentence."""
    internal: str = ""
    """The key, if it does not follow from the name."""
    backends: tuple[str, ...] = ()
    """A value other than the default needs one of these backends. Empty: any backend of the kind."""

    @property
    def key(self) -> str:
        return self.internal or (f"{self.name}_s" if self.type is Type.DURATION else self.name)

    @property
    def alias(self) -> str:
        return camel(self.name)

    @property
    def required(self) -> bool:
        return self.default is UNSET

    def is_given(self, params: Mapping[str, Any]) -> bool:
        """Whether the parameter has a value that changes something: neither absent, nor 0, nor the default."""
        return params.get(self.key) not in (None, "", 0, self.default)


class Constraint(Struct, frozen=True):
    """A condition between fields of a fault besides the bounds of each."""

    field: str
    """The parameter, or the field of the fault, that the error names."""
    holds: Callable[[Fault], bool]
    problem: str
    hint: str
    at_most: str = ""
    """The constraint is `field ≤ at_most`, both durations; the CRDs enforce it too."""


class Family(Struct, frozen=True):
    """Kinds that a document writes under one field."""

    name: str
    title: str
    """As in `needs exactly one kind of <title>`."""
    doc: str
    links: bool = False
    """Whether the kinds act on links, so that `target.peers` has a meaning."""
    exchange: bool = False
    """Whether the kinds act on the exchange between TaskManagers, in which the JobManager has no part."""
    moves_tasks: bool = True
    """Whether the kinds can end a TaskManager or hide it from the JobManager, so that its tasks move to other ones."""
    jobmanager_only: bool = False
    """Whether the target is always the JobManager, so that documents do not write it."""
    target: str = ""
    """`taskManagers`: the target must name TaskManagers. `any`: the target must be written. Empty: without a
    target, every TaskManager is hit."""


class Hides(enum.Enum):
    """The part of a testbed where no other fault can be measured while a fault of this kind lasts."""

    NOTHING = "nothing"
    LINK = "link"
    """Nothing passes on the links of the fault."""
    PROCESS = "process"
    """The process is stopped or gone."""


class Kind(Struct, frozen=True):
    """One kind of fault."""

    name: str
    """`<family>.<kind>`, lower case with dashes."""
    doc: str
    backends: tuple[str, ...]
    """In order of preference: the first that the environment offers carries the fault."""
    asked: str | tuple[str, ...]
    """The report's sentence for what was asked. `{parameter}`, `{targets}`, `{direction}`, `{duration}` and `{for}` (` for 8 s`)
    are filled in; `[…]` is left out unless the parameters in it are given. Of several sentences the first whose parameters
    are all given is used."""
    measured: str
    """How the effect is measured."""
    residue: str
    """The state that counts as residue after the fault."""
    limits: str
    """Effects that the fault does not have."""
    parameters: tuple[Parameter, ...] = ()
    one_of: tuple[str, ...] = ()
    """Parameters of which exactly one must be given."""
    constraints: tuple[Constraint, ...] = ()
    in_process: bool = False
    """The fault is held inside the process, so it is gone when the process restarts."""
    hides: Hides = Hides.NOTHING
    silent: bool = False
    """Whether nothing passes while connections stay open, so that a ping is not answered."""
    loses: bool = False
    """Whether the bytes that the fault stops are lost. After the fault, TCP sends them again at its own times
    (`core.faults.retransmission`)."""
    instead: str = "choose another fault kind or another environment"
    """A hint for environments where no backend can carry it."""

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def field(self) -> str:
        """The kind's field below the family, in snake case: `half_open`."""
        return self.name.partition(".")[2].replace("-", "_")

    @property
    def path(self) -> str:
        """The kind's path in a document: `network.halfOpen`."""
        return f"{self.family}.{camel(self.field)}"

    @property
    def usage(self) -> str:
        """The description in the schema: what happens, and which parameters it has."""
        notes = [self.doc]
        if set(self.backends) <= set(PACKET_BACKENDS):
            notes.append("Needs a packet backend.")
        return " ".join(notes if self.parameters else [*notes, WRITE_EMPTY])

    def parameter(self, name: str) -> Parameter:
        return next(p for p in self.parameters if p.name == name)


POD_BACKEND = "kubernetes"
PACKET_BACKENDS = ("netem", "nfqueue", "nftables")
PROCESS_BACKENDS = ("channel", "proxy", "supervisor")
"""Backends that need no privilege: Headgate's own processes carry them out."""
BACKENDS: Mapping[str, str] = {
    "channel": "interceptor inside the process's transport and mailboxes; needs no privilege",
    "proxy": "userspace proxy in the path of every connection; needs no privilege",
    "supervisor": "signals from the parent process; needs no privilege",
    "netem": "the kernel's packet scheduler; needs NET_ADMIN and sch_netem",
    "nfqueue": "packets handed to userspace; needs NET_ADMIN and nfnetlink_queue",
    "nftables": "the kernel's packet filter; needs NET_ADMIN",
    POD_BACKEND: "the cluster's API server; needs permission to delete pods",
}
"""Description of each backend, with its requirements."""


def camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def duration(name: str, doc: str, *, default: str | UnsetType | None = UNSET, **more: Any) -> Parameter:
    """Declare a delay. A delay that must be given is greater than 0."""
    above = default is None or default is UNSET
    return Parameter(name, Type.DURATION, doc, default, high=MAX_DELAY_S, above=above, **more)


def integer(
    name: str, doc: str, low: int, high: int, *, default: int | UnsetType | None = UNSET, **more: Any
) -> Parameter:
    return Parameter(name, Type.INTEGER, doc, default, low, high, **more)


def percent(doc: str, *, default: int | UnsetType = UNSET) -> Parameter:
    return integer("percent", doc, 1, 100, default=default)


def choice(name: str, doc: str, choices: Mapping[str, str]) -> Parameter:
    return Parameter(name, Type.CHOICE, doc, choices=choices)
