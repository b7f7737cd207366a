"""Where a run's record is kept: on one machine its folder is the record; in a pod the folder is a copy of what another place keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class RunFolder(Protocol):
    """`path` is a folder of this machine that the engine writes to; the other two say when it matters elsewhere."""

    @property
    def path(self) -> Path: ...

    async def keep(self, *names: str) -> None:
        """These files of the folder (relative, `/`-separated) outlive this process when it returns. Files that are not there are
        passed over. Raises HeadgateError when they cannot be kept."""

    async def restore(self, *names: str) -> None:
        """What an earlier process of this run kept under these names is in the folder now; what was never kept is not.
        Raises HeadgateError when that cannot be known."""


class LocalFolder:
    """A folder of this machine: what is written is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        return self._path

    async def keep(self, *names: str) -> None:
        """Nothing to do: writing was keeping."""

    async def restore(self, *names: str) -> None:
        """Nothing to do: it is there."""
