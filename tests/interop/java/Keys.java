package dev.headgate.interop;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.apache.flink.configuration.ConfigOption;

/** Every ConfigOption in Flink's {@code *Options} classes, by its key: type, default and older names. */
final class Keys {

    private Keys() {}

    static Map<String, Object> read() throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        for (String path : System.getProperty("java.class.path").split(":")) {
            if (!path.contains("flink-") || !path.endsWith(".jar")) {
                continue;
            }
            try (JarFile jar = new JarFile(path)) {
                for (JarEntry entry : (Iterable<JarEntry>) jar.stream()::iterator) {
                    if (entry.getName().matches("org/apache/flink/[a-z/]*/[A-Za-z]+Options\\.class")) {
                        add(entry.getName().replace(".class", "").replace('/', '.'), found);
                    }
                }
            }
        }
        return found;
    }

    private static void add(String name, Map<String, Object> found) throws Exception {
        Class<?> options;
        try {
            options = Class.forName(name);
        } catch (LinkageError needsAnotherJar) {
            return;
        }
        Method type = ConfigOption.class.getDeclaredMethod("getClazz");
        type.setAccessible(true);
        for (Field field : options.getDeclaredFields()) {
            if (!Modifier.isStatic(field.getModifiers()) || field.getType() != ConfigOption.class) {
                continue;
            }
            field.setAccessible(true);
            ConfigOption<?> option = (ConfigOption<?>) field.get(null);
            List<String> older = new ArrayList<>();
            option.fallbackKeys().forEach(key -> older.add(key.getKey()));
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("type", ((Class<?>) type.invoke(option)).getSimpleName());
            row.put("default", String.valueOf(option.defaultValue()));
            row.put("older", older);
            if (!field.isAnnotationPresent(Deprecated.class) || !found.containsKey(option.key())) {
                found.put(option.key(), row);
            }
        }
    }
}
