package org.apache.flink.runtime.throughput;

import dev.headgate.interop.Sequence;
import java.lang.reflect.Constructor;
import java.time.Duration;
import java.util.OptionalInt;
import org.apache.flink.util.clock.ManualClock;

/** The throughput of a gate, and the size of the buffers that follows from it. */
public final class DebloatSequence extends Sequence {

    private final ManualClock clock = new ManualClock();
    private BufferDebloater debloater;
    private ThroughputCalculator throughput;

    @Override
    protected String step(String[] words) throws Exception {
        switch (words[0]) {
            case "new":
                debloater = debloater(words);
                throughput = new ThroughputCalculator(clock);
                return "";
            case "wait":
                clock.advanceTime(Duration.ofMillis(number(words, 1)));
                return "";
            case "pause":
                throughput.pauseMeasurement();
                return "";
            case "resume":
                throughput.resumeMeasurement();
                return "";
            case "data":
                throughput.incomingDataSize(Long.parseLong(words[1]));
                return "";
            case "measure":
                return recalculated(throughput.calculateThroughput(), number(words, 1));
            default:
                return recalculated(Long.parseLong(words[1]), number(words, 2));
        }
    }

    private String recalculated(long bytesPerSecond, int buffers) {
        OptionalInt size = debloater.recalculateBufferSize(bytesPerSecond, buffers);
        String text = size.isPresent() ? "" + size.getAsInt() : "none";
        return bytesPerSecond + " " + text + " " + debloater.getLastEstimatedTimeToConsumeBuffers().toMillis();
    }

    /** Before Flink 2.0 the first size is the largest. */
    private static BufferDebloater debloater(String[] words) throws Exception {
        for (Constructor<?> constructor : BufferDebloater.class.getConstructors()) {
            if (constructor.getParameterCount() == 8) {
                return (BufferDebloater)
                        constructor.newInstance(
                                "test",
                                0,
                                (long) number(words, 1),
                                number(words, 2),
                                number(words, 3),
                                number(words, 4),
                                number(words, 5),
                                (long) number(words, 6));
            }
        }
        return new BufferDebloater(
                "test",
                0,
                number(words, 1),
                number(words, 3),
                number(words, 4),
                number(words, 5),
                number(words, 6));
    }
}
