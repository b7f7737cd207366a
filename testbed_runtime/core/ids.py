"""Identities of partitions, attempts and TaskManagers, with the byte layouts of Flink's classes; names of processes."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NewType

from msgspec import Struct

JOBMANAGER = "jobmanager"
TASKMANAGER = "taskmanager"
PROXY = "proxy"
STORE = "store"
RECORDER = "recorder"
SUPERVISOR = "supervisor"
RUNNER = "runner"
"""Roles of processes. Except for TaskManagers (`tm-<ordinal>`) they are also logical process names."""
JOB = "job"
"""The name of the job: a testbed runs one."""
_TASK_MANAGER_PREFIX = "tm-"

InputChannelID = NewType("InputChannelID", bytes)
"""16 bytes chosen by the consumer. Identifies the receiver in every frame."""

ABSTRACT_ID_BYTES = 16
RESULT_PARTITION_ID_BYTES = 60
_INT = struct.Struct(">i")


def task_manager_name(ordinal: int) -> str:
    return f"{_TASK_MANAGER_PREFIX}{ordinal}"


def task_manager_names(replicas: int) -> tuple[str, ...]:
    """Return the names of all TaskManagers of a testbed, in order of their ordinals."""
    return tuple(task_manager_name(ordinal) for ordinal in range(replicas))


def is_task_manager(name: str) -> bool:
    return name.startswith(_TASK_MANAGER_PREFIX)


def ordinal_of(name: str) -> int:
    """Return the ordinal of a TaskManager's name. Raises ValueError for any other name."""
    if not is_task_manager(name):
        raise ValueError(f"{name!r} is not the name of a TaskManager: write tm-<ordinal>")
    return int(name.removeprefix(_TASK_MANAGER_PREFIX))


def role_of(name: str) -> str:
    """Return the role of a process: `taskmanager` for `tm-N`, otherwise the name itself."""
    return TASKMANAGER if is_task_manager(name) else name


PARSED_IDS_MAX = 16_384
"""Parsed partition ids that are kept: every consumer of a partition parses its id."""


class ExecutionAttemptID(Struct, frozen=True, order=True):
    """40 bytes: ExecutionGraphID (16), JobVertexID (16), subtask (4), attempt (4)."""

    execution_graph: bytes
    job_vertex: bytes
    subtask: int
    attempt: int

    def to_bytes(self) -> bytes:
        return self.execution_graph + self.job_vertex + struct.pack(">ii", self.subtask, self.attempt)

    @classmethod
    def from_bytes(cls, data: bytes) -> ExecutionAttemptID:
        subtask, attempt = struct.unpack_from(">ii", data, 32)
        return cls(bytes(data[:16]), bytes(data[16:32]), subtask, attempt)

    def __str__(self) -> str:
        return f"{self.execution_graph.hex()}_{self.job_vertex.hex()}_{self.subtask}_{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> ExecutionAttemptID:
        graph, vertex, subtask, attempt = text.split("_")
        return cls(bytes.fromhex(graph), bytes.fromhex(vertex), int(subtask), int(attempt))


class ResultPartitionID(Struct, frozen=True, order=True):
    """60 bytes: IntermediateDataSetID (16), partition number (4), producer's ExecutionAttemptID (40)."""

    data_set: bytes
    partition: int
    producer: ExecutionAttemptID

    def to_bytes(self) -> bytes:
        return self.data_set + _INT.pack(self.partition) + self.producer.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> ResultPartitionID:
        if len(data) != RESULT_PARTITION_ID_BYTES:
            raise ValueError(f"a ResultPartitionID needs {RESULT_PARTITION_ID_BYTES} bytes, got {len(data)}")
        (partition,) = _INT.unpack_from(data, 16)
        return cls(bytes(data[:16]), partition, ExecutionAttemptID.from_bytes(data[20:]))

    def __str__(self) -> str:
        """Format like Flink's toString, as in `Partition <this> not found.`"""
        return f"{self.data_set.hex()}#{self.partition}@{self.producer}"

    @classmethod
    @lru_cache(maxsize=PARSED_IDS_MAX)
    def parse(cls, text: str) -> ResultPartitionID:
        head, producer = text.split("@")
        data_set, partition = head.split("#")
        return cls(bytes.fromhex(data_set), int(partition), ExecutionAttemptID.parse(producer))


class TaskManagerID(Struct, frozen=True, order=True):
    """An ordinal name (`tm-0`) and an incarnation (1, 2, …). Fault targets refer to the ordinal."""

    ordinal: int
    incarnation: int

    @property
    def name(self) -> str:
        return task_manager_name(self.ordinal)

    def __str__(self) -> str:
        """The ResourceID in Flink's messages, for example `tm-0-1`."""
        return f"tm-{self.ordinal}-{self.incarnation}"

    @classmethod
    def parse(cls, text: str) -> TaskManagerID:
        _, ordinal, incarnation = text.split("-")
        return cls(int(ordinal), int(incarnation))
