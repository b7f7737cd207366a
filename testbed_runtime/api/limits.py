"""Bounds of every list, map, string and number of the kinds. Structural schemas require them, and they protect small machines."""

from __future__ import annotations

MAX_DOCUMENT_BYTES = 262_144
"""A scenario is written by hand; a quarter MiB also stays far below etcd's 1.5 MiB for an object."""
MAX_DOCUMENT_NODES = 20_000
"""YAML nodes with aliases expanded: limits what a few lines of nested aliases can expand to."""
MAX_NAME = 40
"""Characters of a name: `<scenario>-<variant>-<n>` must fit a Kubernetes label (63)."""
MAX_TEXT = 1_000
"""Characters of prose (hypothesis, source)."""
MAX_DURATION_TEXT = 32
"""Characters of a duration such as `2147483647 milliseconds`."""
MAX_PATH = 500
"""Characters of a path beside the scenario."""
MAX_VERTICES = 32
"""The report could not show more vertices."""
MAX_EDGES = 64
"""Two for each vertex."""
MAX_PARALLELISM = 4_096
"""Subtasks of a vertex in virtual time: users have 800 and more. Real processes are limited by `core.trial.plan`."""
MAX_KEY_GROUPS = 32_768
"""Flink's upper bound of the maximum parallelism."""
MAX_TASKMANAGERS = 1_024
"""TaskManagers in virtual time: users have hundreds. Real processes are limited by `core.trial.plan`."""
MAX_SLOTS = 64
"""Slots of one TaskManager."""
MAX_OPTIONS = 200
"""Keys of a flinkConfiguration."""
MAX_OPTION_KEY = 200
"""Characters of an option's key."""
MAX_OPTION_VALUE = 1_000
"""Characters of an option's value."""
MAX_FAULTS = 16
"""Faults of one timeline."""
MAX_VARIANTS = 16
"""Variants of one scenario; each costs a control run and its trials."""
MAX_EXPECTATIONS = 64
"""Expectations of a scenario or of a variant."""
MAX_TRIALS = 100
"""Trials of a variant."""
MAX_NAMES = 128
"""Names in a target: every TaskManager."""
MAX_LABELS = 32
"""Labels or annotations of a document."""
MAX_RATE = 10_000_000
"""Records per second of a vertex: more than one machine can process."""
MAX_RECORD_BYTES = 1_048_576
"""Bytes of a record: spans 32 network buffers."""
MAX_KEYS = 10_000_000
"""Different keys of a source."""
MAX_SPLITS = 100_000
"""Input splits of a source."""
MAX_ITERATIONS = 100_000
"""Supersteps of an iteration."""
MAX_SEED = 2**63 - 1
"""Fits a signed 64-bit integer, as JSON readers expect."""
MAX_RUN_NAME = 50
"""Characters of a ScenarioRun's or TuningStudy's name: generated ones are longer than those written by hand."""
MAX_EXECUTORS = 16
"""Spark executors of one evaluation: more than a study's histories can feed."""
MAX_STUDY_SCENARIOS = 8
"""Scenarios of a study; the grid is their product with the options' values."""
MAX_STUDY_OPTIONS = 8
"""Options of a study."""
MAX_STUDY_VALUES = 16
"""Values of one option."""
MAX_STUDY_OBJECTIVES = 4
"""Metrics that a study weighs against each other."""
MAX_STUDY_RUNS = 1_000
"""Runs of a study: about a week at ten minutes each."""
MAX_STUDY_PARALLEL = 8
"""Runs of a study at the same time."""
MAX_PRODUCTION_TASKMANAGERS = 100_000
"""TaskManagers of a production cluster, whose false failovers a study computes."""
