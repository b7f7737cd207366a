"""One Spark for all tests of the evaluation, and one synthetic run on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.evaluation.session import spark_session
from tests.report import synthetic


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Manifest and sealed histories of four trials."""
    folder = tmp_path_factory.mktemp("runs") / synthetic.RUN
    folder.mkdir()
    synthetic.write_run(folder)
    return folder


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
