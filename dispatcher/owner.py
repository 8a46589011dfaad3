"""The process that a private daemon lives for: a script with a `Triton` object (pytriton/triton/server.py).

It may be killed at any moment, and then nobody tells the daemon to stop. So the kernel tells: a pidfd becomes
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from pytriton.ipc import linux
from pytriton.ipc.exit_codes import ExitCode

#: What stopping in order may take beside answering what is under way.
_MARGIN_S = 15.0


class Owner:
    """Watches the process that started this one, from a thread of its own; ends this one if it has ended already.

    Args:
        pid: the process, which has to be this one's parent
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._folders: Sequence[Path] = ()
        self._tell: Callable[[], object] = _interrupt_main_thread
        self._patience_s = _MARGIN_S
        try:
            self._pidfd = linux.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = -1
        if os.getppid() != pid:  # the descriptor may be that of another process by now
            self.end_all()
        threading.Thread(target=self._watch, name="owner", daemon=True).start()

    def adopt(self, workspace: Path | None, runtime_dir: Path) -> None:
        """Make the owner's workspace, and from now on remove both folders at the end.

        Whoever is killed cannot: so the owner only gives the names.

        Raises:
            OSError: it cannot be made, or exists and is not empty.
        """
        self._folders = [runtime_dir]
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
        """End this process at once; the kernel and the undertaker end what it has started."""
        self.remove_folders()
        os._exit(ExitCode.INTERRUPTED)

    def remove_folders(self) -> None:
        """Remove the workspace and the runtime directory."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _watch(self) -> None:
        # select.poll, not select.select: the descriptor's number may be above 1023
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.poll()
        with contextlib.suppress(RuntimeError):  # the loop is closed: this process ends anyway
            self._tell()
        threading.Event().wait(self._patience_s)
        self.end_all()


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None  # it has started
    signal.pthread_kill(main, signal.SIGINT)
