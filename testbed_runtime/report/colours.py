"""The colours of waits in the drawings: each phase of a recovery has one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from testbed_runtime.core.judgement.recovery import UNATTRIBUTED
from testbed_runtime.core.waits import KINDS, POD_STEPS

_OWN: Mapping[str, str] = {
    **dict.fromkeys(("replacement", *POD_STEPS, "start", "registration"), "resource"),
    "fault": "steady",
    UNATTRIBUTED: UNATTRIBUTED,
}
"""Kinds with another colour than the others of their phase."""


def colour(kind: str) -> str:
    """Return the name of the style sheet's colour for a kind of waits."""
    return _OWN.get(kind) or KINDS[kind].phase


def legend(used: Iterable[str]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the colours of these kinds for a legend: name of the colour, and the kinds that have it with their meanings."""
    meanings = {
        **{name: kind.doc for name, kind in KINDS.items()},
        UNATTRIBUTED: "no recorded wait or step covers it",
    }
    order = list(dict.fromkeys(map(colour, meanings)))
    wanted = set(used)
    known = sorted((kind for kind in meanings if kind in wanted), key=lambda kind: order.index(colour(kind)))
    for name, kinds in groupby(known, colour):
        yield name, [(kind, meanings[kind]) for kind in kinds]


def style() -> str:
    """Return the rules of the style sheet that give each kind its colour."""
    return "\n".join(
        f"{', '.join(f'.k-{kind}' for kind, _ in kinds)} {{ --p: var(--{name}); }}"
        for name, kinds in legend((*KINDS, UNATTRIBUTED))
    )
