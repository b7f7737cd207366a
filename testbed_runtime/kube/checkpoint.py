"""A kept checkpoint on its way into a cluster: `headgate run` packs its objects into ConfigMaps of the run, and the runner puts
them into the store of each trial (docs/decisions/0013)."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from testbed_runtime.api.views import Resource
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.job.restore import IN_CLUSTER, STATE_RECOVERY
from testbed_runtime.core.options import ALIASES
from testbed_runtime.jobmanager.recovery import KeptCheckpoint
from testbed_runtime.kube.api import Api, polled_patiently
from testbed_runtime.kube.manifests import CONFIG_MAP_BYTES, config_map, unwatched, with_parts
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.store.http import MAX_OBJECT_BYTES

MAX_PARTS = 16
"""Maximum ConfigMaps of a packed checkpoint. The API server keeps all objects of a cluster in one database of some gigabytes."""
PART, PARTS = "part", "parts"
"""Keys of a ConfigMap: its part of the packed objects, and the number of parts."""
FETCH_LIMIT_S = 60.0
"""How long the runner waits for the ConfigMaps: the command line creates them after the run that owns them, while the first trial starts."""
RETRY_S = 0.5


def pack(objects: Mapping[str, bytes]) -> list[bytes]:
    """Return the objects, compressed, in parts that fit into ConfigMaps. Raises UserError if they need too many."""
    packed = zlib.compress(msgspec.msgpack.encode(dict(objects)))
    if len(packed) > MAX_PARTS * CONFIG_MAP_BYTES:
        raise UserError(
            STATE_RECOVERY,
            f"the checkpoint has {len(packed)} bytes when it is compressed, but {MAX_PARTS} ConfigMaps hold {MAX_PARTS * CONFIG_MAP_BYTES}",
            "keep a checkpoint with less state, or run it on this machine",
        )
    return [packed[at : at + CONFIG_MAP_BYTES] for at in range(0, len(packed), CONFIG_MAP_BYTES)]


def unpack(parts: Sequence[bytes]) -> dict[str, bytes]:
    """Return the objects of `pack`. Raises HeadgateError if they are damaged or too large."""
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(b"".join(parts), MAX_OBJECT_BYTES)
        if not inflate.eof:
            raise HeadgateError(
                f"the kept checkpoint is incomplete, or has more than {MAX_OBJECT_BYTES} bytes"
            )
        return msgspec.msgpack.decode(data, type=dict[str, bytes])
    except (zlib.error, msgspec.DecodeError) as error:
        raise HeadgateError(f"the kept checkpoint is damaged: {error}") from None


def config_maps(run: Resource, name: str, parts: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return the ConfigMaps of a packed checkpoint: `name`, `name-1`, … They are deleted with the run."""
    return [
        unwatched(config_map(run, _part_name(name, number), {PARTS: str(len(parts))}, {PART: part}))
        for number, part in enumerate(parts)
    ]


def _part_name(name: str, number: int) -> str:
    return f"{name}-{number}" if number else name


def in_cluster(document: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the document with the ConfigMaps of its checkpoints (`names`, by folder) instead of their folders."""

    def placed(part: Mapping[str, Any]) -> dict[str, Any]:
        written = part.get("flinkConfiguration")
        if not written:
            return dict(part)
        options = {
            key: f"{IN_CLUSTER}{names[value.strip()]}"
            if ALIASES.get(key, key) == STATE_RECOVERY and value.strip() in names
            else value
            for key, value in written.items()
        }
        return {**part, "flinkConfiguration": options}

    return with_parts(document, placed)


async def fetch(api: Api, namespace: str, path: str) -> dict[str, bytes]:
    """Return the objects of the checkpoint `configmap://<name>`. Raises HeadgateError if a ConfigMap is missing after FETCH_LIMIT_S."""
    name = path.removeprefix(IN_CLUSTER)
    first = await _part(api, namespace, name)
    count = (first.get("data") or {}).get(PARTS, "")
    if not count.isdecimal() or not 0 < int(count) <= MAX_PARTS:
        raise HeadgateError(f"ConfigMap {name} is not part of a kept checkpoint")
    found = [first, *[await _part(api, namespace, _part_name(name, n)) for n in range(1, int(count))]]
    return unpack([base64.b64decode((part.get("binaryData") or {}).get(PART, "")) for part in found])


async def checked(objects: Mapping[str, bytes], wanted: JobGraph, flink_version: str) -> None:
    """Raise HeadgateError if the job cannot start from the checkpoint: a run that was not created by `headgate run` may name
    the checkpoint of another run."""
    blobs = MemoryBlobStore()
    for key, data in objects.items():
        await blobs.put(key, data)
    kept = await KeptCheckpoint.brought(blobs)
    await kept.bring(MemoryBlobStore(), wanted, flink_version)


async def _part(api: Api, namespace: str, name: str) -> dict[str, Any]:
    get = partial(api.get, "ConfigMap", namespace, name)
    found = await polled_patiently(get, limit_s=FETCH_LIMIT_S, every_s=RETRY_S)
    if found is None:
        raise HeadgateError(
            f"ConfigMap {name} with the kept checkpoint does not exist: "
            "`headgate run --on kubernetes --from-checkpoint FOLDER` creates it"
        )
    return found
