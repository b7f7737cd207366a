package org.apache.flink.runtime.io.network.api.serialization;

import dev.headgate.interop.Sequence;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.core.io.IOReadableWritable;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.core.memory.MemorySegment;
import org.apache.flink.core.memory.MemorySegmentFactory;
import org.apache.flink.runtime.io.network.buffer.Buffer;
import org.apache.flink.runtime.io.network.buffer.FreeingBufferRecycler;
import org.apache.flink.runtime.io.network.buffer.NetworkBuffer;
import org.apache.flink.util.CloseableIterator;

/** Records that span buffers. Each record begins with the number of bytes that follow in it. */
public final class RecordSequence extends Sequence {

    private final SpillingAdaptiveSpanningRecordDeserializer<Record> deserializer =
            new SpillingAdaptiveSpanningRecordDeserializer<>(
                    new String[] {System.getProperty("java.io.tmpdir")}, 0, 0);

    private static final class Record implements IOReadableWritable {
        private byte[] bytes;

        @Override
        public void write(DataOutputView out) {}

        @Override
        public void read(DataInputView in) throws IOException {
            bytes = new byte[in.readInt()];
            in.readFully(bytes);
        }
    }

    @Override
    protected String step(String[] words) throws Exception {
        if ("new".equals(words[0])) {
            return "";
        }
        if ("clear".equals(words[0])) {
            deserializer.clear();
            return "";
        }
        byte[] bytes = new byte[number(words, 1)];
        for (int i = 0; words.length > 2 && i < words[2].length() / 2; i++) {
            bytes[i] = (byte) Integer.parseInt(words[2].substring(2 * i, 2 * i + 2), 16);
        }
        MemorySegment segment = MemorySegmentFactory.wrap(bytes);
        deserializer.setNextBuffer(
                new NetworkBuffer(
                        segment, FreeingBufferRecycler.INSTANCE, Buffer.DataType.DATA_BUFFER, bytes.length));
        List<String> found = new ArrayList<>();
        Record record = new Record();
        RecordDeserializer.DeserializationResult result;
        do {
            result = deserializer.getNextRecord(record);
            if (result.isFullRecord()) {
                found.add(summary(record.bytes));
            }
        } while (!result.isBufferConsumed());
        return String.join(",", found);
    }

    private static String summary(byte[] bytes) {
        int sum = 0;
        for (byte each : bytes) {
            sum = 31 * sum + (each & 0xff) & 0xffff;
        }
        return bytes.length + "/" + sum;
    }

    @Override
    protected String state() {
        ByteArrayOutputStream incomplete = new ByteArrayOutputStream();
        try (CloseableIterator<Buffer> left = deserializer.getUnconsumedBuffer()) {
            while (left.hasNext()) {
                Buffer buffer = left.next();
                byte[] bytes = new byte[buffer.readableBytes()];
                buffer.getNioBufferReadable().get(bytes);
                buffer.recycleBuffer();
                incomplete.writeBytes(bytes);
            }
        } catch (Exception error) {
            return " ; " + error;
        }
        return " ; " + summary(incomplete.toByteArray());
    }
}
