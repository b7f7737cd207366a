"""Names, labels and ports of Headgate's objects in a cluster. Pure; shared by the operator, the runner and the pods' entries."""

from __future__ import annotations

import hashlib
from typing import Literal

ApiVersion = Literal["headgate.dev/v1alpha1"]
API_VERSION: ApiVersion = "headgate.dev/v1alpha1"
GROUP, _, VERSION = API_VERSION.partition("/")
RBAC_GROUP = "rbac.authorization.k8s.io"
RBAC_VERSION = f"{RBAC_GROUP}/v1"
FIELD_MANAGER = "headgate-operator"
FINALIZER = f"{GROUP}/heal"

LABEL_TESTBED = f"{GROUP}/testbed"
LABEL_RUN = f"{GROUP}/run"
LABEL_STUDY = f"{GROUP}/study"
LABEL_ROLE = f"{GROUP}/role"
"""`jobmanager`, `taskmanager`, `store`, `proxy`, `recorder`, `runner`, `spark`, `study`."""
LABEL_ORDINAL = f"{GROUP}/ordinal"
LABEL_INCARNATION = f"{GROUP}/incarnation"
LABEL_CONFIG = f"{GROUP}/config"
"""Hash of the configuration that the pod was created from."""
LABEL_FAULTS_ALLOWED = f"{GROUP}/faults"
"""On a namespace, value `allowed`: faults may hit pods that do not belong to a testbed."""
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "headgate"
LABEL_NAME, LABEL_INSTANCE, LABEL_COMPONENT, LABEL_PART_OF = (
    f"app.kubernetes.io/{label}" for label in ("name", "instance", "component", "part-of")
)
OPERATOR_LABELS = {LABEL_NAME: MANAGED_BY, LABEL_COMPONENT: "operator"}
"""The labels of the operator's Deployment and pods, which the manifests and the chart create."""
ANNOTATION_HEAL = f"{GROUP}/heal"
ANNOTATION_SKIP_HEAL = f"{GROUP}/skip-heal"
ANNOTATION_REQUEST = f"{GROUP}/request"
"""An annotation of the client that created a run. With it, the client recognizes its own run if the answer to the creation was lost."""
ANNOTATION_TRIAL = f"{GROUP}/trial"
ANNOTATION_SECRET_UID = f"{GROUP}/secret-uid"
"""On a pod of a Testbed: the Secret that it got its token from."""
ANNOTATION_IMAGES = f"{GROUP}/images"
"""On every pod: the image that the operator asked for, and that of the packet agents of its version. A webhook of the cluster may change the
one in the container."""

JOBMANAGER_PORT = 6123
TASKMANAGER_PORT = 6122
DATA_PORT = 6121
STORE_PORT = 6124
PROXY_PORT = 6125
RECORDER_PORT = 6126
SPARK_PORT = 6127
SUPERVISOR_PORT = 6130
ECHO_PORT = 6131
AGENT_PORT = 6132
AGENT_ECHO_PORT = 6133
HEALTH_PORT = 8080
WEBHOOK_PORT = 8443
WEBHOOK_PATH = "/validate"
PLANE_PORTS = {"data": (DATA_PORT,), "rpc": (JOBMANAGER_PORT, TASKMANAGER_PORT)}
"""The TCP ports of a testbed's processes, by the plane that a fault names."""

CONFIG_FOLDER = "/etc/headgate/testbed"
CONFIG_FILE = f"{CONFIG_FOLDER}/testbed.json"
TOKEN_FILE = "/etc/headgate/token/token"  # noqa: S105 - a path, not a secret
CERTIFICATE_KEY = "certificate.pem"
"""Key of the Secret with a Testbed's certificate, and the name of the file that TaskManagers mount."""
CERTIFICATE_FILE = f"/etc/headgate/certificate/{CERTIFICATE_KEY}"
FUNCTIONS_VOLUME = "functions-"
"""Prefix of the names of the volumes with Python functions."""
WORK_FOLDER = "/run/headgate"
DATA_FOLDER = "/var/lib/headgate"
"""The mount point of the volume of a store or recorder."""
USER_ID = 10001
SHARED_CLOCK = {"HEADGATE_CLOCK": "shared"}
"""In the environment of every pod: pods of one testbed may be on several nodes (testbed_runtime.process.clock)."""
NO_BUNDLE = {"SSL_CERT_FILE": "/dev/null"}
"""In the environment of every container whose processes connect only to pods, without TLS or with the testbed's own certificate: aiohttp reads
the bundle of public authorities twice when it is imported, a tenth of a second. OpenSSL would still find an authority in its folder. Not for
TaskManagers, which run users' functions, and not for pods that call the API server or a telemetry collector."""
STARTS_PER_POD = 100
"""The number of child starts that one pod can count: more than the supervisor's limit of incarnations."""

