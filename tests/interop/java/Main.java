package dev.headgate.interop;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * {@code serve key=value…} or {@code fetch key=value…}: one JSON object on stdout, as {@code headgate exchange}
 * prints it, with the events by name and the error, if any. {@code numbers}: see {@link Numbers};
 * {@code sequences name}: see {@link Sequences}.
 */
public final class Main {

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        if ("numbers".equals(arguments[0])) {
            Numbers.run();
            return;
        }
        if ("sequences".equals(arguments[0])) {
            Sequences.run(arguments[1]);
            return;
        }
        Map<String, String> options = new LinkedHashMap<>();
        for (int i = 1; i < arguments.length; i++) {
            int cut = arguments[i].indexOf('=');
            options.put(arguments[i].substring(0, cut), arguments[i].substring(cut + 1));
        }
        Map<String, Object> result = new LinkedHashMap<>();
        try (Testbed testbed = new Testbed(options)) {
            List<Report> reports =
                    "serve".equals(arguments[0])
                            ? new Serve(testbed, options).run(result)
                            : new Fetch(testbed, options).run(result);
            result.put("subpartitions", reports.stream().map(Report::asMap).toList());
        } catch (Throwable error) {
            result.put("error", error.toString());
        }
        System.out.println(Testbed.json(result));
        System.out.flush();
        System.exit(0);
    }
}
