package dev.headgate.bench;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Submits source → keyed count → sink and prints the job's id: {@code Recovery PORT FOLDER RATE THROWS AT [OPTION=VALUE…]}. Record n is due
 * n / RATE seconds after the submission, as in Headgate. The count throws THROWS times at record AT. The sink appends
 * {@code time in ms, number of the record} to {@code FOLDER/progress}.
 */
public final class Recovery {

    private static final int KEYS = 1000;
    private static final long LINE_EVERY_MS = 5;

    private Recovery() {}

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        for (int i = 5; i < arguments.length; i++) {
            String[] option = arguments[i].split("=", 2);
            configuration.setString(option[0], option[1]);
        }
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createRemoteEnvironment(
                        "127.0.0.1", Integer.parseInt(arguments[0]), configuration);
        environment.setParallelism(1);
        String folder = arguments[1];
        environment
                .fromSource(
                        new DataGeneratorSource<>(
                                new Due(System.currentTimeMillis(), Long.parseLong(arguments[2])),
                                Long.MAX_VALUE,
                                Types.LONG),
                        WatermarkStrategy.noWatermarks(),
                        "source")
                .slotSharingGroup("source")
                .keyBy(sequence -> sequence % KEYS)
                .map(new Count(folder, Integer.parseInt(arguments[3]), Long.parseLong(arguments[4])))
                .name("count")
                .slotSharingGroup("main")
                .sinkTo(new Progress(folder));
        System.out.println(environment.executeAsync("recovery").getJobID());
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
            while (System.currentTimeMillis() < start + sequence * 1000 / rate) {
                Thread.sleep(1);
            }
            return sequence;
        }
    }

    /** Counts each key, and throws at one record a number of times. */
    static final class Count extends RichMapFunction<Long, Long> {
        private final String folder;
        private final int throwings;
        private final long at;
        private transient ValueState<Long> count;

        Count(String folder, int throwings, long at) {
            this.folder = folder;
            this.throwings = throwings;
            this.at = at;
        }

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public Long map(Long sequence) throws Exception {
            Long before = count.value();
            count.update(before == null ? 1 : before + 1);
            if (throwings > 0 && sequence == at) {
                Path thrown = Path.of(folder, "thrown");
                if (!Files.exists(thrown) || Files.readAllLines(thrown).size() < throwings) {
                    append(thrown, "" + System.currentTimeMillis());
                    throw new IllegalStateException("record " + at);
                }
            }
            return sequence;
        }
    }

    /** Writes how far the job is, at most every few milliseconds. */
    static final class Progress implements Sink<Long> {
        private final String folder;

        Progress(String folder) {
            this.folder = folder;
        }

        @Override
        public SinkWriter<Long> createWriter(WriterInitContext context) {
            Path path = Path.of(folder, "progress");
            return new SinkWriter<>() {
                private long last;

                @Override
                public void write(Long sequence, Context ignored) {
                    long now = System.currentTimeMillis();
                    if (now - last >= LINE_EVERY_MS) {
                        last = now;
                        append(path, now + " " + sequence);
                    }
                }

                @Override
                public void flush(boolean endOfInput) {}

                @Override
                public void close() {}
            };
        }
    }
}
