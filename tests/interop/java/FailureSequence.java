package org.apache.flink.runtime.checkpoint;

import dev.headgate.interop.Sequence;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;

/** The failures and successes of checkpoints that fail a job. */
public final class FailureSequence extends Sequence {

    private CheckpointFailureManager manager;
    private String failure = "";

    @Override
    protected String step(String[] words) {
        failure = "";
        switch (words[0]) {
            case "new":
                manager = new CheckpointFailureManager(number(words, 1), new Callback());
                break;
            case "success":
                manager.handleCheckpointSuccess(number(words, 1));
                break;
            default:
                manager.handleJobLevelCheckpointException(
                        CheckpointProperties.forCheckpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION),
                        new CheckpointException(CheckpointFailureReason.valueOf(words[2])),
                        number(words, 1));
        }
        return failure;
    }

    private final class Callback implements CheckpointFailureManager.FailJobCallback {
        @Override
        public void failJob(Throwable cause) {
            failure = cause.getMessage();
        }

        @Override
        public void failJobDueToTaskFailure(Throwable cause, ExecutionAttemptID attempt) {
            failure = cause.getMessage();
        }
    }
}
