"""The recorder's files: one append-only file of segments per stream, `<trial folder>/segments/<process>~<stream>.segments`.

A stream belongs to one incarnation of a process. Writes are deliberately synchronous: an acknowledgement means that the
bytes are on disk.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from testbed_runtime.core.errors import HeadgateError, RemoteProtocolError
from testbed_runtime.files import sync
from testbed_runtime.history.segments import Segment, in_order, parse_batch, scan

SEGMENTS_FOLDER = "segments"
SUFFIX = ".segments"
MAX_STREAMS = 1024
"""Maximum process incarnations of one trial. More means a restart loop."""
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
"""Name of a process, of one of its streams, or of a trial: a part of a path."""


class RecordingError(HeadgateError):
    """Writing to disk failed. Acknowledged data is safe. The message names the folder and the reason."""


@dataclass(slots=True)
class _Stream:
    file: int
    next_number: int
    size: int


class Journal:
    """The streams of a trial. Opening a journal continues the files of an earlier recorder and cuts truncated ends off."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / SEGMENTS_FOLDER
        self._streams: dict[tuple[str, str], _Stream] = {}
        self.problems: list[str] = []
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._error(error) from error
        for path in sorted(self.folder.glob("*" + SUFFIX)):
            self._reopen(path)

    def append(self, process: str, stream: str, data: bytes) -> int:
        """Write and fsync the new segments of a batch. Return the next expected number; all lower ones are safe.
        Duplicates are dropped. Raises RemoteProtocolError at a gap, and RecordingError if writing fails."""
        segments = parse_batch(data)
        state = self._streams.get((process, stream)) or self._open(process, stream)
        fresh = list(in_order(segments, state.next_number))
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

    def _open(self, process: str, stream: str) -> _Stream:
        if not NAME.match(process) or not NAME.match(stream):
            raise RemoteProtocolError(f"invalid process or stream name: {process!r}, {stream!r}")
        if len(self._streams) >= MAX_STREAMS:
            raise RemoteProtocolError(f"the limit of {MAX_STREAMS} streams is reached")
        path = self.folder / f"{process}~{stream}{SUFFIX}"
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            sync(self.folder)
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
            os.ftruncate(state.file, state.size)  # a later segment must not follow half of one
            raise self._error(error) from error
        state.size += len(data)
        state.next_number = segments[-1].number + 1

    def _error(self, error: OSError) -> RecordingError:
        return RecordingError(
            f"cannot record the history in {self.folder}: {error.strerror}. What was recorded so far is kept; "
            "free some space or choose another folder, and run again"
        )


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
