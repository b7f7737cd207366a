package dev.headgate.interop;

/** One of Flink's objects, and how each command acts on it. The drivers are in Flink's packages, to reach what is not public. */
public abstract class Sequence {

    /** Act on one command. Return what can be seen of it. */
    protected abstract String step(String[] words) throws Exception;

    /** What can be seen of the state after a command. */
    protected String state() {
        return "";
    }

    final String answer(String[] words) {
        String result;
        try {
            result = step(words);
        } catch (Throwable error) {
            result = error.getClass().getSimpleName();
        }
        return result + state();
    }

    protected static int number(String[] words, int position) {
        return Integer.parseInt(words[position]);
    }
}
