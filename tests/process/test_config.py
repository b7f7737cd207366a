"""The configuration that a process gets at its start."""

import pytest

from testbed_runtime.core.errors import UserError
from testbed_runtime.process.config import ProcessConfig


def test_a_token_file_without_a_token_opens_nothing(tmp_path):
    """A request without a token would match an empty one."""
    file = tmp_path / "token"
    file.write_text(" \n")
    with pytest.raises(UserError, match="is empty"):
        ProcessConfig(name="tm-0", token_file=str(file)).token()
    file.write_text("secret\n")
    assert ProcessConfig(name="tm-0", token_file=str(file)).token() == "secret"
