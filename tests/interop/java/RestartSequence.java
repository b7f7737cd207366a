package org.apache.flink.runtime.executiongraph.failover;

import dev.headgate.interop.Sequence;
import java.time.Duration;
import org.apache.flink.util.clock.ManualClock;

/** A restart strategy. Its exponential delays have no jitter. */
public final class RestartSequence extends Sequence {

    private final ManualClock clock = new ManualClock();
    private RestartBackoffTimeStrategy strategy;

    @Override
    protected String step(String[] words) {
        switch (words[0]) {
            case "new":
                strategy = strategy(words);
                return "";
            case "wait":
                clock.advanceTime(Duration.ofMillis(number(words, 1)));
                return "";
            default:
                return "" + strategy.notifyFailure(new Exception());
        }
    }

    private RestartBackoffTimeStrategy strategy(String[] words) {
        switch (words[1]) {
            case "exponential":
                return new ExponentialDelayRestartBackoffTimeStrategy(
                        clock,
                        number(words, 2),
                        number(words, 3),
                        Double.parseDouble(words[4]),
                        number(words, 5),
                        0,
                        number(words, 6));
            case "rate":
                return new FailureRateRestartBackoffTimeStrategy(
                        clock, number(words, 2), number(words, 3), number(words, 4));
            default:
                return new FixedDelayRestartBackoffTimeStrategy(number(words, 2), number(words, 3));
        }
    }

    @Override
    protected String state() {
        String delay;
        try {
            delay = "" + strategy.getBackoffTime();
        } catch (IllegalStateException error) {
            delay = "none";
        }
        return " ; " + strategy.canRestart() + " " + delay;
    }
}
