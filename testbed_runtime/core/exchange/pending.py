"""A set of channels that shrinks to none, with one byte for each channel: jobs have millions of them."""

from __future__ import annotations


class Pending:
    """The indices from 0 to `count`, all awaited at first. True while any is awaited."""

    __slots__ = ("_awaited", "left")

    def __init__(self, count: int = 0) -> None:
        self._awaited = bytearray(b"\x01") * count
        self.left = count
        """Number of awaited indices."""

    def __bool__(self) -> bool:
        return self.left > 0

    def __contains__(self, index: int) -> bool:
        return self._awaited[index] == 1

    def add(self) -> None:
        """Also await the next index."""
        self._awaited.append(1)
        self.left += 1

    def discard(self, index: int) -> bool:
        """Stop awaiting this index. Return False if it was not awaited."""
        if not self._awaited[index]:
            return False
        self._awaited[index] = 0
        self.left -= 1
        return True
