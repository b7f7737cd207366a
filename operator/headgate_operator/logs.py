"""Logs as JSON lines on stderr, each with the object that it concerns."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from headgate_operator.plan.model import Key

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
QUIET = {"kopf": logging.WARNING, "aiohttp.access": logging.WARNING, "urllib3": logging.ERROR}


class JsonLines(logging.Formatter):
    """`{"time", "level", "logger", "message", "kind", "namespace", "name", …}`; extras as given."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if isinstance(value, Key):
                line |= {"kind": value.kind, "namespace": value.namespace, "name": value.name}
            elif name not in _STANDARD and isinstance(value, str | int | float | bool):
                line[name] = value  # type: ignore[assignment]
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, quiet in QUIET.items():
        logging.getLogger(name).setLevel(quiet)
