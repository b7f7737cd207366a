"""The Java serialization that an ErrorResponse needs: write a minimal Throwable, read class and message of any Throwable.

Written are the class, its superclasses up to Throwable and, of Throwable, only `cause` (null) and `detailMessage`, which
Flink accepts. Read is what ObjectOutputStream writes for Flink's own exceptions, including causes.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

from testbed_runtime.core.errors import FlinkError, RemoteProtocolError
from testbed_runtime.core.exchange.frames import BytesLike

STREAM_HEADER = b"\xac\xed\x00\x05"
MAX_DEPTH = 10_000
"""Maximum nesting of elements (causes of causes). Deeper nesting means a hostile stream."""
MAX_SUPERCLASSES = 256
MAX_ELEMENTS = 100_000
"""Maximum number of array elements."""

_TC_NULL, _TC_REFERENCE, _TC_CLASSDESC, _TC_OBJECT, _TC_STRING, _TC_ARRAY = 0x70, 0x71, 0x72, 0x73, 0x74, 0x75
_TC_CLASS, _TC_BLOCKDATA, _TC_ENDBLOCKDATA, _TC_BLOCKDATALONG, _TC_LONGSTRING, _TC_ENUM = (
    0x76,
    0x77,
    0x78,
    0x7A,
    0x7C,
    0x7E,
)
_SC_WRITE_METHOD, _SC_SERIALIZABLE, _SC_EXTERNALIZABLE = 1, 2, 4
_PRIMITIVE_BYTES = {"B": 1, "C": 2, "D": 8, "F": 4, "I": 4, "J": 8, "S": 2, "Z": 1}

_EXCEPTION = ("java.lang.Exception", 0xD0FD1F3E1A3B1CC4)
_RUNTIME = ("java.lang.RuntimeException", 0x9E5F06470A3483E5)
_IO = ("java.io.IOException", 0x6C8073646525F0AB)
_THROWABLE = ("java.lang.Throwable", 0xD5C635273977B8CB)

_NETTY = "org.apache.flink.shaded.netty4.io.netty.handler.codec"

_CHAINS: dict[str, tuple[tuple[str, int], ...]] = {
    "Exception": (_EXCEPTION,),
    "IOException": (_IO, _EXCEPTION),
    "RuntimeException": (_RUNTIME, _EXCEPTION),
    "IllegalStateException": (
        ("java.lang.IllegalStateException", -1848914673093119416 % 2**64),
        _RUNTIME,
        _EXCEPTION,
    ),
    "IllegalArgumentException": (
        ("java.lang.IllegalArgumentException", -5365630128856068164 % 2**64),
        _RUNTIME,
        _EXCEPTION,
    ),
    "IndexOutOfBoundsException": (
        ("java.lang.IndexOutOfBoundsException", 234122996006267687),
        _RUNTIME,
        _EXCEPTION,
    ),
    "UnsupportedOperationException": (
        ("java.lang.UnsupportedOperationException", -1242599979055084673 % 2**64),
        _RUNTIME,
        _EXCEPTION,
    ),
    "ProtocolException": (("java.net.ProtocolException", -6098449442062388080 % 2**64), _IO, _EXCEPTION),
    "TimeoutException": (("java.util.concurrent.TimeoutException", 1900926677490660714), _EXCEPTION),
    "DecoderException": (
        (f"{_NETTY}.DecoderException", 6926716840699621852),
        (f"{_NETTY}.CodecException", -1464830400709348473 % 2**64),
        _RUNTIME,
        _EXCEPTION,
    ),
    # its serialVersionUID is 0; Flink reads it even without PartitionException and its partitionId in between
    "PartitionNotFoundException": (
        ("org.apache.flink.runtime.io.network.partition.PartitionNotFoundException", 0),
        _EXCEPTION,
    ),
    "ProducerFailedException": (
        (
            "org.apache.flink.runtime.io.network.partition.ProducerFailedException",
            -1555492656299526395 % 2**64,
        ),
        ("org.apache.flink.runtime.execution.CancelTaskException", 1),
        _RUNTIME,
        _EXCEPTION,
    ),
}


def producer_failed(cause: FlinkError) -> FlinkError:
    """Return the error that readers of a failed producer get. Its text is that of a SerializedThrowable, which names the class twice."""
    chain = _CHAINS.get(cause.class_name)
    name = chain[0][0] if chain else cause.class_name
    return FlinkError("ProducerFailedException", f"{name}: {name}: {cause.message}")


def as_io_exception(error: FlinkError) -> FlinkError:
    """Wrap a Java exception that is not an IOException, as Flink's `InputChannel.checkError` does."""
    chain = _CHAINS.get(error.class_name, ())
    if _IO in chain or not (chain and chain[0][0].startswith("java.")):
        return error
    wrapped = FlinkError(
        "IOException",
        f"{chain[0][0]}: {error.message}",
        lost_taskmanager=error.lost_taskmanager,
        wait=error.wait,
    )
    wrapped.__cause__ = error
    return wrapped


