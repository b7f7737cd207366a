"""A function for each record: named in python-function.yaml as `buckets.py:bucket`."""

from testbed_runtime.workload.functions import UserRecord

BUCKETS = 10


def bucket(record: UserRecord) -> UserRecord | int | None:
    """Give a record a new key. Return the record to leave it as it is, None to drop it, or
    `dataclasses.replace(record, key=…, text=…)` to change its text too."""
    return record.key % BUCKETS
