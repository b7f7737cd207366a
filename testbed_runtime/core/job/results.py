"""Types of results, and when their consumers are deployed: the valid combinations, and why the others are not."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

PIPELINED, BOUNDED, BLOCKING = "pipelined", "pipelined-bounded", "blocking"
EAGER, FIRST_RECORD, FULL_RESULT = "eager", "on-first-record", "on-full-result"
RESULTS = (PIPELINED, BOUNDED, BLOCKING)
DEPLOYMENTS = (EAGER, FIRST_RECORD, FULL_RESULT)


class Refusal(Struct, frozen=True):
    """Why a combination is refused, and what to write instead."""

    reason: str
    hint: str


_READ_WHILE_WRITTEN = Refusal(
    "a pipelined result must be read while it is written, so its producer would never finish",
    "write on-first-record or eager, or a blocking result",
)
_NOTHING_YET = Refusal(
    "a blocking result can be read only when it is complete", "write deployment: on-full-result"
)
COMBINATIONS: Mapping[tuple[str, str], Refusal | None] = {
    (PIPELINED, EAGER): None,
    (PIPELINED, FIRST_RECORD): None,
    (PIPELINED, FULL_RESULT): _READ_WHILE_WRITTEN,
    (BOUNDED, EAGER): None,
    (BOUNDED, FIRST_RECORD): None,
    (BOUNDED, FULL_RESULT): _READ_WHILE_WRITTEN,
    (BLOCKING, EAGER): _NOTHING_YET,
    (BLOCKING, FIRST_RECORD): _NOTHING_YET,
    (BLOCKING, FULL_RESULT): None,
}
"""None: valid."""