def _utf(text: str) -> bytes:
    """Encode Java's modified UTF-8, at most 65535 bytes: NUL takes two bytes, non-BMP characters are surrogate pairs."""
    units = text.encode("utf-16-be", "surrogatepass")
    out = bytearray()
    for (unit,) in struct.iter_unpack(">H", units):
        if 0 < unit < 0x80:
            out.append(unit)
        elif unit < 0x800:
            out += bytes((0xC0 | unit >> 6, 0x80 | unit & 0x3F))
        else:
            out += bytes((0xE0 | unit >> 12, 0x80 | unit >> 6 & 0x3F, 0x80 | unit & 0x3F))
        if len(out) > 0xFFFC:
            break
    return struct.pack(">H", len(out)) + out


def _from_utf(data: bytes) -> str:
    if data.isascii():
        return data.decode("ascii")
    raw = data.replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
    return raw.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def simple_name(class_name: str) -> str:
    """Turn `java.io.IOException` into `IOException`."""
    return class_name.rpartition(".")[2]


def encode_throwable(class_name: str, message: str) -> bytes:
    """Serialize a Throwable of this class (simple or full name). An unknown class is sent as an IOException with the class
    name in the message, so that the reader does not need the class."""
    chain = _CHAINS.get(simple_name(class_name))
    if chain is None:
        chain, message = _CHAINS["IOException"], f"{class_name}: {message}"
    parts = [STREAM_HEADER, bytes((_TC_OBJECT,))]
    for name, uid in chain:
        parts += (bytes((_TC_CLASSDESC,)), _utf(name), struct.pack(">QBHB", uid, 2, 0, _TC_ENDBLOCKDATA))
    name, uid = _THROWABLE
    parts += (
        bytes((_TC_CLASSDESC,)),
        _utf(name),
        struct.pack(">QBH", uid, _SC_WRITE_METHOD | _SC_SERIALIZABLE, 2),
        b"L" + _utf("cause") + bytes((_TC_STRING,)) + _utf("Ljava/lang/Throwable;"),
        b"L" + _utf("detailMessage") + bytes((_TC_STRING,)) + _utf("Ljava/lang/String;"),
        bytes((_TC_ENDBLOCKDATA, _TC_NULL)),
        bytes((_TC_NULL, _TC_STRING)) + _utf(message) + bytes((_TC_ENDBLOCKDATA,)),
    )
    return b"".join(parts)


class JavaThrowable(Struct, frozen=True):
    """A decoded Throwable without its causes. `class_name` is the full Java name."""

    class_name: str
    message: str


@dataclass(slots=True)
class _ClassDesc:
    name: str
    flags: int = 0
    fields: list[tuple[str, str]] = field(default_factory=list)
    parent: _ClassDesc | None = None


@dataclass(slots=True)
class _Object:
    desc: _ClassDesc
    values: dict[str, object] = field(default_factory=dict)


def decode_throwable(data: BytesLike) -> tuple[JavaThrowable, int]:
    """Decode the Throwable at the start of `data` and return it with its size in bytes. Raises RemoteProtocolError."""
    reader = _Reader(bytes(data))
    try:
        found = reader.read()
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"An error of the peer cannot be read: {error!r}") from None
    if not isinstance(found, _Object):
        raise RemoteProtocolError("An error of the peer cannot be read: it is not an object")
    message = found.values.get("detailMessage")
    throwable = JavaThrowable(found.desc.name, message if isinstance(message, str) else "")
    return throwable, reader.position


_T = TypeVar("_T")
_Element: TypeAlias = Generator[Any, Any, _T]


