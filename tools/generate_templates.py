"""Write the code of the report's templates, which saves a command from compiling them. `--check` only lists outdated files and exits with 1."""

from __future__ import annotations

import sys

from testbed_runtime.report.ahead import NAMES, code_file, compiled
from testbed_runtime.report.html import environment


def main() -> int:
    made, outdated = environment(), []
    loader = made.loader
    assert loader is not None
    for name in NAMES:
        text, file = compiled(made, name, loader.get_source(made, name)[0]), code_file(name)
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        outdated.append(file.name)
        if "--check" not in sys.argv[1:]:
            file.write_text(text, encoding="utf-8")
    print("\n".join(outdated))
    return int(bool(outdated) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
