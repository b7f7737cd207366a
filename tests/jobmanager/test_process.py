"""The JobManager as a process: ready line, answers, a clean end, plain words when it cannot start."""

import asyncio
import json
import sys

import pytest

from testbed_runtime.core.job.messages import RequestJobStatus
from testbed_runtime.ports.rpc import RecipientUnreachable
from testbed_runtime.process.config import ProcessConfig
from testbed_runtime.transport.rpc_http import HttpRpc

pytestmark = pytest.mark.processes
LIMIT_S = 60.0


def configured(tmp_path, **fields):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    config = ProcessConfig(
        name="jobmanager", blob_folder=str(tmp_path / "blobs"), token_file=str(token), **fields
    )
    path = tmp_path / "jobmanager.json"
    config.save(path)
    return path


async def started(path):
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "testbed_runtime.entry.jobmanager",
        str(path),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )


async def test_it_says_where_it_is_answers_and_ends_with_its_stdin(tmp_path):
    """Exit code 0, nothing on stderr, the port is free again."""
    process = await started(configured(tmp_path))
    async with asyncio.timeout(LIMIT_S):
        ready = json.loads(await process.stdout.readline())["ready"]
        address = tuple(ready["rpc"])
        rpc = HttpRpc("test", None, "secret")
        await rpc.start()
        status = await rpc.ask("jobmanager", address, "dispatcher", RequestJobStatus(""), timeout_s=5)
        assert (status.state, status.taskmanagers) == ("NONE", ())
        process.stdin.close()
        assert await process.wait() == 0
        assert await process.stderr.read() == b""
        with pytest.raises(RecipientUnreachable):
            await rpc.ask("jobmanager", address, "dispatcher", RequestJobStatus(""), timeout_s=5)
    await rpc.close()


async def test_a_port_in_use_and_a_damaged_store_are_one_line_and_exit_code_2(tmp_path):
    """No stack trace."""
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    async with asyncio.timeout(LIMIT_S):
        process = await started(configured(tmp_path, bind=tuple(address)))
        assert await process.wait() == 2
        said = (await process.stderr.read()).decode()
        assert "cannot listen on 127.0.0.1" in said
        assert "Traceback" not in said
        server.close()
        await server.wait_closed()
        (tmp_path / "blobs" / "jobs" / "j").mkdir(parents=True)
        (tmp_path / "blobs" / "jobs" / "j" / "graph").write_text("{")
        process = await started(configured(tmp_path))
        assert await process.wait() == 2
        said = (await process.stderr.read()).decode()
        assert said.startswith("jobs/j/graph in the blob store cannot be read")
        assert "Traceback" not in said
