"""TLS on the data port: mutual, with one certificate that all processes of a testbed share, as in Flink's internal TLS.

`TlsSocket` has the methods of a socket that TcpConnection uses, so ownership, order and back-pressure stay those of
`transport.tcp`. Why this and not asyncio's own TLS: docs/decisions/0012."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from testbed_runtime.core.exchange.frames import BytesLike
from testbed_runtime.core.exchange.tls import TlsSettings
from testbed_runtime.timeouts import timeout

RECEIVE_BYTES = 352 * 1024
"""Maximum ciphertext received at once. Together with an incomplete record before it (at most 18 KiB), it fits decrypted into the
receive buffer of the network (384 KiB without the bytes that a handler gave back). So no complete record is left unread."""
ENCRYPT_BYTES = 200 * 1024
"""Maximum plaintext of one send. A piece of the pump (`transport.sending`) with its headers fits: 192 KiB and 282 bytes."""
HANDSHAKE_BYTES = 16 * 1024


class TlsSocket:
    """A connected, non-blocking socket after its handshake. Encrypts sent and decrypts received bytes."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, scratch: bytearray, *, server_side: bool
    ) -> None:
        """`scratch` holds ciphertext during a call, so the connections of a loop can share it."""
        self.raw = sock
        """The underlying TCP socket."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._unsent: memoryview | bytes = b""
        self._encrypted = 0
        """Bytes of the caller whose ciphertext is in `_unsent`. They count as sent once the kernel has all of it."""
        self._scratch = scratch

    async def handshake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises ssl.SSLError (an OSError) if either side refuses the other, OSError if the connection breaks."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(self.raw, self._outgoing.read())
                data = await loop.sock_recv(self.raw, HANDSHAKE_BYTES)
                if not data:
                    raise ConnectionResetError(
                        "the peer closed the connection during the TLS handshake"
                    ) from None
                self._incoming.write(data)
            except ssl.SSLError:
                with contextlib.suppress(OSError):  # the alert says why; the peer may be gone
                    await loop.sock_sendall(self.raw, self._outgoing.read())
                raise
            else:
                await loop.sock_sendall(self.raw, self._outgoing.read())
                return

    @property
    def received_early(self) -> bool:
        """Whether data followed the last bytes of the handshake. No event of the socket announces such data."""
        return self._incoming.pending > 0

    def sendmsg(self, parts: Sequence[BytesLike]) -> int:
        """Encrypt and send. Return the number of bytes whose ciphertext the kernel has accepted.

        Bytes whose ciphertext was not sent completely count as not sent: the caller must begin its next call with them
        (the contract of SSL_write). They are not encrypted twice. Raises BlockingIOError if none could be sent."""
        done = 0
        try:
            if self._unsent:
                self._flush()
                done, self._encrypted = self._encrypted, 0
            while data := _joined(parts, skip=done):
                self._tls.write(data)
                self._unsent, self._encrypted = self._outgoing.read(), len(data)
                self._flush()
                done, self._encrypted = done + self._encrypted, 0
        except BlockingIOError:
            if not done:
                raise
        return done

    def _flush(self) -> None:
        """Send all ciphertext. Raises BlockingIOError while some is left."""
        while self._unsent:
            sent = self.raw.send(self._unsent)
            if sent == len(self._unsent):
                self._unsent = b""
                return
            self._unsent = memoryview(self._unsent)[sent:]

    def recv_into(self, target: memoryview) -> int:
        """Receive, and decrypt all records that are complete. Return 0 at the end of the stream. Raises BlockingIOError if
        no record is complete. `target` holds RECEIVE_BYTES and one record more."""
        filled, ended = 0, False
        try:
            count = self.raw.recv_into(self._scratch)
        except BlockingIOError:
            if not self._incoming.pending:
                raise
        else:
            self._incoming.write(memoryview(self._scratch)[:count])
            ended = count == 0
        while True:
            try:
                # with a buffer, `read` returns how many bytes it wrote there
                count = self._tls.read(len(target) - filled, target[filled:])  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                if filled or ended:
                    return filled
                raise BlockingIOError from None
            if not count:  # the peer's close_notify
                return filled
            filled += count

    def notify_close(self) -> None:
        """Notify the peer of the end of the stream (close_notify), if the kernel has room for it."""
        if self._unsent:
            return  # in the middle of a record
        with contextlib.suppress(OSError):
            self._tls.unwrap()
        with contextlib.suppress(OSError):
            self.raw.send(self._outgoing.read())

    def fileno(self) -> int:
        return self.raw.fileno()

    def getpeername(self) -> tuple[str, int]:
        host, port = self.raw.getpeername()[:2]
        return host, port

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        self.raw.setsockopt(level, option, value)

    def close(self) -> None:
        self.raw.close()


def _joined(parts: Sequence[BytesLike], *, skip: int) -> bytes:
    """Return about ENCRYPT_BYTES of the parts after the first `skip` bytes: small parts must not become records of their own."""
    chosen: list[BytesLike] = []
    size = 0
    for part in parts:
        length = part.nbytes if type(part) is memoryview else len(part)
        if skip >= length:
            skip -= length
            continue
        view = memoryview(part).cast("B")[skip : skip + ENCRYPT_BYTES - size]
        skip = 0
        chosen.append(view)
        size += len(view)
        if size >= ENCRYPT_BYTES:
            break
    return b"".join(chosen)


class DataTls(Struct, frozen=True):
    """The two ends of TLS on a data port, from one certificate with its key. Each end trusts that certificate only."""

    connecting: ssl.SSLContext
    listening: ssl.SSLContext
    timeout_s: float | None
    """Time limit of a handshake; None: no limit."""
    scratch: bytearray = field(default_factory=lambda: bytearray(RECEIVE_BYTES))

    @classmethod
    def load(cls, certificate: str | Path, settings: TlsSettings) -> DataTls:
        """Read a PEM file with a certificate and its private key."""
        connecting = _context(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, settings)
        listening = _context(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, settings)
        return cls(connecting, listening, settings.handshake_timeout_s)

    async def wrap(self, sock: socket.socket, *, server_side: bool) -> TlsSocket:
        """Do the handshake. Raises OSError or TimeoutError; the caller then has to close the socket."""
        context = self.listening if server_side else self.connecting
        made = TlsSocket(sock, context, self.scratch, server_side=server_side)
        async with timeout(self.timeout_s):
            await made.handshake(asyncio.get_running_loop())
        return made


def _context(context: ssl.SSLContext, certificate: str | Path, settings: TlsSettings) -> ssl.SSLContext:
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # like Flink's internal TLS: the certificate is shared and names no host
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(":".join(settings.ciphers))
    context.load_cert_chain(certificate)
    context.load_verify_locations(certificate)
    return context
