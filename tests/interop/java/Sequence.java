package dev.headgate.interop;

import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.checkpoint.CheckpointType;
import org.apache.flink.runtime.io.network.api.CheckpointBarrier;
import org.apache.flink.runtime.state.CheckpointStorageLocationReference;

/** One of Flink's objects, and how each command acts on it. The drivers are in Flink's packages, to reach what is not public. */
public abstract class Sequence {

    /** Act on one command. Return what can be seen of it. */
    protected abstract String step(String[] words) throws Exception;

    /** What can be seen of the state after a command. */
    protected String state() {
        return "";
    }

    final String answer(String[] words) {
        String result;
        try {
            result = step(words);
        } catch (Throwable error) {
            result = error.getClass().getSimpleName();
        }
        return result + state();
    }

    protected static int number(String[] words, int position) {
        return Integer.parseInt(words[position]);
    }

    /** A barrier: aligned, unaligned, timeoutable (aligned at first), or at least once. */
    protected static CheckpointBarrier barrier(String kind, long id, long timestampMs, long timeoutMs) {
        CheckpointStorageLocationReference location = CheckpointStorageLocationReference.getDefault();
        CheckpointOptions options;
        switch (kind) {
            case "aligned":
                options = CheckpointOptions.alignedNoTimeout(CheckpointType.CHECKPOINT, location);
                break;
            case "unaligned":
                options = CheckpointOptions.unaligned(CheckpointType.CHECKPOINT, location);
                break;
            case "timeoutable":
                options = CheckpointOptions.alignedWithTimeout(CheckpointType.CHECKPOINT, location, timeoutMs);
                break;
            default:
                options = CheckpointOptions.notExactlyOnce(CheckpointType.CHECKPOINT, location);
        }
        return new CheckpointBarrier(id, timestampMs, options);
    }
}
