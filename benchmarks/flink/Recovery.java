package dev.headgate.bench;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Submits source → count → sink and prints the job's id: {@code Recovery host=… port=… folder=… rate=… [WORD=… | OPTION=VALUE]…}. It
 * compiles with Flink 1.18 to 2.x.
 *
 * <p>Record n of a subtask of the source is due n × parallelism / rate seconds after the submission, as in Headgate. The sink appends {@code time in
 * ms, n} to {@code folder/progress-SUBTASK}. The first subtask of the count throws while {@code folder/throw} has more lines than {@code folder/thrown}.
 * {@code forward=true}: no keys, so that each subtask is a region of its own. {@code finishes=N}: a second source ends after N records. {@code busy=MS}:
 * the count takes that long for each record.
 */
public final class Recovery {

    private static final int KEYS = 1000;
    private static final long LINE_EVERY_MS = 5;
    /** Each subtask of a source gets this many records, far more than a run takes. */
    private static final long SHARE = 1L << 40;

    private Recovery() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> words = new HashMap<>();
        Configuration configuration = new Configuration();
        for (String argument : arguments) {
            String[] word = argument.split("=", 2);
            words.put(word[0], word[1]);
            if (word[0].contains(".")) {
                configuration.setString(word[0], word[1]);
            }
        }
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createRemoteEnvironment(
                        words.get("host"), Integer.parseInt(words.get("port")), configuration);
        int parallelism = Integer.parseInt(words.getOrDefault("parallelism", "1"));
        environment.setParallelism(parallelism);
        long rate = Long.parseLong(words.get("rate")) / parallelism;
        DataStream<Long> records = source(environment, "source", rate, SHARE * parallelism);
        if (words.containsKey("finishes")) {
            records = records.union(source(environment, "short", rate, Long.parseLong(words.get("finishes"))));
        }
        boolean forward = words.containsKey("forward");
        if (!forward) {
            records = records.keyBy(sequence -> sequence % KEYS);
        }
        String folder = words.get("folder");
        records.map(new Count(folder, !forward, Long.parseLong(words.getOrDefault("busy", "0"))))
                .name("count")
                .slotSharingGroup("main")
                .map(new Progress(folder))
                .name("sink");
        System.out.println(environment.executeAsync("recovery").getJobID());
    }

    private static DataStream<Long> source(
            StreamExecutionEnvironment environment, String name, long rate, long records) {
        return environment
                .fromSource(
                        new DataGeneratorSource<>(new Due(System.currentTimeMillis(), rate), records, Types.LONG),
                        WatermarkStrategy.noWatermarks(),
                        name)
                .slotSharingGroup("source");
    }

    private static void append(Path path, String line) {
        try {
            Files.writeString(path, line + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Waits until each record is due. */
    static final class Due implements GeneratorFunction<Long, Long> {
        private final long start;
        private final long rate;

        Due(long start, long rate) {
            this.start = start;
            this.rate = rate;
        }

        @Override
        public Long map(Long sequence) throws InterruptedException {
            long number = sequence % SHARE;
            while (System.currentTimeMillis() < start + number * 1000 / rate) {
                Thread.sleep(1);
            }
            return number;
        }
    }

    /** Counts each key, and throws as often as it is asked to. */
    static final class Count extends RichMapFunction<Long, Long> {
        private final String folder;
        private final boolean keyed;
        private final long busyMs;
        private transient ValueState<Long> count;

        Count(String folder, boolean keyed, long busyMs) {
            this.folder = folder;
            this.keyed = keyed;
            this.busyMs = busyMs;
        }

        @Override
        public Long map(Long sequence) throws Exception {
            if (keyed) {
                if (count == null) { // the signature of open() differs between Flink's versions
                    count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
                }
                Long before = count.value();
                count.update(before == null ? 1 : before + 1);
            }
            if (busyMs > 0) {
                Thread.sleep(busyMs);
            }
            Path asked = Path.of(folder, "throw");
            Path thrown = Path.of(folder, "thrown");
            if (Files.exists(asked) && lines(thrown) < lines(asked) && first()) {
                append(thrown, "" + System.currentTimeMillis());
                throw new IllegalStateException("record " + sequence);
            }
            return sequence;
        }

        private boolean first() {
            String name = Thread.currentThread().getName(); // "count -> sink (1/2)#0"
            return name.contains("(1/");
        }

        private static int lines(Path path) throws IOException {
            return Files.exists(path) ? Files.readAllLines(path).size() : 0;
        }
    }

    /** Writes how far the job is, at most every few milliseconds. */
    static final class Progress extends RichMapFunction<Long, Long> {
        private final String folder;
        private transient Path path;
        private transient long last;

        Progress(String folder) {
            this.folder = folder;
        }

        @Override
        public Long map(Long sequence) {
            if (path == null) { // the runtime context's methods differ between Flink's versions
                String name = Thread.currentThread().getName();
                path = Path.of(folder, "progress-" + name.substring(name.lastIndexOf('(') + 1, name.lastIndexOf('/')));
            }
            long now = System.currentTimeMillis();
            if (now - last >= LINE_EVERY_MS) {
                last = now;
                append(path, now + " " + sequence);
            }
            return sequence;
        }
    }
}
