"""Values of options with which Flink or its tasks fail, and values that are secrets."""

from __future__ import annotations

import pytest

from testbed_runtime.api.option_rules import Collected, doubts_together, is_secret, judge_key, judge_together
from testbed_runtime.core.options import Options

CORES = "taskmanager.cpu.cores"
MOST = "taskmanager.network.memory.max-buffers-per-channel"
OVERDRAFT = "taskmanager.network.memory.max-overdraft-buffers-per-gate"


@pytest.mark.parametrize("version", ["1.12", "2.x"])
@pytest.mark.parametrize("value", ["0", "-0.1"])
def test_J_178_a_taskmanager_without_cores_does_not_start(version: str, value: str) -> None:
    """testConfigNegativeCpuCores and its neighbour 0: Flink's text, and what to write instead."""
    (error,) = judge_together(Options({CORES: value}, flink_version=version), "options", {})
    assert error.path == f"options[{CORES}]"
    assert error.problem.startswith(
        "Flink does not start: TaskExecutors need to be started with a positive number of CPU cores. "
    )
    assert error.hint == f"it is {value!r}: leave it out for one core per slot"


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (MOST, "0", "Maximum number of buffers for each channel (0) should be larger than 0."),
        (
            OVERDRAFT,
            "-1",
            "Maximum number of overdraft buffers for each gate (-1) should not be less than 0.",
        ),
    ],
)
def test_limits_that_the_pool_of_each_result_refuses_are_warnings(key: str, value: str, text: str) -> None:
    """Flink starts with them, and its LocalBufferPool throws an IllegalArgumentException in each task. Flink 2 does not read them."""
    found = list(doubts_together(Options({key: value}, flink_version="1.20"), "options", {}))
    assert any(doubt.startswith(f"options[{key}]: every task") and text in doubt for doubt in found)
    assert any(f", in Flink too: {text}" in doubt for doubt in found)
    assert not any("in Flink" in d for d in doubts_together(Options({key: value}), "options", {}))
    fine = Options({MOST: "2", OVERDRAFT: "0"}, flink_version="1.20")
    assert list(doubts_together(fine, "options", {})) == []
    before = Options({OVERDRAFT: "-1"}, flink_version="1.15")
    assert list(doubts_together(before, "options", {})) == []


@pytest.mark.parametrize(("managed", "doubted"), [("true", True), ("false", False)])
def test_managed_memory_of_0_matters_only_to_stores_that_use_it(managed: str, doubted: bool) -> None:
    """Without managed memory, each store has sizes of its own."""
    set_ = {"state.backend.type": "rocksdb", "state.backend.rocksdb.memory.managed": managed}
    found = doubts_together(Options({**set_, "taskmanager.memory.managed.size": "0"}), "options", {})
    assert any("no write buffer" in doubt for doubt in found) is doubted


def test_an_unknown_key_of_a_restart_strategy_is_no_ignored_setting() -> None:
    """It has its own warning. The text about ignored settings looks for the option's names, which it does not have."""
    options = Options({"restart-strategy.exponential-delay.attempts": "3"})
    assert list(doubts_together(options, "options", {})) == []


@pytest.mark.parametrize(
    "key",
    [
        "password123",
        "123pasSword",
        "PasSword",
        "Secret",
        "polaris.client-secret",
        "client-secret",
        "service-key-json",
        "auth.basic.password",
        "auth.basic.token",
        "avro-confluent.basic-auth.user-info",
        "key.avro-confluent.basic-auth.user-info",
        "value.avro-confluent.basic-auth.user-info",
        "kafka.jaas.config",
        "properties.ssl.truststore.password",
        "properties.ssl.keystore.password",
        "fs.azure.account.key.storageaccount123456.core.windows.net",
        "metrics.reporter.dghttp.apikey",
        "kubernetes.operator.metrics.reporter.influxdb.password",
        "security.delegation.token.provider.s3.access-key",
        "security.delegation.token.provider.s3.secret-key",
    ],
)
def test_J_177_the_values_that_flink_hides_are_secrets(key: str) -> None:
    """testHiddenKey: documents are recorded, so such an option is refused if it has no effect."""
    assert is_secret(key, "hidden")
    collected = Collected()
    judge_key(key, "hidden", version="2.x", where="options", written={}, collected=collected)
    (error,) = collected.errors
    assert error.problem == "is a secret, which would become part of the run's record"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Hello", "x"),
        ("kubernetes.secrets", "a:/b"),
        ("kubernetes.env.secretKeyRef", "env:A,secret:b,key:c"),
        ("kubernetes.container.image.pull-secrets", "registry"),
        ("fs.azure.account.keyprovider.x.blob.core.windows.net", "EnvironmentVariableKeyProvider"),
        ("fs.azure.sas.token.provider.type", "org.apache.hadoop.SASProvider"),
        ("fs.azure.sas.token.provider.type.account.dfs.core.windows.net", "org.apache.hadoop.SASProvider"),
        ("fs.gs.auth.access.token.provider.impl", "org.apache.hadoop.Provider"),
        ("fs.azure.account.oauth2.token.file.host", "/var/run/token"),
        ("security.delegation.token.provider.s3.region", "us-west-2"),
        ("security.kerberos.tokens.renewal.retry.backoff", "1 h"),
        ("security.kerberos.tokens.renewal.time-ratio", "0.75"),
        ("yarn.security.appmaster.delegation.token.services", "hadoopfs"),
        ("job.autoscaler.jdbc.password-env-variable", "JDBC_PWD"),
        ("security.delegation.tokens.enabled", "true"),
        ("security.delegation.tokens.renewal.retry.backoff", "1 h"),
    ],
)
def test_J_177_a_switch_a_time_and_the_name_of_a_secret_are_no_secrets(key: str, value: str) -> None:
    """The first one is testHiddenKey's. Flink hides the others too, but nothing in them is secret."""
    assert not is_secret(key, value)
