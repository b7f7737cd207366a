package dev.headgate.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;

/**
 * Runs sequences of commands on one of Flink's classes: one line of answer for each line of stdin. {@code new …} starts
 * a sequence. An exception is an answer too.
 */
final class Sequences {

    private static final Map<String, String> DRIVERS =
            Map.ofEntries(
                    Map.entry("restarts", "org.apache.flink.runtime.executiongraph.failover.RestartSequence"),
                    Map.entry("heartbeats", "org.apache.flink.runtime.heartbeat.HeartbeatSequence"),
                    Map.entry("slots", "org.apache.flink.runtime.taskexecutor.slot.SlotTableSequence"),
                    Map.entry("failures", "org.apache.flink.runtime.checkpoint.FailureSequence"),
                    Map.entry("debloating", "org.apache.flink.runtime.throughput.DebloatSequence"),
                    Map.entry("records", "org.apache.flink.runtime.io.network.api.serialization.RecordSequence"),
                    Map.entry("barriers", "org.apache.flink.streaming.runtime.io.checkpointing.BarrierSequence"),
                    Map.entry("regions", "org.apache.flink.runtime.executiongraph.failover.RegionSequence"),
                    Map.entry("checkpoints", "org.apache.flink.runtime.checkpoint.CheckpointSequence"),
                    Map.entry("pools", "org.apache.flink.runtime.io.network.buffer.PoolSequence"),
                    Map.entry("partitions", "org.apache.flink.runtime.io.network.partition.PartitionSequence"),
                    Map.entry("subpartitions", "org.apache.flink.runtime.io.network.partition.SubpartitionSequence"),
                    Map.entry("servers", "org.apache.flink.runtime.io.network.netty.ServerSequence"),
                    Map.entry("clients", "org.apache.flink.runtime.io.network.netty.ClientSequence"),
                    Map.entry("gates", "org.apache.flink.runtime.io.network.partition.consumer.GateSequence"),
                    Map.entry("local-gates", "org.apache.flink.runtime.io.network.partition.consumer.LocalGateSequence"));

    private Sequences() {}

    static void run(String name) throws Exception {
        Class<?> driver = Class.forName(DRIVERS.get(name));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answers = new StringBuilder();
        Sequence sequence = null;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            if ("new".equals(words[0])) {
                sequence = (Sequence) driver.getDeclaredConstructor().newInstance();
            }
            answers.append(sequence.answer(words)).append('\n');
        }
        System.out.print(answers);
        System.out.flush();
    }
}
