"""Import the tests, and fork processes that run them (see preload.py)."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from _pytest import tmpdir
from _pytest.config import _prepareconfig

#: The reader of this process.
_reader: _Reader | None = None


def read() -> None:
    """Read the tests, and fork until pytest has ended; in a fork, do what pytest-xdist says, and return."""
    global _reader
    listener = socket.socket(fileno=int(sys.argv[2]))
    wish = json.loads(sys.stdin.readline())
    sys.argv, sys.path = ["-c"], wish["path"]  # as in the processes of pytest-xdist
    _reader = _Reader(wish["arguments"], wish["mainargv"])
    _reader.read()
    if not _Forks(listener).serve():
        os._exit(0)  # unloading so many modules would take a second
    # The bootstrap code that execnet runs in each of its processes.
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    # As above, but run exit handlers first. Saves 0.2 s at the end of a run.
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(0)


class _Reader:
    """A session of pytest that the reader starts and its forks continue."""

    def __init__(self, arguments: Sequence[str], mainargv: Sequence[str]) -> None:
        #: What each fork reports: hooks of `WorkerInteractor`, and their arguments.
        self._said: list[tuple[str, dict[str, Any]]] = []
        self._error: Exception | None = None
        self._config = cast(Any, _prepareconfig([*arguments], [self]))
        # pytest must import plugins to rewrite their assertions.
        from xdist.remote import setup_config

        setup_config(self._config, None)
        self._config.workerinput = {"workerid": "reader", "mainargv": mainargv}
        self._session = pytest.Session.from_config(self._config)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that cannot be imported."""
        if not report.passed:
            self._said.append(("pytest_collectreport", {"report": report}))

    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: Any
    ) -> None:
        """Record a warning."""
        said = {
            "warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location,
        }  # fmt: skip
        self._said.append(("pytest_warning_recorded", said))

    def read(self) -> None:
        """Import the tests."""
        self._config._do_configure()
        self._config.hook.pytest_sessionstart(session=self._session)
        try:
            self._config.hook.pytest_collection(session=self._session)
        except Exception as error:
            self._error = error
        self._capturing().stop_global_capturing()
        # Only the controller has a terminal report.
        plugins = self._config.pluginmanager
        terminal = plugins.unregister(name="terminalreporter")
        plugins.register(SimpleNamespace(_tw=terminal._tw), "terminalreporter")

    def run(self, channel: Any) -> None:
        """Run the tests that pytest-xdist names, in a fork."""
        from support.suite.forked_worker import Interactor

        workerinput, _, options, _ = channel.receive()
        os.environ["PYTEST_XDIST_TESTRUNUID"] = workerinput["testrunuid"]
        os.environ["PYTEST_XDIST_WORKER"] = workerinput["workerid"]
        os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(workerinput["workercount"])
        config, session = self._config, self._session
        config.workerinput, config.workeroutput = workerinput, {}
        config.option.basetemp = options.get("basetemp")
        tmpdir.pytest_configure(config)  # again: each process has a folder of its own
        self._capturing().start_global_capturing()
        self._capturing().suspend_global_capture()
        interactor = Interactor(config, channel)
        try:
            interactor.pytest_sessionstart(session)
            if self._error is not None:
                raise self._error
            for name, said in self._said:
                getattr(interactor, name)(**said)
            interactor.pytest_collection_finish(session)
            config.hook.pytest_runtestloop(session=session)
            session.exitstatus = pytest.ExitCode(1 if session.testsfailed else 0)
        except pytest.UsageError as error:  # reported once, not by each fork
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
            if workerinput["workerid"] == "gw0":
                print(*(f"ERROR: {line}" for line in error.args), sep="\n", file=sys.stderr)
        except (KeyboardInterrupt, pytest.exit.Exception):
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        except Exception:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            config.notify_exception(pytest.ExceptionInfo.from_current(), config.option)
        finally:
            os.chdir(session.startpath)
            config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
            config._ensure_unconfigure()

    def _capturing(self) -> Any:
        return self._config.pluginmanager.getplugin("capturemanager")


class _Forks:
    """Forks for each launcher that asks; a fork and its launcher end together."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        #: The pids of forks and their launchers, by the descriptors of the forks' processes.
        self._forks: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> bool:
        """Return in forks (true), and when pytest has ended (false)."""
        others = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
        if others:  # forks would lack these threads, which may hold locks
            raise RuntimeError(f"tests must not start threads when they are imported: {others}")
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    return False
                if key.fileobj is self._listener:
                    if self._fork():
                        return True
                elif key.data is None:
                    self._has_ended(key.fd)
                elif self._forks.get(key.data, (0, None))[1] is key.fileobj:
                    self._selector.unregister(key.fileobj)
                    signal.pidfd_send_signal(key.data, signal.SIGKILL)

    def _fork(self) -> bool:
        """Fork for a launcher; return True in the fork."""
        launcher, _ = self._listener.accept()
        _, streams, _, _ = socket.recv_fds(launcher, 16, 3)
        if not streams:  # it was ended
            launcher.close()
            return False
        pid = os.fork()
        if pid == 0:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            launcher.close()
            self._close()
            return True
        for stream in streams:
            os.close(stream)
        ended = os.pidfd_open(pid)
        self._forks[ended] = pid, launcher
        self._selector.register(ended, selectors.EVENT_READ)
        self._selector.register(launcher, selectors.EVENT_READ, ended)
        return False

    def _has_ended(self, fork: int) -> None:
        pid, launcher = self._forks.pop(fork)
        self._selector.unregister(fork)
        os.close(fork)
        with contextlib.suppress(KeyError):
            self._selector.unregister(launcher)
        _, status = os.waitpid(pid, 0)
        with launcher, contextlib.suppress(OSError):
            launcher.send(str(os.waitstatus_to_exitcode(status)).encode())

    def _close(self) -> None:
        self._selector.close()
        self._listener.close()
        for fork, (_, launcher) in self._forks.items():
            os.close(fork)
            launcher.close()


def run(channel: Any) -> None:
    """Run tests in this fork."""
    assert _reader is not None
    _reader.run(channel)
