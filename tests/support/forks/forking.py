"""Programs of Python that start at once: a process that has imported what they import runs each in a fork of itself.

A command's start takes a quarter of a second of CPU time, nearly all of it for imports. A fork has the state of a new
process in all that the command itself does: arguments, variables, folder, descriptors, exit code. What belongs to the
interpreter's start (PYTHON* variables, flags, which modules are imported when) is tested with real starts.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pytriton.ipc.forking import CannotFork, Forker, join_helpers, show_as

#: Among the arguments of a process that forks; a module's name takes its place.
_NAME = "(forks for the tests, see forking.py)"
_LARGEST = 1 << 17  #: bytes of a wish: arguments and variables
#: What begins so is read when an interpreter starts, or when modules are imported.
_OF_STARTS = ("PYTHON", "LD_", "OPENBLAS_", "OMP_", "MALLOC_", "GLIBC_")


class Forking:
    """A process that has imported modules, and runs programs in forks.

    It starts when it is needed, and ends with the process of the tests.

    Args:
        modules: what is imported; those that are not installed are left out
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # some tests start scripts from several threads
        self._of_starts: dict[str, str] = {}

    def run_module(
        self, module: str, arguments: Sequence[str], cwd: Path, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m module` with arguments; return how it ended and what it printed."""
        return self._run({"module": module}, arguments, cwd, env)

    def run_script(
        self, script: Path, arguments: Sequence[str], cwd: Path, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run `python script` with arguments; return how it ended and what it printed."""
        return self._run({"script": str(script)}, arguments, cwd, env)

    def start_module(
        self,
        module: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        stdin: bytes,
        output: IO[bytes],
    ) -> StartedProcess | None:
        """Start `python -m module` in this folder, as a child of this process; None where that takes a real start."""
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            files = (given, output)
            return self._start({"module": module}, arguments, Path.cwd(), env, *files)

    def start_script(
        self,
        script: Path,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        *,
        output: IO[bytes],
    ) -> StartedProcess | None:
        """Start `python script`, as a child of this process with no input; None where that takes a real start."""
        with open(os.devnull, "rb") as nothing:
            return self._start({"script": str(script)}, arguments, cwd, env, nothing, output)

    def _start(
        self,
        program: dict[str, str],
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        stdin: IO[bytes],
        output: IO[bytes],
    ) -> StartedProcess | None:
        with self._lock:
            if self._connection is None:
                self._of_starts = of_starts(os.environ)
            if of_starts(env) != self._of_starts:
                return None
            connection = self._connected()
            wish = {
                **program,
                "arguments": [*arguments],
                "cwd": str(cwd),
                "env": dict(env),
                "is_left": True,
            }
            descriptors = [stdin.fileno(), output.fileno(), output.fileno()]
            socket.send_fds(connection, [json.dumps(wish).encode()], descriptors)
            pid = connection.recv(64)
        assert pid, "the process that forks has ended"
        if int(pid) < 0:
            return None
        return StartedProcess(int(pid), [*program.values(), *arguments])

    def _run(
        self, program: dict[str, str], arguments: Sequence[str], cwd: Path, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        connection = self._connected()
        wish = {**program, "arguments": [*arguments], "cwd": str(cwd), "env": dict(env)}
        with (
            open(os.devnull) as nothing,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            descriptors = [nothing.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(connection, [json.dumps(wish).encode()], descriptors)
            code = connection.recv(64)
            assert code, "the process that forks has ended"
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        return subprocess.CompletedProcess([*program.values(), *arguments], int(code), *texts)

    def close(self) -> None:
        """End the process, if it has been started."""
        if self._connection is not None and self._process is not None:
            self._connection.close()
            self._process.wait()
            self._connection = self._process = None

    def _connected(self) -> socket.socket:
        if self._connection is None:
            self._connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                command = [sys.executable, __file__, str(other.fileno()), _NAME, *self._modules]
                self._of_starts = of_starts(os.environ)
                self._process = subprocess.Popen(command, pass_fds=[other.fileno()])
            atexit.register(self.close)
        return self._connection


class StartedProcess(subprocess.Popen[bytes]):
    """A child of this process that another one has forked."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        """Be what the constructor of `Popen` leaves, without a start."""
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.0
        self._child_created = True
        self.args, self.pid, self.returncode = args, pid, None
        self.stdin = self.stdout = self.stderr = None


def of_starts(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have done their work when a fork gets them."""
    return {name: value for name, value in env.items() if name.startswith(_OF_STARTS)}


#: The commands of pytriton-daemon; the last module lies beside this one.
_COMMANDS = Forking("pytriton.cli.app", "pytriton.cli.link", "warm_commands")


def command(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `pytriton-daemon` with arguments, as `subprocess.run` does, without the time that it takes to start."""
    variables = os.environ if env is None else env
    return _COMMANDS.run_module("pytriton.cli", arguments, cwd or Path.cwd(), variables)


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each wish, and tell the exit code; return the wish in the fork, None at the end.

    One that is left to the process of the tests is its child; its pid is told.
    """
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, _LARGEST, 3)
        if not data:
            return None
        wish: dict[str, Any] = json.loads(data)
        is_left = wish.get("is_left", False)
        pid = _fork_for_parent() if is_left else os.fork()
        if pid == 0:
            connection.close()
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            os.closerange(3, max(descriptors) + 1)
            return wish
        for descriptor in descriptors:
            os.close(descriptor)
        if is_left:
            connection.send(str(pid).encode())
            continue
        _, status = os.waitpid(pid, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _fork_for_parent() -> int:
    """Fork a child of the process of the tests; -1 where that cannot be."""
    try:
        join_helpers()
        return Forker().fork()
    except CannotFork:
        return -1


def _main(descriptor: str, name: str, *modules: str) -> None:
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    gc.freeze()
    wish = _serve(socket.socket(fileno=int(descriptor)))
    if wish is None:
        return
    show_as(name, wish["script"] if "script" in wish else wish["module"])
    os.chdir(wish["cwd"])
    os.environ.clear()
    os.environ.update(wish["env"])
    sys.argv[1:] = wish["arguments"]
    sys.stdin = open(0)  # noqa: SIM115 (to the end of the process)
    # The first of sys.path was this file's own folder.
    if "script" in wish:
        sys.argv[0], sys.path[0] = wish["script"], os.path.dirname(os.path.abspath(wish["script"]))
        runpy.run_path(wish["script"], run_name="__main__")
    else:
        sys.path[0] = wish["cwd"]
        runpy.run_module(wish["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
