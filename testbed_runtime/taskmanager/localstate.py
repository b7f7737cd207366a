"""Local recovery: secondary copies of snapshots on the TaskManager that took them (`execution.checkpointing.local-backup.enabled`).

The copy in the checkpoint store is the primary one, and the only one that counts: a secondary copy that cannot be written,
or that is missing or incomplete when it is needed, harms nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from testbed_runtime.ports.storage import BlobStore

CHECKSUM_BYTES = 4
PENDING_MAX = 8
"""Maximum copies of one subtask. The oldest is deleted beyond that."""


class LocalState:
    """The secondary copies of one TaskManager, by the key of the primary copy. Without a store it keeps none. `restores`: tasks restore
    from these copies (`execution.state-recovery.from-local`)."""

    def __init__(self, store: BlobStore | None = None, *, restores: bool = True) -> None:
        self._store = store
        self._restores = restores
        self._kept: dict[str, list[tuple[int, frozenset[str]]]] = {}
        """Checkpoints by task, and the keys of the objects that each consists of."""

    async def keep(
        self,
        task: str,
        checkpoint: int,
        key: str,
        data: bytes,
        *,
        completed: int,
        files: Mapping[str, Callable[[], bytes]] | None = None,
    ) -> None:
        """Store a copy, and delete the copies of checkpoints before `completed`, the latest completed one. `files` without a copy are
        read and copied too. If storing fails, nothing of this checkpoint is kept."""
        if self._store is None:
            return
        files = files or {}
        kept = self._kept.setdefault(task, [])
        known = frozenset[str]().union(*(keys for _, keys in kept))
        written: list[str] = []
        try:
            for file in files.keys() - known:
                written.append(file)
                await self._put(self._store, file, files[file]())
            written.append(key)
            await self._put(self._store, key, data)
        except OSError:
            await self._delete(written)
            return
        kept = self._kept[task]
        kept.append((checkpoint, frozenset({key, *files})))
        pending = kept[-PENDING_MAX:]
        await self._drop(task, [one for one in kept if one not in pending or one[0] < completed])

    @staticmethod
    async def _put(store: BlobStore, key: str, data: bytes) -> None:
        await store.put(key, zlib.crc32(data).to_bytes(CHECKSUM_BYTES, "big") + data)

    async def find(self, key: str) -> memoryview | None:
        """Return the copy of an object. None if it is missing or incomplete, or if tasks do not restore from local copies."""
        if self._store is None or not self._restores:
            return None
        try:
            data = memoryview(await self._store.get(key))
        except (KeyError, OSError):
            return None
        checksum, copy = data[:CHECKSUM_BYTES], data[CHECKSUM_BYTES:]
        return copy if zlib.crc32(copy).to_bytes(CHECKSUM_BYTES, "big") == checksum else None

    async def _drop(self, task: str, dropped: list[tuple[int, frozenset[str]]]) -> None:
        """Delete these copies. All are forgotten before the first is deleted, because the next upload may begin meanwhile."""
        self._kept[task] = [one for one in self._kept[task] if one not in dropped]
        needed = frozenset[str]().union(*(keys for _, keys in self._kept[task]))
        await self._delete(sorted({key for _, keys in dropped for key in keys} - needed))

    async def _delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with suppress(OSError):
                if self._store is not None:
                    await self._store.delete(key)
