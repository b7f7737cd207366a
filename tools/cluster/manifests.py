"""The initial objects of the cluster: CoreDNS and static volumes. Pure."""

from __future__ import annotations

from typing import Any

from . import settings

VOLUMES = 20  # each can be bound once in the life of a cluster
VOLUME_FOLDERS = tuple(f"/var/lib/headgate-volumes/{n:02}" for n in range(1, VOLUMES + 1))
VOLUME_SIZE = "4Gi"  # what a claim may request; not enforced
LABELS = {"k8s-app": "kube-dns"}
SYSTEM = "kube-system"
COREDNS = "coredns"

# Nothing is forwarded: the node has no route out, and a fast refusal is better than a timeout.
COREFILE = f""".:53 {{
    errors
    health
    ready
    kubernetes {settings.DNS_DOMAIN} in-addr.arpa ip6.arpa {{
        pods insecure
        ttl 5
    }}
    cache 5
}}
"""


def everything() -> dict[str, Any]:
    """Return all objects as one List for `kubectl`."""
    items = [*_access(), _corefile(), _deployment(), _service(), *_volumes()]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _access() -> list[dict[str, Any]]:
    rules = [
        {
            "apiGroups": [""],
            "resources": ["endpoints", "services", "pods", "namespaces"],
            "verbs": ["list", "watch"],
        },
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": COREDNS, "namespace": SYSTEM}},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "system:coredns"},
            "rules": rules,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "system:coredns"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "system:coredns"},
            "subjects": [{"kind": "ServiceAccount", "name": COREDNS, "namespace": SYSTEM}],
        },
    ]


def _corefile() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": COREDNS, "namespace": SYSTEM},
        "data": {"Corefile": COREFILE},
    }


def _deployment() -> dict[str, Any]:
    container = {
        "name": COREDNS,
        "image": settings.COREDNS_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "resources": {"requests": {"cpu": "10m", "memory": "30Mi"}, "limits": {"memory": "170Mi"}},
        "ports": [{"name": f"dns-{p.lower()}", "containerPort": 53, "protocol": p} for p in ("UDP", "TCP")],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}, "failureThreshold": 5},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
    }
    pod = {
        "serviceAccountName": COREDNS,
        "priorityClassName": "system-cluster-critical",
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": COREDNS}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": COREDNS, "namespace": SYSTEM, "labels": LABELS},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    }


def _service() -> dict[str, Any]:
    ports = [{"name": f"dns-{p.lower()}", "port": 53, "protocol": p} for p in ("UDP", "TCP")]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": SYSTEM, "labels": LABELS},
        "spec": {"clusterIP": settings.DNS_SERVICE, "selector": LABELS, "ports": ports},
    }


def _volumes() -> list[dict[str, Any]]:
    """Return the volumes to which claims without a storage class bind. There is no provisioner."""
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"headgate-{folder[-2:]}"},
            "spec": {
                "capacity": {"storage": VOLUME_SIZE},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "hostPath": {"path": folder, "type": "DirectoryOrCreate"},
            },
        }
        for folder in VOLUME_FOLDERS
    ]
