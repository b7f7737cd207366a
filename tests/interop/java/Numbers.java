package dev.headgate.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.GlobalConfiguration;
import org.apache.flink.runtime.clusterframework.TaskExecutorProcessSpec;
import org.apache.flink.runtime.clusterframework.TaskExecutorProcessUtils;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.util.MathUtils;

/**
 * What Flink's own classes calculate, one JSON object for each line of stdin: {@code memory key=value;key=value},
 * {@code group hash parallelism maxParallelism}, {@code value type base64}, {@code file name base64} or
 * {@code options all}.
 */
final class Numbers {

    private Numbers() {}

    static void run() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", 2);
            System.out.println(Testbed.json(answer(words[0], words[1])));
        }
        System.out.flush();
    }

    private static Map<String, Object> answer(String kind, String text) throws Exception {
        switch (kind) {
            case "memory":
                return memory(text);
            case "group":
                return group(text);
            case "options":
                return Keys.read();
            case "value":
                return value(text.split(" ", 2)[0], decoded(text.split(" ", 2)[1]));
            default:
                return file(text.split(" ", 2)[0], decoded(text.split(" ", 2)[1]));
        }
    }

    private static String decoded(String base64) {
        return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
    }

    /** An option of a type, in seconds and nanoseconds, bytes, a number or a boolean. */
    private static Map<String, Object> value(String type, String text) {
        Configuration configuration = new Configuration();
        configuration.setString("key", text);
        ConfigOptions.OptionBuilder option = ConfigOptions.key("key");
        Map<String, Object> result = new LinkedHashMap<>();
        try {
            switch (type) {
                case "duration":
                    Duration duration = configuration.get(option.durationType().noDefaultValue());
                    duration.toMillis();
                    result.put("value", duration.getSeconds() + " " + duration.getNano());
                    break;
                case "memory":
                    result.put("value", configuration.get(option.memoryType().noDefaultValue()).getBytes());
                    break;
                case "integer":
                    result.put("value", configuration.get(option.intType().noDefaultValue()));
                    break;
                case "boolean":
                    result.put("value", configuration.get(option.booleanType().noDefaultValue()));
                    break;
                default:
                    result.put("value", configuration.get(option.doubleType().noDefaultValue()).toString());
            }
        } catch (RuntimeException error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            result.put("error", String.valueOf(cause.getMessage()));
        }
        return result;
    }

    /** The options in a configuration file. */
    private static Map<String, Object> file(String name, String text) throws Exception {
        Path folder = Files.createTempDirectory("conf");
        Files.writeString(folder.resolve(name), text);
        Map<String, Object> result = new LinkedHashMap<>();
        try {
            result.put("options", GlobalConfiguration.loadConfiguration(folder.toString()).toMap());
        } catch (RuntimeException error) {
            result.put("error", String.valueOf(error.getCause() == null ? error : error.getCause()));
        }
        Files.delete(folder.resolve(name));
        Files.delete(folder);
        return result;
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
