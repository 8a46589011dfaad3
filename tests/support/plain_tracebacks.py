"""Import this before anything that imports structlog: it keeps rich out of the tests' tracebacks and logs.

With rich, which the command line installs, a traceback takes a tenth of a second; the daemon avoids it, too
(dispatcher/__main__.py). A record is a line without time, columns and colors: tests write thousands, and only those of
failing tests are read.
"""

from __future__ import annotations

import sys
from typing import Any

if "structlog" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog

    del sys.modules["rich"]

import structlog
from structlog.contextvars import merge_contextvars
from structlog.processors import add_log_level, format_exc_info


def _line(logger: Any, method: str, record: structlog.typing.EventDict) -> str:
    """Write a record, followed by its traceback."""
    level, event, fault = (record.pop(key, "") for key in ("level", "event", "exception"))
    more = [f"{name}={value!r}" for name, value in record.items()]
    return " ".join([f"[{level}]", str(event), *more]) + (f"\n{fault}" if fault else "")


structlog.configure(
    processors=[
        merge_contextvars,
        add_log_level,
        structlog.dev.set_exc_info,
        format_exc_info,
        _line,
    ]
)
