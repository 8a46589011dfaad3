"""The commands of `pytriton`. Each prints what it does; `check` runs all of them and archives the output."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NoReturn, Optional

import typer

from pytriton.check.report import Report
from pytriton.check.scripts import ScriptThread, module_command

app = typer.Typer(add_completion=False, no_args_is_help=False)

PRIVACY = (
    "This report may contain private data: names of users and folders, installed packages, environment "
    "variables. Review it before you share it."
)
_EXAMPLES = ("example-add-sub", "example-add-sub-script")

_WORKSPACE = typer.Option(
    None,
    "--workspace",
    "-w",
    metavar="DIR",
    help="Folder to create for the results; it must not exist yet. Default: an archive in the working directory.",
)
_TIMEOUT = typer.Option(
    600.0,
    "--timeout",
    help="Timeout for each example, in seconds. The first one downloads tritonserver if necessary.",
)


@app.callback(invoke_without_command=True)
def _default(
    context: typer.Context,
    workspace: Optional[Path] = _WORKSPACE,
    timeout: float = _TIMEOUT,
) -> None:
    """Check whether pytriton works on this machine. The default command is `check`."""
    if context.invoked_subcommand is None:
        check(workspace, timeout)


@app.command()
def check(workspace: Optional[Path] = _WORKSPACE, timeout: float = _TIMEOUT) -> None:
    """Gather facts about this machine, run the examples, and archive the output."""
    _say(PRIVACY)
    with _report(workspace) as report:
        _env(report)
        failed = _run_examples(report, timeout)
        try:
            archive = report.archive()
        except OSError as error:
            _end(f"the archive cannot be written: {error}. Choose another folder with -w DIR.")
        _say(f"The results are in {archive}")
    _say(PRIVACY)
    _conclude(failed)


@app.command()
def env(workspace: Optional[Path] = _WORKSPACE) -> None:
    """Gather facts about this machine."""
    _say(PRIVACY)
    if workspace is None:
        _print_facts(sys.stdout)
        return
    with _report(workspace) as report:
        _env(report)


@app.command()
def examples(workspace: Optional[Path] = _WORKSPACE, timeout: float = _TIMEOUT) -> None:
    """Run the examples."""
    with _report(workspace) as report:
        failed = _run_examples(report, timeout)
    _conclude(failed)


@app.command()
def example_add_sub(timeout: float = _TIMEOUT) -> None:
    """Serve a model and call it, in one process."""
    from pytriton.check.add_sub import in_one_process

    _run(lambda: in_one_process(timeout))


@app.command()
def example_add_sub_script(timeout: float = _TIMEOUT) -> None:
    """Serve a model in one process and call it from another."""
    from pytriton.check.add_sub import as_scripts

    _run(lambda: as_scripts(timeout))


def _env(report: Report) -> None:
    with open(report.file("env.log"), "w", encoding="utf-8", errors="backslashreplace") as file:
        _print_facts(sys.stdout, file)


def _print_facts(*outputs: IO[str]) -> None:
    from pytriton.check.facts import facts

    for heading, text in facts():
        for output in outputs:
            output.write(f"── {heading}\n{text}\n\n")
            output.flush()


def _run_examples(report: Report, timeout: float) -> list[str]:
    """Run each example in its own process and record its output; return the names of those that failed."""
    return [name for name in _EXAMPLES if not _succeeds(name, report, timeout)]


def _succeeds(name: str, report: Report, timeout: float) -> bool:
    _say(f"── {name}")
    command = module_command(sys.executable, "pytriton", name, "--timeout", str(timeout))
    path = report.file(f"{name.replace('-', '_')}.log")
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as log:

        def keep(line: str) -> None:
            log.write(f"{line}\n")
            print(line, flush=True)  # noqa: T201, output for the user

        with ScriptThread(command, report.folder, name=name, on_line=keep) as script:
            script.join(timeout)
            late = script.is_alive()
        if late:
            keep(f"{name} was stopped because it was still running after {timeout:g} s (--timeout)")
    ended = script.returncode == 0 and not late
    _say(f"{name}: {'ok' if ended else f'FAILED (exit code {script.returncode})'}")
    return ended


def _run(example: Callable[[], None]) -> None:
    from pytriton.check.utils import DEFAULT_LOG_FORMAT

    logging.basicConfig(level=logging.INFO, format=DEFAULT_LOG_FORMAT, stream=sys.stdout)
    try:
        example()
    except Exception as error:
        traceback.print_exc()
        _end(f"the example failed: {error}")


@contextlib.contextmanager
def _report(folder: Path | None) -> Iterator[Report]:
    try:
        report = Report(folder)
    except FileExistsError:
        _end(
            f"the folder {folder} already exists. Pass the name of a new folder, which will be created."
        )
    except OSError as error:
        _end(f"the folder {folder} cannot be created: {error}")
    with report:
        yield report


def _conclude(failed: list[str]) -> None:
    if failed:
        _end(f"these examples failed: {', '.join(failed)}")
    _say("All examples succeeded.")


def _say(text: str) -> None:
    typer.echo(text)


def _end(text: str) -> NoReturn:
    typer.echo(f"pytriton: {text}", err=True)
    raise typer.Exit(1)
