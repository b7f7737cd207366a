package dev.headgate.interop;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.checkpoint.CheckpointType;
import org.apache.flink.runtime.checkpoint.SavepointType;
import org.apache.flink.runtime.checkpoint.SnapshotType;
import org.apache.flink.runtime.deployment.ResultPartitionDeploymentDescriptor;
import org.apache.flink.runtime.event.AbstractEvent;
import org.apache.flink.runtime.io.network.api.CancelCheckpointMarker;
import org.apache.flink.runtime.io.network.api.CheckpointBarrier;
import org.apache.flink.runtime.io.network.api.EndOfSegmentEvent;
import org.apache.flink.runtime.io.network.api.EndOfSuperstepEvent;
import org.apache.flink.runtime.io.network.api.RecoveryMetadata;
import org.apache.flink.runtime.io.network.api.StopMode;
import org.apache.flink.runtime.io.network.api.SubtaskConnectionDescriptor;
import org.apache.flink.runtime.io.network.api.writer.ChannelSelector;
import org.apache.flink.runtime.io.network.api.writer.RecordWriter;
import org.apache.flink.runtime.io.network.api.writer.RecordWriterBuilder;
import org.apache.flink.runtime.io.network.partition.CheckpointedResultPartition;
import org.apache.flink.runtime.io.network.partition.PipelinedResultPartition;
import org.apache.flink.runtime.io.network.partition.ResultPartition;
import org.apache.flink.runtime.io.network.partition.ResultPartitionID;
import org.apache.flink.runtime.io.network.partition.ResultPartitionType;
import org.apache.flink.runtime.shuffle.PartitionDescriptor;
import org.apache.flink.runtime.state.CheckpointStorageLocationReference;

/**
 * A real ResultPartition with a real RecordWriter, which goes through a script and then ends as a task does: {@code
 * partition subpartitions script}. The script is a list of steps with commas between, e.g. {@code
 * r1000:100,aligned:1,r10:0-200000,unaligned:2}: 1000 records of 100 bytes, a barrier, 10 of up to 200000 bytes,
 * another barrier. {@code absent}: never make the partition; {@code late}: make it after so many milliseconds.
 */
final class Serve {

    private static final long TIMESTAMP = 1_700_000_000_000L;

    private final Testbed testbed;
    private final Map<String, String> options;
    private final Random random = new Random(7);
    private final List<Report> reports = new ArrayList<>();
    private ResultPartition partition;
    private RecordWriter<Record> writer;
    private boolean failed;

    Serve(Testbed testbed, Map<String, String> options) {
        this.testbed = testbed;
        this.options = options;
    }

    List<Report> run(Map<String, Object> result) throws Exception {
        int subpartitions = Integer.parseInt(options.getOrDefault("subpartitions", "1"));
        for (int i = 0; i < subpartitions; i++) {
            reports.add(new Report(i));
        }
        System.err.println("listening on 127.0.0.1:" + testbed.port);
        Thread.sleep(Long.parseLong(options.getOrDefault("late", "0")));
        if (options.containsKey("absent")) {
            System.in.read();
            return reports;
        }
        open(subpartitions);
        for (String step : options.getOrDefault("script", "r1000:100").split(",")) {
            perform(step.split(":"));
        }
        if (!failed) {
            partition.notifyEndOfData(StopMode.DRAIN);
            partition.getAllDataProcessedFuture().get();
            event("EndOfData");
            partition.finish();
            event("EndOfPartitionEvent");
        }
        writer.close();
        // the producer itself is one of the users
        partition.close();
        while (!partition.isReleased()) {
            Thread.sleep(2);
        }
        return reports;
    }

    private void open(int subpartitions) throws Exception {
        ResultPartitionID id = Testbed.partition(options.get("partition"));
        PartitionDescriptor description =
                new PartitionDescriptor(
                        id.getPartitionId().getIntermediateDataSetID(),
                        1,
                        id.getPartitionId(),
                        ResultPartitionType.PIPELINED_BOUNDED,
                        subpartitions,
                        0,
                        false,
                        true,
                        false);
        partition =
                testbed.environment
                        .createResultPartitionWriters(
                                testbed.owner("serve"),
                                List.of(
                                        new ResultPartitionDeploymentDescriptor(
                                                description, Testbed.descriptor(id, testbed.port), 128)))
                        .get(0);
        partition.setup();
        ((PipelinedResultPartition) partition).setChannelStateWriter(Discarded.WRITER);
        writer =
                new RecordWriterBuilder<Record>()
                        .setChannelSelector(new ByTarget())
                        .setTimeout(Long.parseLong(options.getOrDefault("flush", "100")))
                        .build(partition);
    }