class _Reader:
    """A reader of the object stream protocol, version 5. Each method that yields an element is resumed with its value, so
    that nested elements need no Python stack."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._handles: list[object] = []
        if data[:4] != STREAM_HEADER:
            raise RemoteProtocolError("An error of the peer cannot be read: it is not a Java stream")
        self.position = 4

    def read(self) -> object:
        """Read one element of the stream. Raises RemoteProtocolError beyond MAX_DEPTH."""
        open_elements: list[_Element[object]] = [self._element()]
        value: object = None
        while open_elements:
            try:
                nested = open_elements[-1].send(value)
            except StopIteration as done:
                value = done.value
                open_elements.pop()
                continue
            value = None
            open_elements.append(nested)
            if len(open_elements) > MAX_DEPTH:
                raise RemoteProtocolError(
                    f"An error of the peer cannot be read: more than {MAX_DEPTH} elements are nested (causes of causes)"
                )
        return value

    def _element(self) -> _Element[object]:
        tag = self._u8()
        if tag == _TC_NULL:
            return None
        if tag == _TC_REFERENCE:
            return self._handles[self._take(">i") - 0x7E0000]
        if tag == _TC_STRING:
            return self._remember(_from_utf(self._bytes(self._take(">H"))))
        if tag == _TC_LONGSTRING:
            return self._remember(_from_utf(self._bytes(self._take(">q"))))
        if tag == _TC_OBJECT:
            return (yield from self._object())
        if tag == _TC_CLASSDESC:
            return (yield from self._class_desc())
        if tag == _TC_ARRAY:
            yield from self._array()
            return None
        if tag == _TC_CLASS:
            return self._remember((yield self._element()))
        if tag == _TC_ENUM:
            yield from self._desc()
            self._remember(None)
            return (yield self._element())
        if tag in (_TC_BLOCKDATA, _TC_BLOCKDATALONG):
            return self._bytes(self._u8() if tag == _TC_BLOCKDATA else self._take(">i"))
        raise RemoteProtocolError(f"An error of the peer cannot be read: unknown element {tag:#x}")

    def _class_desc(self) -> _Element[_ClassDesc]:
        desc = _ClassDesc(self._utf())
        self._bytes(8)
        self._remember(desc)
        desc.flags = self._u8()
        for _ in range(self._take(">H")):
            code = chr(self._u8())
            name = self._utf()
            if code in "[L":
                yield self._element()
            desc.fields.append((code, name))
        yield from self._annotation()
        desc.parent = yield from self._desc()
        return desc

    def _desc(self) -> _Element[_ClassDesc | None]:
        desc = yield self._element()
        if desc is not None and not isinstance(desc, _ClassDesc):
            raise RemoteProtocolError("An error of the peer cannot be read: a class was expected")
        return desc

    def _object(self) -> _Element[_Object]:
        desc = yield from self._desc()
        if desc is None:
            raise RemoteProtocolError("An error of the peer cannot be read: an object without a class")
        found = _Object(desc)
        self._remember(found)
        chain: list[_ClassDesc] = []
        level: _ClassDesc | None = desc
        while level is not None and len(chain) < MAX_SUPERCLASSES:
            chain.append(level)
            level = level.parent
        for level in reversed(chain):
            if level.flags & _SC_SERIALIZABLE:
                for code, name in level.fields:
                    value = yield from self._value(code)
                    found.values.setdefault(name, value)
            if level.flags & (_SC_WRITE_METHOD | _SC_EXTERNALIZABLE):
                yield from self._annotation()
        return found

    def _array(self) -> _Element[None]:
        """Skip an array, which contains no class or message."""
        desc = yield from self._desc()
        self._remember(None)
        count = self._take(">i")
        if desc is None or not 0 <= count <= MAX_ELEMENTS:
            raise RemoteProtocolError("An error of the peer cannot be read: an impossible array")
        for _ in range(count):
            yield from self._value(desc.name[1])

    def _value(self, code: str) -> _Element[object]:
        if code in "[L":
            return (yield self._element())
        return self._bytes(_PRIMITIVE_BYTES[code])

    def _annotation(self) -> _Element[None]:
        while self._data[self.position] != _TC_ENDBLOCKDATA:
            yield self._element()
        self.position += 1

    def _remember(self, value: object) -> object:
        self._handles.append(value)
        return value

    def _utf(self) -> str:
        return _from_utf(self._bytes(self._take(">H")))

    def _u8(self) -> int:
        value = self._data[self.position]
        self.position += 1
        return value

    def _take(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._data, self.position)
        self.position += struct.calcsize(layout)
        return int(value)

    def _bytes(self, count: int) -> bytes:
        if count < 0 or self.position + count > len(self._data):
            raise IndexError("it is truncated")
        data = self._data[self.position : self.position + count]
        self.position += count
        return data
