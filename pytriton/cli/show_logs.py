"""`pytriton-daemon logs`: the files of the runtime directory, whether a daemon runs or not."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import typer

from pytriton.cli.errors import CliError
from pytriton.cli.link import no_daemon
from pytriton.cli.log_lines import pretty
from pytriton.dispatcher.base.log_files import follow as followed
from pytriton.dispatcher.base.log_files import rotated, tail
from pytriton.ipc.exit_codes import ExitCode
from pytriton.ipc.files.rundir import RuntimeDir


def show(rundir: RuntimeDir, model: str | None, lines: int, *, follow: bool, as_json: bool) -> None:
    """Print the last `lines` records, and with `follow` each new one until interrupted."""
    path = rundir.log_file(model)
    # A name with a slash would be a path to somewhere else.
    if path.parent != rundir.logs or not (path.exists() or rotated(path)):
        raise _no_log(rundir, model)
    if follow:
        with closing(followed(path, lines)) as stream:
            for line in stream:
                _print(line, as_json)
    else:
        for line in tail(path, lines):
            _print(line, as_json)


def _print(line: str, as_json: bool) -> None:
    typer.echo(line if as_json else pretty(line, colors=sys.stdout.isatty()))


def _no_log(rundir: RuntimeDir, model: str | None) -> CliError:
    if model is None or not rundir.logs.is_dir():
        return no_daemon(rundir)
    there = ", ".join(_models(rundir.logs)) or "none"
    return CliError(
        ExitCode.REGISTRATION,
        f"there is no log of a model {model!r} in {rundir.logs}; there are logs of: {there}. "
        "The log of a model is deleted when it is unregistered; `pytriton-daemon logs` has it all.",
    )


def _models(logs: Path) -> list[str]:
    return sorted(path.stem[len("model-") :] for path in logs.glob("model-*.log"))
