package org.apache.flink.runtime.io.network.netty;

import dev.headgate.interop.Sequence;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;
import org.apache.flink.runtime.io.network.TaskEventDispatcher;
import org.apache.flink.runtime.io.network.buffer.BufferBuilder;
import org.apache.flink.runtime.io.network.partition.PipelinedSubpartition;
import org.apache.flink.runtime.io.network.partition.ResultPartition;
import org.apache.flink.runtime.io.network.partition.ResultPartitionID;
import org.apache.flink.runtime.io.network.partition.ResultPartitionManager;
import org.apache.flink.runtime.io.network.partition.ResultSubpartitionIndexSet;
import org.apache.flink.runtime.io.network.partition.SubpartitionSequence;
import org.apache.flink.runtime.io.network.partition.consumer.InputChannelID;
import org.apache.flink.runtime.jobgraph.IntermediateResultPartitionID;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBuf;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBufUtil;
import org.apache.flink.shaded.netty4.io.netty.buffer.Unpooled;
import org.apache.flink.shaded.netty4.io.netty.channel.embedded.EmbeddedChannel;

/** The producer's end of a connection, with a partition of two subpartitions and a reader for each. */
public final class ServerSequence extends Sequence {

    private static final int SUBPARTITIONS = 2;

    private final ResultPartitionManager manager = new ResultPartitionManager();
    private final ResultPartitionID id = partitionId(0);
    private final ResultPartitionID late = partitionId(1);
    private final InputChannelID[] receivers = {receiver(0), receiver(1)};
    private final BufferBuilder[] open = new BufferBuilder[SUBPARTITIONS];
    private ResultPartition partition;
    private EmbeddedChannel connection;

    @Override
    protected String step(String[] words) throws Exception {
        String failure = "";
        try {
            act(words);
        } catch (Throwable error) {
            failure = error.getClass().getSimpleName() + " ";
        }
        connection.runPendingTasks();
        List<String> sent = new ArrayList<>();
        for (Object message = connection.readOutbound(); message != null; message = connection.readOutbound()) {
            sent.add(described(message));
        }
        return failure + String.join(", ", sent) + (connection.isActive() ? "" : " closed");
    }

    private void act(String[] words) throws Exception {
        if ("new".equals(words[0])) {
            partition = SubpartitionSequence.partition(id, manager, SUBPARTITIONS, number(words, 1));
            manager.registerResultPartition(partition);
            PartitionRequestQueue queue = new PartitionRequestQueue();
            connection =
                    new EmbeddedChannel(
                            new NettyMessage.NettyMessageDecoder(),
                            new PartitionRequestServerHandler(manager, new TaskEventDispatcher(), queue), queue);
            return;
        }
        if ("release".equals(words[0])) {
            finish(0);
            finish(1);
            manager.releasePartition(id, "failed".equals(words[1]) ? new IOException("failed") : null);
            return;
        }
        if ("register".equals(words[0])) {
            manager.registerResultPartition(SubpartitionSequence.partition(late, manager, SUBPARTITIONS, 2));
            return;
        }
        if ("bytes".equals(words[0])) {
            connection.writeInbound(bytes(words[1]));
            return;
        }
        int index = number(words, 1);
        PipelinedSubpartition subpartition = SubpartitionSequence.subpartition(partition, index);
        switch (words[0]) {
            case "request":
                connection.writeInbound(
                        new NettyMessage.PartitionRequest(
                                id, new ResultSubpartitionIndexSet(index), receivers[index], number(words, 2)));
                break;
            case "late":
                connection.writeInbound(
                        new NettyMessage.PartitionRequest(
                                late, new ResultSubpartitionIndexSet(index), receivers[index], number(words, 2)));
                break;
            case "credit":
                connection.writeInbound(new NettyMessage.AddCredit(number(words, 2), receivers[index]));
                break;
            case "resume":
                connection.writeInbound(new NettyMessage.ResumeConsumption(receivers[index]));
                break;
            case "cancel":
                connection.writeInbound(new NettyMessage.CancelPartitionRequest(receivers[index]));
                break;
            case "acknowledge":
                connection.writeInbound(new NettyMessage.AckAllUserRecordsProcessed(receivers[index]));
                break;
            case "size":
                connection.writeInbound(new NettyMessage.NewBufferSize(number(words, 2), receivers[index]));
                break;
            case "data":
                finish(index);
                boolean finished = "finished".equals(words[3]);
                BufferBuilder builder = SubpartitionSequence.added(subpartition, number(words, 2), finished);
                open[index] = finished ? null : builder;
                break;
            case "finish":
                finish(index);
                break;
            case "barrier":
                finish(index);
                SubpartitionSequence.addBarrier(subpartition, words[2], number(words, 3));
                break;
            case "end":
                finish(index);
                subpartition.finish();
                break;
            default:
                subpartition.flush();
        }
    }

    private void finish(int index) {
        if (open[index] != null) {
            open[index].finish();
            open[index] = null;
        }
    }

    private String described(Object message) {
        if (message instanceof NettyMessage.BufferResponse) {
            NettyMessage.BufferResponse response = (NettyMessage.BufferResponse) message;
            String text =
                    String.format(
                            "%s to %d, number %d, %d bytes, backlog %d",
                            response.dataType,
                            index(response.receiverId),
                            response.sequenceNumber,
                            response.isBuffer() ? response.bufferSize : 0,
                            response.backlog);
            response.releaseBuffer();
            return text;
        }
        if (message instanceof NettyMessage.BacklogAnnouncement) {
            NettyMessage.BacklogAnnouncement announcement = (NettyMessage.BacklogAnnouncement) message;
            return String.format("backlog %d to %d", announcement.backlog, index(announcement.receiverId));
        }
        NettyMessage.ErrorResponse error = (NettyMessage.ErrorResponse) message;
        String receiver = error.receiverId == null ? "all" : "" + index(error.receiverId);
        return error.cause.getClass().getSimpleName() + " to " + receiver + " " + error.cause.getMessage();
    }

    private static ByteBuf bytes(String text) {
        return Unpooled.wrappedBuffer(ByteBufUtil.decodeHexDump(text));
    }

    private static ResultPartitionID partitionId(int number) {
        String last = "000000" + "0" + number;
        return new ResultPartitionID(
                IntermediateResultPartitionID.fromByteBuf(bytes("a0".repeat(16) + last)),
                ExecutionAttemptID.fromByteBuf(bytes("b0".repeat(16) + "c0".repeat(16) + last + "00".repeat(4))));
    }

    private static InputChannelID receiver(int number) {
        return InputChannelID.fromByteBuf(bytes("00".repeat(15) + "0" + number));
    }

    private int index(InputChannelID receiver) {
        return receiver.equals(receivers[0]) ? 0 : 1;
    }
}
