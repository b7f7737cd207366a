package org.apache.flink.runtime.taskexecutor.slot;

import dev.headgate.interop.Sequence;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.JobID;
import org.apache.flink.runtime.clusterframework.types.AllocationID;
import org.apache.flink.runtime.clusterframework.types.ResourceID;
import org.apache.flink.runtime.clusterframework.types.ResourceProfile;
import org.apache.flink.runtime.concurrent.ComponentMainThreadExecutor;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;
import org.apache.flink.util.concurrent.Executors;

/** The slots of a TaskExecutor, which are requested by their index as it does. A task in a slot ends when it is told to. */
public final class SlotTableSequence extends Sequence {

    private final Map<String, JobID> jobs = new HashMap<>();
    private final Map<String, AllocationID> allocations = new TreeMap<>();
    private final Map<String, List<Task>> tasks = new HashMap<>();
    private final Map<AllocationID, Long> deadlines = new HashMap<>();
    private final List<String> events = new ArrayList<>();
    private int size;
    private long nowMs;
    private TaskSlotTableImpl<Task> table;

    @Override
    protected String step(String[] words) throws Exception {
        events.clear();
        switch (words[0]) {
            case "new":
                create(number(words, 1));
                return "";
            case "allocate":
                int index = number(words, 1);
                if (table.isSlotFree(index)) {
                    table.allocateSlot(index, job(words[3]), allocation(words[2]), Duration.ofMillis(10));
                    return table.isAllocated(index, job(words[3]), allocation(words[2])) ? "" : "SlotAllocationException";
                } else if (!table.isAllocated(index, job(words[3]), allocation(words[2]))) {
                    return "SlotOccupiedException";
                }
                return "";
            case "activate":
                return "" + table.tryMarkSlotActive(job(words[2]), allocation(words[1]));
            case "deactivate":
                try {
                    table.markSlotInactive(allocation(words[1]), Duration.ofMillis(10));
                } catch (SlotNotFoundException unknown) {
                    return "";
                }
                return "";
            case "start":
                start(words[1], job(words[2]));
                return "";
            case "end":
                for (Task task : tasks.getOrDefault(words[1], List.of())) {
                    task.ended.complete(null);
                    table.removeTask(task.id);
                }
                tasks.remove(words[1]);
                return String.join(", ", events);
            case "free":
                free(allocation(words[1]));
                return String.join(", ", events);
            default:
                nowMs += number(words, 1);
                for (Map.Entry<String, AllocationID> each : allocations.entrySet()) {
                    Long deadline = deadlines.get(each.getValue());
                    if (deadline != null && deadline <= nowMs) {
                        deadlines.remove(each.getValue());
                        free(each.getValue());
                    }
                }
                return String.join(", ", events);
        }
    }

    private void free(AllocationID allocation) {
        try {
            if (table.freeSlot(allocation) >= 0) {
                allocations.forEach((name, each) -> events.addAll(each.equals(allocation) ? List.of("freed " + name) : List.of()));
            }
        } catch (SlotNotFoundException unknown) {
            return;
        }
    }

    private void start(String allocation, JobID job) throws Exception {
        Task task = new Task(job, allocation(allocation));
        if (table.addTask(task)) {
            tasks.computeIfAbsent(allocation, each -> new ArrayList<>()).add(task);
        }
    }

    private void create(int slots) {
        size = slots;
        ResourceProfile one = ResourceProfile.newBuilder().setCpuCores(1).setTaskHeapMemoryMB(64).build();
        table = new TaskSlotTableImpl<>(slots, one.multiply(slots), one, 4096, new Deadlines(), Executors.directExecutor());
        ComponentMainThreadExecutor unused =
                (ComponentMainThreadExecutor)
                        Proxy.newProxyInstance(
                                getClass().getClassLoader(),
                                new Class<?>[] {ComponentMainThreadExecutor.class},
                                (proxy, method, arguments) -> null);
        table.start(new Actions(), unused);
    }

    private JobID job(String name) {
        return jobs.computeIfAbsent(name, each -> new JobID());
    }

    private AllocationID allocation(String name) {
        return allocations.computeIfAbsent(name, each -> new AllocationID());
    }

    @Override
    protected String state() {
        StringBuilder text = new StringBuilder(" ;");
        for (Map.Entry<String, AllocationID> each : allocations.entrySet()) {
            for (int index = 0; index < size; index++) {
                if (each.getValue().equals(current(index))) {
                    text.append(' ').append(each.getKey()).append('@').append(index).append(stateOf(each.getValue()));
                }
            }
        }
        return text.toString();
    }

    private AllocationID current(int index) {
        return table.isSlotFree(index) ? null : table.getCurrentAllocation(index);
    }

    private String stateOf(AllocationID allocation) {
        JobID owner = table.getOwningJob(allocation);
        if (table.getActiveTaskSlotAllocationIdsPerJob(owner).contains(allocation)) {
            return "=active";
        }
        return table.getAllocationIdsPerJob(owner).contains(allocation) && isAllocated(owner, allocation)
                ? "=until" + deadlines.get(allocation)
                : "=releasing";
    }

    private boolean isAllocated(JobID owner, AllocationID allocation) {
        for (int index = 0; index < size; index++) {
            if (table.isAllocated(index, owner, allocation)) {
                return true;
            }
        }
        return false;
    }

    private final class Actions implements SlotActions {
        @Override
        public void freeSlot(AllocationID allocation) {
            free(allocation);
        }

        @Override
        public void timeoutSlot(AllocationID allocation, UUID ticket) {
            free(allocation);
        }
    }

    private final class Deadlines implements TimerService<AllocationID> {
        @Override
        public void start(TimeoutListener<AllocationID> listener) {}

        @Override
        public void stop() {}

        @Override
        public void registerTimeout(AllocationID key, long delay, TimeUnit unit) {
            deadlines.put(key, nowMs + unit.toMillis(delay));
        }

        @Override
        public void unregisterTimeout(AllocationID key) {
            deadlines.remove(key);
        }

        @Override
        public boolean isValid(AllocationID key, UUID ticket) {
            return true;
        }
    }

    private static final class Task implements TaskSlotPayload {
        final CompletableFuture<Void> ended = new CompletableFuture<>();
        final JobID job;
        final AllocationID allocation;
        final ExecutionAttemptID id = ExecutionAttemptID.randomId();

        Task(JobID job, AllocationID allocation) {
            this.job = job;
            this.allocation = allocation;
        }

        @Override
        public JobID getJobID() {
            return job;
        }

        @Override
        public ExecutionAttemptID getExecutionId() {
            return id;
        }

        @Override
        public AllocationID getAllocationId() {
            return allocation;
        }

        @Override
        public CompletableFuture<?> getTerminationFuture() {
            return ended;
        }

        @Override
        public void failExternally(Throwable cause) {}
    }
}
