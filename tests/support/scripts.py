"""Scripts with a `Triton` object in their own processes, which tests signal and kill."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from pytriton.triton import TritonConfig
from support.forks.prefork import Forking
from support.real_daemon import eventually

LOCAL = "127.0.0.1"
#: A script takes seconds, and some run in parallel.
_SCRIPT_S = 250.0
_ENDED_S = 30.0


def local_config(**settings: object) -> TritonConfig:
    """Return settings for tests: free ports on the loopback interface."""
    ports = dict.fromkeys(("http_port", "grpc_port", "metrics_port"), 0)
    addresses = dict.fromkeys(("http_address", "grpc_address", "metrics_address"), LOCAL)
    return TritonConfig(**{**ports, **addresses, **settings})  # type: ignore[arg-type]


def local_environment(home: Path) -> dict[str, str]:
    """Return the same settings as variables, with workspaces in `home`."""
    variables = {**os.environ, "PYTRITON_HOME": str(home)}
    for name, value in local_config().to_dict().items():
        if value is not None:
            variables[f"PYTRITON_TRITON_CONFIG_{name.upper()}"] = str(value)
    return variables


#: Importing these takes a third of a second of CPU time.
_SCRIPTS = Forking(
    "numpy", "cloudpickle", "pytriton.triton", "pytriton.decorators", "pytriton.daemon"
)


class Script:
    """A running script, and all of its descendants.

    It is a fork of a process that has preloaded its imports, unless its variables require a real start (PYTHONPATH).

    Args:
        code: its text
        folder: a folder for this test only
        arguments: its sys.argv
        environment: variables in addition to those of this process
    """

    def __init__(
        self,
        code: str,
        folder: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._home = folder / "home"
        path = folder / "script.py"
        path.write_text(code)
        self.output = folder / "output"
        variables = {**local_environment(self._home), **(environment or {})}
        with open(self.output, "wb") as output:
            forked = _SCRIPTS.start_script(path, arguments, folder, variables, output=output)
            self.process: subprocess.Popen[bytes] = forked or subprocess.Popen(
                [sys.executable, str(path), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=variables,
                cwd=folder,
            )
        self._family: set[psutil.Process] = set()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if error is not None:
            print(self.said()[-20_000:])

    def said(self) -> str:
        """Return the output of the script and its server so far."""
        return self.output.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait until the script has printed a text."""

        def printed() -> bool:
            assert self.process.poll() is None or text in self.said(), self.said()
            return text in self.said()

        eventually(printed, lambda: f"it prints {text!r}; it said:\n{self.said()}", 100.0)

    def look(self) -> None:
        """Remember its current descendants."""
        self._family |= set(psutil.Process(self.process.pid).children(recursive=True))

    def end(self, number: int) -> int:
        """Send a signal, check that nothing is left, and return the exit code."""
        self.look()
        self.process.send_signal(number)
        return self.wait_gone()

    def wait_gone(self) -> int:
        """Wait for its exit, and check that nothing is left."""
        code = self.process.wait(_SCRIPT_S)
        _, alive = psutil.wait_procs(list(self._family), timeout=_ENDED_S)
        assert not alive, f"still running after the script: {alive}"
        # After a kill, the script's daemon and its kill-on-death helper remove these a little later.
        eventually(lambda: not self._left(), lambda: f"nothing left: {self._left()}", _ENDED_S)
        return code

    def _left(self) -> list[str]:
        prefixes = tuple(f"pytriton-{process.pid}-" for process in self._family)
        left = [name for name in os.listdir("/dev/shm") if name.startswith(prefixes)]
        with contextlib.suppress(FileNotFoundError):
            left += os.listdir(self._home)
        return left
