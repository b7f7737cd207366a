"""Refusals of the API server for other reasons than missing permissions: part of the message of each, and how to resolve it."""

from __future__ import annotations

from msgspec import Struct

NOT_ADMITTED, QUOTA_EXCEEDED = "NotAdmitted", "QuotaExceeded"
"""Reasons of the condition Stalled."""
TERMINATING = "is being terminated"
"""Part of the message (403) for an object that is created in a namespace that is being deleted."""
DENIED = ("denied request", "denied the request")
"""Parts of the messages of an admission policy and of an admission webhook."""


class Refusal(Struct, frozen=True):
    """How to resolve a refusal, and the reason that a status names."""

    hint: str
    reason: str = NOT_ADMITTED


_REFUSALS = {
    "violates PodSecurity": Refusal(
        "label the namespace pod-security.kubernetes.io/enforce=privileged, or remove pods.packetFaults: true "
        "(only packet faults need it, because their agent needs NET_ADMIN)"
    ),
    "exceeded quota": Refusal(
        "delete other objects of this namespace, or raise its ResourceQuota", QUOTA_EXCEEDED
    ),
    "failed quota": Refusal(
        "the ResourceQuota needs a value that Headgate does not set: add a LimitRange with a default for it to the namespace"
    ),
    "usage per ": Refusal(
        "change the LimitRange of the namespace (for a TaskManager, spec.pods.resources also helps)"
    ),
    TERMINATING: Refusal("wait until the namespace is deleted, or use another one"),
    DENIED[0]: Refusal("an admission policy of the cluster refuses it: look at that policy"),
    DENIED[1]: Refusal("look at the policy of that admission webhook"),
}


def refusal_of(text: str) -> Refusal | None:
    """Return the Refusal that matches the message of a refused request, or None if the message is not known."""
    return next((found for part, found in _REFUSALS.items() if part in text), None)
