package org.apache.flink.runtime.io.network.partition;

import dev.headgate.interop.Sequence;
import java.nio.ByteBuffer;
import org.apache.flink.core.memory.MemorySegmentFactory;
import org.apache.flink.runtime.checkpoint.channel.ChannelStateWriter;
import org.apache.flink.runtime.io.network.api.CheckpointBarrier;
import org.apache.flink.runtime.io.network.api.serialization.EventSerializer;
import org.apache.flink.runtime.io.network.buffer.BufferBuilder;
import org.apache.flink.runtime.io.network.buffer.BufferConsumer;

/** A pipelined subpartition and its view. */
public final class SubpartitionSequence extends Sequence {

    private static final int SEGMENT_BYTES = 8;
    private static final long BARRIER_TIMEOUT_MS = 10;

    private PipelinedSubpartition subpartition;
    private PipelinedSubpartitionView view;
    private BufferBuilder open;
    private int notified;

    /** A partition whose subpartitions can be written to directly. */
    public static PipelinedResultPartition partition(
            ResultPartitionID id, ResultPartitionManager manager, int subpartitions, int exclusive) throws Exception {
        ResultSubpartition[] all = new ResultSubpartition[subpartitions];
        PipelinedResultPartition partition =
                new PipelinedResultPartition(
                        "test",
                        0,
                        id,
                        ResultPartitionType.PIPELINED_BOUNDED,
                        all,
                        subpartitions,
                        manager,
                        null,
                        () -> null);
        for (int index = 0; index < subpartitions; index++) {
            PipelinedSubpartition one = Constructed.subpartition(index, exclusive, partition);
            one.setChannelStateWriter(ChannelStateWriter.NO_OP);
            all[index] = one;
        }
        return partition;
    }

    public static PipelinedSubpartition subpartition(ResultPartition partition, int index) {
        return (PipelinedSubpartition) ((PipelinedResultPartition) partition).subpartitions[index];
    }

    /** A builder with {@code size} bytes, whose consumer is in the subpartition. */
    public static BufferBuilder added(PipelinedSubpartition subpartition, int size, boolean finished) {
        BufferBuilder builder =
                new BufferBuilder(MemorySegmentFactory.allocateUnpooledSegment(SEGMENT_BYTES), segment -> {});
        BufferConsumer consumer = builder.createBufferConsumerFromBeginning();
        builder.appendAndCommit(ByteBuffer.wrap(new byte[size]));
        if (finished) {
            builder.finish();
        }
        subpartition.add(consumer, 0);
        return builder;
    }

    /** Add a barrier of this kind. */
    public static void addBarrier(PipelinedSubpartition subpartition, String kind, long id) throws Exception {
        CheckpointBarrier barrier = barrier(kind, id, 0, BARRIER_TIMEOUT_MS);
        boolean priority = barrier.getCheckpointOptions().isUnalignedCheckpoint();
        subpartition.add(EventSerializer.toBufferConsumer(barrier, priority), 0);
    }

    @Override
    protected String step(String[] words) throws Exception {
        switch (words[0]) {
            case "new":
                PipelinedResultPartition partition =
                        partition(new ResultPartitionID(), new ResultPartitionManager(), 1, number(words, 1));
                subpartition = subpartition(partition, 0);
                view =
                        subpartition.createReadView(
                                new BufferAvailabilityListener() {
                                    @Override
                                    public void notifyDataAvailable(ResultSubpartitionView any) {
                                        notified++;
                                    }

                                    @Override
                                    public void notifyPriorityEvent(int sequenceNumber) {
                                        notified++;
                                    }
                                });
                return "";
            case "data":
                finish();
                boolean finished = "finished".equals(words[2]);
                BufferBuilder builder = added(subpartition, number(words, 1), finished);
                open = finished ? null : builder;
                return "";
            case "append":
                if (open != null) {
                    open.appendAndCommit(ByteBuffer.wrap(new byte[number(words, 1)]));
                }
                return "";
            case "finish":
                finish();
                return "";
            case "barrier":
                finish();
                addBarrier(subpartition, words[1], number(words, 2));
                return "";
            case "time-out":
                subpartition.alignedBarrierTimeout(number(words, 1));
                return "";
            case "end":
                finish();
                subpartition.finish();
                return "";
            case "flush":
                subpartition.flush();
                return "";
            case "resume":
                view.resumeConsumption();
                return "";
            case "release":
                finish();
                subpartition.release();
                return "";
            default:
                return polled();
        }
    }

    private void finish() {
        if (open != null) {
            open.finish();
            open = null;
        }
    }

    private String polled() throws Exception {
        ResultSubpartition.BufferAndBacklog polled = view.getNextBuffer();
        if (polled == null) {
            return "none";
        }
        int size = polled.buffer().isBuffer() ? polled.buffer().readableBytes() : 0;
        String text =
                String.format(
                        "%s %d %d %s %d",
                        polled.buffer().getDataType(),
                        size,
                        polled.buffersInBacklog(),
                        polled.getNextDataType(),
                        polled.getSequenceNumber());
        polled.buffer().recycleBuffer();
        return text;
    }

    @Override
    protected String state() {
        ResultSubpartitionView.AvailabilityWithBacklog withCredit = view.getAvailabilityAndBacklog(true);
        boolean withoutCredit = view.getAvailabilityAndBacklog(false).isAvailable();
        boolean told = notified > 0;
        notified = 0;
        return String.format(
                " ; %s %d %s %d %s %s",
                withCredit.isAvailable(),
                withCredit.getBacklog(),
                withoutCredit,
                subpartition.getNumberOfQueuedBuffers(),
                view.isReleased(),
                told);
    }
}
