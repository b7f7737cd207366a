"""The runner's side of an evaluation, against a Spark pod that dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.http import serve
from testbed_runtime.kube.spark.client import BROKEN_MAX, KubeEvaluator


async def test_an_evaluation_that_ends_every_spark_pod_is_given_up(tmp_path: Path):
    """Each pod had begun the evaluation. A pod that dies before its turn comes is not counted."""
    lines = [b'{"waiting": 2}\n', *[b'{"stage": "trials"}\n'] * (BROKEN_MAX + 1)]
    asked = 0

    async def break_off(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(lines[asked])
        asked += 1
        assert request.transport is not None
        request.transport.close()
        return answer

    application = web.Application()
    application.add_routes([web.post("/v1/evaluate", break_off)])
    runner, address = await serve(application, ("127.0.0.1", 0))
    try:
        evaluator = KubeEvaluator(spark=address, spark_token="t", recorder=address, recorder_token="t")
        with pytest.raises(HeadgateError, match=f"ended {BROKEN_MAX} times during this evaluation"):
            await evaluator.evaluate(tmp_path)
    finally:
        await runner.cleanup()
    assert asked == BROKEN_MAX + 1
