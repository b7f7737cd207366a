package org.apache.flink.runtime.io.network.partition.consumer;

import dev.headgate.interop.Sequence;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.flink.runtime.checkpoint.channel.InputChannelInfo;
import org.apache.flink.runtime.clusterframework.types.ResourceID;
import org.apache.flink.runtime.io.network.ConnectionID;
import org.apache.flink.runtime.io.network.ConnectionManager;
import org.apache.flink.runtime.io.network.PartitionRequestClient;
import org.apache.flink.runtime.io.network.api.CheckpointBarrier;
import org.apache.flink.runtime.io.network.api.EndOfData;
import org.apache.flink.runtime.io.network.api.EndOfPartitionEvent;
import org.apache.flink.runtime.io.network.api.StopMode;
import org.apache.flink.runtime.io.network.api.serialization.EventSerializer;
import org.apache.flink.runtime.io.network.buffer.Buffer;
import org.apache.flink.runtime.io.network.buffer.LocalBufferPool;
import org.apache.flink.runtime.io.network.buffer.NetworkBufferPool;
import org.apache.flink.runtime.io.network.partition.Constructed;
import org.apache.flink.runtime.io.network.partition.ResultPartitionType;
import org.apache.flink.runtime.jobgraph.IntermediateDataSetID;
import org.apache.flink.runtime.throughput.ThroughputCalculator;
import org.apache.flink.util.clock.SystemClock;

/** An input gate with remote channels, their buffers and what they send to their producers. */
public class GateSequence extends Sequence {

    private static final int SEGMENT_BYTES = 32;

    /** Nothing waits for segments, but a pause of the JVM must not look like it. */
    private static final Duration REQUEST_TIMEOUT = Duration.ofSeconds(30);

    private static final long BARRIER_TIMEOUT_MS = 10;

    protected final List<String> sent = new ArrayList<>();
    private final List<Buffer> held = new ArrayList<>();
    private final List<Buffer> taken = new ArrayList<>();
    private NetworkBufferPool network;
    private LocalBufferPool pool;
    private SingleInputGate gate;
    protected RemoteInputChannel[] channels;

    @Override
    protected String step(String[] words) throws Exception {
        sent.clear();
        return act(words);
    }

    protected String act(String[] words) throws Exception {
        switch (words[0]) {
            case "new":
                start(number(words, 1), number(words, 2), number(words, 3), number(words, 4));
                return "";
            case "poll":
                return polled();
            case "recycle":
                if (!held.isEmpty()) {
                    held.remove(number(words, 1) % held.size()).recycleBuffer();
                }
                return "";
            case "resume":
                gate.resumeConsumption(new InputChannelInfo(0, number(words, 1)));
                return "";
            case "size":
                gate.announceBufferSize(number(words, 1));
                return "";
            case "take":
                Buffer segment = pool.requestBuffer();
                if (segment != null) {
                    taken.add(segment);
                }
                return "";
            case "return":
                if (!taken.isEmpty()) {
                    taken.remove(0).recycleBuffer();
                }
                return "";
            default:
                return act(channels[number(words, 1)], words);
        }
    }

    private String act(RemoteInputChannel channel, String[] words) throws Exception {
        switch (words[0]) {
            case "data":
                return data(channel, number(words, 2), number(words, 3), number(words, 4));
            case "event":
                Buffer event = event(words[4], number(words, 5));
                try {
                    channel.onBuffer(event, number(words, 2), number(words, 3), 0);
                } catch (Exception error) {
                    channel.onError(error);
                }
                return "";
            case "backlog":
                channel.onSenderBacklog(number(words, 2));
                return "";
            case "credit":
                return "" + channel.getAndResetUnannouncedCredit();
            case "in-flight":
                try {
                    return sizes(channel.getInflightBuffers(number(words, 2)));
                } catch (IllegalStateException error) {
                    return "RuntimeException"; // the barrier was refused, and the checkpoint has not started
                }
            case "prioritize":
                try {
                    channel.convertToPriorityEvent(number(words, 2));
                } catch (RuntimeException error) {
                    return "RuntimeException";
                }
                return "";
            case "acknowledge":
                channel.acknowledgeAllRecordsProcessed();
                return "";
            case "release":
                channel.releaseAllResources();
                return "";
            default:
                channel.retriggerSubpartitionRequest();
                return "";
        }
    }

    private static String sizes(List<Buffer> buffers) {
        List<String> sizes = new ArrayList<>();
        for (Buffer buffer : buffers) {
            sizes.add("" + buffer.readableBytes());
            buffer.recycleBuffer();
        }
        return String.join(" ", sizes);
    }

    private static String data(RemoteInputChannel channel, int sequence, int backlog, int size) throws Exception {
        Buffer buffer = channel.requestBuffer();
        if (buffer == null) {
            return "no buffer";
        }
        if (size == 0) {
            buffer.recycleBuffer();
            channel.onEmptyBuffer(sequence, backlog);
        } else {
            buffer.setSize(size);
            channel.onBuffer(buffer, sequence, backlog, 0);
        }
        return "";
    }

