package dev.headgate.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.clusterframework.TaskExecutorProcessSpec;
import org.apache.flink.runtime.clusterframework.TaskExecutorProcessUtils;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.util.MathUtils;

/**
 * What Flink's own classes calculate, one JSON object for each line of stdin: {@code memory key=value;key=value} or
 * {@code group hash parallelism maxParallelism}.
 */
final class Numbers {

    private Numbers() {}

    static void run() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", 2);
            System.out.println(Testbed.json("memory".equals(words[0]) ? memory(words[1]) : group(words[1])));
        }
        System.out.flush();
    }

    private static Map<String, Object> memory(String text) {
        Configuration configuration = new Configuration();
        for (String pair : text.split(";")) {
            int cut = pair.indexOf('=');
            configuration.setString(pair.substring(0, cut), pair.substring(cut + 1));
        }
        Map<String, Object> result = new LinkedHashMap<>();
        try {
            TaskExecutorProcessSpec spec = TaskExecutorProcessUtils.processSpecFromConfig(configuration);
            result.put("process", spec.getTotalProcessMemorySize().getBytes());
            result.put("flink", spec.getTotalFlinkMemorySize().getBytes());
            result.put("frameworkHeap", spec.getFlinkMemory().getFrameworkHeap().getBytes());
            result.put("frameworkOffHeap", spec.getFlinkMemory().getFrameworkOffHeap().getBytes());
            result.put("taskHeap", spec.getTaskHeapSize().getBytes());
            result.put("taskOffHeap", spec.getTaskOffHeapSize().getBytes());
            result.put("network", spec.getNetworkMemSize().getBytes());
            result.put("managed", spec.getManagedMemorySize().getBytes());
            result.put("metaspace", spec.getJvmMetaspaceSize().getBytes());
            result.put("overhead", spec.getJvmOverheadSize().getBytes());
            result.put("heap", spec.getJvmHeapMemorySize().getBytes());
            result.put("direct", spec.getJvmDirectMemorySize().getBytes());
        } catch (RuntimeException error) {
            List<String> messages = new ArrayList<>();
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                messages.add(cause.getClass().getSimpleName() + ": " + cause.getMessage());
            }
            result.put("errors", messages);
        }
        return result;
    }

    private static Map<String, Object> group(String text) {
        String[] words = text.split(" ");
        int hash = Integer.parseInt(words[0]);
        int parallelism = Integer.parseInt(words[1]);
        int maxParallelism = Integer.parseInt(words[2]);
        int group = KeyGroupRangeAssignment.computeKeyGroupForKeyHash(hash, maxParallelism);
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("murmur", MathUtils.murmurHash(hash));
        result.put("group", group);
        result.put("subtask", KeyGroupRangeAssignment.computeOperatorIndexForKeyGroup(maxParallelism, parallelism, group));
        result.put("default", KeyGroupRangeAssignment.computeDefaultMaxParallelism(parallelism));
        return result;
    }
}
