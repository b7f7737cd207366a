"""Java's serialised Throwables: read Flink's, write minimal ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.core.exchange.javaser import (
    decode_throwable,
    encode_throwable,
    simple_name,
)

VECTORS = Path(__file__).parent.parent / "data" / "wire-vectors-2.x.txt"
# captured: Flink accepted this as java.io.IOException
ACCEPTED = (
    "aced00057372"
    "00136a6176612e696f2e494f457863657074696f6e6c8073646525f0ab020000787200136a6176612e6c616e672e457863657074696f6e"
    "d0fd1f3e1a3b1cc4020000787200136a6176612e6c616e672e5468726f7761626c65d5c635273977b8cb0300024c00056361757365"
    "7400154c6a6176612f6c616e672f5468726f7761626c653b4c000d64657461696c4d6573736167657400124c6a6176612f6c616e672f"
    "537472696e673b7870707400"
    "0e707974686f6e2073617973206e6f78"
)


def flinks(name: str) -> bytes:
    for line in VECTORS.read_text().splitlines():
        if line.startswith(f"frame {name} "):
            return bytes.fromhex(line.split()[2])[9:]
    raise KeyError(name)


def test_flinks_io_exception_is_read() -> None:
    """The bytes, including the stack trace, come from Flink's own fatal ErrorResponse."""
    throwable, end = decode_throwable(flinks("ErrorResponse.fatal"))
    assert (throwable.class_name, throwable.message) == ("java.io.IOException", "boom")
    assert flinks("ErrorResponse.fatal")[end:] == b"\x00"


def test_flinks_partition_not_found_is_read() -> None:
    """Four levels of classes, ids as fields, and the receiver behind it."""
    throwable, end = decode_throwable(flinks("ErrorResponse.channel"))
    assert simple_name(throwable.class_name) == "PartitionNotFoundException"
    assert throwable.message.startswith("Partition a0a1a2a3a4a5a6a7a8a9aaabacadaeaf#1@")
    assert throwable.message.endswith("_2_3 not found.")
    assert flinks("ErrorResponse.channel")[end:] == b"\x01" + bytes(range(0x10, 0x20))


def test_a_minimal_io_exception_has_the_bytes_that_flink_accepted() -> None:
    """The frame that was tried against Flink, byte by byte."""
    assert encode_throwable("IOException", "python says no").hex() == ACCEPTED


@pytest.mark.parametrize(
    "name",
    [
        "IOException",
        "IllegalStateException",
        "IllegalArgumentException",
        "ProtocolException",
        "TimeoutException",
        "PartitionNotFoundException",
        "IndexOutOfBoundsException",
        "UnsupportedOperationException",
        "ProducerFailedException",
    ],
)
def test_what_is_written_is_read(name: str) -> None:
    """Every class of the table."""
    data = encode_throwable(name, "Grüße\0𝄞")
    throwable, end = decode_throwable(data + b"\x00")
    assert (simple_name(throwable.class_name), throwable.message) == (name, "Grüße\0𝄞")
    assert end == len(data)


def test_an_unknown_class_travels_as_io_exception() -> None:
    """The reader need not have the class."""
    throwable, _ = decode_throwable(encode_throwable("com.example.Odd", "why"))
    assert (throwable.class_name, throwable.message) == ("java.io.IOException", "com.example.Odd: why")


def test_a_cause_is_skipped() -> None:
    """The outer exception is returned, and the reader ends behind both."""
    outer = encode_throwable("IOException", "outer")
    inner = encode_throwable("TimeoutException", "inner")[4:]
    # the first null behind the classes is the cause
    at = outer.index(b"\x78\x70\x70\x74") + 2
    data = outer[:at] + inner + outer[at + 1 :]
    throwable, end = decode_throwable(data)
    assert (throwable.class_name, throwable.message, end) == ("java.io.IOException", "outer", len(data))


@given(text=st.text(max_size=100))
def test_every_message_survives_modified_utf_8(text: str) -> None:
    """NUL, surrogate pairs and all."""
    assert decode_throwable(encode_throwable("IOException", text))[0].message == text


@given(data=st.binary(max_size=200), keep=st.none() | st.integers(0, 658))
def test_any_bytes_are_refused_or_are_a_throwable_that_ends_within_them(
    data: bytes, keep: int | None
) -> None:
    """A torn or hostile stream is an error of the peer, nothing else. What is read does not depend on the bytes behind it."""
    for prefix in (b"\xac\xed\x00\x05", flinks("ErrorResponse.fatal")[:keep]):
        try:
            found, size = decode_throwable(prefix + data)
        except RemoteProtocolError:
            continue
        assert decode_throwable((prefix + data)[:size]) == (found, size)


def nested(depth: int) -> bytes:
    """An IOException with `depth` causes, one within the other."""
    whole = encode_throwable("IOException", "outermost")
    # the first null behind the classes is the cause; what follows it ends the object
    at = whole.index(b"\x78\x70\x70\x74") + 2
    head, tail = whole[4:at], whole[at + 1 :]
    return whole[:4] + head * depth + whole[4:] + tail * depth


@pytest.mark.parametrize("depth", [1, 240, 256, 1000, 9000])
def test_causes_may_be_nested_as_deeply_as_flinks(depth: int) -> None:
    """No cause needs Python's stack, and the reader ends behind the last one."""
    data = nested(depth)
    throwable, end = decode_throwable(data)
    assert throwable.class_name == "java.io.IOException"
    assert end == len(data)


def test_deeper_nesting_is_refused_with_the_limit() -> None:
    """A stream of 20,000 causes is not Flink's."""
    with pytest.raises(RemoteProtocolError, match="more than 10000 elements are nested"):
        decode_throwable(nested(20_000))


def test_what_is_no_object_is_refused() -> None:
    """A stream may hold a string alone, or null."""
    for data in (b"\xac\xed\x00\x05\x74\x00\x01a", b"\xac\xed\x00\x05\x70"):
        with pytest.raises(RemoteProtocolError, match="it is not an object"):
            decode_throwable(data)


def test_a_stream_that_ends_within_a_text_is_refused() -> None:
    """The text would be shorter than its length says."""
    whole = b"\xac\xed\x00\x05\x74\x00\x04abcd"
    with pytest.raises(RemoteProtocolError, match="it is not an object"):
        decode_throwable(whole)
    for end in range(7, len(whole)):
        with pytest.raises(RemoteProtocolError, match="it is truncated"):
            decode_throwable(whole[:end])
