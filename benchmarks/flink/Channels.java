package dev.headgate.bench;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.metrics.Counter;
import org.apache.flink.runtime.metrics.groups.InternalOperatorMetricGroup;
import org.apache.flink.runtime.metrics.groups.TaskIOMetricGroup;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/**
 * Submits a source and a sink of the same parallelism, connected all-to-all, and prints the job's id: {@code Channels PORT
 * PARALLELISM BYTES TIMEOUT_MS RATE FOLDER}. A rate of 0 is as fast as it can. Each TaskManager appends a line a second to a
 * file in {@code FOLDER}: counters, processor time in ns and wake-ups by kind of thread, and some latencies in µs.
 */
public final class Channels {

    private Channels() {}

    public static void main(String[] arguments) throws Exception {
        int parallelism = Integer.parseInt(arguments[1]);
        int bytes = Integer.parseInt(arguments[2]);
        double rate = Double.parseDouble(arguments[4]);
        String folder = arguments[5];
        Configuration configuration = new Configuration();
        configuration.setString("pipeline.object-reuse", "true");
        configuration.setString("execution.buffer-timeout.interval", arguments[3] + " ms");
        if (arguments[3].startsWith("-")) {
            configuration.setString("execution.buffer-timeout.enabled", "false");
        }
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createRemoteEnvironment(
                        "127.0.0.1", Integer.parseInt(arguments[0]), configuration);
        environment.setParallelism(parallelism);
        RateLimiterStrategy limit =
                rate > 0 ? RateLimiterStrategy.perSecond(rate) : RateLimiterStrategy.noOp();
        environment
                .fromSource(
                        new DataGeneratorSource<>(
                                new Generator(bytes),
                                Long.MAX_VALUE,
                                limit,
                                PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO),
                        WatermarkStrategy.noWatermarks(),
                        "source")
                .slotSharingGroup("source")
                .map(new Counted("source", folder))
                .rebalance()
                .map(new Counted("sink", folder))
                .slotSharingGroup("sink")
                .sinkTo(new DiscardingSink<>());
        System.out.println(environment.executeAsync("channels").getJobID());
    }

    /** Writes the time into each record. */
    static final class Generator implements GeneratorFunction<Long, byte[]> {
        private final int bytes;

        Generator(int bytes) {
            this.bytes = bytes;
        }

        @Override
        public byte[] map(Long sequence) {
            byte[] record = new byte[bytes];
            long now = System.nanoTime();
            for (int i = 0; i < 8; i++) {
                record[i] = (byte) (now >>> 8 * i);
            }
            return record;
        }
    }

    /** Passes records on, and registers the counters of its task with the sampler of the process. */
    static final class Counted extends RichMapFunction<byte[], byte[]> {
        private static final int LATENCY_EVERY = 101;
        private final String vertex;
        private final String folder;
        private transient Sampler sampler;
        private transient int passed;

        Counted(String vertex, String folder) {
            this.vertex = vertex;
            this.folder = folder;
        }

        @Override
        public void open(OpenContext context) {
            TaskIOMetricGroup group =
                    ((InternalOperatorMetricGroup) getRuntimeContext().getMetricGroup()).getTaskIOMetricGroup();
            sampler = Sampler.of(folder);
            (vertex.equals("source") ? sampler.sources : sampler.sinks).add(group);
        }

        @Override
        public byte[] map(byte[] record) {
            if (vertex.equals("sink") && ++passed % LATENCY_EVERY == 0) {
                long then = 0;
                for (int i = 7; i >= 0; i--) {
                    then = then << 8 | record[i] & 0xff;
                }
                sampler.latencies.offer((System.nanoTime() - then) / 1000);
            }
            return record;
        }
    }

    /** A thread of a TaskManager that writes a line a second. A new job's sampler replaces the last one. */
    static final class Sampler implements Runnable {
        private static final int LATENCIES = 500;
        private static Sampler current;

        final List<TaskIOMetricGroup> sources = new CopyOnWriteArrayList<>();
        final List<TaskIOMetricGroup> sinks = new CopyOnWriteArrayList<>();
        final ArrayBlockingQueue<Long> latencies = new ArrayBlockingQueue<>(LATENCIES);
        private final String folder;

        private Sampler(String folder) {
            this.folder = folder;
        }

