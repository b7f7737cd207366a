"""The NetworkPolicies of the chart and of the manifests, compared with the connections that the operator makes."""

from __future__ import annotations

import inspect
import json
import re

import pytest
import yaml

from headgate_operator import agents
from testbed_runtime.api import naming
from tests.kubernetes.cluster import ROOT
from tests.kubernetes.rendering import chart, of_kind

pytestmark = pytest.mark.helm

NAMESPACED = ("--set", "watchNamespaces={one,two}", "--set", "crds.install=false")


def test_policies_can_be_left_out_and_follow_the_namespaces():
    """One for the operator, one for each namespace with testbeds. Metrics can be closed."""
    assert of_kind(chart("--set", "networkPolicy.enabled=false"), "NetworkPolicy") == []
    found = {o["metadata"]["namespace"] for o in of_kind(chart(*NAMESPACED), "NetworkPolicy")}
    assert found == {"headgate-system", "one", "two"}


def test_policies_open_exactly_the_ports_that_the_operator_calls():
    """`agents.py` has the operator's only connections to pods. Pods of one namespace may call each other on every port."""
    called = {getattr(naming, name) for name in re.findall(r"naming\.(\w+_PORT)", inspect.getsource(agents))}
    manifests = [
        yaml.safe_load(path.read_text()) for path in (ROOT / "manifests").glob("*/network-policy.yaml")
    ]
    charted = of_kind(chart(*NAMESPACED), "NetworkPolicy")
    assert (len(manifests), len(charted)) == (2, 3)
    for policy in (*charted, *manifests):
        rules = [*policy["spec"]["ingress"], *policy["spec"].get("egress", ())]
        open_ = [
            {p["port"] for p in r["ports"]} for r in rules if "ports" in r and ("from" in r or "to" in r)
        ]
        assert open_ == [called], policy["metadata"]
        ends = [end for rule in rules for end in (*rule.get("from", ()), *rule.get("to", ()))]
        assert {"matchLabels": {naming.LABEL_MANAGED_BY: naming.MANAGED_BY}} in [
            e.get("podSelector") for e in ends
        ]


def test_metrics_can_be_closed_to_other_pods():
    """The rule of port 8080 names who may come; the port stays open for the kubelet's probes."""
    whom = '[{"namespaceSelector": {"matchLabels": {"team": "watch"}}}]'
    for arguments, wanted in (
        ((), None),
        (("--set-json", f"networkPolicy.metricsFrom={whom}"), json.loads(whom)),
    ):
        [policy] = of_kind(chart(*arguments), "NetworkPolicy")
        [rule] = policy["spec"]["ingress"]
        assert (rule["ports"][0]["port"], rule.get("from")) == (8080, wanted)
