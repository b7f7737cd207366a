"""A child process that does not become ready: the error says what is known about the reason."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.supervisor.child import Child


@pytest.mark.parametrize(("load", "remark"), [(0.5, False), (90.0 * (os.cpu_count() or 1), True)])
async def test_a_child_that_is_not_ready_in_time_names_the_load_of_a_busy_machine(
    load: float, remark: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Processes start slowly on a machine with more work than cores."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    child = Child("tm-0", 1, tmp_path / "tm-0.log")
    await child.spawn(("sleep", "60"))
    try:
        with pytest.raises(HeadgateError, match=r"^tm-0 was not ready within 0\.05 s") as error:
            await child.until_ready(0.05)
    finally:
        child.kill()
        await child.exited.wait()
    assert (f"this machine is busy: load average {load:.0f}" in str(error.value)) is remark


async def test_a_child_that_could_not_be_started_has_nothing_to_stop(tmp_path: Path):
    """Its stop would wait without end, because nothing exits."""
    child = Child("tm-0", 1, tmp_path / "tm-0.log")
    with pytest.raises(HeadgateError, match=r"no-such-program"):
        await child.spawn(("no-such-program",))
    async with asyncio.timeout(60):
        await child.stop(0.1)
