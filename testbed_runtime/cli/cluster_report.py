"""`headgate report NAME --on kubernetes`: fetch the report of a run from its ConfigMap. Needs no exec, no volume, no proxy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from testbed_runtime.api import naming
from testbed_runtime.api.status import COMPLETE
from testbed_runtime.api.views import Run
from testbed_runtime.cli import folders
from testbed_runtime.cli.access import Access, connected
from testbed_runtime.core.documents import JUNIT_FILE, PAGE_FILE, SUMMARY_FILE, VERDICT_FILE
from testbed_runtime.core.errors import UserError

if TYPE_CHECKING:
    from testbed_runtime.kube.api import Api

FILES = {".html": PAGE_FILE, ".md": SUMMARY_FILE, ".xml": JUNIT_FILE, ".json": VERDICT_FILE}
"""The file that `-o` writes, by the suffix of its name."""


async def fetch(access: Access, run: str) -> dict[str, bytes]:
    """Return the files of the report by name. Raises UserError if the run or its report does not exist."""
    from testbed_runtime.kube.progress import read_report

    async with connected(access) as api:
        found = await api.get("ConfigMap", api.namespace, naming.report_name(run))
        if found is None:
            raise await _why_not(api, run)
    return read_report(found)


async def _why_not(api: Api, run: str) -> UserError:
    known = await api.get("ScenarioRun", api.namespace, run)
    if known is None:
        return UserError(
            run,
            f"this ScenarioRun does not exist in namespace {api.namespace}",
            "kubectl get scenarioruns -A",
        )
    status = Run(known).status
    complete = status.condition(COMPLETE)
    message = f", {complete.message}" if complete is not None and complete.message else ""
    hint = f"kubectl -n {api.namespace} wait --for=condition=Complete run/{run} --timeout=30m"
    return UserError(run, f"has no report: its phase is {status.phase or 'not started'}{message}", hint)


def write(files: dict[str, bytes], output: str, folder: Path) -> Path | None:
    """Write the file that the suffix of `output` selects (`-`: the Markdown report to stdout), or all of them into `folder`.

    Returns None if nothing was written to disk."""
    if not output:
        from testbed_runtime.kube.client_run import write_files

        write_files(folder, files)
        return folder / PAGE_FILE if PAGE_FILE in files else folder
    if output == "-":
        typer.echo(files[SUMMARY_FILE].decode())
        return None
    path = Path(output)
    wanted = FILES.get(path.suffix)
    if wanted is None:
        raise UserError(
            "-o", f"{output!r} has no known suffix", f"write one of {', '.join(FILES)}, or - for stdout"
        )
    if wanted not in files:
        problem = f"the run has no {wanted}"
        raise UserError("-o", problem, files.get("too-large", b"leave -o out to see what there is").decode())
    with folders.writing("-o", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[wanted])
    return path
