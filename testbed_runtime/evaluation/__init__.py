"""Evaluation of recorded histories with PySpark, in a process of its own (`process`, `worker`)."""

ERROR_PREFIX = "evaluation: "
"""Starts the line on stderr that says why the worker ended. A dying JVM may still write after it."""
