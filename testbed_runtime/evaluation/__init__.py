"""Evaluation of recorded histories with PySpark: `python -m testbed_runtime.evaluation.main RUN_FOLDER…`"""

ERROR_PREFIX = "evaluation: "
"""Begins the one line on stderr that says why an evaluation failed; a dying JVM may still write after it."""