    private String polled() throws Exception {
        Optional<BufferOrEvent> polled = gate.pollNext();
        if (!polled.isPresent()) {
            return "none";
        }
        int index = polled.get().getChannelInfo().getInputChannelIdx();
        if (polled.get().isEvent()) {
            return "event " + index + " " + polled.get().getEvent().getClass().getSimpleName();
        }
        held.add(polled.get().getBuffer());
        return "data " + index + " " + polled.get().getBuffer().readableBytes();
    }

    private void start(int segments, int count, int exclusive, int floating) throws Exception {
        network = new NetworkBufferPool(segments, SEGMENT_BYTES, REQUEST_TIMEOUT);
        LocalBufferPool made = (LocalBufferPool) network.createBufferPool(1, floating);
        pool = made;
        gate =
                new SingleInputGate(
                        "test",
                        0,
                        new IntermediateDataSetID(),
                        ResultPartitionType.PIPELINED_BOUNDED,
                        count,
                        (job, result, partition) -> sent.add("partition state"),
                        () -> made,
                        null,
                        network,
                        SEGMENT_BYTES,
                        new ThroughputCalculator(SystemClock.getInstance()),
                        null);
        channels = new RemoteInputChannel[count];
        for (int index = 0; index < count; index++) {
            ConnectionID connection =
                    new ConnectionID(ResourceID.generate(), new InetSocketAddress("localhost", 1), 0);
            channels[index] = Constructed.remoteChannel(gate, index, connection, connections(), exclusive);
            named(channels[index], index);
        }
        gate.setInputChannels(channels);
        gate.setup();
        gate.requestPartitions();
        for (RemoteInputChannel channel : channels) {
            channel.requestSubpartitions();
        }
    }

    protected void named(RemoteInputChannel channel, int index) throws Exception {}

    /** Connections whose client notes what the channels send, except requests. */
    protected ConnectionManager connections() {
        return connections(noting());
    }

    private PartitionRequestClient noting() {
        return
                (PartitionRequestClient)
                        Proxy.newProxyInstance(
                                getClass().getClassLoader(),
                                new Class<?>[] {PartitionRequestClient.class},
                                (proxy, method, arguments) -> {
                                    note(method.getName(), arguments);
                                    return null;
                                });
    }

    protected static ConnectionManager connections(PartitionRequestClient client) {
        return (ConnectionManager)
                Proxy.newProxyInstance(
                        GateSequence.class.getClassLoader(),
                        new Class<?>[] {ConnectionManager.class},
                        (proxy, method, arguments) ->
                                method.getName().equals("createPartitionRequestClient") ? client : null);
    }

    private void note(String name, Object[] arguments) {
        if (!name.equals("requestSubpartition") && arguments[0] instanceof RemoteInputChannel) {
            String size = name.equals("notifyNewBufferSize") ? " " + arguments[1] : "";
            sent.add(name + " " + ((RemoteInputChannel) arguments[0]).getChannelIndex() + size);
        }
    }

    private static Buffer event(String kind, long id) throws Exception {
        switch (kind) {
            case "end-of-partition":
                return EventSerializer.toBuffer(EndOfPartitionEvent.INSTANCE, false);
            case "end-of-data":
                return EventSerializer.toBuffer(new EndOfData(StopMode.DRAIN), false);
            case "stop":
                return EventSerializer.toBuffer(new EndOfData(StopMode.NO_DRAIN), false);
            default:
                CheckpointBarrier barrier = barrier(kind, id, 0, BARRIER_TIMEOUT_MS);
                boolean priority = barrier.getCheckpointOptions().isUnalignedCheckpoint();
                return EventSerializer.toBuffer(barrier, priority);
        }
    }

    /** The failure of a channel as its reader sees it, or nothing. */
    protected static String failure(RemoteInputChannel channel) {
        try {
            channel.checkError();
            return "";
        } catch (IOException error) {
            String name = error.getClass().getSimpleName();
            return name + (name.endsWith("TransportException") ? " " + error.getMessage() : "");
        }
    }

    @Override
    protected String state() {
        sent.sort(null);
        StringBuilder text = new StringBuilder(" ; " + String.join(", ", sent));
        text.append(
                String.format(
                        " ; free %d, pool %d %d",
                        network.getNumberOfAvailableMemorySegments(),
                        pool.getNumBuffers(),
                        pool.getNumberOfAvailableMemorySegments()));
        for (RemoteInputChannel channel : channels) {
            if (channel.isReleased()) {
                text.append(" | released");
                continue;
            }
            text.append(
                    String.format(
                            " | %d %d %d %s %d %d",
                            channel.getNumberOfRequiredBuffers(),
                            channel.getNumberOfAvailableBuffers(),
                            channel.getUnannouncedCredit(),
                            channel.isWaitingForFloatingBuffers(),
                            channel.getNumberOfQueuedBuffers(),
                            channel.getBuffersInUseCount()));
        }
        return text + " ; " + gate.isFinished() + " " + gate.hasReceivedEndOfData();
    }
}
