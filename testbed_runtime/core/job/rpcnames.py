"""Flink's names of the messages between processes: today's gateway methods, and the actor messages of Flink up to 1.4."""

from __future__ import annotations

from testbed_runtime.core.versions import PEKKO, has


def actor_address(address: tuple[str, int], endpoint: str, flink_version: str) -> str:
    """Return the address of an endpoint as this version of Flink prints it."""
    system = "pekko" if has(flink_version, PEKKO) else "akka"
    return f"{system}.tcp://flink@{address[0]}:{address[1]}/user/rpc/{endpoint}"


METHODS: dict[str, str] = {
    "SubmitTask": "TaskExecutorGateway.submitTask(TaskDeploymentDescriptor, JobMasterId, Duration)",
    "CancelTask": "TaskExecutorGateway.cancelTask(ExecutionAttemptID, Duration)",
    "ReleasePartitions": "TaskExecutorGateway.releasePartitions(JobID, Set)",
    "TriggerCheckpoint": "TaskExecutorGateway.triggerCheckpoint(ExecutionAttemptID, long, long, CheckpointOptions)",
    "NotifyCheckpointComplete": "TaskExecutorGateway.confirmCheckpoint(ExecutionAttemptID, long, long, long)",
    "NotifyCheckpointAborted": "TaskExecutorGateway.abortCheckpoint(ExecutionAttemptID, long, long, long)",
    "RequestSlot": "TaskExecutorGateway.requestSlot(SlotID, JobID, AllocationID, ResourceProfile, String, ResourceManagerId, Duration)",
    "DisconnectResourceManager": "TaskExecutorGateway.disconnectResourceManager(Exception)",
    "DisconnectJobManager": "TaskExecutorGateway.disconnectJobManager(JobID, Exception)",
    "DisconnectTaskManager": "JobMasterGateway.disconnectTaskManager(ResourceID, Exception)",
    "FreeSlot": "TaskExecutorGateway.freeSlot(AllocationID, Throwable, Duration)",
    "UpdateTaskExecutionState": "JobMasterGateway.updateTaskExecutionState(TaskExecutionState)",
    "RequestPartitionState": "JobMasterGateway.requestPartitionState(IntermediateDataSetID, ResultPartitionID)",
    "RegisterAtJobMaster": "JobMasterGateway.registerTaskManager(JobID, TaskManagerRegistrationInformation, Duration)",
    "OfferSlots": "JobMasterGateway.offerSlots(ResourceID, Collection, Duration)",
    "FailSlot": "JobMasterGateway.failSlot(ResourceID, AllocationID, Exception)",
    "AcknowledgeCheckpoint": "CheckpointCoordinatorGateway.acknowledgeCheckpoint(JobID, ExecutionAttemptID, long, CheckpointMetrics, SerializedValue)",
    "DeclineCheckpoint": "CheckpointCoordinatorGateway.declineCheckpoint(DeclineCheckpoint)",
    "RegisterTaskManager": "ResourceManagerGateway.registerTaskExecutor(TaskExecutorRegistration, Duration)",
    "SlotReport": "ResourceManagerGateway.sendSlotReport(ResourceID, InstanceID, SlotReport, Duration)",
    "DisconnectTaskExecutor": "ResourceManagerGateway.disconnectTaskManager(ResourceID, Exception)",
    "NotifySlotAvailable": "ResourceManagerGateway.notifySlotAvailable(InstanceID, SlotID, AllocationID)",
    "NotifyPartitionDataAvailable": "JobMasterGateway.notifyPartitionDataAvailable(ResultPartitionID)",
    "NotifyEndOfData": "JobMasterGateway.notifyEndOfData(ExecutionAttemptID)",
    "RequestNextInputSplit": "JobMasterGateway.requestNextInputSplit(JobVertexID, ExecutionAttemptID)",
    "CancelJob": "DispatcherGateway.cancelJob(JobID, Duration)",
    "RequestJobStatus": "DispatcherGateway.requestJobStatus(JobID, Duration)",
    "SubmitJob": "DispatcherGateway.submitJob(ExecutionPlan, Duration)",
}
"""The method of each message of `core.job.messages`, as error texts print it. A message without one is Headgate's own."""

ACTOR_MESSAGES: dict[str, tuple[str, str]] = {
    "registerTaskManager": ("RegisterTaskManager", "A TaskManager asks again, with a doubling timeout, until it is registered."),
    "submitJob": ("SubmitJob", ""),
    "cancelJob": ("CancelJob", ""),
    "updateTaskExecutionState": ("UpdateTaskExecutionState", ""),
    "requestNextInputSplit": ("RequestNextInputSplit", "A source with `splits` asks for each of them."),
    "jobStatusChanged": ("RequestJobStatus", "The JobManager does not notify clients any more; they ask."),
    "SubmitTask": ("SubmitTask", ""),
    "CancelTask": ("CancelTask", ""),
    "FailTask": ("", "No message any more: a TaskExecutor fails its tasks itself and reports FAILED with UpdateTaskExecutionState."),
}  # fmt: skip
"""The messages of Flink up to 1.4, each with the message that does its work now, and what else changed."""