    private void perform(String[] step) throws Exception {
        String what = step[0];
        if (what.matches("r\\d+")) {
            records(Integer.parseInt(what.substring(1)), step[1].split("-"));
        } else if ("flush".equals(what)) {
            partition.flushAll();
        } else if ("sleep".equals(what)) {
            Thread.sleep(Long.parseLong(step[1]));
        } else if ("timeout".equals(what)) {
            partition.alignedBarrierTimeout(Long.parseLong(step[1]));
        } else if ("recovered".equals(what)) {
            ((CheckpointedResultPartition) partition).finishReadRecoveredState(true);
            event("RecoveryCompletion");
        } else if ("fail".equals(what)) {
            failed = true;
            partition.fail(new IllegalStateException(step[1]));
        } else if ("hold".equals(what)) {
            System.in.read();
        } else {
            AbstractEvent event = event(step);
            boolean priority = what.startsWith("unaligned") || what.startsWith("priority");
            writer.broadcastEvent(event, priority);
            event(String.join(":", step));
        }
    }

    private void records(int count, String[] sizes) throws Exception {
        int least = Integer.parseInt(sizes[0]);
        int most = Integer.parseInt(sizes[sizes.length - 1]);
        for (int i = 0; i < count; i++) {
            for (Report report : reports) {
                byte[] bytes = new byte[least + (most > least ? random.nextInt(most - least + 1) : 0)];
                random.nextBytes(bytes);
                report.data(ByteBuffer.allocate(4).putInt(bytes.length).flip());
                report.data(ByteBuffer.wrap(bytes));
                report.records++;
                writer.emit(new Record(bytes, report.index));
            }
        }
    }

    private void event(String name) {
        reports.forEach(report -> report.events.add(name));
    }

    private AbstractEvent event(String[] step) throws Exception {
        switch (step[0]) {
            case "cancel":
            case "priority-cancel":
                return new CancelCheckpointMarker(Long.parseLong(step[1]));
            case "superstep":
                return EndOfSuperstepEvent.INSTANCE;
            case "segment":
                return EndOfSegmentEvent.INSTANCE;
            case "note":
                return new Note(step[1]);
            case "descriptor":
                return new SubtaskConnectionDescriptor(Integer.parseInt(step[1]), Integer.parseInt(step[2]));
            case "metadata":
                return new RecoveryMetadata(Integer.parseInt(step[1]));
            case "watermark":
                return watermark(Boolean.parseBoolean(step[1]));
            default:
                return new CheckpointBarrier(Long.parseLong(step[1]), TIMESTAMP, checkpoint(step));
        }
    }

    private static CheckpointOptions checkpoint(String[] step) {
        CheckpointStorageLocationReference here = CheckpointStorageLocationReference.getDefault();
        CheckpointStorageLocationReference there =
                new CheckpointStorageLocationReference("savepoint-1".getBytes(StandardCharsets.US_ASCII));
        SavepointFormatType form = SavepointFormatType.CANONICAL;
        SnapshotType plain = CheckpointType.CHECKPOINT;
        switch (step[0]) {
            case "aligned":
                return CheckpointOptions.alignedNoTimeout(plain, here);
            case "timeoutable":
                return CheckpointOptions.alignedWithTimeout(plain, here, Long.parseLong(step[2]));
            case "unaligned":
                return CheckpointOptions.unaligned(CheckpointType.CHECKPOINT, here);
            case "atleastonce":
                return CheckpointOptions.notExactlyOnce(plain, here);
            case "forced":
                return CheckpointOptions.unaligned(CheckpointType.CHECKPOINT, here).withUnalignedUnsupported();
            case "full":
                return CheckpointOptions.alignedNoTimeout(CheckpointType.FULL_CHECKPOINT, here);
            case "savepoint":
                return CheckpointOptions.alignedNoTimeout(SavepointType.savepoint(form), there);
            case "native":
                return CheckpointOptions.alignedNoTimeout(
                        SavepointType.savepoint(SavepointFormatType.NATIVE), there);
            case "suspend":
                return CheckpointOptions.alignedNoTimeout(SavepointType.suspend(form), there);
            case "terminate":
                return CheckpointOptions.alignedNoTimeout(SavepointType.terminate(form), there);
            default:
                throw new IllegalArgumentException(step[0]);
        }
    }

    /** 2.x only, so that this compiles with 1.20 too. */
    private static AbstractEvent watermark(boolean aligned) throws Exception {
        Class<?> watermark = Class.forName("org.apache.flink.api.common.watermark.LongWatermark");
        Object value = watermark.getConstructor(long.class, String.class).newInstance(42L, "interop");
        return (AbstractEvent)
                Class.forName("org.apache.flink.runtime.event.WatermarkEvent")
                        .getConstructor(
                                Class.forName("org.apache.flink.api.common.watermark.Watermark"), boolean.class)
                        .newInstance(value, aligned);
    }

    private static final class ByTarget implements ChannelSelector<Record> {
        @Override
        public void setup(int numberOfChannels) {}

        @Override
        public int selectChannel(Record record) {
            return record.target;
        }

        @Override
        public boolean isBroadcast() {
            return false;
        }
    }
}
