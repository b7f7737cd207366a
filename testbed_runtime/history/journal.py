"""The recorder's state on its disk: one append-only file of segments per stream, decided here, written by `history.recorder`.

A stream is one life of one process: `<process>~<stream>.segments` under `<trial folder>/segments`. Files are plain and
synchronous on purpose: an acknowledgement means that the bytes are on the disk.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from testbed_runtime.core.errors import HeadgateError, RemoteProtocolError
from testbed_runtime.history.segments import Segment, in_order, parse_batch, scan

SEGMENTS_FOLDER = "segments"
SUFFIX = ".segments"
MAX_STREAMS = 1024
"""Lives of processes in one trial; more is a restart loop, not a trial."""
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


class RecordingError(HeadgateError):
    """The disk refused; what was acknowledged is kept. The text says which folder and why."""


@dataclass(slots=True)
class _Stream:
    file: int
    next_number: int
    size: int


class Journal:
    """Append and acknowledge. Opening one finds what an earlier recorder left, cuts torn tails and goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / SEGMENTS_FOLDER
        self._streams: dict[tuple[str, str], _Stream] = {}
        self.problems: list[str] = []
        self.refused_duplicates = 0
        self._make_folder()
        for path in sorted(self.folder.glob("*" + SUFFIX)):
            self._reopen(path)

    def append(self, process: str, stream: str, data: bytes) -> int:
        """Write the new segments of a batch, fsync, and return the number expected next: everything below it is safe.
        Duplicates are counted and not written. Raises RemoteProtocolError at a gap, RecordingError when the disk refuses."""
        segments = parse_batch(data)
        state = self._streams.get((process, stream)) or self._open(process, stream)
        fresh = list(in_order(segments, state.next_number))
        self.refused_duplicates += len(segments) - len(fresh)
        if fresh:
            self._write(state, fresh)
        return state.next_number

    def expected(self, process: str, stream: str) -> int:
        state = self._streams.get((process, stream))
        return 0 if state is None else state.next_number

    def close(self) -> None:
        for state in self._streams.values():
            os.close(state.file)
        self._streams.clear()

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._error(error) from error

    def _open(self, process: str, stream: str) -> _Stream:
        if not _NAME.match(process) or not _NAME.match(stream):
            raise RemoteProtocolError(f"{process!r} and {stream!r} are not names of a process and its stream")
        if len(self._streams) >= MAX_STREAMS:
            raise RemoteProtocolError(f"{MAX_STREAMS} streams are open already")
        path = self.folder / f"{process}~{stream}{SUFFIX}"
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            _sync_folder(self.folder)
        except OSError as error:
            raise self._error(error) from error
        state = _Stream(file, 0, 0)
        self._streams[process, stream] = state
        return state

    def _reopen(self, path: Path) -> None:
        process, _, stream = path.name.removesuffix(SUFFIX).partition("~")
        found = scan(path.read_bytes())
        state = self._open(process, stream)
        if found.problem:
            os.ftruncate(state.file, found.good_bytes)
            self.problems.append(f"{path.name}: {found.problem}; cut at byte {found.good_bytes}")
        state.size = found.good_bytes
        state.next_number = found.segments[-1].number + 1 if found.segments else 0

    def _write(self, state: _Stream, segments: list[Segment]) -> None:
        data = b"".join(s.to_bytes() for s in segments)
        try:
            _write_all(state.file, data)
            os.fdatasync(state.file)
        except OSError as error:
            os.ftruncate(state.file, state.size)  # never leave half a segment that a later one would follow
            raise self._error(error) from error
        state.size += len(data)
        state.next_number = segments[-1].number + 1

    def _error(self, error: OSError) -> RecordingError:
        return RecordingError(
            f"the history cannot be recorded in {self.folder}: {error.strerror}. What was recorded until now is kept; "
            "free some space or choose another folder, and run again"
        )


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _sync_folder(folder: Path) -> None:
    """A new file's name is safe only when its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
