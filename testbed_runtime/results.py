"""Read what an evaluation wrote to a run's folder. A damaged file is an error that names the file and the field."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from testbed_runtime.core.documents import (
    COMPARISON_FILE,
    METRICS_FILE,
    RECOVERY_FILE,
    TIMESERIES_FILE,
    VERDICT_FILE,
)
from testbed_runtime.core.errors import HeadgateError, UserError, first_line
from testbed_runtime.core.judgement.metrics import METRICS, MetricRow
from testbed_runtime.core.judgement.recovery import ROUNDING_S, TrialRecovery
from testbed_runtime.core.judgement.series import Timeseries
from testbed_runtime.core.trial.manifest import RunManifest
from testbed_runtime.files import field_of, read_document

if TYPE_CHECKING:
    from testbed_runtime.core.judgement.comparison import Comparison


def read_rows(folder: Path, manifest: RunManifest) -> list[MetricRow]:
    """Read the metrics.json of the run with this manifest. Raises HeadgateError when it is missing, damaged, or of another run."""
    if not (folder / METRICS_FILE).exists():
        why = f"it ended before a trial could be judged ({VERDICT_FILE} says why), or `headgate evaluate {folder}` has not run"
        raise HeadgateError(f"{folder} has no {METRICS_FILE}: {why}")
    found: list[MetricRow] = _result(folder, METRICS_FILE, list[MetricRow], [])
    if problem := _impossible(found, manifest):
        raise _damaged(folder / METRICS_FILE, problem)
    return found


def _impossible(rows: Sequence[MetricRow], manifest: RunManifest) -> str:
    """Return the first field whose value no row of this run can have. Empty if there is none."""
    trials = {entry.trial for entry in manifest.trials}
    for number, row in enumerate(rows):
        if row.run != manifest.run:
            return f"[{number}].run: is {row.run!r:.60}, but the run is {manifest.run}"
        if row.trial not in trials:
            return f"[{number}].trial: is {row.trial!r:.60}, which the run does not have"
        metric = METRICS.get(row.metric)
        if metric is not None and row.value is not None and row.value > metric.most:
            return f"[{number}].value: is {row.value:g}, but {metric.name} is at most {metric.most:g}"
    return ""


def read_series(folder: Path) -> Timeseries:
    """Read a run's timeseries.json. Without trials if it is missing. Raises HeadgateError when it is damaged."""
    found: Timeseries = _result(folder, TIMESERIES_FILE, Timeseries, Timeseries())
    return found


def read_recoveries(folder: Path) -> dict[str, TrialRecovery]:
    """Read a run's recovery.json. Empty if it is missing. Raises HeadgateError when it is damaged."""
    found: dict[str, TrialRecovery] = _result(folder, RECOVERY_FILE, dict[str, TrialRecovery], {})
    for trial, of_trial in found.items():
        for number, one in enumerate(of_trial.recoveries):
            sum_s = sum(p.seconds for p in one.prices) + one.unattributed_s
            if one.prices and abs(sum_s - one.total_s) > ROUNDING_S:
                problem = f"[{trial!r}].recoveries[{number}].prices: add up to {sum_s:g} s with the unattributed seconds, but it took {one.total_s:g} s"
                raise _damaged(folder / RECOVERY_FILE, problem)
    return found


def _result(folder: Path, name: str, kind: Any, missing: Any) -> Any:
    """Return the content of a file as a `kind`."""
    try:
        return msgspec.convert(read_document(folder / name), kind)
    except FileNotFoundError:
        return missing
    except msgspec.ValidationError as error:
        raise _damaged(folder / name, field_of(error)) from None
    except (OSError, ValueError) as error:
        raise _damaged(folder / name, first_line(error)) from None


def _damaged(path: Path, problem: str) -> UserError:
    return UserError(str(path), problem, f"it is damaged; run `headgate evaluate {path.parent}` again")


def read_comparison(folder: Path) -> Comparison:
    """Read a run's comparison.json. Without groups if it is missing or damaged: it repeats what metrics.json has."""
    # it imports NumPy, which `--help` does not need
    from testbed_runtime.core.judgement.comparison import Comparison

    try:
        return Comparison.from_json(read_document(folder / COMPARISON_FILE))
    except (OSError, ValueError, TypeError):
        return Comparison()
