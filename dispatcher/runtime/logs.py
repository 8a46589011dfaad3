"""The daemon's structured log, on standard error and in files of the runtime directory.

Every record is a JSON line in logs/daemon.log. A record with `model=NAME` is also written to that model's own file,
which exists from the start of its first worker until `close_model_log`. The output of child processes is logged as
records, too. Files are rotated. An error in writing a file affects nothing else.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import re
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import msgspec
import structlog
from msgspec import structs

from pytriton._host.log_files import rotated, tail
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.files.private_files import open_private
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton._protocol.log_lines import (
    MAX_LINE_LENGTH,
    decoded,
    is_journal,
    print_error,
    with_priority,
)

__all__ = [
    "LogFile", "TritonLogSettings", "child_logger", "close", "close_model_log", "configure", "log_child_line",
    "open_file", "set_triton_log_settings", "tail", "triton_log_settings",
]  # fmt: skip

#: Matches tritonserver's log lines in both of its formats (`default` and `ISO8601`): level, file:line, text.
_GLOG = re.compile(
    r"(?:([VIWEF])\d{4} \d\d:\d\d:\d\d\.\d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ([IWEF]))"
    r"\s+\d+ ([^\s:\]]+:\d+)\] ?(.*)",
    re.DOTALL,
)
_LEVEL_NUMBERS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
#: "V" is the level of `pb_utils.Logger.log_verbose` in a worker; tritonserver itself logs such messages as "I".
_LEVELS = {"V": "debug", "I": "info", "W": "warning", "E": "error", "F": "critical"}
#: Harmless message, logged at each load of a model whose configuration came with the request.
_NOISE = "Failed to set config modification time: model_config_content_name_ is empty"

#: Messages that are harmless on a machine without a GPU, where they are logged at each start.
_NO_GPU_NOISE = (
    "CudaDriverHelper has not been initialized",
    "Unable to allocate pinned system memory",
    "DCGM unable to start",
    "Error: Failed to initialize NVML",
)
#: Directory that exists if NVIDIA's GPU driver is loaded.
_GPU_DRIVER = Path("/proc/driver/nvidia")
#: Matches the line in which the native frontend reports its log settings (proxy_backend/frontend/admin/log_settings.c).
#: Clients cannot forge it: their text never begins a line of tritonserver's log.
_TRITON_LOG_SETTINGS = re.compile(
    rb"\x1elog settings: info=([01]) warning=([01]) error=([01]) verbose=(\d{1,10})"
)
#: Matches the place where Python code called `pb_utils.Logger`. Native libraries log in the same format, but Triton's
#: log settings do not apply to them.
_PYTHON_PLACE = re.compile(r"(.+\.py|<.+>):\d+")
#: Number of rotated files to keep for each log.
_BACKUPS = 3
#: Starts of the lines of tritonserver's tables.
_TABLE = ("+-", "| ")

_Event = MutableMapping[str, Any]


class TritonLogSettings(msgspec.Struct, frozen=True):
    """Triton's log settings, which also apply to `pb_utils.Logger` in workers."""

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0

    @classmethod
    def from_options(cls, options: Mapping[str, str | list[str]]) -> TritonLogSettings:
        """Return the log settings that tritonserver has when it starts, given its command-line options."""

        def is_on(name: str) -> bool:
            return str(options.get(name, "true")).lower() in ("true", "1", "on")

        verbose = str(options.get("log-verbose", "0")).lower()
        level = int(verbose) if verbose.isdecimal() else int(verbose == "true")
        return cls(is_on("log-info"), is_on("log-warning"), is_on("log-error"), level)

    def allows(self, letter: str) -> bool:
        """Return whether lines of a level are logged. The level is the letter at the start of a line: I, W, E or V."""
        enabled = {"I": self.info, "W": self.warning, "E": self.error, "V": self.verbose_level > 0}
        return enabled.get(letter, True)


class LogFile(logging.handlers.RotatingFileHandler):
    """A rotated log file. Of consecutive write errors, only the first is reported, on standard error."""

    def __init__(self, path: Path, size: int, backups: int) -> None:
        super().__init__(
            path,
            maxBytes=size,
            backupCount=backups,
            encoding="utf-8",
            delay=True,
            errors="backslashreplace",
        )
        self._failed = False
        self._failure_reported = False

    def _open(self) -> TextIOWrapper:
        # 0600: logs contain what models print, which may be data from clients.
        stream = open(  # noqa: SIM115, closed by the handler
            self.baseFilename,
            self.mode,
            encoding=self.encoding,
            errors=self.errors,
            opener=open_private,
        )
        assert isinstance(stream, TextIOWrapper)  # text files are wrapped like this
        return stream

    def write(self, line: str) -> bool:
        """Append one or more lines; return whether that succeeded."""
        self._failed = False
        self.handle(logging.makeLogRecord({"msg": line}))
        self._failure_reported = self._failed
        return not self._failed

    def handleError(self, record: logging.LogRecord) -> None:
        self._failed = True
        if not self._failure_reported:
            reason = sys.exc_info()[1]
            print_error(f"pytriton-daemon: cannot write {self.baseFilename}: {reason}")

    def delete(self) -> None:
        """Close and delete the file and its rotated versions."""
        path = Path(self.baseFilename)
        self.close()
        for file in [path, *rotated(path)]:
            file.unlink(missing_ok=True)


