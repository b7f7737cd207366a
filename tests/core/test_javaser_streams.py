"""Java streams with each kind of element that an exception's fields may have, written by the rules of ObjectStreamConstants."""

from __future__ import annotations

import struct

import pytest

from testbed_runtime.core.errors import FlinkError, RemoteProtocolError
from testbed_runtime.core.exchange.javaser import (
    as_io_exception,
    decode_throwable,
    encode_throwable,
    producer_failed,
)

HEADER, NULL, END = b"\xac\xed\x00\x05", b"\x70", b"\x78"
OBJECT, STRING, ARRAY, CLASS, ENUM = b"\x73", b"\x74", b"\x75", b"\x76", b"\x7e"
BLOCK, LONG_BLOCK, LONG_STRING, REFERENCE = b"\x77", b"\x7a", b"\x7c", b"\x71"
SERIALIZABLE, WITH_METHOD, EXTERNALIZABLE = 2, 3, 4
SIZES = {"B": 1, "C": 2, "D": 8, "F": 4, "I": 4, "J": 8, "S": 2, "Z": 1}


def utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def text(value: str) -> bytes:
    return STRING + utf(value)


def described(
    name: str, *fields: tuple[str, str], flags: int = SERIALIZABLE, parent: bytes = NULL, notes: bytes = b""
) -> bytes:
    """A class: its name, fields (type, name), flags, annotation and superclass."""
    listed = b"".join(
        code[0].encode() + utf(field) + (text(code) if code[0] in "[L" else b"") for code, field in fields
    )
    head = b"\x72" + utf(name) + bytes(8) + bytes((flags,)) + struct.pack(">H", len(fields))
    return head + listed + notes + END + parent


MESSAGE = ("Ljava/lang/String;", "detailMessage")


def thrown(
    *fields: tuple[str, str], values: bytes = b"", message: bytes = text("boom"), **more: object
) -> bytes:
    """An exception with these fields ahead of its message."""
    return HEADER + OBJECT + described("a.Odd", *fields, MESSAGE, **more) + values + message  # type: ignore[arg-type]


def read(data: bytes) -> tuple[str, str]:
    """Class and message. The reader must stop exactly at the end."""
    throwable, end = decode_throwable(data + b"behind")
    assert end == len(data)
    return throwable.class_name, throwable.message


ODD = ("a.Odd", "boom")


@pytest.mark.parametrize("code", SIZES)
def test_a_primitive_field_has_its_size(code: str) -> None:
    """The message behind it is read from the right place."""
    assert read(thrown((code, "f"), values=bytes(SIZES[code]))) == ODD


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("null", NULL),
        ("text", text("x")),
        ("empty text", text("")),
        ("long text", LONG_STRING + struct.pack(">q", 3) + b"abc"),
        ("object", OBJECT + described("b.B", ("I", "n")) + bytes(4)),
        ("object without fields", OBJECT + described("b.B")),
        ("object with a superclass", OBJECT + described("b.B", ("I", "n"), parent=described("b.A", ("J", "m"))) + bytes(12)),
        ("object that writes itself", OBJECT + described("b.B", ("I", "n"), flags=WITH_METHOD) + bytes(4) + BLOCK + b"\x02xy" + END),
        ("object that writes all of itself", OBJECT + described("b.B", flags=EXTERNALIZABLE) + LONG_BLOCK + struct.pack(">i", 2) + b"xy" + text("z") + END),
        ("class", CLASS + described("b.B")),
        ("class with a note", CLASS + described("b.B", notes=text("note") + BLOCK + b"\x00")),
        ("constant", ENUM + described("b.E", flags=18) + text("FIRST")),
        ("bytes", ARRAY + described("[B") + struct.pack(">i", 3) + b"abc"),
        ("numbers", ARRAY + described("[J") + struct.pack(">i", 2) + bytes(16)),
        ("nothing in an array", ARRAY + described("[J") + struct.pack(">i", 0)),
        ("texts", ARRAY + described("[Ljava.lang.String;") + struct.pack(">i", 2) + text("a") + NULL),
        ("arrays", ARRAY + described("[[I") + struct.pack(">i", 1) + ARRAY + described("[I") + struct.pack(">i", 1) + bytes(4)),
    ],
)  # fmt: skip
def test_a_field_of_any_kind_is_skipped_to_its_end(kind: str, value: bytes) -> None:
    """The message behind it is the exception's."""
    del kind
    assert read(thrown(("Ljava/lang/Object;", "f"), values=value)) == ODD


