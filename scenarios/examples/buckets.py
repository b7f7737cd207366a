"""A function that is called for each record. python-function.yaml names it as `buckets.py:bucket`."""

from testbed_runtime.workload.functions import UserRecord

BUCKETS = 10


def bucket(record: UserRecord) -> UserRecord | int | None:
    """Give a record a new key. Return the record to keep it unchanged, None to drop it, or
    `dataclasses.replace(record, key=…, text=…)` to change its text too."""
    return record.key % BUCKETS
