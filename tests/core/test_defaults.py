"""Defaults that the core declares again are those of the options and of the document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.api import models
from testbed_runtime.api.compile import job_graph
from testbed_runtime.core.exchange.alignment import BarrierPolicy
from testbed_runtime.core.job.checkpoints import CheckpointConfig
from testbed_runtime.core.job.jobgraph import JobEdge, JobVertex, OperatorConfig, SinkConfig, SourceConfig
from testbed_runtime.core.job.leaderelection import HIGH_AVAILABILITY, LeaderElectionConfig
from testbed_runtime.core.job.registration import RegistrationConfig
from testbed_runtime.core.job.restart import TYPE, ExponentialConfig, ExponentialDelay, restart_strategy
from testbed_runtime.core.options import Options


@pytest.mark.parametrize(
    ("read", "default"),
    [
        (BarrierPolicy.of, BarrierPolicy()),
        (CheckpointConfig.of, CheckpointConfig()),
        (LeaderElectionConfig.of, LeaderElectionConfig()),
        (RegistrationConfig.of, RegistrationConfig()),
    ],
)
def test_a_configuration_without_arguments_is_that_without_options(
    read: Callable[[Options], Any], default: object
) -> None:
    """High availability has to be on for its other options to matter."""
    assert read(Options({HIGH_AVAILABILITY: "kubernetes"})) == default


def test_an_exponential_delay_without_arguments_is_that_without_options() -> None:
    """Only its type is given. The text of the strategy has all of them."""
    chosen = restart_strategy(Options({TYPE: "exponential-delay"}), max)
    assert chosen.text == ExponentialDelay(ExponentialConfig(), max).text


def test_a_vertex_without_settings_is_that_of_a_document_without_them() -> None:
    """A source, an operator and a sink, each with nothing but its kind, and edges with nothing but their ends."""
    document = {
        "vertices": [{"name": "a", "source": {}}, {"name": "b", "operator": "map"}, {"name": "c", "sink": "ledger"}],
        "edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "c"}],
    }  # fmt: skip
    graph = job_graph(models.Job.model_validate(document), seed=1)
    parts = ({"source": SourceConfig()}, {"operator": OperatorConfig()}, {"sink": SinkConfig()})
    expected = [
        replace(JobVertex(name, 1, 128, max_parallelism_computed=True), **part)
        for name, part in zip("abc", parts, strict=True)
    ]
    assert list(graph.vertices) == expected
    assert list(graph.edges) == [JobEdge("a", "b"), JobEdge("b", "c")]
