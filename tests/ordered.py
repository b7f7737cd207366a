"""Number the rows of a hand-written history as processes do, whatever order a test wrote them in."""

from __future__ import annotations

import pyarrow as pa

from testbed_runtime.history.schema import TABLES, Trial, arrow_schema


def in_order(trial: Trial) -> Trial:
    """Return the trial with the rows of each process numbered by their time."""
    tables = {name: trial.table(name) for name in TABLES}
    moments: dict[str, list[tuple[int, str, int]]] = {}
    for name, table in tables.items():
        columns = (table.column("process").to_pylist(), table.column("t_ns").to_pylist())
        for row, (process, t_ns) in enumerate(zip(*columns, strict=True)):
            moments.setdefault(process, []).append((t_ns, name, row))
    numbers = {name: [0] * len(table) for name, table in tables.items()}
    for rows in moments.values():
        for number, (_, name, row) in enumerate(sorted(rows)):
            numbers[name][row] = number
    column = arrow_schema("events").get_field_index("seq")
    ordered = {
        name: table.set_column(column, "seq", pa.array(numbers[name], pa.int64()))
        for name, table in tables.items()
    }
    return Trial(trial.run, trial.trial, ordered, trial.problems)
