"""The questions that `headgate new` finds for an option, or for lines as users paste them from Flink's log."""

from __future__ import annotations

import pytest
import yaml

from testbed_runtime.api.catalogue import KNOWN
from testbed_runtime.cli import exits, questions
from testbed_runtime.core.options import ALIASES, BY_KEY

SUPPRESSED = """org.apache.flink.runtime.JobException: Recovery is suppressed by NoRestartBackoffTimeStrategy
\tat org.apache.flink.runtime.executiongraph.failover.flip1.ExecutionFailureHandler.handleFailure(ExecutionFailureHandler.java:138)
\tat akka.actor.ActorCell.receiveMessage(ActorCell.scala:580)
Caused by: """
BESIDE = """java.io.IOException: Failed to fetch the partition
\tat org.apache.flink.runtime.taskmanager.Task.run(Task.java:550)
\tSuppressed: org.apache.flink.util.FlinkException: Heartbeat of TaskManager with id tm-1 timed out.
\t\tat java.lang.Thread.run(Thread.java:829)
\tCaused by: java.util.concurrent.TimeoutException: Heartbeat of TaskManager with id tm-1 timed out.
Caused by: org.apache.flink.runtime.io.network.partition.PartitionNotFoundException: Partition 3f1a#2@9c not found.
\tSuppressed: java.lang.Exception: Connection unexpectedly closed by remote task manager 'tm-1'.
\t\tat java.lang.Thread.run(Thread.java:829)
"""
DEPLOYMENT = """java.lang.Exception: Cannot deploy task Source: a -> b (1/8) (d8e1) - TaskManager (10.0.0.1:6122-af) not responding after a rpcTimeout of 10000 ms
\tat org.apache.flink.runtime.executiongraph.Execution.lambda$deploy$5(Execution.java:602)
Caused by: java.util.concurrent.TimeoutException: Invocation of [RemoteRpcInvocation(TaskExecutorGateway.submitTask(TaskDeploymentDescriptor, JobMasterId, Time))] at recipient [akka.tcp://flink@10.0.0.1:6122/user/rpc/taskmanager_0] timed out. This is usually caused by: 1) Akka failed sending the message silently, due to problems like oversized payload or serialization failures."""
CLIENT = """java.util.concurrent.TimeoutException: Invocation of [LocalRpcInvocation(RestfulGateway.requestJob(JobID, Time))] at recipient [akka.tcp://flink@jobmanager:6123/user/rpc/dispatcher_1] timed out. In that case, you can try to increase akka.ask.timeout.
Caused by: akka.pattern.AskTimeoutException: Ask timed out on [Actor[akka://flink/user/rpc/dispatcher_1#54]] after [10000 ms]. Message of type [org.apache.flink.runtime.rpc.messages.LocalFencedMessage]. A typical reason for `AskTimeoutException` is that the recipient actor didn't send a reply."""
INCIDENTS = {
    "org.apache.flink.runtime.io.network.partition.PartitionNotFoundException: Partition 3f1a#2@9c not found.": "late-producer",
    "java.util.concurrent.TimeoutException: Heartbeat of TaskManager with id 172.18.0.3:33783-3e38f6 timed out.": "taskmanager-paused",
    "The heartbeat of TaskManager with id container_e07_0904_01_000003(hadoop-03:45245) timed out.": "taskmanager-paused",
    SUPPRESSED
    + "java.util.concurrent.TimeoutException: Heartbeat of TaskManager with id tm timed out.": "taskmanager-paused",
    SUPPRESSED + "java.io.IOException: Insufficient number of network buffers: required 17, but only 0 available. "
    "You can increase this number by setting the configuration keys 'taskmanager.memory.network.fraction'": "network-buffers",
    "Recovery is suppressed by FixedDelayRestartBackoffTimeStrategy(maxNumberRestartAttempts=3, backoffTimeMS=10000)": "taskmanager-killed",
    "RemoteTransportException: Connection unexpectedly closed by remote task manager '10.0.0.1/10.0.0.1:6122'. "
    "This might indicate that the remote task manager was lost.": "taskmanager-killed",
    "org.apache.flink.runtime.io.network.netty.exception.RemoteTransportException: Lost connection to task manager "
    "'10.0.0.1/10.0.0.1:6122'. This indicates that the remote task manager was lost.": "taskmanager-killed",
    "LocalTransportException: readAddress(..) failed: Connection reset by peer (connection to '10.0.0.1')": "taskmanager-killed",
    "TaskManager with id flink-taskmanager-1-3 is no longer reachable.": "taskmanager-killed",
    "org.apache.flink.util.FlinkException: The assigned slot 7a9c_0 was removed.": "taskmanager-killed",
    "Association with remote system [akka.tcp://flink@tm-1:6122] has failed, address is now gated for [50] ms.": "taskmanager-killed",
    "WARN akka - Reason: [Association failed with [akka.tcp://flink@tm-1:6122]]": "taskmanager-killed",
    "JobManager with id 7a9c is no longer reachable.": "jobmanager-killed",
    "Association with remote system [akka.tcp://flink@jobmanager:6123] has failed, address is now gated for [50] ms.": "jobmanager-killed",
    "Reason: [Association failed with [pekko.tcp://flink@jm:6123]] Caused by: [Connection refused: jm/10.0.0.1:6123]": "jobmanager-killed",
    "ResourceManager with id 81d0 is no longer reachable.": "jobmanager-killed",
    "Could not resolve ResourceManager address akka.tcp://flink@jobmanager:6123/user/rpc/resourcemanager_*, retrying in "
    "10000 ms: Could not connect to rpc endpoint under address.": "jobmanager-killed",
    "org.apache.flink.runtime.taskexecutor.exceptions.RegistrationTimeoutException: Could not register at the "
    "ResourceManager within the specified maximum registration duration PT5M.": "jobmanager-killed",
    "The heartbeat of JobManager with id 7a9c timed out.": "jobmanager-paused",
    "The heartbeat of ResourceManager with id 81d0 timed out.": "jobmanager-paused",
    "Job leader for job id 0cd8 lost leadership.": "jobmanager-paused",
    "JobManager responsible for 0cd8 lost the leadership.": "jobmanager-paused",
    DEPLOYMENT: "slow-deployment",
    "akka.pattern.AskTimeoutException: Ask timed out on [Actor[akka.tcp://flink@a:6123/user/rpc/jobmanager_2#36]] after "
    "[10000 ms]. Message of type [org.apache.flink.runtime.rpc.messages.RemoteFencedMessage].": "slow-deployment",
    "NoResourceAvailableException: Could not acquire the minimum required resources.": "missing-slots",
    "java.util.concurrent.CompletionException: org.apache.flink.runtime.jobmanager.scheduler.NoResourceAvailableException: "
    "Slot request bulk is not fulfillable! Could not allocate the required slot within slot request timeout": "missing-slots",
    "Could not allocate all requires slots within timeout of 300000 ms. NoResourceAvailableException": "missing-slots",
    "Could not fulfill resource requirements of job 0cd8. Free slots: 0": "missing-slots",
    "org.apache.flink.util.FlinkException: The TaskExecutor is shutting down.": "missing-slots",
    "RemoteTransportException: Connecting to remote task manager '/10.0.0.1:6122' has failed. This might indicate that "
    "the remote task manager has been lost.": "unreachable-taskmanager",
    "PartitionConnectionException: Connection for partition 3f1a#2@9c not reachable.": "unreachable-taskmanager",
    "Caused by: java.net.UnknownHostException: flink-taskmanager-1-3": "unreachable-taskmanager",
    "Insufficient number of network buffers: required 513, but only 512 available.": "network-buffers",
    "org.apache.flink.runtime.checkpoint.CheckpointException: Checkpoint expired before completing.": "slow-checkpoints",
    "Checkpoint 17 of job 9ee5 expired before completing.": "slow-checkpoints",
    "FlinkRuntimeException: Exceeded checkpoint tolerable failure threshold.": "slow-checkpoints",
    BESIDE: "late-producer",
    "backpressure": "back-pressure",
    "heartbeat.timeout: 180000": "taskmanager-paused",
    "akka.ask.timeout": "slow-deployment",
    "taskmanager.network.request-backoff.max=30000": "late-producer",
    "taskmanager.network.netty.client.connectTimeoutSec": "unreachable-taskmanager",
    "taskmanager.network.memory.fraction": "network-buffers",
    "slot.request.timeout": "missing-slots",
    "execution.checkpointing.tolerable-failed-checkpoints": "slow-checkpoints",
    "execution.checkpointing.unaligned": "back-pressure",
    "restart-strategy.failure-rate.max-failures-per-interval": "taskmanager-killed",
    "restart-strategy.exponential-delay.max-backoff": "taskmanager-killed",
    "high-availability.kubernetes.leader-election.renew-deadline": "jobmanager-paused",
    "taskmanager.registration.timeout": "jobmanager-killed",
}  # fmt: skip
ELSEWHERE = {
    CLIENT: "web.timeout",
    "web.timeout": "pekko.ask.timeout does not",
    "akka.framesize": "Set pekko.framesize",
    "java.io.IOException: The rpc invocation size 56424326 exceeds the maximum akka framesize.": "Set pekko.framesize",
    "Task did not exit gracefully within 180 + seconds.": "task.cancellation.timeout (180 s by default)",
    "Task 'Join (1/1)#0' did not react to cancelling signal for 30 seconds, but is stuck in method:": "task.cancellation.timeout",
    "java.lang.OutOfMemoryError: Direct buffer memory": "headgate memory",
    "jobmanager.adaptive-scheduler.resource-wait-timeout": "adaptive scheduler",
    "execution.buffer-timeout.interval": "write it into `flinkConfiguration`",
    "taskmanager.bind-host": "has no effect here",
}  # fmt: skip


