package dev.headgate.interop;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What one subpartition carried, in the words of {@code headgate exchange}. */
final class Report {

    final int index;
    long buffers;
    long bytes;
    long records;
    int largest;
    final List<String> events = new ArrayList<>();
    String error = "";
    private final MessageDigest digest;

    Report(int index) {
        this.index = index;
        try {
            digest = MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    void data(ByteBuffer payload) {
        bytes += payload.remaining();
        largest = Math.max(largest, payload.remaining());
        digest.update(payload);
    }

    Map<String, Object> asMap() {
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("index", index);
        map.put("buffers", buffers);
        map.put("bytes", bytes);
        map.put("records", records);
        map.put("sha256", HexFormat.of().formatHex(digest.digest()));
        map.put("largest", largest);
        map.put("events", events);
        map.put("error", error);
        return map;
    }
}
