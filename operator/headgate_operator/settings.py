"""The operator's settings, read from its environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

from msgspec import Struct, field

from testbed_runtime.api import naming, podsettings
from testbed_runtime.api.environment import NAMESPACES, names, whole_number
from testbed_runtime.api.podsettings import PodSettings
from testbed_runtime.core.errors import UserError

OWN_VARIABLES = ("HEADGATE_", "POD_")
"""Prefixes of the environment variables that the operator sets in every pod."""
PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class Settings(Struct, frozen=True):
    """No `namespaces` means the whole cluster. `recorder_storage` is the size of a recorder's claim, empty for an emptyDir."""

    namespaces: tuple[str, ...] = ()
    namespace: str = "headgate-system"
    """The operator's own namespace, which holds its Lease."""
    identity: str = "headgate-operator"
    """The name of this replica in the Lease: its pod's name."""
    image: str = "headgate:dev"
    agent_image: str = "headgate-agent:dev"
    spark_image: str = "headgate-spark:dev"
    pull_policy: PullPolicy = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    recorder_storage: str = ""
    recorder_storage_class: str = ""
    pods: PodSettings = field(default_factory=dict)
    """Added to every pod that the operator creates."""
    runner_env: tuple[Mapping[str, Any], ...] = ()
    """Additional environment variables of runner pods, as in a pod's spec."""
    role_prefix: str = "headgate"
    """The ClusterRoles of runner, study and Spark pods are `<prefix>-runner` and so on."""
    pods_ttl_s: int = 900
    """How long the recorder and runner pods of a finished run stay; negative: as long as the run."""
    health_port: int = naming.HEALTH_PORT
    webhook_folder: str = ""
    """Folder with the certificate of the validating webhook; empty: the webhook is not served."""
    workers: int = 16
    """Number of keys that are reconciled at the same time. One may wait up to 14 s for the agents of a terminating pod, and must not delay
    the others."""
    since: float = 0.0
    """When this operator started. An older pod may have the settings of an earlier installation."""
    longest_retry_s: int = 60
    """Longest pause between attempts of a key that fails."""
    log_level: str = "INFO"

    @property
    def cluster_wide(self) -> bool:
        return not self.namespaces


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Read the settings. Raises UserError that names the variable."""
    base = Settings()
    get = environment.get
    return Settings(
        namespaces=names(environment, NAMESPACES),
        namespace=get("POD_NAMESPACE") or base.namespace,
        identity=get("POD_NAME") or base.identity,
        image=get("HEADGATE_IMAGE") or base.image,
        agent_image=get("HEADGATE_AGENT_IMAGE") or base.agent_image,
        spark_image=get("HEADGATE_SPARK_IMAGE") or base.spark_image,
        pull_policy=_pull_policy(get("HEADGATE_IMAGE_PULL_POLICY") or base.pull_policy),
        pull_secrets=names(environment, "HEADGATE_IMAGE_PULL_SECRETS"),
        recorder_storage=get("HEADGATE_RECORDER_STORAGE", ""),
        recorder_storage_class=get("HEADGATE_RECORDER_STORAGE_CLASS", ""),
        pods=podsettings.read(get(podsettings.VARIABLE, "")),
        runner_env=_variables("HEADGATE_RUNNER_ENV", get("HEADGATE_RUNNER_ENV", "")),
        role_prefix=get("HEADGATE_ROLE_PREFIX") or base.role_prefix,
        pods_ttl_s=whole_number(environment, "HEADGATE_PODS_TTL_S", base.pods_ttl_s, least=None),
        health_port=whole_number(environment, "HEADGATE_HEALTH_PORT", base.health_port, least=1),
        webhook_folder=get("HEADGATE_WEBHOOK_CERTIFICATE", ""),
        workers=whole_number(environment, "HEADGATE_WORKERS", base.workers, least=1),
        longest_retry_s=whole_number(environment, "HEADGATE_LONGEST_RETRY_S", base.longest_retry_s, least=1),
        log_level=(get("HEADGATE_LOG_LEVEL") or base.log_level).upper(),
    )


def _pull_policy(text: str) -> PullPolicy:
    known: tuple[PullPolicy, ...] = get_args(PullPolicy)
    for policy in known:
        if policy == text:
            return policy
    raise UserError(
        "HEADGATE_IMAGE_PULL_POLICY", f"{text!r} is not a pull policy", f"use one of {', '.join(known)}"
    )


def _variables(name: str, text: str) -> tuple[Mapping[str, Any], ...]:
    """Read environment variables of pods. Names that the operator sets itself are refused. No error shows a value: it may be a secret."""
    try:
        found = json.loads(text or "[]") or ()
        named = [variable["name"] for variable in found]
    except (ValueError, TypeError, KeyError):
        raise UserError(name, "is not a list of variables", 'write [{"name": "A", "value": "1"}]') from None
    for variable in named:
        if named.count(variable) > 1 or str(variable).startswith(OWN_VARIABLES):
            raise UserError(
                name, f"{variable} is set twice", "remove one; the operator sets HEADGATE_… and POD_…"
            )
    return tuple(found)
