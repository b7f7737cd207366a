"""TLS on the data port: which peers are refused, what is on the wire, and what stays as it is without TLS."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import stat

import pytest
import uvloop

from testbed_runtime.core.errors import FlinkError, UserError
from testbed_runtime.core.exchange.tls import (
    ALGORITHMS,
    CIPHERS,
    DATA,
    HANDSHAKE,
    INTERNAL,
    TlsSettings,
    is_encrypted,
)
from testbed_runtime.core.options import Options
from testbed_runtime.local.testbed import write_certificate
from testbed_runtime.ports.network import SocketConnection
from testbed_runtime.transport.tcp import TcpNetwork
from testbed_runtime.transport.tls import DataTls, TlsSocket
from tests.transport.conformance import LIMIT_S, Pair, Watcher
from tests.transport.encrypted import certificate, encrypted_network, settings, tls
from tests.transport.exchanging import Consumer, Producer

GCM = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
ON = {INTERNAL: "true"}


class Listening:
    """A listener of the testbed. Counts the handlers that it makes: one for each peer that it accepts."""

    def __init__(self, network: TcpNetwork) -> None:
        self._network = network
        self.accepted: list[Watcher] = []

    async def __aenter__(self) -> Listening:
        self.listener = await self._network.listen(self._make, ("127.0.0.1", 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.close()

    def _make(self) -> Watcher:
        self.accepted.append(Watcher())
        return self.accepted[-1]

    @property
    def address(self) -> tuple[str, int]:
        return self.listener.address


def trusting(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make a client's context accept any server, so that only the server can refuse."""
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def answer_to(context: ssl.SSLContext, address: tuple[str, int]) -> bytes:
    """Connect with asyncio's own TLS, send a byte, and return what the server sends until it closes the connection."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection(*address, ssl=context)
        try:
            writer.write(b"x")
            return await reader.read()
        finally:
            writer.close()


async def test_a_client_without_a_certificate_is_refused():
    """The handshake is mutual: the server ends it with an alert, and no handler ever sees the connection."""
    async with Listening(encrypted_network()) as server:
        with pytest.raises(ssl.SSLError, match=r"(?i)handshake failure|alert"):
            await answer_to(trusting(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)), server.address)
        assert server.accepted == []


async def test_a_client_with_the_certificate_of_another_testbed_is_refused():
    """It accepts the server, but the server does not know its certificate."""
    async with Listening(encrypted_network()) as server:
        with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
            await answer_to(trusting(tls("another").connecting), server.address)
        assert server.accepted == []


async def test_a_server_with_the_certificate_of_another_testbed_is_refused():
    """The client ends the handshake. Its error is an OSError, as of any connection that fails."""
    async with Listening(encrypted_network("another")) as server:
        late = Watcher()
        with pytest.raises(ssl.SSLCertVerificationError) as refused:
            await encrypted_network().connect(server.address, late, timeout_s=LIMIT_S)
        assert isinstance(refused.value, OSError)
        assert server.accepted == []
        assert late.connection is None


async def test_a_client_without_tls_is_refused():
    """Its first bytes are no TLS record, so the server closes the connection after an alert."""
    async with Listening(encrypted_network()) as server:
        client = Watcher()
        connection = await TcpNetwork().connect(server.address, client, timeout_s=LIMIT_S)
        connection.send([bytes(100)])
        await client.until(lambda: bool(client.closed))
        assert server.accepted == []


async def test_a_client_of_the_testbed_is_accepted():
    """The same listener, the same client: only the certificate differs from the tests above."""
    async with Listening(encrypted_network()) as server:
        client = Watcher()
        connection = await encrypted_network().connect(server.address, client, timeout_s=LIMIT_S)
        connection.send([b"hello"])
        await client.until(lambda: len(server.accepted) == 1)
        await server.accepted[0].until(lambda: server.accepted[0].received == b"hello")
        connection.abort()
        await server.accepted[0].until(lambda: bool(server.accepted[0].closed))


async def test_a_refused_producer_is_reported_with_flinks_message():
    """To a consumer, a TaskManager with another certificate is one that cannot be reached."""
    producer = Producer(encrypted_network("another"))
    consumer = Consumer(encrypted_network(), await producer.start())
    with pytest.raises(FlinkError, match=r"Connecting to remote task manager .* has failed") as failed:
        await consumer.connect()
    assert isinstance(failed.value.__cause__, ssl.SSLCertVerificationError)
    await consumer.close()
    await producer.close()


async def test_a_peer_that_sends_nothing_is_refused_after_the_handshake_timeout():
    """security.ssl.internal.handshake-timeout, on both sides."""
    async with Listening(encrypted_network(handshake_ms=50)) as server:
        silent = Watcher()
        await TcpNetwork().connect(server.address, silent, timeout_s=LIMIT_S)
        await silent.until(lambda: bool(silent.closed))
        assert server.accepted == []
    async with Listening(TcpNetwork()) as server:
        with pytest.raises(TimeoutError):
            await encrypted_network(handshake_ms=50).connect(server.address, Watcher(), timeout_s=LIMIT_S)


async def test_a_closed_listener_ends_its_handshakes():
    """A peer that never answers keeps nothing open."""
    silent = Watcher()
    async with Listening(encrypted_network()) as server:
        await TcpNetwork().connect(server.address, silent, timeout_s=LIMIT_S)
        async with asyncio.timeout(LIMIT_S):
            while not server.listener._handshakes:
                await asyncio.sleep(0)
    await silent.until(lambda: bool(silent.closed))
    assert server.accepted == []


class Relay:
    """A stand-in for the proxy: passes the bytes of one connection on. Its two ends keep a copy of them."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._network = TcpNetwork()
        self.near, self.far = Watcher(), Watcher()

    async def __aenter__(self) -> Relay:
        self._listener = await self._network.listen(lambda: self.near, ("127.0.0.1", 0))
        self.address = self._listener.address
        far = await self._network.connect(self._target, self.far, timeout_s=LIMIT_S)
        self.near.on_data_hook = lambda data: far.send([bytes(data)])
        self.far.on_data_hook = lambda data: self.near.connection.send([bytes(data)])
        return self

    async def __aexit__(self, *_: object) -> None:
        for end in (self.near, self.far):
            end.connection.abort()
        await self._listener.close()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_records_cannot_be_read_between_the_taskmanagers(encrypted: bool):
    """A relay in the path sees the payload without TLS, and does not see it with TLS. The exchange works in both cases."""
    make = encrypted_network if encrypted else TcpNetwork
    producer = Producer(make())
    async with Relay(await producer.start()) as relay:
        consumer = Consumer(make(), relay.address)
        await consumer.connect()
        producer.emit(b"a secret record " * 10)
        assert await consumer.read(160) == b"a secret record " * 10
        assert (b"a secret record" in relay.far.received) is not encrypted
        assert len(relay.far.received) > 160
        await consumer.close()
        await producer.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("credit", ["true", "false"])
