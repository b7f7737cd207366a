"""Remember objects that were read a moment ago, so that a handler does not read them again at every reconcile.

A watch alone cannot replace these reads: the operator may not watch Secrets, Services, claims and accounts, and kopf does not
report what was deleted while a watch was interrupted. Nothing here is older than RECENT_S, whatever a watch has lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from headgate_operator.health import reaches
from testbed_runtime.api.views import Resource

RECENT_S = 20.0
"""After this time at the latest, the operator notices the deletion of an object for which no event arrives. It is twice the longest pause
between two reconciles, so that each finds what the previous one has read."""
Address = tuple[str, str, str]
"""Kind, namespace, name."""
Obj = Mapping[str, Any]


class _Held(Struct, frozen=True):
    until: float
    obj: Obj | None = None
    """None while it is being read."""


class Recent:
    """Remembers objects, never that one does not exist. An event of a watch replaces the object."""

    def __init__(self) -> None:
        self._held: dict[Address, _Held] = {}
        """In the order in which they expire."""

    def find(self, address: Address) -> Obj | None:
        held = self._held.get(address)
        return held.obj if held is not None and asyncio.get_running_loop().time() < held.until else None

    async def read(self, address: Address, read: Callable[[], Awaitable[Obj | None]]) -> Obj | None:
        """Read an object and remember it, unless an event, a write or another read came in between."""
        self._drop_expired()
        pending = _Held(asyncio.get_running_loop().time() + RECENT_S)
        self._held.pop(address, None)
        self._held[address] = pending
        try:
            found = await read()
        except BaseException:
            self._settle(address, pending, None)
            raise
        self._settle(address, pending, found)
        return found

    def _settle(self, address: Address, pending: _Held, found: Obj | None) -> None:
        if self._held.get(address) is not pending:
            return
        if found is None:
            del self._held[address]
        else:
            self._held[address] = _Held(pending.until, found)

    def on_event(self, obj: Obj, *, gone: bool) -> None:
        """Handle a watch event. One that is older than what was read since changes nothing."""
        seen = Resource(obj)
        address = str(obj.get("kind")), seen.namespace, seen.name
        held = self._held.get(address)
        if held is None:
            return
        known, version = Resource(held.obj or obj).resource_version, seen.resource_version
        if not gone and held.obj is not None and reaches(known, version):
            return
        if gone or held.obj is None or not reaches(version, known):
            del self._held[address]
        else:
            self._held[address] = _Held(held.until, obj)

    def drop(self, kind: str, namespace: str, name: str) -> None:
        """Forget an object that the operator wrote or deleted, so that it sees its own last write."""
        self._held.pop((kind, namespace, name), None)

    def forget(self, namespace: str | None = None) -> None:
        """Forget the objects of a namespace, or all."""
        self._held = {a: h for a, h in self._held.items() if namespace not in (None, a[1])}

    def _drop_expired(self) -> None:
        now = asyncio.get_running_loop().time()
        for address, held in list(self._held.items()):
            if now < held.until:
                return
            del self._held[address]
