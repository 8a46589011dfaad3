"""The command `logs`, which reads the log files in the runtime directory, even if no daemon is running."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import typer

from pytriton._cli.daemon_connection import no_daemon
from pytriton._cli.errors import CliError
from pytriton._cli.output import say, visible
from pytriton._host.log_files import follow as followed
from pytriton._host.log_files import rotated, tail
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir

#: Fields that are part of the prefix, or are shown separately.
_PREFIX = (
    "timestamp", "level", "event", "source", "model", "instance", "exception", "error_type", "error_message"
)  # fmt: skip
_COLORS = {"debug": "2", "warning": "33", "error": "31", "critical": "31;1"}


def show(rundir: RuntimeDir, model: str | None, lines: int, *, follow: bool, as_json: bool) -> None:
    """Print the last `lines` records; with `follow`, also print new ones until interrupted.

    For a model without a log of its own, such as a repository's model that could not be loaded, print the records about
    the model in the daemon's log.
    """
    path = rundir.log_file(model)
    # A name with a slash would be a path to another directory.
    if path.parent != rundir.logs or not (path.exists() or rotated(path)):
        found = [] if model is None else list(_about(tail(rundir.log_file(), sys.maxsize), model))
        if model is None or not found:
            raise _no_log(rundir, model)
        say(
            f"model {model!r} has no log of its own: it is not served. Records about it in the daemon's log:"
        )
        _show_of_daemon(rundir.log_file(), model, found[-lines:] if lines else [], follow, as_json)
    elif follow:
        with closing(followed(path, lines)) as stream:
            for line in stream:
                _print(line, as_json)
    else:
        for line in tail(path, lines):
            _print(line, as_json)


def _show_of_daemon(path: Path, model: str, lines: list[str], follow: bool, as_json: bool) -> None:
    for line in lines:
        _print(line, as_json)
    if follow:
        with closing(followed(path, 0)) as stream:
            for line in _about(stream, model):
                _print(line, as_json)


def _about(lines: Iterable[str], model: str) -> Iterator[str]:
    """Yield the log records that are about a model."""
    name = json.dumps(model)
    return (line for line in lines if name in line and model_of(line) == model)


def _print(line: str, as_json: bool) -> None:
    typer.echo(line if as_json else pretty(line, colors=sys.stdout.isatty()))


def _no_log(rundir: RuntimeDir, model: str | None) -> CliError:
    if model is None or not rundir.logs.is_dir():
        return no_daemon(rundir)
    there = ", ".join(_models(rundir.logs)) or "none"
    return CliError(
        ExitCode.REGISTRATION_FAILED,
        f"no model {model!r} has a log in {rundir.logs}; models with logs: {there}. "
        "A model's log is deleted when the model is unregistered; `pytriton-daemon logs` still shows the records.",
    )


def _models(logs: Path) -> list[str]:
    return sorted(path.stem[len("model-") :] for path in logs.glob("model-*.log"))


def pretty(line: str, colors: bool = False) -> str:
    """Format a log record as `TIME level model: text key=value`. Return any other line unchanged.

    Control characters are escaped, since the output of child processes could control the terminal.
    """
    record = _record(line)
    if record is None:
        return visible(line)
    level = str(record.get("level", ""))
    time = str(record.get("timestamp", "")).replace("T", " ")[:23]
    rest = "".join(f" {key}={value}" for key, value in record.items() if key not in _PREFIX)
    text = f"{time} {level:<8} {_who(record)}{visible(str(record.get('event', '')))}"
    text += visible(rest)
    if record.get("exception"):
        text += "\n" + visible(str(record["exception"]), keep="\n")
    color = _COLORS.get(level)
    return f"\x1b[{color}m{text}\x1b[0m" if colors and color else text


def daemon_event(line: str) -> str | None:
    """Return the text of a log record of the daemon itself; None for output of its child processes."""
    record = _record(line)
    if record is None or "source" in record:
        return None
    return visible(str(record.get("event", "")))


def model_of(line: str) -> str | None:
    """Return the name of the model that a log record is about; None if there is none."""
    model = (_record(line) or {}).get("model")
    return model if isinstance(model, str) else None


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _who(record: dict[str, Any]) -> str:
    model, instance = record.get("model"), record.get("instance")
    if model is not None:
        return f"{model}: " if instance is None else f"{model}/{instance}: "
    return f"{record['source']}: " if "source" in record else ""