@pytest.mark.parametrize(("text", "name"), INCIDENTS.items(), ids=lambda t: t[:60])
def test_new_knows_the_question_for_what_is_in_flinks_log(headgate, text, name):
    """An exception, a line, a stack trace whose last cause decides, or an option with its value or an older key."""
    said = headgate("new", text, "-o", "-")
    assert (said.returncode, yaml.safe_load(said.stdout)["metadata"]["name"]) == (exits.PASS, name)


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("heartbeat.timout", "warning: QUESTION: 'heartbeat.timout' is read as heartbeat.timeout\n"),
        ("heartbeat.timout: 5 s", "warning: QUESTION: 'heartbeat.timout' is read as heartbeat.timeout\n"),
        ("heartbeat.timeout", ""),
        ("jobmanager-paused", ""),
        ("akka.ask.timeout", ""),
    ],
)  # fmt: skip
def test_new_says_how_it_read_a_misspelt_option(headgate, text, warned):
    """The question may not be about what was meant. An older key or the name of a question is no mistake."""
    said = headgate("new", text, "-o", "-")
    assert (said.returncode, said.stderr) == (exits.PASS, warned)


@pytest.mark.parametrize(("text", "words"), ELSEWHERE.items(), ids=lambda t: t[:60])
def test_new_says_why_no_scenario_is_about_something(headgate, text, words):
    """And what helps instead."""
    said = headgate("new", text, "-o", "-")
    assert (said.returncode, said.stdout) == (exits.ERROR, "")
    assert words in said.stderr


def test_a_text_without_an_error_or_option_is_about_nothing():
    """Ordinary words, or the name of a question, are no error."""
    assert questions.about("switched from RUNNING to FAILED") is None


def test_every_key_of_a_question_is_one_of_flinks():
    """A key, or the beginning of one, so that no renamed option is left behind."""
    known = {*BY_KEY, *ALIASES, *(key.key for key in KNOWN)}
    for topic in (*questions.questions().values(), *questions.elsewhere()):
        for key in topic.keys:
            assert any(one.startswith(key) for one in known), key
