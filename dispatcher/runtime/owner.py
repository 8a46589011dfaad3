"""The processes that a daemon lives for: a script with a `Triton` object (pytriton/triton/server.py), a test run.

They may be killed at any moment, and then nobody tells the daemon to stop. So the kernel tells: a pidfd becomes
readable when the process ends, however that comes. (PR_SET_PDEATHSIG would fire already when the *thread* of the
script that started the daemon ends; a pipe would be held open by whatever the script forks.)
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
from pytriton._protocol.journal import print_error

#: What stopping in order may take beside answering what is under way.
_MARGIN_S = 15.0


class OwnerError(ValueError):
    """The environment variable that names an owner holds no usable process id."""


def owner_of(script: int | None, environ: Mapping[str, str]) -> Owner | None:
    """Return the process that this daemon lives for; None when it lives for itself.

    Args:
        script: the process that it is private to
        environ: may name another one in $PYTRITON_DAEMON_OWNER

    Raises:
        OwnerError: the variable holds no process id.
    """
    pids = [] if script is None else [script]
    named = environ.get(ENV_OWNER, "")
    if named:
        if not named.isdecimal() or int(named) < 1:
            raise OwnerError(
                f"environment {ENV_OWNER}: {named!r} is no process id; the daemon ends with that process"
            )
        pids.append(int(named))
    return Owner(*pids) if pids else None


class Owner:
    """Watches processes that this one was started below, from a thread of its own; ends this one if one has ended.

    Args:
        pids: the processes, which have to be ancestors of this one

    Attributes:
        pid: the one that has ended; the first as long as none has
        private: whether this one belongs to the owner, and its folders, too
    """

    def __init__(self, *pids: int) -> None:
        self.pid = pids[0]
        self._folders: Sequence[Path] = ()
        self.private = False
        self._tell: Callable[[], object] = _interrupt_main_thread
        self._patience_s = _MARGIN_S
        self._pidfds = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                self._pidfds[linux.pidfd_open(pid)] = pid
        # A descriptor may be that of another process by now, if an owner has ended: that is no ancestor.
        above = ancestors(os.getpid())
        for pid in pids:
            if pid not in self._pidfds.values() or pid not in above:
                print_error(
                    f"pytriton-daemon: process {pid}, which this daemon lives for, has ended, or has not started it"
                )
                self.end_all()
        threading.Thread(target=self._watch, name="owner", daemon=True).start()

    def adopt(self, workspace: Path | None, runtime_dir: Path) -> None:
        """Make the owner's workspace, and from now on remove both folders at the end.

        An owner that is killed cannot remove them. So the daemon does; the owner only names them.

        Raises:
            OSError: it cannot be made, or exists and is not empty.
        """
        self._folders, self.private = [runtime_dir], True
        if workspace is None:
            return
        workspace.parent.mkdir(parents=True, exist_ok=True)
        try:
            workspace.mkdir(mode=0o700)
        except FileExistsError:
            if any(workspace.iterdir()):  # somebody else's
                raise
        self._folders = [runtime_dir, workspace]
        (workspace / "run").symlink_to(runtime_dir)  # for people who look for it

    def then(
        self, act: Callable[[Owner], None], loop: asyncio.AbstractEventLoop, patience_s: float
    ) -> None:
        """From now on, have the loop call `act` at the owner's end, instead of interrupting the main thread.

        When `patience_s` seconds have passed since, and some for the rest, this process ends at once.
        """
        self._tell = lambda: loop.call_soon_threadsafe(act, self)
        self._patience_s = patience_s + _MARGIN_S

    def end_all(self) -> NoReturn:
        """End this process at once; the kernel and the process of kill_on_death.py end what it has started."""
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: this process ends anyway
            self._tell()
        threading.Event().wait(self._patience_s)
        self.end_all()


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None  # it has started
    signal.pthread_kill(main, signal.SIGINT)
