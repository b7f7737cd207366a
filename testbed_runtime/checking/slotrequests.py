"""The requests of the ResourceManager for a slot that its TaskManager did not answer in time, from the events of these timeouts."""

from __future__ import annotations

from testbed_runtime.checking.common import NS, Entry, data, events, options
from testbed_runtime.core.job.limits import option_limit
from testbed_runtime.core.job.messages import RequestSlot
from testbed_runtime.core.waits import RM_NAME, Outcome, Wait
from testbed_runtime.history.schema import Trial


def expired_slot_requests(trial: Trial, entry: Entry) -> list[Wait]:
    """Return a wait for each of them. The next request follows, at the same TaskManager or another one."""
    limit = option_limit(options(entry), "pekko.ask.timeout")
    found = []
    for number, event in enumerate(events(trial, "rpc.timeout")):
        asked = data(event)
        if asked.get("method") != RequestSlot.__name__:
            continue
        budget_ns = round(float(asked.get("timeout_s") or 0) * NS)
        end_ns = int(event["t_ns"])
        found.append(
            Wait(
                wait=f"{event['process']}/slot-request/{number}", kind="slot", who=RM_NAME, what=str(asked.get("peer", "")),
                start_ns=end_ns - budget_ns, end_ns=end_ns, option=limit.option, value=limit.value, budget_ns=budget_ns,
                outcome=Outcome.EXPIRED,
            )
        )  # fmt: skip
    return found


def is_slot_request(wait: Wait) -> bool:
    """Whether a wait is one request for a slot, and not that of a job for all its slots."""
    return (wait.kind, wait.who) == ("slot", RM_NAME)