def test_an_exchange_works_on_both_loops_and_in_both_modes(loop, credit: str):
    """With credit and in legacy mode: a thousand buffers arrive, in order."""

    async def run() -> None:
        options = Options(ON | {"taskmanager.network.credit-model": credit})
        producer = Producer(encrypted_network(), options=options)
        consumer = Consumer(encrypted_network(), await producer.start(), options=options)
        await consumer.connect()
        data = random.Random(2).randbytes(1_000_000)

        async def write() -> None:
            position = 0
            while position < len(data):
                position += producer.partition.emit(0, memoryview(data), offset=position)
                await asyncio.sleep(0)
            producer.partition.flush_all()

        writing = asyncio.create_task(write())
        assert await consumer.read(len(data)) == data
        await writing
        await consumer.close()
        await producer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("algorithms", sorted(CIPHERS))
async def test_each_cipher_suite_is_the_one_that_is_used(algorithms: str):
    """security.ssl.algorithms, with TLS 1.2 as in Flink."""
    pair = await Pair(encrypted_network(algorithms=algorithms)).open()
    for end in (pair.client, pair.server):
        session = end.connection._sock._tls
        assert session.version() == "TLSv1.2"
        assert session.cipher()[0] == CIPHERS[algorithms]
    await pair.close()


async def test_peers_without_a_common_cipher_suite_are_refused():
    """As in Flink, both need the same configuration."""
    async with Listening(encrypted_network(algorithms="TLS_RSA_WITH_AES_128_CBC_SHA")) as server:
        with pytest.raises(ssl.SSLError):
            await encrypted_network(algorithms=GCM).connect(server.address, Watcher(), timeout_s=LIMIT_S)
        assert server.accepted == []


async def test_sockets_are_measured_below_tls():
    """The queues and windows of the evidence for back-pressure are those of the kernel, in encrypted bytes."""
    pair = await Pair(encrypted_network()).open()
    assert isinstance(pair.client.connection, SocketConnection)
    pair.server.connection.pause_reading()
    pair.client.connection.send([bytes(20_000)])
    state = pair.server.connection.socket_state()
    if state is None:
        pytest.skip("this kernel does not report the state of a socket")
    async with asyncio.timeout(LIMIT_S):
        while state.receive_queue <= 20_000:
            await asyncio.sleep(0)
            state = pair.server.connection.socket_state()
    await pair.close()


def pipes(algorithms: str = GCM) -> tuple[TlsSocket, TlsSocket, socket.socket, socket.socket]:
    """Return a client and a server before their handshake, and the sockets below."""
    ends, here = socket.socketpair(), tls(algorithms=algorithms)
    for end in ends:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client = TlsSocket(ends[0], here.connecting, here.scratch, server_side=False)
    return client, TlsSocket(ends[1], here.listening, here.scratch, server_side=True), *ends


async def hands_shaken() -> tuple[TlsSocket, TlsSocket, socket.socket, socket.socket]:
    client, server, *raw = pipes()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(client.handshake(loop), server.handshake(loop))
    return client, server, raw[0], raw[1]


