"""The links of a fault, its backend, and the faults that are refused before anything starts."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.faults.links import any_matches, flows_of, logical_name, owners_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.faults.vocabulary import BACKENDS
from testbed_runtime.faults.registry import LOCAL, SIMULATION, Capabilities, check_fault, choose_backend


def fault(kind: str, **changes) -> Fault:
    params = changes.pop("params", {})
    return Fault(**{"name": "f", "kind": kind, "at_s": 0.0, "duration_s": 2.0, "params": params, **changes})


@pytest.mark.parametrize(
    ("targets", "direction", "flows"),
    [
        (["tm-0"], "from", [("tm-0", "*")]),
        (["tm-0"], "to", [("*", "tm-0")]),
        (["tm-0"], "both", [("tm-0", "*"), ("*", "tm-0")]),
        (["tm-0->tm-1"], "from", [("tm-0", "tm-1")]),
        (["tm-0->tm-1"], "to", [("tm-1", "tm-0")]),
        (["tm-0-3->tm-1-1"], "both", [("tm-0", "tm-1"), ("tm-1", "tm-0")]),
    ],
)
def test_a_direction_is_seen_from_the_target(targets, direction, flows):
    """`to`, `from` and `both`, for processes and for links."""
    assert flows_of(targets, direction) == tuple(flows)


def test_targets_bind_to_the_ordinal_and_not_to_the_incarnation():
    """tm-0-2 is tm-0; a link's owner is its first end."""
    assert logical_name("tm-0-2") == "tm-0"
    assert logical_name("jobmanager") == "jobmanager"
    assert owners_of(["tm-1->tm-0", "tm-1", "tm-2-4"]) == ("tm-1", "tm-2")
    assert any_matches(flows_of(["tm-0"], "to"), "tm-7", "tm-0")


def test_packet_loss_is_refused_here_with_the_kind_the_environment_the_reason_and_a_hint():
    """Before anything starts."""
    with pytest.raises(UserError) as caught:
        check_fault(fault("network.loss", params={"percent": 1}), LOCAL)
    text = str(caught.value)
    assert "network.loss" in text
    assert "'local'" in text
    assert "share one network interface" in text
    assert "frames.drop" in caught.value.hint


ELSEWHERE = {
    "network.loss",
    "network.duplicate",
    "network.reorder",
    "network.corrupt",
    "pod.delete",
    "pod.evict",
}


def test_a_correlation_of_jitter_is_refused_where_there_are_no_packets():
    """The proxy delays bytes, of which none follows another one's jitter."""
    correlated = fault(
        "network.latency", params={"latency_s": 0.1, "mode": "one-way", "jitter_s": 0.01, "correlation": 25}
    )
    with pytest.raises(UserError, match="it needs netem or nfqueue") as caught:
        check_fault(correlated, LOCAL)
    assert "with correlation in the environment 'local'" in caught.value.problem
    assert "leave correlation out" in caught.value.hint
    assert check_fault(correlated, Capabilities("pods", ("proxy", "nfqueue")))[0] == "nfqueue"


def test_a_fault_without_any_backend_is_refused_with_the_reason_of_each():
    """The hint names no parameter that was not given."""
    pods = Capabilities("pods", ("channel",), {"proxy": "no proxy (set a)", "netem": "no agent (set b)"})
    late = fault("network.latency", params={"latency_s": 0.1, "mode": "one-way"})
    with pytest.raises(UserError) as caught:
        check_fault(late, pods)
    assert str(caught.value) == (
        "faults[f]: network.latency is not possible in the environment 'pods': it needs netem or nfqueue or proxy, but "
        "no agent (set b), and no proxy (set a), and not offered in this environment "
        "(choose another fault kind or another environment)"
    )
    correlated = fault("network.latency", params={**late.params, "jitter_s": 0.01, "correlation": 25})
    with pytest.raises(UserError) as caught:
        check_fault(correlated, pods)
    assert "correlation" not in caught.value.hint, "without it, there is no backend either"