        static synchronized Sampler of(String folder) {
            if (current == null || !current.folder.equals(folder)) {
                current = new Sampler(folder);
                Thread thread = new Thread(current, "sampler");
                thread.setDaemon(true);
                thread.start();
            }
            return current;
        }

        @Override
        public void run() {
            Path file = Path.of(folder, "tm-" + ProcessHandle.current().pid());
            try {
                while (current == this) {
                    Thread.sleep(1000);
                    Files.writeString(file, line() + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
                }
            } catch (java.io.IOException | InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        private String line() throws java.io.IOException {
            Map<String, Long> values = new HashMap<>();
            values.put("wall", System.nanoTime());
            values.put("sources", (long) sources.size());
            values.put("sinks", (long) sinks.size());
            for (TaskIOMetricGroup group : sources) {
                values.merge("records_out", group.getNumRecordsOutCounter().getCount(), Long::sum);
            }
            for (TaskIOMetricGroup group : sinks) {
                values.merge("records_in", group.getNumRecordsInCounter().getCount(), Long::sum);
                values.merge("buffers", buffersIn(field(group, "parentMetricGroup")), Long::sum);
            }
            ThreadMXBean threads = ManagementFactory.getThreadMXBean();
            for (ThreadInfo info : threads.getThreadInfo(threads.getAllThreadIds())) {
                if (info != null) {
                    long spent = threads.getThreadCpuTime(info.getThreadId());
                    values.merge("cpu_" + kind(info.getThreadName()), Math.max(0, spent), Long::sum);
                }
            }
            wakeups(values);
            values.put(
                    "cpu",
                    ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                            .getProcessCpuTime());
            List<Long> drained = new ArrayList<>();
            latencies.drainTo(drained);
            StringBuilder text = new StringBuilder("{\"latencies\": " + drained);
            values.forEach((name, value) -> text.append(", \"" + name + "\": " + value));
            return text.append("}").toString();
        }

        /** Adds how often the threads of each kind have waited: Linux counts that for each thread. */
        private static void wakeups(Map<String, Long> values) throws java.io.IOException {
            try (Stream<Path> threads = Files.list(Path.of("/proc/self/task"))) {
                for (Path thread : (Iterable<Path>) threads::iterator) {
                    try {
                        String name = Files.readString(thread.resolve("comm"));
                        for (String line : Files.readAllLines(thread.resolve("status"))) {
                            if (line.startsWith("voluntary_ctxt_switches:")) {
                                long count = Long.parseLong(line.substring(line.indexOf(':') + 1).trim());
                                values.merge("wakeups_" + kind(name), count, Long::sum);
                            }
                        }
                    } catch (java.nio.file.NoSuchFileException ended) {
                        continue;
                    }
                }
            }
        }

        /**
         * Counts what a consumer took: Flink's numBuffersOut counts a buffer that leaves in parts once. The same counters are
         * registered at two levels.
         */
        private static long buffersIn(Object group) {
            long found = 0;
            for (Map.Entry<?, ?> metric : ((Map<?, ?>) field(group, "metrics")).entrySet()) {
                if (metric.getKey().equals("numBuffersInRemote") || metric.getKey().equals("numBuffersInLocal")) {
                    found += ((Counter) metric.getValue()).getCount();
                }
            }
            if (found > 0) {
                return found;
            }
            for (Object child : ((Map<?, ?>) field(group, "groups")).values()) {
                if (child.getClass().getSimpleName().equals("GenericMetricGroup")) {
                    found += buffersIn(child);
                }
            }
            return found;
        }

        private static Object field(Object owner, String name) {
            for (Class<?> type = owner.getClass(); type != null; type = type.getSuperclass()) {
                try {
                    java.lang.reflect.Field field = type.getDeclaredField(name);
                    field.setAccessible(true);
                    return field.get(owner);
                } catch (NoSuchFieldException absent) {
                    continue;
                } catch (IllegalAccessException error) {
                    throw new IllegalStateException(error);
                }
            }
            throw new IllegalStateException(name);
        }

        private static String kind(String thread) {
            if (thread.startsWith("OutputFlusher")) {
                return "flusher";
            }
            if (thread.startsWith("Flink Netty")) {
                return "netty";
            }
            if (thread.startsWith("Source: source")) {
                return "source";
            }
            return thread.startsWith("Map") ? "sink" : "other";
        }
    }
}
