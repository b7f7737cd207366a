package dev.headgate.interop;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.deployment.InputGateDeploymentDescriptor;
import org.apache.flink.runtime.deployment.TaskDeploymentDescriptorFactory.ShuffleDescriptorAndIndex;
import org.apache.flink.runtime.event.AbstractEvent;
import org.apache.flink.runtime.execution.ExecutionState;
import org.apache.flink.runtime.io.network.api.CancelCheckpointMarker;
import org.apache.flink.runtime.io.network.api.CheckpointBarrier;
import org.apache.flink.runtime.io.network.api.EndOfData;
import org.apache.flink.runtime.io.network.api.EventAnnouncement;
import org.apache.flink.runtime.io.network.api.serialization.RecordDeserializer;
import org.apache.flink.runtime.io.network.api.serialization.SpillingAdaptiveSpanningRecordDeserializer;
import org.apache.flink.runtime.io.network.buffer.Buffer;
import org.apache.flink.runtime.io.network.partition.ChannelStateHolder;
import org.apache.flink.runtime.io.network.partition.PartitionProducerStateProvider;
import org.apache.flink.runtime.io.network.partition.ResultPartitionID;
import org.apache.flink.runtime.io.network.partition.ResultPartitionType;
import org.apache.flink.runtime.io.network.partition.consumer.BufferOrEvent;
import org.apache.flink.runtime.io.network.partition.consumer.SingleInputGate;
import org.apache.flink.types.Either;

/**
 * Reads subpartitions to their end as tasks do, each with a SingleInputGate of its own: {@code port partition
 * subpartitions record-bytes exclusive floating}; {@code announce} bytes: ask for smaller buffers after the first one;
 * {@code slow} milliseconds a buffer; {@code leave} after so many buffers.
 */
final class Fetch {

    private final Testbed testbed;
    private final Map<String, String> options;
    private final ResultPartitionID partition;
    private final AtomicInteger stateChecks = new AtomicInteger();

    Fetch(Testbed testbed, Map<String, String> options) {
        this.testbed = testbed;
        this.options = options;
        partition = Testbed.partition(options.get("partition"));
    }

    private int number(String key, int otherwise) {
        return Integer.parseInt(options.getOrDefault(key, String.valueOf(otherwise)));
    }

    List<Report> run(Map<String, Object> result) throws Exception {
        List<Report> reports = new ArrayList<>();
        List<Future<?>> tasks = new ArrayList<>();
        int first = number("first", 0);
        for (int i = 0; i < number("subpartitions", 1); i++) {
            Report report = new Report(first + i);
            reports.add(report);
            tasks.add(testbed.io.submit(() -> read(report)));
        }
        for (Future<?> task : tasks) {
            task.get();
        }
        result.put("stateChecks", stateChecks.get());
        return reports;
    }

    private void read(Report report) {
        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (SingleInputGate gate = gate(report.index, failure)) {
            gate.setup();
            ((ChannelStateHolder) gate.getChannel(0)).setChannelStateWriter(Discarded.WRITER);
            gate.finishReadRecoveredState();
            while (!gate.getStateConsumedFuture().isDone()) {
                gate.pollNext();
            }
            gate.requestPartitions();
            consume(gate, report, failure);
        } catch (Throwable error) {
            Throwable shown = failure.get() == null ? error : failure.get();
            report.error = causes(shown);
        }
    }

