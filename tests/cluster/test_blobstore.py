"""Both BlobStores: whole objects, atomic, sorted."""

import pytest

from testbed_runtime.cluster.blobstore import FolderBlobStore, MemoryBlobStore


@pytest.fixture(params=["memory", "folder"])
def blobs(request, tmp_path):
    return MemoryBlobStore() if request.param == "memory" else FolderBlobStore(tmp_path / "blobs")


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


async def test_a_put_that_fails_leaves_the_old_object_and_no_remains(tmp_path):
    """The name is a folder: the rename is refused."""
    blobs = FolderBlobStore(tmp_path)
    await blobs.put("a/b", b"1")
    with pytest.raises(OSError, match="a"):
        await blobs.put("a", b"2")
    assert [p.name for p in tmp_path.rglob("*")] == ["a", "b"]