@pytest.mark.parametrize(
    ("handle", "message"),
    [
        # the class, the type of its first field, that of its second field, the object itself, the first field's value
        (0, ""), (1, "Ljava/lang/Object;"), (2, "Ljava/lang/String;"), (3, ""), (4, "x"),
    ],
)  # fmt: skip
def test_a_reference_is_what_was_written_before(handle: int, message: str) -> None:
    """Handles count classes, texts and objects in the order in which they begin. Only a text can be the message."""
    data = thrown(
        ("Ljava/lang/Object;", "f"),
        values=text("x"),
        message=REFERENCE + struct.pack(">i", 0x7E0000 + handle),
    )
    assert read(data) == ("a.Odd", message)


@pytest.mark.parametrize(
    ("value", "handles"),
    [
        (ARRAY + described("[B") + struct.pack(">i", 0), 2),
        (CLASS + described("b.B"), 2),
        (ENUM + described("b.E") + text("FIRST"), 3),
        (OBJECT + described("b.B"), 2),
        (LONG_STRING + struct.pack(">q", 0), 1),
        (NULL, 0),
    ],
)
def test_every_kind_of_value_has_its_handles(value: bytes, handles: int) -> None:
    """The text behind it is found by the next number."""
    fields = (("Ljava/lang/Object;", "f"), ("Ljava/lang/String;", "g"))
    message = REFERENCE + struct.pack(">i", 0x7E0000 + 5 + handles)
    assert read(thrown(*fields, values=value + text("here"), message=message)) == ("a.Odd", "here")


@pytest.mark.parametrize("count", [-1, 100_001])
def test_an_array_has_up_to_100_000_elements(count: int) -> None:
    """A larger number is no array of an exception, and no memory is taken for it."""
    largest = ARRAY + described("[B") + struct.pack(">i", 100_000) + bytes(100_000)
    assert read(thrown(("[B", "f"), values=largest)) == ODD
    broken = ARRAY + described("[B") + struct.pack(">i", count)
    with pytest.raises(
        RemoteProtocolError, match=r"^An error of the peer cannot be read: an impossible array$"
    ):
        decode_throwable(thrown(("[B", "f"), values=broken))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xac\xed\x00\x04" + NULL, "it is not a Java stream"),
        (HEADER + NULL, "it is not an object"),
        (HEADER + OBJECT + NULL, "an object without a class"),
        (HEADER + OBJECT + text("x"), "a class was expected"),
        (HEADER + ARRAY + NULL + struct.pack(">i", 1), "an impossible array"),
        (HEADER + b"\x79", "unknown element 0x79"),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused_with_the_reason(data: bytes, problem: str) -> None:
    """The peer is to blame, and the text says for what."""
    with pytest.raises(RemoteProtocolError, match=f"^An error of the peer cannot be read: {problem}$"):
        decode_throwable(data)


def test_an_exception_that_is_its_own_cause_is_readable() -> None:
    """Throwable's way of saying that no cause was given."""
    fields = (("Ljava/lang/Throwable;", "cause"), MESSAGE)
    data = (
        HEADER + OBJECT + described("a.Odd", *fields) + REFERENCE + struct.pack(">i", 0x7E0003) + text("boom")
    )
    throwable, _ = decode_throwable(data)
    assert throwable.message == "boom"


def test_the_field_of_the_superclass_wins_over_one_of_the_same_name() -> None:
    """Throwable's message is the message, whatever a subclass calls its own fields."""
    parent = described("a.Throwable", MESSAGE)
    data = HEADER + OBJECT + described("a.Odd", MESSAGE, parent=parent) + text("outer") + text("inner")
    assert read(data) == ("a.Odd", "outer")


