"""Compare the columns of a channel's sample with each other. They are counted at several places of the exchange."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from testbed_runtime.history.contradictions.columns import equal, ints, sound
from testbed_runtime.history.damage import Damage

UNLIMITED = 2**31 - 1
"""The credit of a producer without credit-based flow control."""


def check_credit(name: str, table: pa.Table) -> Iterator[Damage]:
    """Yield a producer with more credit than was announced and not used, and a consumer with more segments than it announced. Without
    exclusive buffers, either may have less: a consumer that resumes begins at 0. Using more than was announced is no damage: it is
    what `checking.credit` judges."""
    if name != "channels" or not sound(table, "side", "local", "credit", "announced", "used"):
        return
    credit, announced, used = (ints(table, c) for c in ("credit", "announced", "used"))
    limited = (announced > 0) & (credit < UNLIMITED)
    remote = limited & ~np.asarray(table.column("local").to_numpy(zero_copy_only=False), dtype=np.bool_)
    producing = equal(table, "side", "producer")
    if len(wrong := np.flatnonzero(remote & producing & (credit > announced - used))):
        row = int(wrong[0])
        problem = (
            f"is {credit[row]}, but {announced[row]} were announced and {used[row]} used (announced, used)"
        )
        yield Damage(name, "credit", row, problem)
        return
    if not sound(table, "floating", "exclusive"):
        return
    free = ints(table, "floating") + ints(table, "exclusive")
    if len(
        wrong := np.flatnonzero(
            remote & ~producing & (used <= announced) & (announced + credit < used + free)
        )
    ):
        row = int(wrong[0])
        problem = f"is {announced[row]} and {credit[row]} are not announced, but {used[row]} were used and {free[row]} are free (credit, used, floating, exclusive)"
        yield Damage(name, "announced", row, problem)
