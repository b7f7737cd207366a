"""Two Flink versions, compiled once for all workers of a session. Without a JDK, Maven or the jars, the tests are skipped with the reason."""

from __future__ import annotations

import pytest

from tests.interop.flink import VERSIONS, NoFlinkError, build


@pytest.fixture(scope="session", params=VERSIONS)
def flink(request, tmp_path_factory, worker_id):
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    try:
        return build(request.param, shared / "flink" / request.param)
    except NoFlinkError as error:
        pytest.skip(str(error))
