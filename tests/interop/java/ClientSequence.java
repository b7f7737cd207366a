package org.apache.flink.runtime.io.network.netty;

import java.io.IOException;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.util.Arrays;
import org.apache.flink.runtime.clusterframework.types.ResourceID;
import org.apache.flink.runtime.io.network.ConnectionID;
import org.apache.flink.runtime.io.network.ConnectionManager;
import org.apache.flink.runtime.io.network.partition.consumer.GateSequence;
import org.apache.flink.runtime.io.network.partition.consumer.InputChannelID;
import org.apache.flink.runtime.io.network.partition.consumer.RemoteInputChannel;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBufUtil;
import org.apache.flink.shaded.netty4.io.netty.buffer.Unpooled;
import org.apache.flink.shaded.netty4.io.netty.channel.embedded.EmbeddedChannel;

/** The consumer's end of a connection, which is fed with bytes, and the gate whose channels read from it. */
public final class ClientSequence extends GateSequence {

    private EmbeddedChannel connection;
    private NettyPartitionRequestClient client;
    private boolean reuse;
    private boolean writable = true;

    @Override
    protected String step(String[] words) throws Exception {
        sent.clear();
        String result = "";
        try {
            result = act(words);
        } finally {
            connection.runPendingTasks();
            while (writable && connection.isActive() && !connection.outboundMessages().isEmpty()) {
                sent.add(described(connection.readOutbound()));
            }
        }
        return result;
    }

    @Override
    protected String act(String[] words) throws Exception {
        switch (words[0]) {
            case "new":
                reuse = "reuse".equals(words[5]);
                return super.act(words);
            case "bytes":
                if (connection.isActive()) {
                    connection.writeInbound(Unpooled.wrappedBuffer(ByteBufUtil.decodeHexDump(words[1])));
                }
                return "";
            case "writable":
                writable = Boolean.parseBoolean(words[1]);
                connection.pipeline().fireChannelWritabilityChanged();
                return "";
            case "closed":
                connection.close();
                return "";
            case "broken":
                connection.pipeline().fireExceptionCaught(new IOException(words[1].replace('_', ' ')));
                return "";
            default:
                return super.act(words);
        }
    }

    @Override
    protected ConnectionManager connections() {
        if (client == null) {
            CreditBasedPartitionRequestClientHandler handler = new CreditBasedPartitionRequestClientHandler();
            connection =
                    new EmbeddedChannel(new NettyMessageClientDecoderDelegate(handler), handler) {
                        @Override
                        public boolean isWritable() {
                            return writable;
                        }
                    };
            ConnectionID id = new ConnectionID(new ResourceID("tm"), new InetSocketAddress("localhost", 1), 0);
            client =
                    new NettyPartitionRequestClient(
                            connection, handler, id, new PartitionRequestClientFactory(null, reuse));
        }
        client.validateClientAndIncrementReferenceCounter();
        return connections(client);
    }

    /** The ids that the tests write into their frames. */
    @Override
    protected void named(RemoteInputChannel channel, int index) throws Exception {
        Field id = RemoteInputChannel.class.getDeclaredField("id");
        id.setAccessible(true);
        id.set(channel, receiver(index));
    }

    private static InputChannelID receiver(int index) {
        return InputChannelID.fromByteBuf(Unpooled.wrappedBuffer(new byte[15], new byte[] {(byte) index}));
    }

    private String described(Object message) {
        if (message instanceof NettyMessage.AddCredit) {
            NettyMessage.AddCredit found = (NettyMessage.AddCredit) message;
            return "AddCredit " + index(found.receiverId) + " " + found.credit;
        }
        if (message instanceof NettyMessage.ResumeConsumption) {
            return "ResumeConsumption " + index(((NettyMessage.ResumeConsumption) message).receiverId);
        }
        if (message instanceof NettyMessage.AckAllUserRecordsProcessed) {
            return "AckAllUserRecordsProcessed "
                    + index(((NettyMessage.AckAllUserRecordsProcessed) message).receiverId);
        }
        if (message instanceof NettyMessage.NewBufferSize) {
            NettyMessage.NewBufferSize found = (NettyMessage.NewBufferSize) message;
            return "NewBufferSize " + index(found.receiverId) + " " + found.bufferSize;
        }
        if (message instanceof NettyMessage.CancelPartitionRequest) {
            return "CancelPartitionRequest " + index(((NettyMessage.CancelPartitionRequest) message).receiverId);
        }
        if (message instanceof NettyMessage.PartitionRequest) {
            NettyMessage.PartitionRequest found = (NettyMessage.PartitionRequest) message;
            return "PartitionRequest " + index(found.receiverId) + " " + found.credit;
        }
        return message.getClass().getSimpleName();
    }

    private int index(InputChannelID receiver) {
        for (int index = 0; index < channels.length; index++) {
            if (receiver.equals(receiver(index))) {
                return index;
            }
        }
        return -1;
    }

    @Override
    protected String state() {
        return super.state() + " ; " + String.join(" | ", Arrays.stream(channels).map(GateSequence::failure).toArray(String[]::new));
    }
}
