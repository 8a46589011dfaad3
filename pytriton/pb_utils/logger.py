"""`Logger`: writes lines with a level to the model's log."""

from __future__ import annotations

import enum
import os
import sys
import time

from pytriton.pb_utils import host

__all__ = ["Logger"]


class _LogLevel(enum.IntEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_LETTERS = {
    _LogLevel.INFO: "I",
    _LogLevel.WARNING: "W",
    _LogLevel.ERROR: "E",
    _LogLevel.VERBOSE: "V",
}


class Logger:
    """Logger that writes to the model's log, which `pytriton-daemon logs MODEL` shows.

    Example:
        >>> Logger.log_warn("the cache is cold")  # doctest: +SKIP
    """

    LogLevel = _LogLevel
    INFO = _LogLevel.INFO
    WARNING = _LogLevel.WARNING
    ERROR = _LogLevel.ERROR
    VERBOSE = _LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: _LogLevel = _LogLevel.INFO) -> None:
        """Write a log line at the given level."""
        _write(message, level)

    @staticmethod
    def log_info(message: str) -> None:
        """Write a log line at level INFO."""
        _write(message, _LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        """Write a log line at level WARNING."""
        _write(message, _LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        """Write a log line at level ERROR."""
        _write(message, _LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Write a verbose log line.

        The daemon drops it unless `log_verbose_level` is at least 1 or `log_level` is debug.
        """
        _write(message, _LogLevel.VERBOSE)


def _write(message: str, level: _LogLevel) -> None:
    if not isinstance(message, str) or not isinstance(level, _LogLevel):
        raise TypeError(
            f"Logger requires a string and a level such as Logger.INFO, got {message!r:.80}, {level!r:.80}"
        )
    caller = sys._getframe(2)  # the caller of Logger's method
    place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
    micros = int(now % 1 * 1e6)
    for line in message.splitlines() or [""]:
        host.current().log(f"{_LETTERS[level]}{stamp}.{micros:06} {os.getpid()} {place}] {line}")
