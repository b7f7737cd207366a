"""The declarations of the fault kinds: complete, consistent, and the only source of what is derived from them."""

from __future__ import annotations

import re

import pytest

from testbed_runtime.api import models
from testbed_runtime.api.compile import compile_fault
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults import check
from testbed_runtime.core.faults.kinds import FAMILIES, KINDS, kinds_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.faults.vocabulary import BACKENDS, Kind, Type
from testbed_runtime.core.judgement.series import FaultSeen
from testbed_runtime.faults.registry import LOCAL, SIMULATION, choose_backend
from testbed_runtime.report import faultwords

WRITTEN = {
    Type.DURATION: "1 s",
    Type.INTEGER: 1,
    Type.VERTEX: "source",
    Type.MESSAGE: "SubmitTask",
}
COMMON = {"targets", "direction", "duration", "for"}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda k: k.name)


def written(kind: Kind) -> dict:
    """A fault as a document writes it, with every parameter that may be given beside the others."""
    parameters = {
        p.alias: WRITTEN.get(p.type) or next(iter(p.choices))
        for p in kind.parameters
        if p.name not in kind.one_of[1:]
    }
    family, _, name = kind.path.partition(".")
    return {"name": "f", "duration": "2 s", family: {name: parameters}}


@kinds
def test_every_kind_says_what_it_does_how_it_is_measured_and_what_carries_it(kind):
    """Nothing that is derived from a declaration has a gap."""
    texts = (kind.doc, kind.measured, kind.residue, kind.limits, *(p.doc for p in kind.parameters))
    assert all(text.endswith((".", "`.")) for text in texts)
    assert kind.backends
    assert set(kind.backends) <= set(BACKENDS)
    assert kind.family in FAMILIES
    assert kind in kinds_of(kind.family)


@kinds
def test_every_sentence_names_parameters_that_exist(kind):
    """And every required one is in it."""
    sentences = (kind.asked,) if isinstance(kind.asked, str) else kind.asked
    named = set(re.findall(r"\{(\w+)\}", " ".join(sentences)))
    assert named <= COMMON | {p.name for p in kind.parameters}
    assert {p.name for p in kind.parameters if p.required} <= named


@kinds
def test_every_kind_goes_from_the_document_to_a_fault_that_passes_the_checks(kind):
    """The schema and the checks are derived from the same declaration, so they agree."""
    fault = compile_fault(models.FaultSpec.model_validate(written(kind)))
    assert fault.kind == kind.name
    assert set(fault.params) <= {p.key for p in kind.parameters}
    assert not list(check.problems(fault, "f"))
    found = FaultSeen(fault="f", kind=kind.name, targets=["tm-0"], asked={"params": dict(fault.params)})
    sentence = faultwords.asked(found)
    assert not re.search(r"[{}\[\]?]", sentence)


@kinds
def test_every_required_parameter_is_missed_by_its_name_in_the_document(kind):
    """An agent that gets a fault without it answers with the field that a document would need."""
    required = {f"f.{kind.path}.{p.alias}" for p in kind.parameters if p.required}
    missing = {e.path for e in check.problems(Fault("f", kind.name, 0.0, 1.0), "f")}
    assert required <= missing


@kinds
def test_no_parameter_passes_outside_of_its_bounds(kind):
    """The bounds hold for faults that no document was read for, too."""
    for parameter in kind.parameters:
        if parameter.type in (Type.DURATION, Type.INTEGER):
            for value in (parameter.low - 1, parameter.high + 1, float("nan"), True, "1"):
                fault = Fault("f", kind.name, 0.0, 1.0, params={parameter.key: value})
                paths = [e.path for e in check.problems(fault, "f")]
                assert f"f.{kind.path}.{parameter.alias}" in paths, (parameter.name, value)


@kinds
@pytest.mark.parametrize("environment", [LOCAL, SIMULATION], ids=lambda c: c.environment)
def test_a_refusal_gives_the_reason_and_an_alternative(kind, environment):
    """A kind has a backend, or an error that says why not and what to use."""
    if set(kind.backends) & set(environment.backends):
        assert choose_backend(kind, environment)[0] in environment.backends
        return
    with pytest.raises(UserError, match=environment.environment) as caught:
        choose_backend(kind, environment)
    assert caught.value.hint
