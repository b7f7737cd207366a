package dev.headgate.interop;

import java.io.IOException;
import org.apache.flink.core.io.IOReadableWritable;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** Bytes without any framing of their own: Flink's serializer puts their length before them. */
public final class Record implements IOReadableWritable {

    byte[] bytes;
    int target;

    Record(byte[] bytes, int target) {
        this.bytes = bytes;
        this.target = target;
    }

    @Override
    public void write(DataOutputView out) throws IOException {
        out.write(bytes);
    }

    @Override
    public void read(DataInputView in) throws IOException {
        in.readFully(bytes);
    }
}
