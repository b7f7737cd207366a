package dev.headgate.interop;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.metrics.groups.UnregisteredMetricsGroup;
import org.apache.flink.runtime.clusterframework.types.ResourceID;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;
import org.apache.flink.runtime.io.network.NettyShuffleEnvironment;
import org.apache.flink.runtime.io.network.NettyShuffleServiceFactory;
import org.apache.flink.runtime.io.network.TaskEventDispatcher;
import org.apache.flink.runtime.io.network.TaskEventPublisher;
import org.apache.flink.runtime.io.network.partition.ResultPartitionID;
import org.apache.flink.runtime.jobgraph.IntermediateResultPartitionID;
import org.apache.flink.runtime.shuffle.NettyShuffleDescriptor;
import org.apache.flink.runtime.shuffle.ShuffleIOOwnerContext;
import org.apache.flink.runtime.taskmanager.NettyShuffleEnvironmentConfiguration;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBuf;
import org.apache.flink.shaded.netty4.io.netty.buffer.Unpooled;
import org.apache.flink.util.concurrent.ScheduledExecutor;
import org.apache.flink.util.concurrent.ScheduledExecutorServiceAdapter;

/** Flink's own shuffle environment of one TaskManager, unchanged, listening on loopback. */
final class Testbed implements AutoCloseable {

    static final int SEGMENT_BYTES = 32 * 1024;
    private static final MemorySize NETWORK_MEMORY = MemorySize.ofMebiBytes(64);

    final NettyShuffleEnvironment environment;
    final int port;
    final MetricGroup metrics = new UnregisteredMetricsGroup();
    final ExecutorService io = Executors.newCachedThreadPool();
    private final ScheduledExecutorService timer = Executors.newScheduledThreadPool(1);

    /** What starts with `taskmanager.` or `execution.` in the options is Flink's own configuration. */
    Testbed(Map<String, String> options) throws Exception {
        Configuration configuration = new Configuration();
        options.forEach(
                (key, value) -> {
                    if (key.startsWith("taskmanager.") || key.startsWith("execution.")) {
                        configuration.setString(key, value);
                    }
                });
        NettyShuffleEnvironmentConfiguration settings =
                NettyShuffleEnvironmentConfiguration.fromConfiguration(
                        configuration, NETWORK_MEMORY, false, InetAddress.getLoopbackAddress());
        // 2.x has no options for these two any more
        override(settings, "networkBuffersPerChannel", options.get("exclusive"));
        override(settings, "floatingNetworkBuffersPerGate", options.get("floating"));
        Method create =
                NettyShuffleServiceFactory.class.getDeclaredMethod(
                        "createNettyShuffleEnvironment",
                        NettyShuffleEnvironmentConfiguration.class,
                        ResourceID.class,
                        TaskEventPublisher.class,
                        MetricGroup.class,
                        Executor.class,
                        ScheduledExecutor.class,
                        int.class,
                        String[].class);
        create.setAccessible(true);
        environment =
                (NettyShuffleEnvironment)
                        create.invoke(
                                null,
                                settings,
                                ResourceID.generate(),
                                new TaskEventDispatcher(),
                                metrics,
                                io,
                                new ScheduledExecutorServiceAdapter(timer),
                                1,
                                settings.getTempDirs());
        port = environment.start();
    }

    private static void override(Object settings, String name, String value) throws Exception {
        if (value != null) {
            Field field = settings.getClass().getDeclaredField(name);
            field.setAccessible(true);
            field.setInt(settings, Integer.parseInt(value));
        }
    }

    ShuffleIOOwnerContext owner(String name) {
        return environment.createShuffleIOOwnerContext(name, ExecutionAttemptID.randomId(), metrics);
    }

    /** The 120 hexadecimal digits as they stand on the wire. */
    static ResultPartitionID partition(String digits) {
        ByteBuf bytes = Unpooled.wrappedBuffer(HexFormat.of().parseHex(digits));
        IntermediateResultPartitionID id = IntermediateResultPartitionID.fromByteBuf(bytes);
        return new ResultPartitionID(id, ExecutionAttemptID.fromByteBuf(bytes));
    }

    static NettyShuffleDescriptor descriptor(ResultPartitionID id, int port) {
        return new NettyShuffleDescriptor(
                new ResourceID("producer"),
                new NettyShuffleDescriptor.NetworkPartitionConnectionInfo(
                        new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0),
                id);
    }

    static String json(Map<String, ?> entry) {
        StringBuilder text = new StringBuilder("{");
        entry.forEach(
                (key, value) -> {
                    text.append(text.length() > 1 ? ", " : "").append(quoted(key)).append(": ");
                    text.append(json(value));
                });
        return text.append("}").toString();
    }

    @SuppressWarnings("unchecked")
    private static String json(Object value) {
        if (value instanceof Map) {
            return json((Map<String, ?>) value);
        }
        if (value instanceof List) {
            return ((List<Object>) value).stream().map(Testbed::json).toList().toString();
        }
        return value instanceof Number ? value.toString() : quoted(String.valueOf(value));
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }

    @Override
    public void close() {
        environment.close();
        io.shutdownNow();
        timer.shutdownNow();
    }
}