async def test_bytes_count_as_sent_when_the_kernel_has_all_of_their_ciphertext():
    """A caller that offers the rest again sends every byte once, however little the kernel takes at a time."""
    client, server, *raw = await hands_shaken()
    data = random.Random(4).randbytes(500_000)
    offered, received, blocked = memoryview(data), bytearray(), 0
    target = memoryview(bytearray(256 * 1024))
    while len(received) < len(data):
        try:
            offered = offered[client.sendmsg([offered[:100], offered[100:]]) :] if offered else offered
        except BlockingIOError:
            blocked += 1
        try:
            received += target[: server.recv_into(target)]
        except BlockingIOError:
            continue
    assert received == data
    assert blocked > 0
    assert not offered
    for sock in raw:
        sock.close()


async def test_a_full_send_buffer_is_reported_before_anything_counts_as_sent():
    """The first send is too large for the kernel, so its bytes still belong to the caller."""
    client, _, *raw = await hands_shaken()
    with pytest.raises(BlockingIOError):
        client.sendmsg([bytes(100_000)])
    with pytest.raises(BlockingIOError):
        client.sendmsg([bytes(100_000)])
    for sock in raw:
        sock.close()


async def test_data_that_arrives_with_the_end_of_the_handshake_is_not_lost():
    """A client that resumes a session finishes its handshake with its first data. No event of the socket announces that data."""
    here, server_side = tls(algorithms=GCM), encrypted_network(algorithms=GCM)
    async with Listening(server_side) as server:
        session = None
        for attempt in range(2):
            with socket.create_connection(server.address) as raw:
                loop = asyncio.get_running_loop()
                raw.setblocking(False)
                client = here.connecting.wrap_bio(
                    arrived := ssl.MemoryBIO(), leaves := ssl.MemoryBIO(), session=session
                )
                async with asyncio.timeout(LIMIT_S):
                    while True:
                        try:
                            client.do_handshake()
                            break
                        except ssl.SSLWantReadError:
                            await loop.sock_sendall(raw, leaves.read())
                            arrived.write(await loop.sock_recv(raw, 65536))
                    client.write(b"early")  # in the same segment as the client's last message, if it resumes
                    await loop.sock_sendall(raw, leaves.read())
                    while len(server.accepted) <= attempt or not server.accepted[attempt].received:
                        await asyncio.sleep(0)
                assert server.accepted[attempt].received == b"early"
                assert client.session_reused is (attempt == 1)
                session = client.session


def test_tls_is_off_by_default_and_needs_both_options():
    """As in Flink's NettyConfig: taskmanager.data.ssl.enabled alone changes nothing, and switches it off again."""
    assert TlsSettings.read(Options({})) is None
    assert TlsSettings.read(Options({DATA: "true"})) is None
    assert TlsSettings.read(Options(ON | {DATA: "false"})) is None
    assert TlsSettings.read(Options({"security.ssl.enabled": "true"})) == TlsSettings.read(Options(ON))


def test_whether_data_is_encrypted_is_known_before_the_options_are_validated():
    """The operator asks it of a Testbed whose other options may be invalid."""
    assert is_encrypted({"security.ssl.enabled": " True "})
    assert not is_encrypted({"security.ssl.enabled": "perhaps"})
    assert not is_encrypted(ON | {DATA: "False"})
    assert is_encrypted(ON | {ALGORITHMS: "none", HANDSHAKE: "0"})


def test_the_defaults_are_flinks():
    """A cipher suite of CBC and SHA-1 up to 2.2, two with AES-GCM in 2.3. Netty's 10 s for a handshake."""
    assert TlsSettings.read(Options(ON, flink_version="2.2")) == TlsSettings(("AES128-SHA",), 10.0)
    gcm = ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384")
    assert TlsSettings.read(Options(ON)) == TlsSettings(gcm, 10.0)
    several = f"TLS_DHE_RSA_WITH_AES_128_GCM_SHA256, {GCM}, TLS_RSA_WITH_AES_128_CBC_SHA"
    expected = TlsSettings(("ECDHE-RSA-AES128-GCM-SHA256", "AES128-SHA"), 0.25)
    assert settings(algorithms=several, handshake_ms=250) == expected


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (ALGORITHMS, f"{GCM},TLS_AES_128_GCM_SHA256", "'TLS_AES_128_GCM_SHA256' is not supported"),
        (ALGORITHMS, "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", "names only TLS_DHE_"),
        (ALGORITHMS, "", "'' is not supported"),
    ],
)
def test_a_value_that_cannot_work_names_the_option_and_the_fix(key: str, value: str, text: str):
    """The error is a sentence with a hint."""
    with pytest.raises(UserError, match=text) as refused:
        TlsSettings.read(Options(ON | {key: value}))
    assert refused.value.path == f"flinkConfiguration[{key}]"
    assert refused.value.hint


def test_a_certificate_file_can_be_read_by_its_owner_only(tmp_path):
    """And it is never overwritten: each testbed has a new one."""
    path = tmp_path / "certificate.pem"
    write_certificate(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert DataTls.load(path, settings()).timeout_s == 10.0
    with pytest.raises(FileExistsError):
        write_certificate(path)
    assert certificate("a") != certificate("b")
