"""Host names: known from a file or the system, asked anew for each connection."""

import asyncio
import json

import pytest

from testbed_runtime.core.job.messages import Acknowledge, CancelJob
from testbed_runtime.ports.network import http_url
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable
from testbed_runtime.transport.names import HOSTS_VARIABLE, numeric
from testbed_runtime.transport.rpc_http import HttpRpc
from testbed_runtime.transport.tcp import TcpNetwork


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    path = tmp_path / "hosts.json"

    def write(**names):
        path.write_text(json.dumps(names))

    write()
    monkeypatch.setenv(HOSTS_VARIABLE, str(path))
    return write


async def test_a_name_is_what_the_file_says_now(hosts):
    """Addresses are returned unchanged; an unknown name is an OSError."""
    assert await numeric("127.0.0.1", 1) == "127.0.0.1"
    hosts(jobmanager="127.0.0.7")
    assert await numeric("jobmanager", 1) == "127.0.0.7"
    hosts()
    with pytest.raises(OSError, match=r"."):
        await numeric("nohost.invalid", 1)


async def test_a_peer_whose_name_is_not_known_yet_is_unreachable_and_can_be_asked_again(hosts):
    """A retry, not an error; then it is there."""
    server = HttpRpc("jobmanager", ("127.0.9.1", 0), "t")
    server.serve("dispatcher", {CancelJob: _acknowledge})
    client = HttpRpc("tm-0", None, "t")
    await server.start()
    await client.start()
    address = ("jobmanager.invalid", server.address[1])
    try:
        with pytest.raises(RecipientUnreachable):
            await client.ask("jobmanager", address, "dispatcher", CancelJob("j"), timeout_s=5)
        hosts(**{"jobmanager.invalid": "127.0.9.1"})
        assert (
            await client.ask("jobmanager", address, "dispatcher", CancelJob("j"), timeout_s=5)
            == Acknowledge()
        )
    finally:
        await client.close()
        await server.close()


async def test_a_peer_that_went_silent_and_lives_elsewhere_now_is_found_there(hosts):
    """Its old connection stays open and mute, as to a node that is gone; one that only is slow keeps its connection."""
    held = asyncio.Event()

    async def hang(message):
        await held.wait()

    old = HttpRpc("jobmanager", ("127.0.9.2", 0), "t")
    old.serve("dispatcher", {CancelJob: hang})
    client = HttpRpc("tm-0", None, "t")
    await old.start()
    new = HttpRpc("jobmanager", ("127.0.9.3", old.address[1]), "t")
    new.serve("dispatcher", {CancelJob: _acknowledge})
    await new.start()
    await client.start()
    address = ("jobmanager.invalid", old.address[1])
    hosts(**{"jobmanager.invalid": "127.0.9.2"})
    try:
        with pytest.raises(AskTimeout):
            await client.ask("jobmanager", address, "dispatcher", CancelJob("j"), timeout_s=0.3)
        link = client._links[address]
        await asyncio.gather(*(t for t in client._link_tasks if t.get_name() == "rpc-look"))
        assert not link.over
        hosts(**{"jobmanager.invalid": "127.0.9.3"})
        with pytest.raises((AskTimeout, RecipientUnreachable)):
            await client.ask("jobmanager", address, "dispatcher", CancelJob("j"), timeout_s=0.3)
        await asyncio.gather(*(t for t in client._link_tasks if t.get_name() == "rpc-look"))
        await asyncio.wait([link.task])
        assert (
            await client.ask("jobmanager", address, "dispatcher", CancelJob("j"), timeout_s=5)
            == Acknowledge()
        )
    finally:
        held.set()
        await client.close()
        await new.close()
        await old.close()


async def test_data_connections_take_names_too(hosts):
    """A name that is not known is refused like any address."""
    with pytest.raises(OSError, match=r"."):
        await TcpNetwork().connect(("nohost.invalid", 1), None, timeout_s=5)


async def test_a_name_that_is_not_resolved_within_the_limit_is_an_error(hosts, monkeypatch):
    """The limit of a data connection covers the look-up of its name."""

    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
    with pytest.raises(TimeoutError):
        await TcpNetwork().connect(("nohost.invalid", 1), None, timeout_s=0.05)


async def _acknowledge(message):
    del message
    return Acknowledge()


def test_a_url_has_brackets_around_an_ipv6_host():
    """Pods of a cluster may have IPv6 addresses, which are ambiguous before a port."""
    assert http_url(("fd00::7", 6124), "/v1/objects") == "http://[fd00::7]:6124/v1/objects"
    assert http_url(("tm-0", 6124), "") == "http://tm-0:6124"