MAX_TESTBED_NAME = 40
"""`<testbed>-tm-99` and `jobmanager.<testbed>` are DNS labels with room to spare."""
RUNNER_ACCOUNT = "headgate-runner"
STUDY_ACCOUNT = "headgate-study"
SPARK_ACCOUNT = "headgate-spark"


def recommended_labels(instance: str, component: str) -> dict[str, str]:
    """Return the labels that Kubernetes recommends, for an object that Headgate creates.

    `instance` is the name of the Testbed, ScenarioRun or TuningStudy that it belongs to; `headgate` if several share it."""
    return {
        LABEL_NAME: MANAGED_BY,
        LABEL_INSTANCE: instance,
        LABEL_COMPONENT: component,
        LABEL_PART_OF: MANAGED_BY,
        LABEL_MANAGED_BY: MANAGED_BY,
    }


def pod_name(testbed: str, process: str) -> str:
    """`process` is a logical name: `tm-0`, `jobmanager`, `store`, `proxy`."""
    return f"{testbed}-{process}"


def dns_name(testbed: str, process: str, namespace: str) -> str:
    return f"{process}.{testbed}.{namespace}.svc"


def service_name(testbed: str) -> str:
    return testbed


def config_name(testbed: str, uid: str) -> str:
    """Return the name of a Testbed's ConfigMap. It contains the uid, so the ConfigMap of a recreated Testbed has another name."""
    return f"{testbed}-config-{uid[:8]}"


def testbed_token_name(testbed: str, uid: str) -> str:
    """Return the name of the Secret that Headgate creates for a Testbed. It contains the uid, as `config_name` does.

    The kubelet reads an immutable Secret once, for as long as any pod refers to its name: under a reused name, the pods of
    a new Testbed would be given the token of the earlier one."""
    return f"{testbed}-token-{uid[:8]}"


def certificate_name(testbed: str, uid: str) -> str:
    """Return the name of the Secret with the certificate of a Testbed's data ports; it contains the uid as the token's does."""
    return f"{testbed}-tls-{uid[:8]}"


def token_name(owner: str) -> str:
    """Return the name of the Secret with the token of a run or of a Spark pod."""
    return f"{owner}-token"


def recorder_name(run: str) -> str:
    """Pod and Service."""
    return f"{run}-recorder"


def runner_name(run: str) -> str:
    return f"{run}-runner"


def status_name(run: str) -> str:
    return f"{run}-status"


def report_name(run: str) -> str:
    return f"{run}-report"


def checkpoint_name(run: str, number: int) -> str:
    """Return the name of the first ConfigMap with a run's kept checkpoint; a run whose variants start from several numbers them."""
    return f"{run}-checkpoint-{number}"


def functions_name(run: str) -> str:
    """Return the name of the ConfigMap with the files of a run's Python functions."""
    return f"{run}-functions"


def trial_testbed_name(run: str, trial: str) -> str:
    """Return the name of a trial's Testbed: short, and different for each trial id."""
    digest = hashlib.sha256(f"{run}/{trial}".encode()).hexdigest()[:8]
    return f"{run[: MAX_TESTBED_NAME - 9].rstrip('-')}-{digest}"


def first_incarnation(pod: int) -> int:
    """Return the incarnation that a process reports after its first start in a pod. The pods of a process are numbered from 1."""
    return (pod - 1) * STARTS_PER_POD + 1
