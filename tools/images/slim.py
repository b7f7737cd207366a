"""Run inside an image's build: takes out of installed packages what no pod needs, and compiles the rest."""

from __future__ import annotations

import compileall
import shutil
import sys
from pathlib import Path
from py_compile import PycInvalidationMode

NEEDLESS = (
    "pip",
    "pip-*",
    "setuptools",
    "setuptools-*",
    "pkg_resources",
    "_distutils_hack",
    "distutils-precedence.pth",
    "*/**/tests",
    "pyarrow/include",
    "pyarrow/src",
    "pyarrow/**/*.pyx",
    "pyarrow/**/*.pxd",
    "pyarrow/libarrow_flight*",
    "pyarrow/libarrow_python_flight*",
    "pyarrow/_flight*",
    "pyarrow/_substrait*",
    "pyspark/examples",
)
"""What only an installation, a C++ build or a test needs, below the folder of packages; and Arrow's RPC and query plans."""


def main(packages: Path) -> None:
    """`packages`: a site-packages. The same input gives the same files (bytecode without times)."""
    for pattern in NEEDLESS:
        for path in sorted(packages.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    mode = PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(packages, quiet=2, invalidation_mode=mode, workers=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
