"""Logs: one JSON object a line, on stderr. Headers and bodies are never logged, so no token can be."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

from omnigraph.server.http.errors import Redaction

LOGGER = "omnigraph.server"


class JsonLines(logging.Formatter):
    """`extra={"fields": {…}}` of a record become members of the object."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        document: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            document["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(self._redaction.document(document), ensure_ascii=True, default=str)


def log_to(stream: TextIO | None, redaction: Redaction, level: int = logging.INFO) -> logging.Handler:
    """Send what the server and the graph say to a stream; answers the handler, for who wants to take it away."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines(redaction))
    for name in ("omnigraph", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
    return handler
