"""All three BlobStores: whole objects, atomic, sorted."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.http import serve
from testbed_runtime.store.blobstore import FolderBlobStore, MemoryBlobStore
from testbed_runtime.store.http import MAX_OBJECT_BYTES, Fenced, HttpBlobStore, StoreServer

TOKEN = "secret"


class Served:
    """A store process's server in this loop, on a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.address = ("127.0.0.1", 0)
        self.runner = None

    async def start(self):
        self.runner, self.address = await serve(StoreServer(self.folder).application(TOKEN), self.address)

    async def stop(self):
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    def client(self, **settings):
        return HttpBlobStore(self.address, settings.pop("token", TOKEN), **settings)


@pytest.fixture
async def served(tmp_path):
    served = Served(tmp_path / "store")
    await served.start()
    yield served
    await served.stop()


@pytest.fixture(params=["memory", "folder", "http"])
async def blobs(request, tmp_path):
    if request.param != "http":
        yield MemoryBlobStore() if request.param == "memory" else FolderBlobStore(tmp_path / "blobs")
        return
    served = Served(tmp_path / "store")
    await served.start()
    client = served.client()
    yield client
    await client.close()
    await served.stop()


async def test_what_was_put_is_got_and_the_last_put_wins(blobs):
    """Put, put, get."""
    await blobs.put("a/b", b"1")
    await blobs.put("a/b", b"2")
    assert await blobs.get("a/b") == b"2"


async def test_what_is_not_there_is_a_key_error(blobs):
    """Never put, deleted, or only a prefix; deleting twice is harmless."""
    await blobs.put("a/b", b"1")
    await blobs.delete("a/b")
    await blobs.delete("a/b")
    await blobs.put("c/d", b"1")
    for key in ("a/b", "x", "c"):
        with pytest.raises(KeyError):
            await blobs.get(key)


async def test_lists_are_sorted_and_take_any_prefix(blobs):
    """Not only folders."""
    for key in ("j/2", "j/10", "j/1/x", "k/1"):
        await blobs.put(key, b"")
    assert await blobs.list("j/") == ["j/1/x", "j/10", "j/2"]
    assert await blobs.list("j/1") == ["j/1/x", "j/10"]
    assert await blobs.list("nothing/") == []
    assert len(await blobs.list("")) == 4


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/./b", "x" * 600])
async def test_keys_that_leave_the_store_are_refused(blobs, key):
    """ValueError."""
    with pytest.raises(ValueError, match="not a key"):
        await blobs.put(key, b"")


async def test_keys_with_letters_that_a_url_reserves_are_kept(blobs):
    """Spaces, question marks, percent signs."""
    key = "a b/c?d=%2e&e#f"
    await blobs.put(key, b"\x00\xff")
    assert await blobs.get(key) == b"\x00\xff"
    assert await blobs.list("a b/c?") == [key]


async def test_a_put_that_fails_leaves_the_old_object_and_no_remains(tmp_path):
    """The name is a folder: the rename is refused."""
    blobs = FolderBlobStore(tmp_path)
    await blobs.put("a/b", b"1")
    with pytest.raises(OSError, match="a"):
        await blobs.put("a", b"2")
    assert [p.name for p in tmp_path.rglob("*")] == ["a", "b"]


async def test_deleted_objects_leave_no_folders(tmp_path):
    """`list` walks them: a testbed with a checkpoint per second left four folders per second, until checkpoints timed out."""
    store = FolderBlobStore(tmp_path / "objects")
    for number in range(3):
        await store.put(f"jobs/j/checkpoints/{number}/source-0/state", b"x")
    await store.put("jobs/j/checkpoints/2/_metadata", b"m")
    for number in range(3):
        await store.delete(f"jobs/j/checkpoints/{number}/source-0/state")
        await store.delete(f"jobs/j/checkpoints/{number}/source-0/state")
    assert await store.list("") == ["jobs/j/checkpoints/2/_metadata"]
    left = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_dir())
    assert left == [
        "objects",
        "objects/jobs",
        "objects/jobs/j",
        "objects/jobs/j/checkpoints",
        "objects/jobs/j/checkpoints/2",
    ]
    await store.delete("jobs/j/checkpoints/2/_metadata")
    assert [p.name for p in tmp_path.rglob("*")] == ["objects"]


async def test_puts_and_lists_beside_deletes_that_remove_the_folder_succeed(tmp_path):
    """The folder of an object may vanish between its creation and the object's."""
    store = FolderBlobStore(tmp_path)

    async def put_and_delete(name):
        for _ in range(50):
            await store.put(f"checkpoints/1/{name}", b"x")
            await store.delete(f"checkpoints/1/{name}")
            assert set(await store.list("checkpoints/1/")) <= {f"checkpoints/1/{other}" for other in "abcd"}
        await store.put(f"checkpoints/1/{name}", b"end")

    await asyncio.gather(*(put_and_delete(name) for name in "abcd"))
    assert await store.list("") == [f"checkpoints/1/{name}" for name in "abcd"]


