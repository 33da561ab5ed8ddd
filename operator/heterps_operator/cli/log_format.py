"""The log of `heterps operator` on stderr: text for people, or JSON for programs. Neither has credentials."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from heterps_operator.addresses import redacted

__all__ = ["LOG_FORMATS", "JsonFormatter", "TextFormatter", "log_to_stderr"]

_KEYS = {"HeterPSJob": "job", "DevicePool": "pool"}  # by kind
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """Formats records as text, tracebacks included, without credentials in addresses."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and more for a traceback."""
        return redacted(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats records as JSON objects, one per line, without credentials in addresses.

    Keys: `ts` (RFC 3339, UTC), `level`, `logger`, `message`; `namespace` and `job` if the record is about a job, `pool`
    if it is about a DevicePool; `traceback` if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "ts": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_about(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps({key: redacted(value) for key, value in line.items()})


LOG_FORMATS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def log_to_stderr(form: str, *, verbose: bool) -> None:
    """Write all log records to stderr from now on.

    Args:
        form: a key of `LOG_FORMATS`.
        verbose: include what kopf and the HTTP clients say below errors.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(LOG_FORMATS[form]())
    logging.captureWarnings(True)
    for name in ("kopf", "urllib3", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.ERROR)


def _about(record: logging.LogRecord) -> dict[str, str]:
    """Return what a record is about, from `extra={"k8s_ref": ...}`, kopf's name for a reference to an object."""
    reference: dict[str, Any] = getattr(record, "k8s_ref", None) or {}
    found = {"namespace": reference.get("namespace"), _KEYS.get(str(reference.get("kind")), ""): reference.get("name")}
    return {key: str(value) for key, value in found.items() if key and value}
