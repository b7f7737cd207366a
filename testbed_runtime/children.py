"""Child processes that end with their parent, even if the parent is killed."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def ends_with_parent(number: signal.Signals) -> Callable[[], None]:
    """Return the `preexec_fn` of a child to which the kernel sends this signal when the calling process dies."""
    return functools.partial(tie_to_parent, number, os.getpid())


def tie_to_parent(number: signal.Signals, parent: int) -> None:
    """Let the kernel send this signal to this process when its parent dies."""
    # one system call between fork and exec: takes no lock
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # the parent died between fork and prctl
        os._exit(1)
