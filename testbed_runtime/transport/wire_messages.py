"""Encode RPC messages as JSON: every Struct of `core.job.messages` under its class name, validated by msgspec."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from testbed_runtime.core.errors import FlinkError, RemoteProtocolError
from testbed_runtime.core.job.messages import MESSAGES


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """`[class name, body]`. An empty name is None; a name with `!` is a failure."""

    name: str
    body: msgspec.Raw


class Failure(msgspec.Struct, frozen=True):
    class_name: str
    message: str


FAILURE = "!"

_encode = msgspec.json.Encoder().encode
_envelope = msgspec.json.Decoder(Envelope)
_failure = msgspec.json.Decoder(Failure)


@cache
def _decoder(name: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(MESSAGES[name])


def check_message(message: Any) -> None:
    """Raise TypeError for anything but a Struct of core.job.messages, None, or a FlinkError."""
    name = type(message).__name__
    if MESSAGES.get(name) is not type(message) and not (message is None or isinstance(message, FlinkError)):
        raise TypeError(f"{name} is not a message of testbed_runtime.core.job.messages")


def encode_message(message: Any) -> bytes:
    """Encode what `check_message` accepts."""
    check_message(message)
    if message is None:
        return _encode(["", None])
    if isinstance(message, FlinkError):
        return _encode([FAILURE, {"class_name": message.class_name, "message": message.message}])
    return _encode([type(message).__name__, message])


def decode_message(data: bytes) -> Any:
    """Return the message, None, or a FlinkError (not raised). Raises RemoteProtocolError for anything else."""
    try:
        envelope = _envelope.decode(data)
        if envelope.name == "":
            return None
        if envelope.name == FAILURE:
            failure = _failure.decode(envelope.body)
            return FlinkError(failure.class_name, failure.message)
        if envelope.name not in MESSAGES:
            raise RemoteProtocolError(f"unknown RPC message {envelope.name!r}")
        return _decoder(envelope.name).decode(envelope.body)
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(f"invalid RPC message: {error}") from None
