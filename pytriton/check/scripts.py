"""Threads that run programs in the background and record their output."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

#: Time that `stop` waits after SIGINT before it kills a program, in seconds.
_GRACE_S = 20.0


class ScriptThread(threading.Thread):
    """A thread that runs a program, reads its output, and waits until it exits.

    As a context manager, it starts the program, and stops it at the end of the block if it is still running.

    Args:
        cmd: the program with its arguments
        workdir: working directory of the program; None: that of this process
        name: name of the thread, and of the logger for the program's output
        on_line: called with each line of output; None: the line is logged
        group, target, args, kwargs: parameters of threading.Thread; unused

    Attributes:
        returncode: exit code of the program (negative: the signal that killed it); None while it runs
        process: the psutil.Popen object, which is also a psutil.Process; None before the start

    Example:
        >>> import sys
        >>> with ScriptThread([sys.executable, "-c", "print(1 + 1)"], name="sum") as script:
        ...     script.join()
        >>> script.returncode, script.output
        (0, '2\\n')
    """

    def __init__(
        self,
        cmd: Sequence[str | os.PathLike[str]],
        workdir: str | os.PathLike[str] | None = None,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(group, target, name, args, kwargs, daemon=True)
        self.cmd = cmd
        self.workdir = workdir
        self.returncode: int | None = None
        self.process: psutil.Popen | None = None
        self._on_line = on_line or logging.getLogger(self.name).info
        self._lines: list[str] = []
        self._begun = threading.Event()
        self._error: OSError | None = None

    @property
    def output(self) -> str:
        """The output so far: standard output and standard error."""
        return "".join(list(self._lines))

    def start(self, threaded: bool = True) -> None:
        """Start the program; with `threaded=False`, also wait until it exits.

        Raises:
            OSError: the program cannot be started
        """
        super().start()
        self._begun.wait()
        if self._error is not None:
            raise self._error
        if not threaded:
            self.join()

    def run(self) -> None:
        """Run the program. Called in the thread."""
        try:
            # In its own session, so that Ctrl-C only interrupts this process, which then stops the program.
            process = self.process = psutil.Popen(
                self.cmd,
                cwd=self.workdir,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="backslashreplace",
                start_new_session=True,
            )
        except OSError as error:
            self._error = error
            return
        finally:
            self._begun.set()
        assert process.stdout is not None  # a pipe
        with process.stdout as printed:
            for line in printed:
                self._lines.append(line)
                self._on_line(line.rstrip("\n"))
        self.returncode = process.wait()

    def interrupt(self) -> None:
        """Send SIGINT to the program, as Ctrl-C does. Do nothing if it has exited."""
        if self.process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """Stop the program if it is still running: send SIGINT, and after 20 s SIGKILL to it and its children."""
        if self.process is None:
            return
        self.interrupt()
        self.join(_GRACE_S)
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.join()

    def __enter__(self) -> ScriptThread:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def module_command(python: str, module: str, *arguments: str | Path) -> list[str]:
    """Return the command that runs a module with unbuffered output (-u)."""
    return [python, "-u", "-m", module, *map(str, arguments)]
