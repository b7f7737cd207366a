"""A journal that the processes of one `make test-cluster` share: a file of JSON lines, whose path is in JOURNAL.

pytest-xdist runs files in several processes, and the disruptive ones run in a second call of pytest. test_rbac judges all of them.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

JOURNAL = "HEADGATE_TEST_JOURNAL"
BEGAN, FILE, WITHOUT_RIGHTS = "began", "file", "withoutRights"


def begin() -> None:
    """Note the time, in the file that the environment names or in a new one, unless an earlier call has done so."""
    if not os.environ.get(JOURNAL):
        handle, path = tempfile.mkstemp(prefix="headgate-tests-", suffix=".jsonl")
        os.close(handle)
        os.environ[JOURNAL] = path
        atexit.register(lambda: Path(path).unlink(missing_ok=True))
    if not Path(os.environ[JOURNAL]).stat().st_size:
        _note(BEGAN, "")


def ran(files: Iterable[str]) -> None:
    """Note the files with cluster tests of this process."""
    for name in sorted(set(files)):
        _note(FILE, name)


def no_rights_from_now_on(namespace: str) -> None:
    """Note that accounts have no rights in a namespace: it is being deleted, or a test took them. Refusals there prove nothing."""
    _note(WITHOUT_RIGHTS, namespace)


def began() -> datetime:
    return next(moment for kind, _, moment in _notes() if kind == BEGAN)


def files() -> set[str]:
    return {name for kind, name, _ in _notes() if kind == FILE}


def without_rights() -> dict[str, datetime]:
    """Namespace → since when its accounts have no rights."""
    found: dict[str, datetime] = {}
    for kind, name, moment in _notes():
        if kind == WITHOUT_RIGHTS:
            found.setdefault(name, moment)
    return found


def _note(kind: str, name: str) -> None:
    if not os.environ.get(JOURNAL):
        begin()  # pytest was started for a folder above this one
    with Path(os.environ[JOURNAL]).open("a") as file:  # a short line is appended whole
        file.write(json.dumps([kind, name, datetime.now(UTC).isoformat()]) + "\n")


def _notes() -> Iterator[tuple[str, str, datetime]]:
    for line in Path(os.environ[JOURNAL]).read_text().splitlines():
        kind, name, moment = json.loads(line)
        yield kind, name, datetime.fromisoformat(moment)