async def test_a_put_whose_folder_is_removed_while_it_is_looked_at_succeeds(tmp_path, monkeypatch):
    """`Path.mkdir` asks whether what exists is a folder after the delete has removed it, and raises FileExistsError."""
    store, folder, looked = FolderBlobStore(tmp_path), tmp_path / "checkpoints" / "1", []
    folder.mkdir(parents=True)
    is_dir = Path.is_dir

    def removed_first(path, **settings):
        if path == folder and not looked:
            looked.append(path)
            folder.rmdir()
        return is_dir(path, **settings)

    monkeypatch.setattr(Path, "is_dir", removed_first)
    await store.put("checkpoints/1/a", b"x")
    assert looked == [folder]
    assert await store.list("") == ["checkpoints/1/a"]


async def test_a_put_below_an_object_is_refused(tmp_path):
    """An object is no folder, however often the put is repeated."""
    store = FolderBlobStore(tmp_path)
    await store.put("a", b"1")
    with pytest.raises(OSError, match="a"):
        await store.put("a/b", b"2")
    assert await store.list("") == ["a"]


async def test_an_older_job_manager_can_not_replace_what_a_newer_one_wrote(served):
    """Its callback runs once and every write fails; a client without an epoch can still write."""
    fenced = []
    old, new, plain = served.client(on_fenced=fenced.append), served.client(), served.client()
    try:
        assert (await old.take_over(), await new.take_over()) == (1, 2)
        await new.put("jobs/j/status", b"new")
        with pytest.raises(Fenced, match="another JobManager has taken over"):
            await old.put("jobs/j/status", b"old")
        with pytest.raises(Fenced):
            await old.delete("jobs/j/status")
        assert len(fenced) == 2
        assert await old.get("jobs/j/status") == b"new"
        await plain.put("states/x", b"1")
        assert await new.list("") == ["jobs/j/status", "states/x"]
    finally:
        for client in (old, new, plain):
            await client.close()


async def test_a_job_manager_that_was_replaced_can_not_take_over_again(served):
    """A lower number is refused after any number of restarts. The same number twice is a repeated call."""
    old, new = served.client(), served.client()
    try:
        assert await old.take_over(1) == 1
        assert await new.take_over(101) == 101
        assert await new.take_over(101) == 101
        with pytest.raises(Fenced, match="epoch 2 is over"):
            await old.take_over(2)
        await new.put("a", b"1")
    finally:
        await old.close()
        await new.close()


async def test_objects_and_the_epoch_outlive_the_store_process(served):
    """A call that finds no process waits for the next one; the fence stays up."""
    client, other = served.client(), served.client()
    try:
        await client.take_over()
        await client.put("a", b"1")
        await served.stop()
        await served.start()
        assert await client.get("a") == b"1"
        assert await other.take_over() == 2
        with pytest.raises(Fenced):
            await client.put("a", b"2")
    finally:
        await client.close()
        await other.close()


async def test_a_store_that_stays_away_is_an_os_error(served):
    """After the limit, with the address."""
    await served.stop()
    client = served.client(away_limit_s=0.3)
    with pytest.raises(ConnectionError, match="does not answer"):
        await client.put("a", b"1")
    await client.close()


async def test_a_wrong_token_and_an_object_that_is_too_large_are_refused(served):
    """401 and 413, as OSErrors with the status."""
    stranger, client = served.client(token="wrong"), served.client()
    with pytest.raises(OSError, match="401"):
        await stranger.get("a")
    with pytest.raises(OSError, match="413"):
        await client.put("a", bytes(MAX_OBJECT_BYTES + 1))
    await stranger.close()
    await client.close()


@pytest.mark.parametrize(
    "path", ["/v1/objects/..%2F..%2Fetc%2Fpasswd", "/v1/objects?prefix=../", "/v1/objects?prefix=/etc/"]
)
async def test_nothing_outside_the_folder_is_shown(served, path):
    """Encoded dots, prefixes that climb."""
    base = f"http://{served.address[0]}:{served.address[1]}"
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
        session.get(URL(base + path, encoded=True)) as answer,
    ):
        assert answer.status == 400


async def test_a_folder_that_can_not_be_used_is_said_at_the_start(tmp_path):
    """The epoch is damaged, or the folder is a file."""
    (tmp_path / "epoch").write_text("x")
    with pytest.raises(HeadgateError, match="cannot use"):
        StoreServer(tmp_path)
