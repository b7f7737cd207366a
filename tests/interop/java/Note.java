package dev.headgate.interop;

import java.io.IOException;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.runtime.event.RuntimeEvent;

/** An event that Flink's serializer only knows by its class name. */
public final class Note extends RuntimeEvent {

    private String text = "";

    public Note() {}

    Note(String text) {
        this.text = text;
    }

    @Override
    public void write(DataOutputView out) throws IOException {
        out.writeUTF(text);
    }

    @Override
    public void read(DataInputView in) throws IOException {
        text = in.readUTF();
    }

    @Override
    public String toString() {
        return "Note " + text;
    }
}
