package org.apache.flink.streaming.runtime.io.checkpointing;

import dev.headgate.interop.Sequence;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import org.apache.flink.runtime.checkpoint.CheckpointException;
import org.apache.flink.runtime.checkpoint.CheckpointMetaData;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.checkpoint.channel.InputChannelInfo;
import org.apache.flink.runtime.io.network.api.CancelCheckpointMarker;
import org.apache.flink.runtime.io.network.api.CheckpointBarrier;
import org.apache.flink.runtime.io.network.partition.consumer.CheckpointableInput;
import org.apache.flink.runtime.jobgraph.tasks.CheckpointableTask;
import org.apache.flink.streaming.runtime.tasks.SubtaskCheckpointCoordinator;
import org.apache.flink.util.clock.Clock;

/** The alignment of a task: aligned, alternating (with unaligned checkpoints), or tracking (at least once). */
public final class BarrierSequence extends Sequence {

    private final List<String> effects = new ArrayList<>();
    private final List<Timer> timers = new ArrayList<>();
    private CheckpointBarrierHandler handler;
    private long nowMs;

    private static final class Timer {
        final long dueMs;
        final Callable<?> callback;
        boolean over;

        Timer(long dueMs, Callable<?> callback) {
            this.dueMs = dueMs;
            this.callback = callback;
        }
    }

    @Override
    protected String step(String[] words) throws Exception {
        effects.clear();
        switch (words[0]) {
            case "new":
                handler = handler(words[1], number(words, 2), "after-tasks-finish".equals(words[3]));
                break;
            case "barrier":
                handler.processBarrier(barrier(words, 2), channel(words), false);
                break;
            case "announcement":
                handler.processBarrierAnnouncement(barrier(words, 3), number(words, 2), channel(words));
                break;
            case "cancel":
                handler.processCancellationBarrier(new CancelCheckpointMarker(number(words, 2)), channel(words));
                break;
            case "end":
                handler.processEndOfPartition(channel(words));
                break;
            default:
                nowMs = number(words, 1);
                for (Timer timer : new ArrayList<>(timers)) {
                    if (!timer.over && timer.dueMs <= nowMs) {
                        timer.over = true;
                        timer.callback.call();
                    }
                }
        }
        effects.sort(null);
        return String.join(", ", effects);
    }

    private CheckpointBarrierHandler handler(String kind, int channels, boolean afterTasksFinish) {
        Clock clock = clock();
        CheckpointableTask task = task();
        if ("tracking".equals(kind)) {
            return new CheckpointBarrierTracker(channels, task, clock, afterTasksFinish);
        }
        CheckpointableInput input = input(channels);
        BarrierAlignmentUtil.DelayableTimer register =
                (callback, delay) -> {
                    Timer timer = new Timer(nowMs + delay.toMillis(), callback);
                    timers.add(timer);
                    return () -> timer.over = true;
                };
        if ("aligned".equals(kind)) {
            return SingleCheckpointBarrierHandler.aligned(
                    "test", task, clock, channels, register, afterTasksFinish, input);
        }
        SubtaskCheckpointCoordinator coordinator = ignoring(SubtaskCheckpointCoordinator.class);
        return SingleCheckpointBarrierHandler.alternating(
                "test", task, coordinator, clock, channels, register, afterTasksFinish, input);
    }

    private Clock clock() {
        return new Clock() {
            @Override
            public long absoluteTimeMillis() {
                return nowMs;
            }

            @Override
            public long relativeTimeMillis() {
                return nowMs;
            }

            @Override
            public long relativeTimeNanos() {
                return nowMs * 1_000_000;
            }
        };
    }

    /** The task, which only notes when a checkpoint is triggered or aborted. */
    private CheckpointableTask task() {
        return (CheckpointableTask)
                Proxy.newProxyInstance(
                        getClass().getClassLoader(),
                        new Class<?>[] {CheckpointableTask.class},
                        (proxy, method, arguments) -> {
                            if (method.getName().equals("triggerCheckpointOnBarrier")) {
                                CheckpointMetaData checkpoint = (CheckpointMetaData) arguments[0];
                                CheckpointOptions options = (CheckpointOptions) arguments[1];
                                effects.add("trigger " + checkpoint.getCheckpointId() + " " + options.getAlignment());
                            } else if (method.getName().equals("abortCheckpointOnBarrier")) {
                                CheckpointException cause = (CheckpointException) arguments[1];
                                effects.add("abort " + arguments[0] + " " + cause.getCheckpointFailureReason().name());
                            }
                            return null;
                        });
    }

    private CheckpointableInput input(int channels) {
        return (CheckpointableInput)
                Proxy.newProxyInstance(
                        getClass().getClassLoader(),
                        new Class<?>[] {CheckpointableInput.class},
                        (proxy, method, arguments) -> {
                            switch (method.getName()) {
                                case "resumeConsumption":
                                    effects.add("resume " + ((InputChannelInfo) arguments[0]).getInputChannelIdx());
                                    return null;
                                case "convertToPriorityEvent":
                                    effects.add("prioritize " + arguments[0] + " " + arguments[1]);
                                    return null;
                                case "getChannelInfos":
                                    List<InputChannelInfo> infos = new ArrayList<>();
                                    for (int index = 0; index < channels; index++) {
                                        infos.add(new InputChannelInfo(0, index));
                                    }
                                    return infos;
                                case "getNumberOfInputChannels":
                                    return channels;
                                case "getInputGateIndex":
                                    return 0;
                                default:
                                    return null;
                            }
                        });
    }

    private static <T> T ignoring(Class<T> type) {
        return type.cast(
                Proxy.newProxyInstance(
                        type.getClassLoader(), new Class<?>[] {type}, (proxy, method, arguments) -> null));
    }

    private static InputChannelInfo channel(String[] words) {
        return new InputChannelInfo(0, number(words, 1));
    }

    private static CheckpointBarrier barrier(String[] words, int position) {
        return barrier(
                words[position + 2],
                number(words, position),
                number(words, position + 1),
                number(words, position + 3));
    }
}
