"""The operator's entry script: `python operator/main.py`."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from headgate_operator.app import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
