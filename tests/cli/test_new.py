"""The scenarios that `headgate new` writes with the options of a Flink configuration."""

from __future__ import annotations

import pytest
import yaml

from testbed_runtime.cli import exits, loading, running


@pytest.mark.virtual
@pytest.mark.parametrize("question", ["taskmanager-killed", "jobmanager-killed"])
def test_the_first_run_with_own_options_does_not_fail_for_a_limit_that_headgate_chose(
    headgate, tmp_path, question
):
    """Flink's default heartbeats and a restart delay of 10 s alone cost more than the 10 s and 30 s of the questions' own options."""
    conf, path = tmp_path / "config.yaml", tmp_path / "scenario.yaml"
    conf.write_text(
        "heartbeat.interval: 10 s\nrestart-strategy: {type: fixed-delay, fixed-delay: {delay: 10 s, attempts: 9}}\n"
    )
    arguments = ("new", question, "--flink-conf", conf, "-o", path, "--records-per-second", 50)
    assert headgate(*arguments).returncode == exits.PASS
    spec = yaml.safe_load(path.read_text())["spec"]
    assert f"within {spec['expect'][0]['max']}" in spec["hypothesis"]
    result = running.simulate_loaded(loading.load(path), out=tmp_path, quiet=True)
    assert result.verdict.verdict == "Pass", result.verdict.summary
