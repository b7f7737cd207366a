"""The initial objects of the cluster: CoreDNS and static volumes."""

from __future__ import annotations

from . import settings
from .settings import filled

VOLUMES = 20  # each can be bound once in the life of a cluster
VOLUME_FOLDERS = tuple(f"/var/lib/headgate-volumes/{n:02}" for n in range(1, VOLUMES + 1))
SYSTEM = "kube-system"
COREDNS = "coredns"


def everything() -> str:
    """Return the initial objects as YAML."""
    image, address, domain = settings.COREDNS_IMAGE, settings.DNS_SERVICE, settings.DNS_DOMAIN
    volumes = (filled("volume.yaml.in", number=folder[-2:], folder=folder) for folder in VOLUME_FOLDERS)
    return "---\n".join([filled("system.yaml.in", image=image, address=address, domain=domain), *volumes])
