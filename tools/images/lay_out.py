"""Write the sources as they are in an image, compiled, below one folder. The image's own Python runs this.

The output is the last layer of every image, whether the Dockerfile runs it or `tools.images` adds the layer itself.
"""

from __future__ import annotations

import compileall
import shutil
import sys
import tomllib
from pathlib import Path
from py_compile import PycInvalidationMode

PACKAGES = ("testbed_runtime", "operator")
COMMAND = '#!/bin/sh\nexec python -m testbed_runtime.cli.main "$@"\n'


def main(source: Path, target: Path) -> None:
    """Copy a checkout (or the part of it that images contain) to `target`. Bytecode has no times, so the output is reproducible."""
    target.mkdir(parents=True, exist_ok=True)
    for name in PACKAGES:
        shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    metadata = target / f"{project['name']}-{project['version']}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    command = target / "bin" / "headgate"
    command.parent.mkdir()
    command.write_text(COMMAND)
    mode = PycInvalidationMode.UNCHECKED_HASH
    # Tracebacks show the paths in the image, wherever this runs.
    if not compileall.compile_dir(
        target, quiet=1, stripdir=str(target), prependdir="/opt/headgate", invalidation_mode=mode
    ):
        sys.exit("some sources do not compile: see the lines above")
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or path == command else 0o644)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
