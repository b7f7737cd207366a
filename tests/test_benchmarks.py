"""The benchmarks run. Small loads show that they agree with the code, not how fast it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
LIMIT_S = 120

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (
            "bench.py --rounds 1 --megabytes 3 --records 1000000 --without-flink",
            [
                "credit 2 + 8, one connection, of a raw socket, asyncio",
                "credit 2 + 32, one connection, of a raw socket, uvloop",
                "of the same without TLS",
                "of a bare loop",
                "sink, Headgate",
            ],
        ),
        ("operator_bench.py --rounds 1 --records 5000", ["returns the record", "fire at once"]),
        ("receive_bench.py --rounds 1 --megabytes 3", ['"copy 1024"', '"direct"']),
        ("restore_bench.py --rounds 1 --megabytes 4", ["median ratio"]),
        (
            "tls_bench.py --rounds 1 --megabytes 1 --loops asyncio --only implementations",
            ['"frames by": "asyncio"'],
        ),
    ],
    ids=lambda value: value.split(".")[0] if isinstance(value, str) else "",
)
def test_a_benchmark_prints_its_rows(arguments: str, rows: list[str]) -> None:
    """A benchmark uses classes of the product directly, so a change of theirs must not break it."""
    script, *options = arguments.split()
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script, *options],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for row in rows:
        assert row in done.stdout
