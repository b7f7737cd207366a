package org.apache.flink.runtime.io.network.partition;

import dev.headgate.interop.Sequence;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.runtime.checkpoint.channel.ChannelStateWriter;
import org.apache.flink.runtime.checkpoint.channel.ResultSubpartitionInfo;
import org.apache.flink.runtime.io.network.buffer.Buffer;
import org.apache.flink.runtime.io.network.buffer.BufferPool;
import org.apache.flink.runtime.io.network.buffer.NetworkBufferPool;
import org.apache.flink.runtime.metrics.groups.UnregisteredMetricGroups;

/** A result partition whose task emits records, and its readers. */
public final class PartitionSequence extends Sequence {

    private static final int SEGMENT_BYTES = 32;

    private static final Duration REQUEST_TIMEOUT = Duration.ofSeconds(30);

    private final List<ResultSubpartitionView> views = new ArrayList<>();
    private PipelinedResultPartition partition;
    private BufferPool pool;
    private int notified;

    @Override
    protected String step(String[] words) throws Exception {
        switch (words[0]) {
            case "new":
                start(number(words, 1), number(words, 2), number(words, 3));
                return "";
            case "emit":
                // a task would wait for what is missing
                if (1 + number(words, 2) / SEGMENT_BYTES > pool.getNumBuffers() - pool.bestEffortGetNumOfUsedBuffers()) {
                    return "blocked";
                }
                if (number(words, 1) < 0) {
                    partition.broadcastRecord(ByteBuffer.wrap(new byte[number(words, 2)]));
                } else {
                    partition.emitRecord(ByteBuffer.wrap(new byte[number(words, 2)]), number(words, 1));
                }
                return "";
            case "size":
                views.get(number(words, 1)).notifyNewBufferSize(number(words, 2));
                return "";
            case "flush":
                partition.flush(number(words, 1));
                return "";
            case "flush-all":
                partition.flushAll();
                return "";
            case "barrier":
                partition.broadcastEvent(barrier(words[1], number(words, 2), 0, 10), "unaligned".equals(words[1]));
                return "";
            case "resume":
                views.get(number(words, 1)).resumeConsumption();
                return "";
            case "finish":
                partition.finish();
                return "";
            default:
                ResultSubpartition.BufferAndBacklog polled = views.get(number(words, 1)).getNextBuffer();
                if (polled == null) {
                    return "none";
                }
                String text =
                        polled.buffer().getDataType().name()
                                + (polled.buffer().isBuffer() ? " " + polled.buffer().readableBytes() : "")
                                + " " + polled.buffersInBacklog() + " " + polled.getNextDataType().name();
                polled.buffer().recycleBuffer();
                return text;
        }
    }

    /** What a barrier overtakes is returned to its pool. */
    private static final class Forgetting extends ChannelStateWriter.NoOpChannelStateWriter {
        @Override
        public void addOutputData(long id, ResultSubpartitionInfo info, int first, Buffer... data) {
            for (Buffer buffer : data) {
                buffer.recycleBuffer();
            }
        }
    }

    private void start(int subpartitions, int size, int mostPerChannel) throws Exception {
        NetworkBufferPool network = new NetworkBufferPool(size, SEGMENT_BYTES, REQUEST_TIMEOUT);
        pool = network.createBufferPool(size, size, subpartitions, mostPerChannel, 0);
        PipelinedSubpartition[] all = new PipelinedSubpartition[subpartitions];
        ResultPartitionManager manager = new ResultPartitionManager();
        partition =
                new PipelinedResultPartition(
                        "test",
                        0,
                        new ResultPartitionID(),
                        ResultPartitionType.PIPELINED_BOUNDED,
                        all,
                        subpartitions,
                        manager,
                        null,
                        () -> pool);
        for (int index = 0; index < subpartitions; index++) {
            all[index] = Constructed.subpartition(index, 2, partition);
            all[index].setChannelStateWriter(new Forgetting());
        }
        partition.setup();
        partition.setMetricGroup(UnregisteredMetricGroups.createUnregisteredTaskMetricGroup().getIOMetricGroup());
        for (int index = 0; index < subpartitions; index++) {
            views.add(
                    partition.createSubpartitionView(
                            index,
                            new BufferAvailabilityListener() {
                                @Override
                                public void notifyDataAvailable(ResultSubpartitionView any) {
                                    notified++;
                                }

                                @Override
                                public void notifyPriorityEvent(int sequenceNumber) {
                                    notified++;
                                }
                            }));
        }
    }

    @Override
    protected String state() {
        boolean told = notified > 0;
        notified = 0;
        int used = pool.bestEffortGetNumOfUsedBuffers();
        return " ; " + told + " " + used + " " + pool.isAvailable() + " " + partition.getNumberOfQueuedBuffers();
    }
}
