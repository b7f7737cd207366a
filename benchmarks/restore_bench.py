"""Measure the restore of keyed state from the checkpoint store, and from local copies (`execution.state-recovery.from-local`).

    python benchmarks/restore_bench.py --megabytes 1000

Each subtask has a snapshot of 48 MB. Without local copies the subtasks of one TaskManager load theirs from a store
process over HTTP; with them, from files of this machine. Both ways check and decode the snapshot. Neither builds the
operator's tables, which takes the same time in both.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import tempfile
import time
from pathlib import Path

import numpy as np
from aiohttp import web

from testbed_runtime.store.blobstore import FolderBlobStore
from testbed_runtime.store.http import HttpBlobStore, StoreServer
from testbed_runtime.taskmanager.checkpoints import restore_snapshots, snapshot_key
from testbed_runtime.taskmanager.localstate import LocalState
from testbed_runtime.workload.snapshots import KeyGroupState, SubtaskSnapshot, encode_snapshot

SNAPSHOT_MB = 48
ROW_BYTES = 24
GROUPS = 8
TOKEN = "bench"


def serve(folder: str, port: int) -> None:
    """Run a store process."""
    application = StoreServer(Path(folder)).application(TOKEN)
    web.run_app(application, host="127.0.0.1", port=port, print=None, handle_signals=True)


def snapshot(subtask: int, subtasks: int) -> SubtaskSnapshot:
    rows = SNAPSHOT_MB * 1_000_000 // ROW_BYTES // GROUPS
    column = np.arange(rows, dtype="<i8").tobytes()
    groups = tuple(KeyGroupState(column, column, column, key_group=group) for group in range(GROUPS))
    return SubtaskSnapshot(1, "count", subtask, subtasks, 32768, key_groups=groups)


async def restore(store: HttpBlobStore, local: LocalState, handles: tuple[str, ...]) -> float:
    """Restore every subtask, one after the other, as one event loop does. Return the seconds."""
    begin = time.perf_counter()
    for subtask in range(len(handles)):
        found, _ = await restore_snapshots(store, local, handles, subtask=subtask, parallelism=len(handles))
        assert found[0].subtask == subtask
    return time.perf_counter() - begin


async def measure(folder: Path, port: int, subtasks: int, rounds: int) -> None:
    store, local = HttpBlobStore(("127.0.0.1", port), TOKEN), LocalState(FolderBlobStore(folder / "local"))
    handles = tuple(
        snapshot_key("job", "attempt", SubtaskSnapshot(1, "count", n, subtasks, 32768))
        for n in range(subtasks)
    )
    for number, key in enumerate(handles):
        data = encode_snapshot(snapshot(number, subtasks))
        await store.put(key, data)
        await local.keep(f"job/count-{number}", 1, key, data, completed=0)
    ratios = []
    for _ in range(rounds):
        remote_s = await restore(store, LocalState(), handles)
        local_s = await restore(store, local, handles)
        ratios.append(remote_s / local_s)
        print(
            f"{subtasks * SNAPSHOT_MB} MB: store {remote_s:.2f} s, local {local_s:.2f} s, ratio {ratios[-1]:.2f}"
        )
    print(f"median ratio {sorted(ratios)[len(ratios) // 2]:.2f}")
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(f"{folder}/store", port))
        server.start()
        try:
            subtasks = max(1, given.megabytes // SNAPSHOT_MB)
            asyncio.run(measure(Path(folder), port, subtasks, given.rounds))
        finally:
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
