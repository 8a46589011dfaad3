"""Errors of the command line, with a text for people and an exit code for scripts."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import typer

from pytriton._cli.output import visible
from pytriton._cli.typer_adapter import resolved_parameters, show_parameters
from pytriton._host.interrupt import raise_on_interrupt
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.log_lines import print_error

_C = TypeVar("_C", bound=Callable[..., None])


class CliError(Exception):
    """An expected failure. The command prints its text and exits with its code."""

    def __init__(self, code: ExitCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def command(function: _C) -> _C:
    """Decorate a command so that it always exits with one of the documented exit codes."""

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> None:
        try:
            raise_on_interrupt()
            function(*args, **kwargs)
        except CliError as error:
            _end(error.code, f"pytriton-daemon: {error}")
        except KeyboardInterrupt:
            _end(ExitCode.INTERRUPTED, "pytriton-daemon: interrupted")
        except BrokenPipeError:
            # The reader of the output has exited (`logs | head`). Python would fail again when it
            # flushes standard output at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.OK) from None
        except (typer.Exit, typer.Abort, typer.BadParameter):  # typer reports its own exceptions
            raise
        except Exception:
            print_error(visible(traceback.format_exc().rstrip(), keep="\n"))
            _end(ExitCode.ERROR, "pytriton-daemon: internal error; please report it")

    show_parameters(run, resolved_parameters(function))
    return run  # type: ignore[return-value]


@contextmanager
def errors_of_clients() -> Iterator[None]:
    """Convert the exceptions that a client raises in the block to CliErrors with the matching exit codes."""
    from pytriton.exceptions import (
        DaemonNotRunningError,
        PyTritonBadParameterError,
        PyTritonError,
        PyTritonValidationError,
    )

    try:
        yield
    except DaemonNotRunningError as error:
        raise CliError(ExitCode.NO_DAEMON, str(error)) from None
    except (PyTritonBadParameterError, PyTritonValidationError) as error:
        raise CliError(ExitCode.USAGE, str(error)) from None
    except PyTritonError as error:
        raise CliError(ExitCode.REGISTRATION_FAILED, str(error)) from None


def _end(code: ExitCode, text: str) -> NoReturn:
    print_error(visible(text, keep="\n"))
    raise typer.Exit(int(code))
