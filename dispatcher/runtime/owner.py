"""The processes that a daemon depends on: a script with a `Triton` object (pytriton/triton/server.py), a test run.

They may be killed at any moment without stopping the daemon, so the daemon watches them: a pidfd becomes readable when
the process exits, for whatever reason. (PR_SET_PDEATHSIG would fire as soon as the *thread* of the script that started
the daemon ends; a pipe would be held open by any process that the script forks.)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from pytriton._host.ancestors import ancestors
from pytriton._host.settings.declarations import ENV_OWNER
from pytriton._protocol import linux
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.log_lines import print_error

#: Time for the steps of a graceful shutdown other than answering in-flight requests.
_SHUTDOWN_MARGIN_S = 15.0


class OwnerError(ValueError):
    """The environment variable for the owner does not contain a usable process id."""


def owner_of(script: int | None, environ: Mapping[str, str]) -> Owner | None:
    """Return the process that this daemon depends on, or None.

    Args:
        script: the process of the script that started this daemon for itself, if any
        environ: may name another process in $PYTRITON_DAEMON_OWNER

    Raises:
        OwnerError: the variable is not a process id.
    """
    pids = [] if script is None else [script]
    named = environ.get(ENV_OWNER, "")
    if named:
        if not named.isdecimal() or int(named) < 1:
            raise OwnerError(
                f"environment {ENV_OWNER}: {named!r} is not a process id; the daemon ends with that process"
            )
        pids.append(int(named))
    return Owner(*pids) if pids else None


class Owner:
    """Watches ancestor processes in a thread. Ends this process when one of them exits.

    Args:
        pids: the processes, which must be ancestors of this one

    Attributes:
        pid: the process that has exited; the first one until then
        private: whether this process, and its folders, belong to the owner
    """

    def __init__(self, *pids: int) -> None:
        self.pid = pids[0]
        self._folders: Sequence[Path] = ()
        self.private = False
        self._notify: Callable[[], object] = _interrupt_main_thread
        self._exit_timeout_s = _SHUTDOWN_MARGIN_S
        self._pidfds = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                self._pidfds[linux.pidfd_open(pid)] = pid
        # If an owner has exited, the pidfd may refer to another process by now; that one is not an ancestor.
        above = ancestors(os.getpid())
        for pid in pids:
            if pid not in self._pidfds.values() or pid not in above:
                print_error(
                    f"pytriton-daemon: process {pid}, the owner of this daemon, has exited or is not its ancestor"
                )
                self.exit_now()
        threading.Thread(target=self._watch, name="owner", daemon=True).start()

    def adopt(self, workspace: Path | None, runtime_dir: Path) -> None:
        """Create the owner's workspace, and remove both folders at exit from now on.

        An owner that is killed could not remove them. So the daemon does; the owner only provides the names.

        Raises:
            OSError: it cannot be created, or exists and is not empty.
        """
        self._folders, self.private = [runtime_dir], True
        if workspace is None:
            return
        workspace.parent.mkdir(parents=True, exist_ok=True)
        try:
            workspace.mkdir(mode=0o700)
        except FileExistsError:
            if any(workspace.iterdir()):  # not ours
                raise
        self._folders = [runtime_dir, workspace]
        (workspace / "run").symlink_to(runtime_dir)  # so that people can find it

    def on_exit(
        self, act: Callable[[Owner], None], loop: asyncio.AbstractEventLoop, exit_timeout_s: float
    ) -> None:
        """Make the loop call `act` at the owner's exit, instead of interrupting the main thread.

        If this process still runs `exit_timeout_s` seconds (and a margin) after that, it exits at once.
        """
        self._notify = lambda: loop.call_soon_threadsafe(act, self)
        self._exit_timeout_s = exit_timeout_s + _SHUTDOWN_MARGIN_S

    def exit_now(self) -> NoReturn:
        """Exit at once. The kernel and the helper of kill_on_death.py end what this process started."""
        self.remove_folders()
        os._exit(ExitCode.INTERRUPTED)

    def remove_folders(self) -> None:
        """Remove the workspace and the runtime directory."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _watch(self) -> None:
        # select.poll, not select.select: the descriptor's number may be above 1023
        poll = select.poll()
        for pidfd in self._pidfds:
            poll.register(pidfd, select.POLLIN)
        ended, _ = poll.poll()[0]
        self.pid = self._pidfds[ended]
        with contextlib.suppress(RuntimeError):  # the loop is closed: this process is exiting
            self._notify()
        threading.Event().wait(self._exit_timeout_s)
        self.exit_now()


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None  # the watch has started
    signal.pthread_kill(main, signal.SIGINT)
