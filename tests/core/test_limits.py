"""The limits of waits as Flink derives them from options."""

from __future__ import annotations

import pytest

from testbed_runtime.core.job.limits import CONNECT_TIMEOUT, connect_limit, connect_timeout_s
from testbed_runtime.core.options import Options


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("120", 120.0),
        ("0", None),
        ("-1", 30.0),
        ("2147483", 2147483.0),
        ("2147484", 30.0),
        ("4294968", 0.704),
    ],
)
def test_the_connect_timeout_is_an_int_of_milliseconds_that_netty_may_refuse(
    written: str, seconds: float | None
) -> None:
    """NettyClient multiplies it by 1000. 0 is no timeout, and instead of a negative one Netty keeps its 30 s."""
    options = Options({CONNECT_TIMEOUT: written})
    assert connect_timeout_s(options) == seconds
    assert connect_limit(options).seconds == seconds
