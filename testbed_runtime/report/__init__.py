"""The report of a run: one self-contained HTML page, Markdown and JUnit XML. Needs neither Spark nor asyncio.

report.write_report(folder, manifest=…, metrics=[…], timeseries={…}, verdict={…}) -> folder / "report.html"
"""

from __future__ import annotations

from testbed_runtime.report.write import write_report, write_summary

__all__ = ["write_report", "write_summary"]
