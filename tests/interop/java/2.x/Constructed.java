package org.apache.flink.runtime.io.network.partition;

import java.util.ArrayDeque;
import org.apache.flink.metrics.SimpleCounter;
import org.apache.flink.runtime.checkpoint.channel.ChannelStateWriter;
import org.apache.flink.runtime.io.network.ConnectionID;
import org.apache.flink.runtime.io.network.ConnectionManager;
import org.apache.flink.runtime.io.network.TaskEventDispatcher;
import org.apache.flink.runtime.io.network.partition.consumer.LocalInputChannel;
import org.apache.flink.runtime.io.network.partition.consumer.RemoteInputChannel;
import org.apache.flink.runtime.io.network.partition.consumer.SingleInputGate;

/** What is constructed differently in each version. */
public final class Constructed {

    private Constructed() {}

    static PipelinedSubpartition subpartition(int index, int exclusive, ResultPartition partition) {
        return new PipelinedSubpartition(index, exclusive, Integer.MAX_VALUE, partition);
    }

    public static RemoteInputChannel remoteChannel(
            SingleInputGate gate, int index, ConnectionID connection, ConnectionManager connections, int exclusive) {
        return new RemoteInputChannel(
                gate,
                index,
                new ResultPartitionID(),
                new ResultSubpartitionIndexSet(0),
                connection,
                connections,
                500,
                1000,
                500,
                exclusive,
                new SimpleCounter(),
                new SimpleCounter(),
                ChannelStateWriter.NO_OP,
                new ArrayDeque<>());
    }

    public static LocalInputChannel localChannel(
            SingleInputGate gate, int index, ResultPartitionID partition, ResultPartitionManager manager) {
        return new LocalInputChannel(
                gate,
                index,
                partition,
                new ResultSubpartitionIndexSet(0),
                manager,
                new TaskEventDispatcher(),
                0,
                0,
                new SimpleCounter(),
                new SimpleCounter(),
                ChannelStateWriter.NO_OP,
                new ArrayDeque<>());
    }
}
