"""Rules that ValidatingAdmissionPolicies check at `kubectl apply`, with texts like those of the command line (admission.yaml.in).

They check what CEL can express: names that do not exist and options that do not exist. The operator repeats every check, so a cluster
without these policies reports the same problems in the condition Accepted. Typing mistakes in Flink's own options and long cycles need
the operator, whose webhook can refuse them at once.
"""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Any

import yaml

from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES, CustomResource
from testbed_runtime.api.iteration_rules import CYCLE_HINT
from testbed_runtime.api.naming import GROUP, VERSION
from testbed_runtime.core.options import EFFECTIVE, OWN_PREFIX


def policies() -> dict[str, dict[str, Any]]:
    """Return the spec of a policy for each kind that has rules, by the plural of the kind."""
    return {
        declared.plural: _policy(kind, declared)
        for kind, declared in CUSTOM_RESOURCES.items()
        if declared.testbed
    }


def _policy(kind: str, declared: CustomResource) -> dict[str, Any]:
    template = Template(Path(__file__).with_suffix(".yaml.in").read_text(encoding="utf-8"))
    own = sorted(option.key for option in EFFECTIVE if option.key.startswith(OWN_PREFIX))
    filled = template.substitute(
        group=GROUP,
        version=VERSION,
        plural=declared.plural,
        path=declared.testbed,
        prefix=OWN_PREFIX,
        own=", ".join(f"'{key}'" for key in own),
        cycle=CYCLE_HINT,
    )
    found = yaml.safe_load(filled)
    rules = found["validations"]
    return {**found["policy"], "validations": [*rules["all"], *rules.get(kind, ())]}