def test_a_pod_is_deleted_only_where_there_are_pods():
    """The hint names an alternative."""
    with pytest.raises(UserError, match="are not pods") as caught:
        check_fault(fault("pod.delete"), SIMULATION)
    assert "process.kill" in caught.value.hint


@pytest.mark.parametrize("kind", ["network.reset", "network.bandwidth"])
def test_a_fault_that_virtual_time_has_only_between_taskmanagers_is_refused_before_the_run(kind):
    """The error names the field. Elsewhere, and on the exchange, it is possible."""
    params = {"bytes_per_s": 1000} if kind == "network.bandwidth" else {}
    for plane in ("rpc", "both"):
        with pytest.raises(UserError, match="acts on the data plane only") as caught:
            check_fault(fault(kind, params=params, plane=plane), SIMULATION)
        assert caught.value.path == "faults[f].plane"
        assert check_fault(fault(kind, params=params, plane=plane), LOCAL)[0] == "proxy"
    assert check_fault(fault(kind, params=params), SIMULATION)[0] == "proxy"


@pytest.mark.parametrize("kind", sorted(set(KINDS) - ELSEWHERE))
@pytest.mark.parametrize("environment", [LOCAL, SIMULATION], ids=lambda p: p.environment)
def test_every_other_kind_has_a_backend_here(kind, environment):
    """And the reason says what it does; its name is not repeated."""
    backend, why = choose_backend(KINDS[kind], environment)
    assert backend in environment.backends
    assert why.startswith(BACKENDS[backend])


def test_the_strongest_backend_that_the_environment_offers_is_taken():
    """netem before the proxy, where there is netem."""
    environment = Capabilities("pods", ("channel", "proxy", "netem"))
    assert choose_backend(KINDS["network.latency"], environment)[0] == "netem"
    assert "netem" in choose_backend(KINDS["network.latency"], LOCAL)[1]


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        (fault("network.latncy"), "faults[f].kind"),
        (fault("process.kill", duration_s=0), "faults[f].duration"),
        (fault("network.partition", plane="date"), "faults[f].plane"),
        (fault("network.partition", direction="up"), "faults[f].direction"),
        (fault("network.latency", params={"latency": 1}), "faults[f].network.latency.latency"),
        (fault("network.latency"), "faults[f].network.latency.delay"),
        (fault("network.latency", params={"latency_s": -1}), "faults[f].network.latency.delay"),
        (fault("network.latency", params={"latency_s": float("nan")}), "faults[f].network.latency.delay"),
        (
            fault("network.latency", params={"latency_s": 0.1, "mode": "one-way", "jitter_s": 0.2}),
            "faults[f].network.latency.jitter",
        ),
        (
            fault("network.latency", params={"latency_s": 0.1, "mode": "round-trip"}, direction="to"),
            "faults[f].direction",
        ),
        (
            fault("frames.delay", params={"frame_class": "bufer", "delay_s": 1}),
            "faults[f].frames.delay.frameClass",
        ),
        (fault("heartbeats.mute", params={"direction": "both"}), "faults[f].heartbeats.mute.direction"),
        (fault("registration.delay"), "faults[f].registration.delay"),
        (
            fault("frames.drop", params={"frame_class": "buffer", "percent": 101}),
            "faults[f].frames.drop.percent",
        ),
    ],
)
def test_a_bad_fault_is_refused_by_the_path_of_its_field(bad, path):
    """The path, and something to do about it."""
    with pytest.raises(UserError) as caught:
        check_fault(bad, LOCAL)
    assert caught.value.path == path


def test_a_misspelt_kind_is_answered_with_the_nearest_one():
    """As options are."""
    with pytest.raises(UserError, match=r"did you mean network\.latency"):
        check_fault(fault("network.latncy"), LOCAL)
