"""One self-contained page (and JUnit, Markdown) from the tables of a run: tables in, files out; no Spark, no asyncio.

report.write_report(folder, manifest=…, metrics=[…], timeseries={…}, verdict={…}) -> folder / "report.html"
"""

from __future__ import annotations

from testbed_runtime.report.write import write_report, write_summary

__all__ = ["write_report", "write_summary"]
