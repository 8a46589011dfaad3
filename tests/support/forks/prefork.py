"""Start Python programs fast: run each in a fork of a process that has already imported its modules.

Starting a command takes a quarter of a second of CPU time, nearly all of it for imports. A fork looks like a new
process in everything that matters to the command: arguments, variables, working directory, descriptors, exit code.
What belongs to the interpreter's start (PYTHON* variables, flags, when modules are imported) is tested with real starts.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from support.variables import USUAL, of_starts

_TEMPLATE = str(Path(__file__).with_name("template.py"))
#: An argument that is replaced by a module's name.
_NAME = "(forks for the tests, see prefork.py)"


class Forking:
    """A process that has imported modules, and runs programs in forks.

    It starts on first use, and ends with the test process.

    Args:
        modules: what to import, as far as it is installed
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # some tests start scripts from several threads

    def run_module(
        self, module: str, arguments: Sequence[str], cwd: Path, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m module` with arguments; return its exit code and output."""
        return self._run({"module": module}, arguments, cwd, env)

    def run_script(
        self, script: Path, arguments: Sequence[str], cwd: Path, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run `python script` with arguments; return its exit code and output."""
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
        """Start `python -m module` in this folder as a child of this process; None if only a real start works."""
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
        """Start `python script` without input as a child of this process; None if only a real start works."""
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
        if of_starts(env) != USUAL:
            return None
        with self._lock:
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
        """Stop the process if it was started."""
        if self._connection is not None and self._process is not None:
            self._connection.close()
            self._process.wait()
            self._connection = self._process = None

    def _connected(self) -> socket.socket:
        if self._connection is None:
            self._connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                command = [sys.executable, _TEMPLATE, str(other.fileno()), _NAME, *self._modules]
                # It also serves later tests, so it must not keep the first one's variables.
                others = {
                    name: os.environ[name] for name in os.environ.keys() - of_starts(os.environ)
                }
                self._process = subprocess.Popen(
                    command, pass_fds=[other.fileno()], env={**others, **USUAL}
                )
            atexit.register(self.close)
        return self._connection


class StartedProcess(subprocess.Popen[bytes]):
    """A child of this process that another process has forked."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        """Set what the constructor of `Popen` sets, without starting a program."""
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.0
        self._child_created = True
        self.args, self.pid, self.returncode = args, pid, None
        self.stdin = self.stdout = self.stderr = None


#: The commands of pytriton-daemon; the last module is beside this one.
_COMMANDS = Forking("pytriton._cli.app", "pytriton._cli.daemon_connection", "warm_commands")


def command(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `pytriton-daemon` with arguments like `subprocess.run`, without the start-up time."""
    variables = os.environ if env is None else env
    return _COMMANDS.run_module("pytriton._cli", arguments, cwd or Path.cwd(), variables)
