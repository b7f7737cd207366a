package org.apache.flink.runtime.io.network.partition.consumer;

import dev.headgate.interop.Sequence;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Optional;
import org.apache.flink.runtime.checkpoint.channel.InputChannelInfo;
import org.apache.flink.runtime.io.network.api.EndOfData;
import org.apache.flink.runtime.io.network.api.StopMode;
import org.apache.flink.runtime.io.network.api.serialization.EventSerializer;
import org.apache.flink.runtime.io.network.buffer.BufferBuilder;
import org.apache.flink.runtime.io.network.buffer.NetworkBufferPool;
import org.apache.flink.runtime.io.network.partition.Constructed;
import org.apache.flink.runtime.io.network.partition.PipelinedSubpartition;
import org.apache.flink.runtime.io.network.partition.ResultPartition;
import org.apache.flink.runtime.io.network.partition.ResultPartitionID;
import org.apache.flink.runtime.io.network.partition.ResultPartitionManager;
import org.apache.flink.runtime.io.network.partition.ResultPartitionType;
import org.apache.flink.runtime.io.network.partition.SubpartitionSequence;
import org.apache.flink.runtime.jobgraph.IntermediateDataSetID;
import org.apache.flink.runtime.throughput.ThroughputCalculator;
import org.apache.flink.util.clock.SystemClock;

/** An input gate whose producers are in the same TaskManager. */
public final class LocalGateSequence extends Sequence {

    private static final int SEGMENT_BYTES = 8;
    private static final Duration REQUEST_TIMEOUT = Duration.ofSeconds(30);

    private final ResultPartitionManager manager = new ResultPartitionManager();
    private SingleInputGate gate;
    private InputChannel[] channels;
    private ResultPartition[] partitions;
    private BufferBuilder[] open;

    @Override
    protected String step(String[] words) throws Exception {
        switch (words[0]) {
            case "new":
                start(number(words, 1), number(words, 2));
                return "";
            case "poll":
                return polled();
            case "resume":
                gate.resumeConsumption(new InputChannelInfo(0, number(words, 1)));
                return "";
            case "size":
                gate.announceBufferSize(number(words, 1));
                return "";
            case "acknowledge":
                for (InputChannel channel : channels) {
                    if (!channel.isReleased()) {
                        gate.acknowledgeAllRecordsProcessed(channel.getChannelInfo());
                    }
                }
                return "";
            default:
                produce(words, number(words, 1));
                return "";
        }
    }

    private void produce(String[] words, int index) throws Exception {
        PipelinedSubpartition subpartition = SubpartitionSequence.subpartition(partitions[index], 0);
        if (words[0].equals("append")) {
            if (open[index] != null) {
                open[index].appendAndCommit(ByteBuffer.wrap(new byte[number(words, 2)]));
            }
            return;
        }
        if (!words[0].equals("flush") && !words[0].equals("time-out") && open[index] != null) {
            open[index].finish();
            open[index] = null;
        }
        switch (words[0]) {
            case "data":
                boolean finished = "finished".equals(words[3]);
                BufferBuilder builder = SubpartitionSequence.added(subpartition, number(words, 2), finished);
                open[index] = finished ? null : builder;
                break;
            case "barrier":
                SubpartitionSequence.addBarrier(subpartition, words[2], number(words, 3));
                break;
            case "time-out":
                subpartition.alignedBarrierTimeout(number(words, 2));
                break;
            case "end-of-data":
                StopMode mode = "drain".equals(words[2]) ? StopMode.DRAIN : StopMode.NO_DRAIN;
                subpartition.add(EventSerializer.toBufferConsumer(new EndOfData(mode), false), 0);
                break;
            case "end":
                subpartition.finish();
                break;
            case "flush":
                subpartition.flush();
                break;
            case "release":
                IOException cause = "failed".equals(words[2]) ? new IOException("failed") : null;
                manager.releasePartition(partitions[index].getPartitionId(), cause);
                break;
            default:
        }
    }

    private String polled() throws Exception {
        Optional<BufferOrEvent> polled = gate.pollNext();
        if (!polled.isPresent()) {
            return "none";
        }
        BufferOrEvent found = polled.get();
        String text = found.getChannelInfo().getInputChannelIdx() + " ";
        if (found.isEvent()) {
            text += found.getEvent().getClass().getSimpleName();
        } else {
            text += found.getBuffer().readableBytes();
            found.getBuffer().recycleBuffer();
        }
        return text + " " + found.moreAvailable() + " " + found.morePriorityEvents();
    }

    private void start(int exclusive, int count) throws Exception {
        NetworkBufferPool network = new NetworkBufferPool(4, SEGMENT_BYTES, REQUEST_TIMEOUT);
        gate =
                new SingleInputGate(
                        "test",
                        0,
                        new IntermediateDataSetID(),
                        ResultPartitionType.PIPELINED_BOUNDED,
                        count,
                        (job, result, partition) -> {},
                        () -> network.createBufferPool(1, 4),
                        null,
                        network,
                        SEGMENT_BYTES,
                        new ThroughputCalculator(SystemClock.getInstance()),
                        null);
        channels = new InputChannel[count];
        partitions = new ResultPartition[count];
        open = new BufferBuilder[count];
        for (int index = 0; index < count; index++) {
            ResultPartitionID id = new ResultPartitionID();
            partitions[index] = SubpartitionSequence.partition(id, manager, 1, exclusive);
            manager.registerResultPartition(partitions[index]);
            channels[index] = Constructed.localChannel(gate, index, id, manager);
        }
        gate.setInputChannels(channels);
        gate.setup();
        gate.requestPartitions();
        gate.pollNext(); // a new channel counts as available once, although it is empty
    }

    @Override
    protected String state() {
        StringBuilder text = new StringBuilder(" ; ");
        text.append(gate.getAvailableFuture().isDone()).append(' ').append(gate.isFinished());
        text.append(' ').append(gate.hasReceivedEndOfData());
        for (InputChannel channel : channels) {
            text.append(" | ").append(channel.isReleased());
            text.append(' ').append(channel.unsynchronizedGetNumberOfQueuedBuffers());
        }
        return text.toString();
    }
}
