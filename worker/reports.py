"""Where a worker says what went wrong: a process prints it, for the daemon's log; a thread logs it, in its process."""

from __future__ import annotations

import logging
import sys
import threading
import traceback

_here = threading.local()


def report_to(logger: logging.Logger, model: str) -> None:
    """Have this thread's reports about a model go to a logger: the process's output belongs to others."""
    _here.logger, _here.model = logger, model


def report_error(error: BaseException, what: str = "its callable failed") -> None:
    """Report an exception with its traceback."""
    logger: logging.Logger | None = getattr(_here, "logger", None)
    if logger is None:
        traceback.print_exception(type(error), error, error.__traceback__)
        return
    logger.error(
        "model %s: %s", _here.model, what, exc_info=(type(error), error, error.__traceback__)
    )


def note(text: str) -> None:
    """Report something that is as it should be."""
    logger: logging.Logger | None = getattr(_here, "logger", None)
    if logger is None:
        print(text)
        return
    logger.info("model %s: %s", _here.model, text)


def report(text: str) -> None:
    """Report something that somebody should look at."""
    logger: logging.Logger | None = getattr(_here, "logger", None)
    if logger is None:
        print(text, file=sys.stderr)
        return
    logger.warning("model %s: %s", _here.model, text)