@dataclass
class _Sinks:
    """Destinations of log records."""

    config: DaemonConfig
    rundir: RuntimeDir
    console: structlog.dev.ConsoleRenderer | None  #: None: standard error gets JSON lines
    daemon: LogFile
    level: int  #: minimum log level
    journal: bool = (
        False  #: whether standard error is systemd's journal, which adds its own timestamps
    )
    models: dict[str, LogFile] = field(default_factory=dict)

    def file(self, path: Path) -> LogFile:
        return LogFile(path, self.config.log_file_size, _BACKUPS)

    def open_model(self, model: str) -> None:
        if model not in self.models:
            self.models[model] = self.file(self.rundir.log_file(model))

    def emit(self, method: str, event: _Event) -> None:
        first = {key: event[key] for key in ("timestamp", "level", "event")}
        line = json.dumps({**first, **event}, default=repr, ensure_ascii=False)
        self.daemon.write(line)
        model = self.models.get(str(event.get("model", "")))
        if model is not None:
            model.write(line)
        if self.config.log_format != "none":
            text = self._text(method, event, line)
            if self.journal:
                text = with_priority(text, str(event["level"]))
            _write(sys.stderr, f"{text}\n")

    def _text(self, method: str, event: _Event, line: str) -> str:
        if self.console is None:
            return line
        if self.config.log_format == "plain" and event.get("source") == "worker":
            return str(event.get("exception") or event["event"])
        if self.config.log_format == "plain" and event.get("source") == "tritonserver":
            return f"tritonserver: {event['event']}"
        if self.journal:
            event = {name: value for name, value in event.items() if name != "timestamp"}
        return str(self.console(None, method, event))


