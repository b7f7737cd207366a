"""Create the certificates and kubeconfigs of a cluster with openssl. Each start of a cluster has new ones."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from . import settings
from .command import run
from .settings import ClusterError

DAYS = 365
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Identity:
    """The subject of a certificate: user and group for Kubernetes, and the addresses of a server."""

    name: str
    user: str
    group: str = ""
    addresses: tuple[str, ...] = ()


ADMIN = Identity("admin", "headgate-admin", "system:masters")
API_SERVER = Identity(
    "apiserver",
    "kube-apiserver",
    addresses=(
        f"IP:{settings.NODE_ADDRESS}",
        f"IP:{settings.API_SERVICE}",
        "IP:127.0.0.1",
        "DNS:localhost",
        "DNS:kubernetes",
        "DNS:kubernetes.default",
        "DNS:kubernetes.default.svc",
        f"DNS:kubernetes.default.svc.{settings.DNS_DOMAIN}",
    ),
)


def kubelet_server(node: settings.Node) -> Identity:
    addresses = (f"IP:{node.address}", f"DNS:{node.name}")
    return Identity(f"kubelet-server{node.suffix}", f"system:node:{node.name}", "system:nodes", addresses)


def kubelet(node: settings.Node) -> Identity:
    return Identity(f"kubelet{node.suffix}", f"system:node:{node.name}", "system:nodes")


SERVERS = (API_SERVER, kubelet_server(settings.FIRST), kubelet_server(settings.SECOND))
CLIENTS = (
    ADMIN,
    kubelet(settings.FIRST),
    kubelet(settings.SECOND),
    Identity("controller-manager", "system:kube-controller-manager"),
    Identity("scheduler", "system:kube-scheduler"),
    Identity("proxy", "system:kube-proxy"),
)
API_TO_KUBELET = Identity("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters")


def write_all(folder: Path, kubeconfig: Path) -> None:
    """Write the authority, every certificate, the key of service accounts, a kubeconfig per client and the user's own.

    Raises ClusterError with the message of openssl.
    """
    folder.mkdir(parents=True, mode=0o700)
    _openssl(folder, "req", "-x509", *KEY, "-days", str(DAYS), "-subj", "/CN=headgate-cluster",
             "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
             "-keyout", "ca.key", "-out", "ca.crt")  # fmt: skip
    for identity in (*SERVERS, API_TO_KUBELET, *CLIENTS):
        _sign(folder, identity)
    _openssl(
        folder, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", "sa.key"
    )
    _openssl(folder, "pkey", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    for identity in CLIENTS:
        (folder / f"{identity.name}.conf").write_text(_kubeconfig(folder, identity))
    kubeconfig.touch(0o600)
    kubeconfig.write_text(_kubeconfig(folder, ADMIN))


def _sign(folder: Path, identity: Identity) -> None:
    usage = "serverAuth" if identity.addresses else "clientAuth"
    extra = [
        f"extendedKeyUsage={usage}",
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
    ]
    if identity.addresses:
        extra.append(f"subjectAltName={','.join(identity.addresses)}")
    group = f"/O={identity.group}" if identity.group else ""
    _openssl(folder, "req", "-x509", "-CA", "ca.crt", "-CAkey", "ca.key", *KEY, "-days", str(DAYS),
             "-subj", f"{group}/CN={identity.user}", *(part for e in extra for part in ("-addext", e)),
             "-keyout", f"{identity.name}.key", "-out", f"{identity.name}.crt")  # fmt: skip


def _kubeconfig(folder: Path, identity: Identity) -> str:
    """Return a self-contained kubeconfig, which also works as a copy elsewhere. JSON is valid YAML."""

    def data(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    cluster = {
        "server": f"https://{settings.NODE_ADDRESS}:{settings.API_PORT}",
        "certificate-authority-data": data("ca.crt"),
    }
    user = {
        "client-certificate-data": data(f"{identity.name}.crt"),
        "client-key-data": data(f"{identity.name}.key"),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "headgate", "cluster": cluster}],
        "users": [{"name": identity.user, "user": user}],
        "contexts": [{"name": "headgate", "context": {"cluster": "headgate", "user": identity.user}}],
        "current-context": "headgate",
    }
    return json.dumps(document, indent=2) + "\n"


def _openssl(folder: Path, *arguments: str) -> None:
    try:
        run(["openssl", *arguments], folder=folder)
    except ClusterError as error:
        raise ClusterError(f"{error}\nopenssl 3 or newer is needed") from None
