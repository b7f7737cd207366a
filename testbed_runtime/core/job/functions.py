"""References to Python functions: in a file beside the scenario (`file.py:name`), or, in a cluster, in a ConfigMap that the pods
of TaskManagers mount (`configmap://<ConfigMap>/file.py:name`)."""

from __future__ import annotations

import re

from msgspec import Struct

from testbed_runtime.core.job.restore import IN_CLUSTER

FIELD = "operator.function"
"""The field that error messages name."""
FOLDER = "/etc/headgate/functions"
"""The folder in a pod that has one folder for each ConfigMap."""
FORM = f"{IN_CLUSTER}<ConfigMap>/<file>.py:<function>"
KEY = re.compile(r"[-._a-zA-Z0-9]+\.py")
"""A file that can be the key of a ConfigMap."""
_MAPPED = re.compile(rf"{IN_CLUSTER}(?P<map>[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?)/(?P<file>{KEY.pattern})")


class FunctionReference(Struct, frozen=True):
    """`file` is a path; `config_map` is empty if it is not in one."""

    file: str
    name: str
    config_map: str = ""

    @staticmethod
    def parse(text: str) -> FunctionReference | None:
        """Return the parts of a reference; None if the text is not a reference."""
        file, separator, name = text.rpartition(":")
        if not separator or not name.isidentifier():
            return None
        if not file.startswith(IN_CLUSTER):
            return FunctionReference(file, name)
        found = _MAPPED.fullmatch(file)
        if found is None:
            return None
        return FunctionReference(f"{FOLDER}/{found['map']}/{found['file']}", name, found["map"])


def is_in_cluster(text: str) -> bool:
    """Whether the reference means a ConfigMap, well-formed or not."""
    return text.startswith(IN_CLUSTER)