    private static String causes(Throwable error) {
        StringBuilder text = new StringBuilder(error.toString());
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            text.append(" <- ").append(cause);
        }
        return text.toString();
    }

    private void consume(SingleInputGate gate, Report report, AtomicReference<Throwable> failure) throws Exception {
        RecordDeserializer<Record> deserializer =
                new SpillingAdaptiveSpanningRecordDeserializer<>(new String[] {System.getProperty("java.io.tmpdir")});
        Record record = new Record(new byte[number("record-bytes", 100)], 0);
        int announce = number("announce", 0);
        while (!gate.isFinished()) {
            Optional<BufferOrEvent> next = gate.pollNext();
            if (next.isEmpty()) {
                if (failure.get() != null) {
                    throw new IOException(failure.get());
                }
                Thread.sleep(1);
            } else if (next.get().isEvent()) {
                event(gate, next.get(), report);
            } else {
                buffer(next.get().getBuffer(), deserializer, record, report);
                if (announce > 0 && report.buffers == 1) {
                    gate.announceBufferSize(announce);
                }
                if (report.buffers == number("leave", -1)) {
                    return;
                }
            }
        }
    }

    private void buffer(Buffer buffer, RecordDeserializer<Record> deserializer, Record record, Report report)
            throws Exception {
        report.buffers++;
        report.data(buffer.getNioBufferReadable());
        Thread.sleep(number("slow", 0));
        deserializer.setNextBuffer(buffer);
        RecordDeserializer.DeserializationResult result;
        do {
            result = deserializer.getNextRecord(record);
            report.records += result.isFullRecord() ? 1 : 0;
        } while (!result.isBufferConsumed());
    }

    private void event(SingleInputGate gate, BufferOrEvent taken, Report report) throws IOException {
        AbstractEvent event = taken.getEvent();
        report.events.add(name(event));
        if (event instanceof EndOfData) {
            gate.acknowledgeAllRecordsProcessed(taken.getChannelInfo());
        } else if (event instanceof CheckpointBarrier) {
            CheckpointBarrier barrier = (CheckpointBarrier) event;
            if (barrier.getCheckpointOptions().needsAlignment()) {
                gate.resumeConsumption(taken.getChannelInfo());
            }
        } else if (event.getClass().getSimpleName().matches("EndOf(Output)?ChannelStateEvent")) {
            gate.resumeConsumption(taken.getChannelInfo());
        }
    }

    private static String name(AbstractEvent event) {
        if (event instanceof CheckpointBarrier) {
            CheckpointBarrier barrier = (CheckpointBarrier) event;
            CheckpointOptions how = barrier.getCheckpointOptions();
            return String.join(
                    " ",
                    "CheckpointBarrier",
                    String.valueOf(barrier.getId()),
                    how.getAlignment().name(),
                    how.getCheckpointType().getName(),
                    how.getTargetLocation().isDefaultReference()
                            ? "-"
                            : new String(how.getTargetLocation().getReferenceBytes(), StandardCharsets.US_ASCII));
        }
        if (event instanceof CancelCheckpointMarker) {
            return "CancelCheckpointMarker " + ((CancelCheckpointMarker) event).getCheckpointId();
        }
        if (event instanceof EventAnnouncement) {
            return "EventAnnouncement " + ((EventAnnouncement) event).getSequenceNumber();
        }
        return event instanceof Note ? event.toString() : event.getClass().getSimpleName();
    }

    private SingleInputGate gate(int subpartition, AtomicReference<Throwable> failure) throws IOException {
        ShuffleDescriptorAndIndex[] producers = {
            new ShuffleDescriptorAndIndex(Testbed.descriptor(partition, number("port", 0)), 0)
        };
        InputGateDeploymentDescriptor descriptor =
                new InputGateDeploymentDescriptor(
                        partition.getPartitionId().getIntermediateDataSetID(),
                        ResultPartitionType.PIPELINED_BOUNDED,
                        subpartition,
                        producers);
        return testbed.environment
                .createInputGates(testbed.owner("fetch " + subpartition), states(failure), List.of(descriptor))
                .get(0);
    }

    /** A JobManager that says of every producer that it runs: the consumer asks it again. */
    private PartitionProducerStateProvider states(AtomicReference<Throwable> failure) {
        return (dataSet, id, consumer) -> {
            stateChecks.incrementAndGet();
            testbed.io.execute(() -> consumer.accept(new Running(failure)));
        };
    }

    private static final class Running implements PartitionProducerStateProvider.ResponseHandle {
        private final AtomicReference<Throwable> failure;

        Running(AtomicReference<Throwable> failure) {
            this.failure = failure;
        }

        @Override
        public ExecutionState getConsumerExecutionState() {
            return ExecutionState.RUNNING;
        }

        @Override
        public Either<ExecutionState, Throwable> getProducerExecutionState() {
            return Either.Left(ExecutionState.RUNNING);
        }

        @Override
        public void cancelConsumption() {
            failure.set(new IOException("cancelled"));
        }

        @Override
        public void failConsumption(Throwable cause) {
            failure.set(cause);
        }
    }
}
