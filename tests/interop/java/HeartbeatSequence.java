package org.apache.flink.runtime.heartbeat;

import dev.headgate.interop.Sequence;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import org.apache.flink.runtime.clusterframework.types.ResourceID;
import org.apache.flink.runtime.rpc.exceptions.RecipientUnreachableException;
import org.apache.flink.util.concurrent.ScheduledExecutor;
import org.slf4j.LoggerFactory;

/** A heartbeat manager that sends to one peer. The answer to each request is the outcome of the last {@code peer} command. */
public final class HeartbeatSequence extends Sequence {

    private static final ResourceID PEER = new ResourceID("peer");

    private final List<Timer> timers = new ArrayList<>();
    private final List<String> events = new ArrayList<>();
    private String peer = "answers";
    private long nowMs;
    private HeartbeatManagerSenderImpl<Void, Void> manager;

    @Override
    protected String step(String[] words) {
        events.clear();
        switch (words[0]) {
            case "new":
                manager =
                        new HeartbeatManagerSenderImpl<>(
                                number(words, 1),
                                number(words, 2),
                                number(words, 3),
                                new ResourceID("own"),
                                new Listener(),
                                new Timers(),
                                LoggerFactory.getLogger(HeartbeatSequence.class));
                manager.monitorTarget(PEER, new Peer());
                break;
            case "peer":
                peer = words[1];
                break;
            case "beat":
                manager.receiveHeartbeat(PEER, null);
                break;
            case "unmonitor":
                manager.unmonitorTarget(PEER);
                break;
            default:
                pass(nowMs + number(words, 1));
        }
        return String.join(", ", events);
    }

    private void pass(long until) {
        while (true) {
            Timer next = null;
            for (Timer timer : timers) {
                next = timer.dueMs <= until && (next == null || timer.dueMs < next.dueMs) ? timer : next;
            }
            if (next == null) {
                nowMs = until;
                return;
            }
            nowMs = next.dueMs;
            timers.remove(next);
            next.action.run();
        }
    }

    private final class Peer implements HeartbeatTarget<Void> {
        @Override
        public CompletableFuture<Void> receiveHeartbeat(ResourceID origin, Void payload) {
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public CompletableFuture<Void> requestHeartbeat(ResourceID origin, Void payload) {
            switch (peer) {
                case "answers":
                    manager.receiveHeartbeat(PEER, null);
                    return CompletableFuture.completedFuture(null);
                case "hears":
                    return CompletableFuture.completedFuture(null);
                case "unreachable":
                    return CompletableFuture.failedFuture(new RecipientUnreachableException("own", "peer", "request"));
                default:
                    return CompletableFuture.failedFuture(new IllegalStateException());
            }
        }
    }

    private final class Listener implements HeartbeatListener<Void, Void> {
        @Override
        public void notifyHeartbeatTimeout(ResourceID id) {
            events.add(nowMs + " timeout");
        }

        @Override
        public void notifyTargetUnreachable(ResourceID id) {
            events.add(nowMs + " unreachable");
        }

        @Override
        public void reportPayload(ResourceID id, Void payload) {}

        @Override
        public Void retrievePayload(ResourceID id) {
            return null;
        }
    }

    private static final class Timer {
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
            action.run();
        }

        @Override
        public ScheduledFuture<?> schedule(Runnable action, long delay, TimeUnit unit) {
            Timer timer = new Timer(nowMs + unit.toMillis(delay), action);
            timers.add(timer);
            return (ScheduledFuture<?>)
                    Proxy.newProxyInstance(
                            getClass().getClassLoader(),
                            new Class<?>[] {ScheduledFuture.class},
                            (proxy, method, arguments) -> timers.remove(timer));
        }

        @Override
        public <V> ScheduledFuture<V> schedule(java.util.concurrent.Callable<V> action, long delay, TimeUnit unit) {
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
}
