package dev.headgate.interop;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.flink.runtime.checkpoint.channel.ChannelStateWriter;
import org.apache.flink.runtime.io.network.buffer.Buffer;
import org.apache.flink.util.CloseableIterator;

/** Channel state that nobody keeps. Flink's own NO_OP writer keeps the buffers of an overtaken checkpoint for ever. */
final class Discarded {

    static final ChannelStateWriter WRITER =
            (ChannelStateWriter)
                    Proxy.newProxyInstance(
                            Discarded.class.getClassLoader(),
                            new Class<?>[] {ChannelStateWriter.class},
                            (proxy, method, arguments) -> {
                                if (method.getName().startsWith("add")) {
                                    recycle(arguments[arguments.length - 1]);
                                    return null;
                                }
                                try {
                                    return method.invoke(ChannelStateWriter.NO_OP, arguments);
                                } catch (InvocationTargetException error) {
                                    throw error.getCause();
                                }
                            });

    private Discarded() {}

    private static void recycle(Object data) throws Exception {
        if (data instanceof Buffer) {
            ((Buffer) data).recycleBuffer();
        } else if (data instanceof Buffer[]) {
            for (Buffer buffer : (Buffer[]) data) {
                buffer.recycleBuffer();
            }
        } else if (data instanceof CloseableIterator) {
            ((CloseableIterator<?>) data).close();
        } else if (data instanceof CompletableFuture) {
            ((CompletableFuture<?>) data)
                    .thenAccept(buffers -> ((List<?>) buffers).forEach(buffer -> ((Buffer) buffer).recycleBuffer()));
        }
    }
}
