"""Evaluation of recorded histories with PySpark, in a process of its own (`process`, `worker`)."""

ERROR_PREFIX = "evaluation: "
"""Prefix of the line on stderr with the reason why the worker ended. A dying JVM may still write more lines."""
