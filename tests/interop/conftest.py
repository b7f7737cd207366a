"""Two Flink versions, compiled once per session. Without a JDK, Maven or the jars, the tests are skipped with the reason."""

from __future__ import annotations

import pytest

from tests.interop.flink import VERSIONS, NoFlinkError, build


@pytest.fixture(scope="session", params=VERSIONS)
def flink(request, tmp_path_factory):
    try:
        return build(request.param, tmp_path_factory.mktemp("flink"))
    except NoFlinkError as error:
        pytest.skip(str(error))
