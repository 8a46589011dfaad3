"""Import the tests once: one process imports them all, and its forks run them.

Each process of pytest-xdist would import all tests, more than ten seconds of CPU time, before the first one runs. Here
it starts launchers instead (launcher.py), and for each of them the reader (preload_server.py) forks a process that has
imported the tests. Everything else is pytest-xdist's own: how processes report, and which tests they get. While the
tests are imported, folders of earlier runs are removed, which pytest would do at the end.

    pytest ─┬─▶ reader: imports the tests, forks ─┬─▶ gw0     its forks end with their launchers,
            └─▶ launchers of gw0, gw1 …           └─▶ gw1 …   and talk to pytest over their streams
"""

from __future__ import annotations

import json
import marshal
import shlex
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.pathlib import LOCK_TIMEOUT, cleanup_numbered_dir
from xdist import workermanage
from xdist.plugin import _sys_path

_TESTS = Path(__file__).parents[2]
#: The tested major versions. This uses internals of pytest and pytest-xdist: with other versions,
#: each process imports the tests itself.
_TRIED = {"pytest": {9}, "pytest-xdist": {3}}
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from support.suite import preload_server; preload_server.read()"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Start the reader, unless processes with individual settings are requested.

    Raises:
        pytest.UsageError: a file or folder does not exist, which pytest-xdist does not report
    """
    for argument in config.args:
        if not (config.invocation_params.dir / argument.partition("::")[0]).exists():
            raise pytest.UsageError(f"file or directory not found: {argument}")
    tried = all(int(version(name).split(".")[0]) in majors for name, majors in _TRIED.items())
    if tried and all(spec.popen and not spec.python and not spec.chdir for spec in specs):
        config.pluginmanager.register(_Reading(config, specs))
        workermanage.WorkerController = _Controller


class _Controller(workermanage.WorkerController):
    """The controlling side of pytest-xdist, for processes that send several events in one message."""

    def process_from_remote(self, eventcall: Any) -> None:
        """Handle a message of a process."""
        for one in marshal.loads(eventcall) if isinstance(eventcall, bytes) else [eventcall]:
            super().process_from_remote(one)


class _Reading:
    """Starts and stops the reader, and makes pytest-xdist start launchers."""

    def __init__(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        name = f"pytriton-tests-{uuid.uuid4().hex}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{name}")
            listener.listen(len(specs))
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(_TESTS), str(listener.fileno())],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[listener.fileno()],
            )  # fmt: skip
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        arguments = [str(one) for one in config.invocation_params.args]
        wish = {"path": _sys_path, "arguments": arguments, "mainargv": sys.argv}
        self._stdin.write(json.dumps(wish).encode() + b"\n")
        self._stdin.flush()
        launcher = [sys.executable, "-I", "-S", str(Path(__file__).with_name("launcher.py")), name]
        for spec in specs:
            spec.python = shlex.join(launcher)
        self._cleaning = threading.Thread(target=_remove_former, args=(_folders(config),))
        self._cleaning.start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_getremotemodule(self) -> ModuleType:
        """Return the module that forks run."""
        from support.suite import forked_worker

        return forked_worker

    def pytest_unconfigure(self) -> None:
        """Stop the reader."""
        self._stdin.close()
        self._process.wait()
        self._cleaning.join()


def _folders(config: Any) -> tuple[Path, int]:
    """Return this run's folder and how many runs' folders pytest keeps; 0 if the folder was named explicitly."""
    factory = config._tmp_path_factory
    given = factory._given_basetemp is not None
    return factory.getbasetemp(), 0 if given else factory._retention_count


def _remove_former(folders: tuple[Path, int]) -> None:
    mine, kept = folders
    if kept:
        cleanup_numbered_dir(mine.parent, "pytest-", kept, mine.stat().st_mtime - LOCK_TIMEOUT)