@pytest.mark.parametrize("size", [65_532, 65_533, 70_000])
def test_a_long_message_is_cut_to_what_a_text_can_hold(size: int) -> None:
    """DataOutput.writeUTF has 16 bits for the length. The frame can be read."""
    for letter, width in (("a", 1), ("é", 2), ("€", 3)):
        message = decode_throwable(encode_throwable("IOException", letter * size))[0].message
        assert set(message) == {letter}
        assert 65_532 <= len(message) * width <= 65_535 or len(message) == size


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("IOException", ""), ("ProtocolException", ""), ("Exception", "java.lang.Exception: why"),
        ("IllegalStateException", "java.lang.IllegalStateException: why"),
        ("TimeoutException", "java.util.concurrent.TimeoutException: why"),
        ("PartitionNotFoundException", ""), ("ProducerFailedException", ""), ("Unknown", ""),
    ],
)  # fmt: skip
def test_an_exception_of_javas_own_that_is_no_io_exception_is_wrapped(name: str, wrapped: str) -> None:
    """InputChannel.checkError. Flink's own are thrown as they are."""
    error = FlinkError(name, "why")
    found = as_io_exception(error)
    if not wrapped:
        assert found is error
    else:
        assert (found.class_name, found.message, found.__cause__) == ("IOException", wrapped, error)


@pytest.mark.parametrize(("name", "full"), [("IOException", "java.io.IOException"), ("a.Odd", "a.Odd")])
def test_readers_of_a_failed_producer_get_its_class_twice(name: str, full: str) -> None:
    """The text of a SerializedThrowable within a ProducerFailedException."""
    found = producer_failed(FlinkError(name, "why"))
    assert (found.class_name, found.message) == ("ProducerFailedException", f"{full}: {full}: why")


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("Exception", [("java.lang.Exception", -3387516993124229948)]),
        ("RuntimeException", [("java.lang.RuntimeException", -7034897190745766939)]),
        ("IOException", [("java.io.IOException", 7818375828146090155)]),
        ("IllegalStateException", [("java.lang.IllegalStateException", -1848914673093119416)]),
        ("IllegalArgumentException", [("java.lang.IllegalArgumentException", -5365630128856068164)]),
        ("IndexOutOfBoundsException", [("java.lang.IndexOutOfBoundsException", 234122996006267687)]),
        ("UnsupportedOperationException", [("java.lang.UnsupportedOperationException", -1242599979055084673)]),
        ("ProtocolException", [("java.net.ProtocolException", -6098449442062388080)]),
        ("TimeoutException", [("java.util.concurrent.TimeoutException", 1900926677490660714)]),
        ("PartitionNotFoundException", [("org.apache.flink.runtime.io.network.partition.PartitionNotFoundException", 0)]),
        (
            "ProducerFailedException",
            [
                ("org.apache.flink.runtime.io.network.partition.ProducerFailedException", -1555492656299526395),
                ("org.apache.flink.runtime.execution.CancelTaskException", 1),
            ],
        ),
    ],
)  # fmt: skip
def test_a_class_is_written_with_the_serial_version_that_java_gives_it(
    name: str, classes: list[tuple[str, int]]
) -> None:
    """`serialver` prints them. With another one, the reader throws an InvalidClassException instead of the error."""
    data = encode_throwable(name, "why")
    for full, version in [*classes, ("java.lang.Throwable", -3042686055658047285)]:
        assert utf(full) + struct.pack(">q", version) in data


def test_a_text_is_written_in_modified_utf_8() -> None:
    """One byte up to U+007F but for NUL, two up to U+07FF, three for the others, and six for a pair of surrogates."""
    message = "\0\x01\x7f\x80\u07ff\u0800\uffff\U0001d11e"
    data = bytes.fromhex("c080 01 7f c280 dfbf e0a080 efbfbf eda0b4edb49e")
    assert encode_throwable("IOException", message).endswith(struct.pack(">H", len(data)) + data + END)
