package org.apache.flink.runtime.io.network.buffer;

import dev.headgate.interop.Sequence;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.core.memory.MemorySegment;

/** The network buffer pool and the local pools on top of it. */
public final class PoolSequence extends Sequence {

    private static final int SEGMENT_BYTES = 32;

    /** Nothing waits for segments, but a pause of the JVM must not look like it. */
    private static final Duration REQUEST_TIMEOUT = Duration.ofSeconds(30);

    private NetworkBufferPool network;
    private final Map<String, Pool> pools = new TreeMap<>();
    private final List<Collection<MemorySegment>> unpooled = new ArrayList<>();
    private final List<String> offered = new ArrayList<>();

    private static final class Pool {
        final LocalBufferPool buffers;
        final List<BufferBuilder> requested = new ArrayList<>();
        final List<Buffer> accepted = new ArrayList<>();

        Pool(LocalBufferPool buffers) {
            this.buffers = buffers;
        }
    }

    /** Accepts {@code wanted} buffers. */
    private final class Listener implements BufferListener {
        private final String name;
        private int wanted;

        Listener(String name, int wanted) {
            this.name = name;
            this.wanted = wanted;
        }

        @Override
        public boolean notifyBufferAvailable(Buffer buffer) {
            offered.add("offer " + name);
            if (wanted <= 0) {
                return false;
            }
            wanted--;
            pools.get(name).accepted.add(buffer);
            return true;
        }

        @Override
        public void notifyBufferDestroyed() {}
    }

    @Override
    protected String step(String[] words) throws Exception {
        offered.clear();
        String result = act(words, words.length > 1 ? pools.get(words[1]) : null);
        return String.join(",", offered) + " " + result;
    }

    private String act(String[] words, Pool pool) throws Exception {
        switch (words[0]) {
            case "new":
                network = new NetworkBufferPool(number(words, 1), SEGMENT_BYTES, REQUEST_TIMEOUT);
                return "";
            case "pool":
                pools.put(
                        words[1],
                        new Pool(
                                (LocalBufferPool)
                                        network.createBufferPool(
                                                number(words, 2),
                                                number(words, 3),
                                                number(words, 4),
                                                number(words, 5),
                                                number(words, 6))));
                return "";
            case "request":
                BufferBuilder builder =
                        number(words, 2) < 0
                                ? pool.buffers.requestBufferBuilder()
                                : pool.buffers.requestBufferBuilder(number(words, 2));
                if (builder == null) {
                    return "none";
                }
                pool.requested.add(builder);
                return "";
            case "recycle":
                if (!pool.requested.isEmpty()) {
                    pool.requested.remove(number(words, 2) % pool.requested.size()).close();
                }
                return "";
            case "recycle-accepted":
                if (!pool.accepted.isEmpty()) {
                    pool.accepted.remove(0).recycleBuffer();
                }
                return "";
            case "listen":
                return "" + pool.buffers.addBufferListener(new Listener(words[1], number(words, 2)));
            case "resize":
                pool.buffers.setNumBuffers(number(words, 2));
                return "";
            case "overdraft":
                pool.buffers.setMaxOverdraftBuffersPerGate(number(words, 2));
                return "";
            case "reserve":
                int missing = number(words, 2) - pool.buffers.getNumberOfRequestedMemorySegments();
                if (missing > network.getNumberOfAvailableMemorySegments()
                        && number(words, 2) <= pool.buffers.getNumberOfRequiredMemorySegments()
                        && !pool.buffers.isDestroyed()) {
                    return "false"; // Flink waits until its time-out
                }
                pool.buffers.reserveSegments(number(words, 2));
                return "true";
            case "destroy":
                pool.buffers.lazyDestroy();
                return "";
            case "take-unpooled":
                if (network.getNumberOfAvailableMemorySegments() < number(words, 1)) {
                    return "too few";
                }
                unpooled.add(network.requestUnpooledMemorySegments(number(words, 1)));
                return "";
            default:
                if (!unpooled.isEmpty()) {
                    network.recycleUnpooledMemorySegments(unpooled.remove(0));
                }
                return "";
        }
    }

    @Override
    protected String state() {
        StringBuilder text = new StringBuilder(" free " + network.getNumberOfAvailableMemorySegments());
        pools.forEach(
                (name, pool) ->
                        text.append(
                                String.format(
                                        " | %s %d %d %d %s %d",
                                        name,
                                        pool.buffers.getNumBuffers(),
                                        pool.buffers.getNumberOfRequestedMemorySegments(),
                                        pool.buffers.getNumberOfAvailableMemorySegments(),
                                        pool.buffers.isAvailable(),
                                        pool.buffers.bestEffortGetNumOfUsedBuffers())));
        return text.toString();
    }
}
