package org.apache.flink.runtime.checkpoint;

import dev.headgate.interop.Sequence;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.JobID;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.metrics.groups.UnregisteredMetricsGroup;
import org.apache.flink.runtime.executiongraph.Execution;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;
import org.apache.flink.runtime.executiongraph.ExecutionGraphID;
import org.apache.flink.runtime.executiongraph.ExecutionJobVertex;
import org.apache.flink.runtime.executiongraph.ExecutionVertex;
import org.apache.flink.runtime.jobgraph.JobVertex;
import org.apache.flink.runtime.jobgraph.JobVertexID;
import org.apache.flink.runtime.jobgraph.tasks.CheckpointCoordinatorConfiguration;
import org.apache.flink.runtime.messages.checkpoint.AcknowledgeCheckpoint;
import org.apache.flink.runtime.messages.checkpoint.DeclineCheckpoint;
import org.apache.flink.runtime.scheduler.VertexParallelismInformation;
import org.apache.flink.runtime.scheduler.strategy.ExecutionVertexID;
import org.apache.flink.runtime.state.storage.JobManagerCheckpointStorage;
import org.apache.flink.util.clock.ManualClock;
import org.apache.flink.util.concurrent.ScheduledExecutor;
import sun.misc.Unsafe;

/** The checkpoint coordinator of a job. All its threads are one queue, which each command empties. */
public final class CheckpointSequence extends Sequence {

    private final JobID job = new JobID();
    private final ManualClock clock = new ManualClock(1_000_000_000L * 1_000_000);
    private final Deque<Runnable> queue = new ArrayDeque<>();
    private final List<Timer> timers = new ArrayList<>();
    private final List<String> events = new ArrayList<>();
    private final List<Execution> tasks = new ArrayList<>();
    private final Map<Long, PendingCheckpoint> pending = new TreeMap<>();
    private boolean ready = true;
    private long elapsedMs;
    private CheckpointCoordinator coordinator;

    @Override
    protected String step(String[] words) throws Exception {
        events.clear();
        switch (words[0]) {
            case "new":
                create(words);
                break;
            case "start":
                coordinator.startCheckpointScheduler();
                coordinator.startCheckpointScheduler(); // from 2.3 on, only the first start has another delay
                break;
            case "stop":
                coordinator.stopCheckpointScheduler();
                break;
            case "now":
                coordinator.triggerCheckpoint(false);
                break;
            case "ready":
                ready = "true".equals(words[1]);
                break;
            case "wait":
                pass(number(words, 1));
                break;
            case "acknowledge":
                coordinator.receiveAcknowledgeMessage(
                        new AcknowledgeCheckpoint(job, attempt(words), number(words, 2)), "here");
                break;
            default:
                CheckpointException cause =
                        new CheckpointException(CheckpointFailureReason.valueOf(words[3]));
                coordinator.receiveDeclineMessage(
                        new DeclineCheckpoint(job, attempt(words), number(words, 2), cause), "here");
        }
        drain();
        pass(0);
        return String.join(", ", events);
    }

    private ExecutionAttemptID attempt(String[] words) {
        return tasks.get(number(words, 1)).getAttemptId();
    }

    private void create(String[] words) throws Exception {
        CheckpointCoordinatorConfiguration configuration =
                new CheckpointCoordinatorConfiguration.CheckpointCoordinatorConfigurationBuilder()
                        .setCheckpointInterval(number(words, 1))
                        .setCheckpointTimeout(number(words, 2))
                        .setMinPauseBetweenCheckpoints(number(words, 3))
                        .setMaxConcurrentCheckpoints(number(words, 4))
                        .build();
        for (int index = 0; index < number(words, 6); index++) {
            tasks.add(task(index));
        }
        coordinator =
                new CheckpointCoordinator(
                        job,
                        configuration,
                        Collections.emptyList(),
                        new StandaloneCheckpointIDCounter(),
                        new StandaloneCompletedCheckpointStore(1),
                        new JobManagerCheckpointStorage(),
                        queue::add,
                        new CheckpointsCleaner(),
                        new Timers(),
                        new CheckpointFailureManager(number(words, 5), new Callback()),
                        this::plan,
                        clock,
                        tracker(job),
                        VertexFinishedStateChecker::new);
    }

    private CompletableFuture<CheckpointPlan> plan() {
        if (!ready) {
            return CompletableFuture.failedFuture(
                    new CheckpointException(CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING));
        }
        return CompletableFuture.completedFuture(
                new DefaultCheckpointPlan(
                        Collections.emptyList(),
                        tasks,
                        Collections.emptyList(),
                        Collections.emptyList(),
                        Collections.emptyList(),
                        true));
    }

    private void pass(long milliseconds) {
        long until = elapsedMs + milliseconds;
        while (true) {
            Timer next = timers.stream().min(Comparator.comparingLong(each -> each.dueMs)).orElse(null);
            if (next == null || next.dueMs > until) {
                break;
            }
            clock.advanceTime(next.dueMs - elapsedMs, TimeUnit.MILLISECONDS);
            elapsedMs = next.dueMs;
            for (Timer timer : timers) {
                if (timer.dueMs == next.dueMs) { // all of them are due before what they cause
                    queue.add(() -> run(timer));
                }
            }
            drain();
        }
        clock.advanceTime(until - elapsedMs, TimeUnit.MILLISECONDS);
        elapsedMs = until;
    }

