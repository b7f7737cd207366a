"""Derives the process of a pod from its role, its environment and its testbed.json. Pure (docs/decisions/0006)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from testbed_runtime.api import naming
from testbed_runtime.api.environment import needed, whole_number
from testbed_runtime.api.views import Testbed
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.ids import JOBMANAGER, PROXY, RECORDER, STORE, TASKMANAGER, ordinal_of
from testbed_runtime.core.trial.plan import TestbedPlan, plan_from_json
from testbed_runtime.ports.network import Address
from testbed_runtime.process.config import ProcessConfig, SupervisorConfig
from testbed_runtime.supervisor.supervisor import CONFIG, ChildSpec

ROLES = (JOBMANAGER, TASKMANAGER, PROXY, STORE, RECORDER)
MODULES = {RECORDER: "run_recorder"}
"""The entry module of a role, where it differs from the role's name."""
PORTS = {
    JOBMANAGER: naming.JOBMANAGER_PORT,
    TASKMANAGER: naming.TASKMANAGER_PORT,
    PROXY: naming.PROXY_PORT,
    STORE: naming.STORE_PORT,
    RECORDER: naming.RECORDER_PORT,
}
FAULT_BACKENDS = {
    JOBMANAGER: ("channel", "supervisor"),
    TASKMANAGER: ("channel", "supervisor"),
    PROXY: ("proxy",),
}
"""The fault backends of a pod's supervisor, by its role; none for the others."""
ROUTE_PORT = 20_000
"""First port of the proxy's routes: a range that a NetworkPolicy can name."""
ENVIRONMENT = "kubernetes"
CHILD_START_S = 120.0
"""Time limit for the child: a JobManager waits for its store, whose pod may have to be scheduled first."""
RESPAWN_S = 0.5
"""Delay before a JobManager, proxy, store or recorder that ended is restarted."""


class PodIdentity(Struct, frozen=True, kw_only=True):
    """The process of this pod, its address, and its files."""

    role: str
    name: str
    incarnation: int
    address: str
    config_file: str = naming.CONFIG_FILE
    token_file: str = naming.TOKEN_FILE
    certificate_file: str = naming.CERTIFICATE_FILE
    work_folder: str = naming.WORK_FOLDER
    data_folder: str = naming.DATA_FOLDER


class Document(Struct, frozen=True, kw_only=True):
    """The content of testbed.json."""

    name: str
    namespace: str
    run: str
    trial: str
    seed: int
    recorder: tuple[str, int, str] | None
    plan: TestbedPlan
    submits_job: bool
    """Application mode: the JobManager submits the job itself."""


def identity_of(role: str, environment: Mapping[str, str]) -> PodIdentity:
    """Read the environment. Raises UserError for a missing or wrong variable."""
    if role not in ROLES:
        raise UserError("role", f"{role!r} is not a role", f"write {', '.join(ROLES)}")
    name = environment.get("HEADGATE_NAME") or ("" if role == TASKMANAGER else role)
    if role == TASKMANAGER:
        try:
            ordinal_of(name)
        except ValueError:
            raise UserError(
                "HEADGATE_NAME", f"{name!r} is not the name of a TaskManager", "write tm-<ordinal>"
            ) from None
    return PodIdentity(
        role=role,
        name=name,
        incarnation=whole_number(environment, "HEADGATE_INCARNATION", 1, least=1),
        address=needed(environment, "POD_IP", "set it from status.podIP"),
        config_file=environment.get("HEADGATE_CONFIG_FILE", naming.CONFIG_FILE),
        token_file=environment.get("HEADGATE_TOKEN_FILE", naming.TOKEN_FILE),
        certificate_file=environment.get("HEADGATE_CERTIFICATE_FILE", naming.CERTIFICATE_FILE),
        work_folder=environment.get("HEADGATE_WORK_FOLDER", naming.WORK_FOLDER),
        data_folder=environment.get("HEADGATE_DATA_FOLDER", naming.DATA_FOLDER),
    )


def document_of(data: bytes, where: str) -> Document:
    """Parse testbed.json. Raises UserError with the field that is wrong."""
    try:
        raw: dict[str, Any] = json.loads(data)
        recorder, seed = raw.get("recorder"), int(raw.get("seed") or 1)
        spec = raw["spec"]
        return Document(
            name=str(raw["name"]),
            namespace=str(raw["namespace"]),
            run=str(raw.get("run") or ""),
            trial=str(raw.get("trial") or ""),
            seed=seed,
            recorder=(str(recorder[0]), int(recorder[1]), str(recorder[2])) if recorder else None,
            plan=plan_from_json(raw.get("plan")) or _compiled(spec, seed, where),
            submits_job=Testbed({"spec": spec}).submits_job,
        )
    except UserError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise UserError(where, f"cannot be read: {error!r}", "let the operator write it again") from None


