"""Flink's gate reads the events that Headgate's partitions write. `exchange serve` itself sends no barriers."""

from __future__ import annotations

import asyncio
import json
import struct

import pytest

from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfOutputChannelState,
    EndOfSuperstep,
    OtherEvent,
    RecoveryMetadata,
    SavepointFormat,
    SnapshotType,
    SubtaskConnectionDescriptor,
)
from testbed_runtime.core.options import Options
from testbed_runtime.transport.tcp import TcpNetwork
from tests.transport.exchanging import P, Producer
from tests.transport.records import frame_record

pytestmark = pytest.mark.processes

LIMIT_S = 60.0
RECORD = bytes(range(100))
RECORDS = 300
"""Records between two events: some 30 buffers of 1 KiB, so that a priority event has something to overtake."""
NOTE = "dev.headgate.interop.Note"
TIME_MS = 1_700_000_000_000


def barrier(number: int, alignment: AlignmentType, **fields) -> CheckpointBarrier:
    return CheckpointBarrier(number, TIME_MS, alignment, **fields)


SAVEPOINT = {
    "snapshot_type": SnapshotType.SAVEPOINT,
    "savepoint_format": SavepointFormat.NATIVE,
    "location": b"sp-1",
}
IN_ORDER = [
    (barrier(1, AlignmentType.ALIGNED), "CheckpointBarrier 1 ALIGNED Checkpoint -"),
    (barrier(3, AlignmentType.AT_LEAST_ONCE), "CheckpointBarrier 3 AT_LEAST_ONCE Checkpoint -"),
    (CancelCheckpointMarker(3), "CancelCheckpointMarker 3"),
    (barrier(4, AlignmentType.ALIGNED, **SAVEPOINT), "CheckpointBarrier 4 ALIGNED Savepoint sp-1"),
    (OtherEvent(NOTE, struct.pack(">H", 2) + b"hi"), "Note hi"),
    (SubtaskConnectionDescriptor(1, 2), "SubtaskConnectionDescriptor"),
    (RecoveryMetadata(0), "RecoveryMetadata"),
    (EndOfSuperstep(), "EndOfSuperstepEvent"),
    (barrier(5, AlignmentType.FORCED_ALIGNED), "CheckpointBarrier 5 FORCED_ALIGNED Checkpoint -"),
    (EndOfOutputChannelState(), "EndOfChannelStateEvent"),
    (
        barrier(6, AlignmentType.ALIGNED, alignment_timeout_ms=30_000),
        "CheckpointBarrier 6 ALIGNED Checkpoint -",
    ),
]


async def emit(producer: Producer) -> None:
    data = frame_record(RECORD) * RECORDS
    position = producer.partition.emit(0, data)
    while position < len(data):
        available = asyncio.Event()
        producer.partition.pool.when_available(available.set)
        await available.wait()
        position += producer.partition.emit(0, data, offset=position)


async def write_everything(producer: Producer) -> None:
    """Write records and events alternately, the unaligned barrier (2) among them, and end as a task does."""
    for event, _ in IN_ORDER:
        await emit(producer)
        if event == IN_ORDER[1][0]:
            producer.partition.broadcast_event(barrier(2, AlignmentType.UNALIGNED))
        producer.partition.broadcast_event(event)
    await emit(producer)
    producer.partition.notify_end_of_data()
    while not producer.partition.all_data_processed:
        await asyncio.sleep(0.01)
    producer.partition.finish()


@pytest.mark.parametrize("exclusive", [2, 0])
async def test_flink_reads_every_event_that_headgate_writes(flink, exclusive):
    """Events arrive in order, blocking ones are resumed, the unaligned barrier overtakes; every record arrives."""
    producer = Producer(TcpNetwork(), options=Options({}, flink_version=flink.name))
    _, port = await producer.start()
    command = flink.java(
        "fetch", partition=P.to_bytes().hex(), port=port, exclusive=exclusive, record_bytes=len(RECORD)
    )
    reader = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            reading = group.create_task(reader.communicate(), name="read")
            group.create_task(write_everything(producer), name="write")
        read = json.loads(reading.result()[0])["subpartitions"][0]
    finally:
        if reader.returncode is None:
            reader.kill()
            await reader.wait()
        await producer.close()
    assert read["error"] == ""
    assert read["records"] == RECORDS * (len(IN_ORDER) + 1)
    # the name has no `Output` in 1.20
    events = [e.replace("EndOfOutputChannelState", "EndOfChannelState") for e in read["events"]]
    assert "CheckpointBarrier 2 UNALIGNED Checkpoint -" in events
    assert any(e.startswith("EventAnnouncement ") for e in events)
    ordered = [e for e in events if "UNALIGNED" not in e and "Announcement" not in e]
    assert ordered == [text for _, text in IN_ORDER] + ["EndOfData", "EndOfPartitionEvent"]
