"""Owners: processes that the daemon exits with, such as a script with a `Triton` object (pytriton/triton/server.py) or
a test run.

They may be killed without stopping the daemon first, so the daemon watches them with pidfds, which become readable when
a process exits for any reason. (PR_SET_PDEATHSIG would already fire when the *thread* that started the daemon ends, and
a pipe would be kept open by processes that the script forks.)
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

#: Time for the rest of a graceful shutdown, beyond the grace period for in-flight requests, in seconds.
_SHUTDOWN_MARGIN_S = 15.0


class OwnerError(ValueError):
    """Raised if $PYTRITON_DAEMON_OWNER is not a process id."""


def owner_of(script: int | None, environ: Mapping[str, str]) -> Owner | None:
    """Return the owner, whose exit ends this daemon; None if the daemon has no owner.

    Args:
        script: pid of the script that started this daemon for itself, if any
        environ: environment, which may name another process in $PYTRITON_DAEMON_OWNER

    Raises:
        OwnerError: the variable is not a process id
    """
    pids = [] if script is None else [script]
    named = environ.get(ENV_OWNER, "")
    if named:
        if not named.isdecimal() or int(named) < 1:
            raise OwnerError(
                f"environment variable {ENV_OWNER}: {named!r} is not a process id. Set it to the pid of the process whose exit should stop the daemon, or unset it"
            )
        pids.append(int(named))
    return Owner(*pids) if pids else None


class Owner:
    """Watches ancestor processes in a thread, and ends this process when one of them exits.

    Args:
        pids: pids of ancestors of this process

    Attributes:
        pid: pid of the ancestor that has exited; before that, the first one
        private: whether this daemon was started for the owner alone, so that its directories are removed at exit
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
        # If an owner has exited already, its pid may belong to another process, which is not an ancestor.
        above = ancestors(os.getpid())
        for pid in pids:
            if pid not in self._pidfds.values() or pid not in above:
                print_error(
                    f"pytriton-daemon: process {pid}, the owner of this daemon, has exited or is not its ancestor"
                )
                self.exit_now()
        threading.Thread(target=self._watch, name="owner", daemon=True).start()

    def adopt(self, workspace: Path | None, runtime_dir: Path) -> None:
        """Create the owner's workspace, and remove it and the runtime directory when this process exits.

        The owner only names these directories, because it could not remove them if it were killed.

        Raises:
            OSError: the workspace cannot be created, or exists and is not empty
        """
        self._folders, self.private = [runtime_dir], True
        if workspace is None:
            return
        workspace.parent.mkdir(parents=True, exist_ok=True)
        try:
            workspace.mkdir(mode=0o700)
        except FileExistsError:
            if any(workspace.iterdir()):  # it belongs to something else
                raise
        self._folders = [runtime_dir, workspace]
        (workspace / "run").symlink_to(runtime_dir)  # to help people find the runtime directory

    def on_exit(
        self, act: Callable[[Owner], None], loop: asyncio.AbstractEventLoop, exit_timeout_s: float
    ) -> None:
        """When the owner exits, call `act` in the event loop instead of interrupting the main thread.

        If this process is still running after `exit_timeout_s` seconds plus a margin, it exits immediately.
        """
        self._notify = lambda: loop.call_soon_threadsafe(act, self)
        self._exit_timeout_s = exit_timeout_s + _SHUTDOWN_MARGIN_S

    def exit_now(self) -> NoReturn:
        """Remove the owner's directories and exit immediately. The kernel and the helper of kill_on_death.py kill all
        children.
        """
        self.remove_folders()
        os._exit(ExitCode.INTERRUPTED)

    def remove_folders(self) -> None:
        """Remove the owner's workspace and the runtime directory."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _watch(self) -> None:
        # not select.select(), which cannot watch descriptors above 1023
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
    assert main is not None  # the main thread has started
    signal.pthread_kill(main, signal.SIGINT)
