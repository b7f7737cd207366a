"""The row of a trial that cannot be judged because a checker has raised an exception. The other trials of the run are judged."""

from __future__ import annotations

import traceback
from pathlib import Path

from testbed_runtime.checking.common import Answers
from testbed_runtime.core.judgement.metrics import RUN_FAILED, MetricRow
from testbed_runtime.history.schema import Trial

TEXT_MAX = 300
"""The longest message in characters. Arrow's errors have the whole schema."""
_PACKAGE = Path(__file__).parents[1]


def described(error: BaseException) -> str:
    """Return the type, the first line and the place of an exception, as a clause about a trial."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    where = f" ({_shown(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    first = next(iter(str(error).splitlines()), "")[:TEXT_MAX]
    words = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return f"its history could not be judged: {words}{where}"


def unjudged(run: str, trial: str, text: str) -> list[MetricRow]:
    """Return the only row of such a trial, with what `described` says. It makes the verdict of the trial an Error."""
    answers = Answers(Trial(run, trial, {}))
    answers.add("history.missing", text=text, reason=RUN_FAILED)
    return answers.rows


def _is_own(filename: str) -> bool:
    return Path(filename).is_relative_to(_PACKAGE)


def _shown(filename: str) -> str:
    return Path(filename).relative_to(_PACKAGE.parent).as_posix()