def _compiled(spec: Mapping[str, Any], seed: int, where: str) -> TestbedPlan:
    """Compile the spec as the operator does. Importing the models takes a third of a supervisor's start. A pod therefore compiles only if an
    operator of another version wrote its testbed.json."""
    from pydantic import ValidationError

    from testbed_runtime.api.compile import compile_testbed
    from testbed_runtime.api.kinds import TestbedResourceSpec

    try:
        return compile_testbed(TestbedResourceSpec.model_validate(spec), seed=seed)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = ".".join(str(step) for step in ("spec", *first["loc"]))
        raise UserError(path, first["msg"], f"fix the Testbed that {where} was made from") from None


def peer_addresses(document: Document) -> dict[str, Address]:
    """Return the control addresses of the JobManager and the TaskManagers, by logical name."""
    names = {JOBMANAGER: naming.JOBMANAGER_PORT}
    for name in document.plan.task_managers:
        names[name] = naming.TASKMANAGER_PORT
    return {
        name: (naming.dns_name(document.name, name, document.namespace), port) for name, port in names.items()
    }


def supervisor_config(pod: PodIdentity, document: Document | None) -> SupervisorConfig:
    return SupervisorConfig(
        name=f"supervisor-{pod.name}",
        environment=ENVIRONMENT,
        bind=(pod.address, naming.SUPERVISOR_PORT),
        token_file=pod.token_file,
        work_folder=pod.work_folder,
        logs_folder=str(Path(pod.work_folder) / "logs"),
        run=document.run if document else "",
        trial=document.trial if document else "",
        owned=False,
        seed=document.seed if document else 1,
        backends=FAULT_BACKENDS.get(pod.role, ()),
        echo_bind=(pod.address, naming.ECHO_PORT),
        first_incarnation=naming.first_incarnation(pod.incarnation),
        starts_file=str(Path(pod.work_folder) / f"starts-{pod.name}"),
    )


def child_spec(pod: PodIdentity, document: Document | None) -> ChildSpec:
    """Return the spec of the pod's child. Only a recorder needs no document."""
    if document is None and pod.role != RECORDER:
        raise UserError("role", f"a {pod.role} needs {pod.config_file}", "mount the testbed's ConfigMap")
    module = MODULES.get(pod.role, pod.role)
    argv = (sys.executable, "-m", f"testbed_runtime.entry.{module}", CONFIG)
    return ChildSpec(
        pod.name,
        argv,
        config=msgspec.to_builtins(process_config(pod, document)),
        replace_lost_s=document.plan.replace_lost_s if document and pod.role == TASKMANAGER else RESPAWN_S,
        replace_killed=pod.role != JOBMANAGER,
        timeout_s=CHILD_START_S,
    )


def process_config(pod: PodIdentity, document: Document | None) -> ProcessConfig:
    bind = (pod.address, PORTS[pod.role])
    if document is None:
        return ProcessConfig(
            name=pod.name, bind=bind, history_folder=pod.data_folder, token_file=pod.token_file
        )
    plan, recorder = document.plan, document.recorder
    return ProcessConfig(
        name=pod.name,
        run=document.run,
        trial=document.trial,
        seed=document.seed,
        flink_version=plan.flink_version,
        configuration=dict(plan.configuration),
        bind=bind,
        data_bind=(pod.address, naming.DATA_PORT),
        jobmanager=_of(document, JOBMANAGER),
        recorder=(recorder[0], recorder[1]) if recorder else None,
        recorder_path=recorder[2] if recorder else "",
        proxy=_of(document, PROXY) if plan.proxy else None,
        route_port=ROUTE_PORT,
        slots=plan.slots,
        store=_of(document, STORE) if pod.role != STORE else None,
        blob_folder=pod.data_folder if pod.role == STORE else "",
        local_folder=pod.data_folder if pod.role == TASKMANAGER else "",
        history_folder=pod.data_folder,
        job=plan.job if pod.role == JOBMANAGER and document.submits_job else None,
        token_file=pod.token_file,
        certificate_file=pod.certificate_file if pod.role == TASKMANAGER and plan.tls else "",
    )


def _of(document: Document, role: str) -> Address:
    return naming.dns_name(document.name, role, document.namespace), PORTS[role]
