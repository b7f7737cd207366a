"""Give a sealed trial other rows, as if its processes had written them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from testbed_runtime.history.schema import TABLES, Trial, arrow_schema
from testbed_runtime.history.sealing import write_trial


def rewrite(history: Path, table: str, rows: list[dict[str, Any]]) -> None:
    """Replace a table of a trial, and seal it anew."""
    tables = {name: pq.read_table(history / f"{name}.parquet") for name in TABLES}
    tables[table] = pa.Table.from_pylist(rows, arrow_schema(table))
    write_trial(history, Trial(history.parent.parent.name, history.name, tables))