    private void run(Timer timer) {
        if (timers.remove(timer)) {
            timer.action.run();
        }
    }

    private void drain() {
        while (!queue.isEmpty()) {
            queue.poll().run();
            observe();
        }
        observe();
    }

    private void observe() {
        Map<Long, PendingCheckpoint> now = coordinator.getPendingCheckpoints();
        for (Long id : new ArrayList<>(pending.keySet())) {
            if (!now.containsKey(id)) {
                CheckpointException cause = pending.remove(id).getFailureCause();
                String result = cause == null ? "completed" : cause.getCheckpointFailureReason().name();
                events.add(elapsedMs + " " + id + " " + result);
            }
        }
        now.forEach(
                (id, checkpoint) -> {
                    if (pending.put(id, checkpoint) == null) {
                        events.add(elapsedMs + " " + id + " triggered");
                    }
                });
    }

    private final class Callback implements CheckpointFailureManager.FailJobCallback {
        @Override
        public void failJob(Throwable cause) {
            observe();
            events.add("fails");
        }

        @Override
        public void failJobDueToTaskFailure(Throwable cause, ExecutionAttemptID attempt) {
            failJob(cause);
        }
    }

    private final class Timer {
        final long dueMs;
        final Runnable action;

        Timer(long dueMs, Runnable action) {
            this.dueMs = dueMs;
            this.action = action;
        }
    }

    private final class Timers implements ScheduledExecutor {
        @Override
        public void execute(Runnable action) {
            queue.add(action);
        }

        @Override
        public ScheduledFuture<?> schedule(Runnable action, long delay, TimeUnit unit) {
            Timer timer = new Timer(elapsedMs + unit.toMillis(delay), action);
            timers.add(timer);
            return (ScheduledFuture<?>)
                    Proxy.newProxyInstance(
                            getClass().getClassLoader(),
                            new Class<?>[] {ScheduledFuture.class},
                            (proxy, method, arguments) -> {
                                if ("cancel".equals(method.getName())) {
                                    return timers.remove(timer);
                                }
                                return method.getReturnType() == boolean.class ? false : null;
                            });
        }

        @Override
        public <V> ScheduledFuture<V> schedule(Callable<V> action, long delay, TimeUnit unit) {
            throw new UnsupportedOperationException();
        }

        @Override
        public ScheduledFuture<?> scheduleAtFixedRate(Runnable action, long delay, long period, TimeUnit unit) {
            throw new UnsupportedOperationException();
        }

        @Override
        public ScheduledFuture<?> scheduleWithFixedDelay(Runnable action, long delay, long pause, TimeUnit unit) {
            throw new UnsupportedOperationException();
        }
    }

    /** It is a class in 1.20, and an interface later. */
    private static CheckpointStatsTracker tracker(JobID job) throws Exception {
        Class<?> type = CheckpointStatsTracker.class;
        if (type.isInterface()) {
            return (CheckpointStatsTracker)
                    Proxy.newProxyInstance(
                            type.getClassLoader(), new Class<?>[] {type}, (proxy, method, arguments) -> null);
        }
        return (CheckpointStatsTracker)
                type.getConstructor(int.class, MetricGroup.class, JobID.class)
                        .newInstance(1, new UnregisteredMetricsGroup(), job);
    }

    /** An execution without its graph: the coordinator needs its ids only. */
    private static Execution task(int index) throws Exception {
        JobVertex vertex = new JobVertex("v", new JobVertexID(), Collections.emptyList());
        Object parallelism =
                Proxy.newProxyInstance(
                        CheckpointSequence.class.getClassLoader(),
                        new Class<?>[] {VertexParallelismInformation.class},
                        (proxy, method, arguments) -> 1);
        ExecutionJobVertex jobVertex = bare(ExecutionJobVertex.class);
        set(jobVertex, "jobVertex", vertex);
        set(jobVertex, "parallelismInfo", parallelism);
        ExecutionVertex subtask = bare(ExecutionVertex.class);
        set(subtask, "jobVertex", jobVertex);
        set(subtask, "taskNameWithSubtask", "v-" + index);
        Execution execution = bare(Execution.class);
        set(execution, "vertex", subtask);
        set(
                execution,
                "attemptId",
                new ExecutionAttemptID(
                        new ExecutionGraphID(),
                        new ExecutionVertexID(vertex.getID(), 0),
                        0));
        return execution;
    }

    private static Unsafe unsafe() throws Exception {
        Field field = Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        return (Unsafe) field.get(null);
    }

    private static <T> T bare(Class<T> type) throws Exception {
        return type.cast(unsafe().allocateInstance(type));
    }

    private static void set(Object owner, String name, Object value) throws Exception {
        Field field = owner.getClass().getDeclaredField(name);
        unsafe().putObject(owner, unsafe().objectFieldOffset(field), value);
    }
}
