"""`pytriton-daemon logs`: reads the files in the runtime directory, whether a daemon runs or not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import typer

from pytriton._cli.daemon_connection import no_daemon
from pytriton._cli.errors import CliError, say
from pytriton._cli.log_lines import model_of, pretty
from pytriton._host.log_files import follow as followed
from pytriton._host.log_files import rotated, tail
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir


def show(rundir: RuntimeDir, model: str | None, lines: int, *, follow: bool, as_json: bool) -> None:
    """Print the last `lines` records, and with `follow` each new one until interrupted.

    For a model without a log of its own, such as one of a repository that failed to load, print the records about it
    in the daemon's log.
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
    """Yield the records that are about a model."""
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
        f"there is no log of a model {model!r} in {rundir.logs}; there are logs of: {there}. "
        "The log of a model is deleted when it is unregistered; `pytriton-daemon logs` still has its records.",
    )


def _models(logs: Path) -> list[str]:
    return sorted(path.stem[len("model-") :] for path in logs.glob("model-*.log"))