def configure(config: DaemonConfig, logs_dir: Path) -> None:
    """Set up this process's log, including records of the standard library's `logging` and `warnings`.

    Args:
        config: the settings
        logs_dir: the log directory, in a runtime directory

    """
    global _sinks
    close()
    terminal = sys.stderr is not None and sys.stderr.isatty()
    journal = is_journal(sys.stderr)
    for_people = terminal or journal
    pretty = config.log_format in ("console", "plain") or (
        config.log_format == "auto" and for_people
    )
    rundir = RuntimeDir(logs_dir.parent)
    console = structlog.dev.ConsoleRenderer(colors=terminal) if pretty else None
    file = LogFile(rundir.log_file(), config.log_file_size, _BACKUPS)
    _sinks = _Sinks(config, rundir, console, file, _level_number(config.log_level), journal)
    structlog.configure(
        processors=[
            _drop_below_level,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _to_sinks,
        ],
        # Filter by level in a processor, not here: loggers that are bound already would keep the old level.
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    logging.getLogger().addHandler(_bridge)
    logging.captureWarnings(True)


def open_file(path: Path) -> LogFile:
    """Open a log file at `path`, rotated like the daemon's own. The caller must close it."""
    config = DaemonConfig() if _sinks is None else _sinks.config
    return LogFile(path, config.log_file_size, _BACKUPS)


def set_level(level: str) -> None:
    """Set the minimum level of all loggers to `level`."""
    if _sinks is not None:
        _sinks.level = _level_number(level)


def set_triton_log_settings(settings: TritonLogSettings | None) -> None:
    """Apply Triton's log settings to the output of `pb_utils.Logger`. With None, only `log_level` filters that
    output.
    """
    global _triton_log_settings
    _triton_log_settings = settings


def triton_log_settings() -> TritonLogSettings | None:
    """Return Triton's current log settings, as set by the daemon or reported by tritonserver; None if unknown."""
    return _triton_log_settings


def close() -> None:
    """Close all log files, and undo `configure`."""
    global _sinks
    if _sinks is None:
        return
    for file in [_sinks.daemon, *_sinks.models.values()]:
        file.close()
    _sinks = None
    structlog.reset_defaults()
    logging.captureWarnings(False)
    logging.getLogger().removeHandler(_bridge)


def child_logger(
    source: str, model: str | None = None, instance: int | None = None, **labels: object
) -> Any:
    """Return the logger for the output of a child process, and open the log of its model.

    Args:
        source: kind of the child, such as "worker" or "tritonserver"
        model: the model that the child serves, if it serves one
        instance: number of the instance, if it serves one
        labels: further fields of its records, such as its pid
    """
    bound: dict[str, object] = {"source": source, **labels}
    if model is not None:
        bound["model"] = model
        if _sinks is not None:
            _sinks.open_model(model)
    if instance is not None:
        bound["instance"] = instance
    return structlog.get_logger().bind(**bound)


def log_child_line(logger: Any, line: bytes, *, of_triton: bool = False) -> None:
    """Log a line that a child printed.

    Lines in tritonserver's log format keep their level and place. Undecodable bytes appear as \\xNN, lines of more than
    64 KiB are cut, and a progress bar that overwrites itself is reduced to its last state. An exception that a worker
    reports becomes a single record of level error.

    Args:
        logger: logger from `child_logger`
        line: the line, in any encoding
        of_triton: whether tritonserver printed it. Its tables of options and its messages about missing GPUs then get
            level debug.
    """
    if of_triton and (reported := _TRITON_LOG_SETTINGS.fullmatch(line.rstrip())):
        info, warning, error = (one == b"1" for one in reported.groups()[:3])
        set_triton_log_settings(TritonLogSettings(info, warning, error, int(reported[4])))
        return
    record = None if of_triton else decoded(line)
    if record is not None:
        fields = structs.asdict(record)
        event = fields.pop("event")
        logger.error(event, **{name: value for name, value in fields.items() if value})
        return
    text = _text(line)
    if not text:
        return
    match = _GLOG.fullmatch(text)
    if match is None:
        is_noise = of_triton and (text.startswith(_TABLE) or _is_about_missing_gpu(text))
        (logger.debug if is_noise else logger.info)(text)
        return
    letter_glog, letter_iso, place, message = match.groups()
    letter = letter_glog or letter_iso
    level = _LEVELS[letter]
    if _triton_log_settings is not None and not of_triton and _PYTHON_PLACE.fullmatch(place):
        if letter == "V":  # tritonserver also logs its own verbose lines at the level info
            level = "info" if _triton_log_settings.allows(letter) else "debug"
        elif not _triton_log_settings.allows(letter):
            return
    message = unquoted(message)
    if message.startswith(_NOISE) or (of_triton and _is_about_missing_gpu(message)):
        level = "debug"
    if message:  # otherwise a table follows on its own lines
        getattr(logger, level)(message, at=place)


def _is_about_missing_gpu(text: str) -> bool:
    return text.startswith(_NO_GPU_NOISE) and not _GPU_DRIVER.exists()


def close_model_log(model: str) -> None:
    """Delete the log of a model that is no longer served. Later records about the model go only to daemon.log."""
    file = _sinks.models.pop(model, None) if _sinks is not None else None
    if file is None:
        return
    try:
        file.delete()
    except OSError as error:
        structlog.get_logger().warning(
            "could not delete a log file", file=file.baseFilename, reason=str(error)
        )


class _Bridge(logging.Handler):
    """Forwards records of the standard library's `logging` to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        method = level if level in ("debug", "info", "warning", "error", "critical") else "info"
        try:
            text = record.getMessage().rstrip()
        except Exception:  # a library's record whose arguments do not match its format
            text = repr(record.msg)
        logger = structlog.get_logger()
        getattr(logger, method)(text, logger=record.name, exc_info=record.exc_info or None)


#: Destinations of this process's log, set by `configure`.
_sinks: _Sinks | None = None
_bridge = _Bridge()
#: Triton's current log settings; None if unknown, as with NVIDIA's frontends.
_triton_log_settings: TritonLogSettings | None = None


def _drop_below_level(logger: object, method: str, event: _Event) -> _Event:
    if _sinks is not None and _LEVEL_NUMBERS.get(method, logging.ERROR) < _sinks.level:
        raise structlog.DropEvent
    return event


def _to_sinks(logger: object, method: str, event: _Event) -> _Event:
    """Write the record to all destinations. As the last processor, raise DropEvent, so that structlog prints nothing."""
    if _sinks is not None:
        _sinks.emit(method, event)
    raise structlog.DropEvent


def _write(stream: TextIO | None, text: str) -> None:
    """Write to a standard stream. Ignore errors, because the reader of the stream may have exited."""
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        return


def _text(line: bytes) -> str:
    line = line.rstrip(b"\r\n \t")
    if b"\r" in line:
        line = line[line.rindex(b"\r") + 1 :]
    more = len(line) - MAX_LINE_LENGTH
    text = line[:MAX_LINE_LENGTH].decode("utf-8", "backslashreplace")
    return f"{text} [… {more} bytes more were cut]" if more > 0 else text


def unquoted(message: str) -> str:
    """Return the message of a tritonserver log line, without the quotes if it is a quoted string."""
    if message.startswith('"'):
        try:
            text = json.loads(message, strict=False)
        except ValueError:
            return message.strip('"')
        return text if isinstance(text, str) else message
    return message


def _level_number(level: str) -> int:
    number = logging.getLevelName(level.upper())
    assert isinstance(number, int)  # the declaration allows only names of the standard library
    return number
