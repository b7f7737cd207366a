package dev.headgate.bench;

import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Submits a job with a source and a sink in slots of their own: {@code Throughput PORT RECORDS BYTES FOLDER}. Both tasks write
 * their process's times to {@code FOLDER} after the first half of the records, by when their code is compiled, and at the end.
 */
public final class Throughput {

    private static final long SEQUENCE_MULTIPLIER = 0x9E3779B97F4A7C15L;

    private Throughput() {}

    public static void main(String[] arguments) throws Exception {
        long records = Long.parseLong(arguments[1]);
        int bytes = Integer.parseInt(arguments[2]);
        Configuration configuration = new Configuration();
        configuration.setString("pipeline.object-reuse", "true");
        configuration.setString("execution.checkpointing.interval", "1 s");
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createRemoteEnvironment(
                        "127.0.0.1", Integer.parseInt(arguments[0]), configuration);
        environment.setParallelism(1);
        environment
                .fromSource(
                        new DataGeneratorSource<>(
                                new Generator(records, bytes, arguments[3]),
                                records,
                                PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO),
                        WatermarkStrategy.noWatermarks(),
                        "source")
                .slotSharingGroup("source")
                .rebalance()
                .sinkTo(new Checking(records, arguments[3]))
                .slotSharingGroup("sink");
        environment.execute("throughput");
    }

    /** Appends one line to a file of the vertex: records, wall clock and CPU time of the process in ns. */
    static void note(String folder, String vertex, long records) {
        long cpu =
                ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                        .getProcessCpuTime();
        try {
            Files.writeString(
                    Path.of(folder, vertex),
                    records + " " + System.nanoTime() + " " + cpu + "\n",
                    StandardOpenOption.CREATE,
                    StandardOpenOption.APPEND);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    /** Makes records of a sequence number and a payload. */
    static final class Generator implements GeneratorFunction<Long, byte[]> {
        private final long records;
        private final int bytes;
        private final String folder;

        Generator(long records, int bytes, String folder) {
            this.records = records;
            this.bytes = bytes;
            this.folder = folder;
        }

        @Override
        public byte[] map(Long sequence) {
            byte[] record = new byte[bytes];
            long mixed = sequence * SEQUENCE_MULTIPLIER;
            for (int i = 0; i < 8; i++) {
                record[i] = (byte) (sequence >>> 8 * i);
                record[8 + i] = (byte) (mixed >>> 8 * i);
            }
            if (sequence == records / 2 || sequence == records - 1) {
                note(folder, "source", sequence);
            }
            return record;
        }
    }

    /** Compares every record's two numbers. */
    static final class Checking implements Sink<byte[]> {
        private final long records;
        private final String folder;

        Checking(long records, String folder) {
            this.records = records;
            this.folder = folder;
        }

        @Override
        public SinkWriter<byte[]> createWriter(WriterInitContext context) {
            return new SinkWriter<>() {
                @Override
                public void write(byte[] record, Context context) {
                    long sequence = 0;
                    long mixed = 0;
                    for (int i = 7; i >= 0; i--) {
                        sequence = sequence << 8 | record[i] & 0xff;
                        mixed = mixed << 8 | record[8 + i] & 0xff;
                    }
                    if (mixed != sequence * SEQUENCE_MULTIPLIER) {
                        throw new IllegalStateException("record " + sequence + " is damaged");
                    }
                    if (sequence == records / 2 || sequence == records - 1) {
                        note(folder, "sink", sequence);
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
