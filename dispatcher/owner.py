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
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from pytriton.ipc import linux
from pytriton.ipc.exit_codes import ExitCode

#: What stopping in order may take beside answering what is under way.
_MARGIN_S = 15.0


class Owner:
    """Watches the process that started this one, from a thread of its own; ends this one if it has ended already.

    Args:
        pid: the process, which has to be this one's parent
        folders: what to remove when it has ended: nobody else will
    """

    def __init__(self, pid: int, folders: Sequence[str]) -> None:
        self.pid = pid
        self._folders = folders
        self._ended = False
        self._tell: Callable[[], object] | None = None
        self._patience_s = 0.0
        try:
            self._pidfd = linux.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = -1
        if os.getppid() != pid:  # the descriptor may be that of another process by now
            self._ended = True
            self.end_all()
        threading.Thread(target=self._watch, name="owner", daemon=True).start()

    def then(
        self, act: Callable[[Owner], None], loop: asyncio.AbstractEventLoop, patience_s: float
    ) -> None:
        """From now on, have the loop call `act` at the owner's end.

        Without that, and when `patience_s` seconds have passed since, this process ends at once.
        """
        self._tell = lambda: loop.call_soon_threadsafe(act, self)
        self._patience_s = patience_s + _MARGIN_S

    def end_all(self) -> NoReturn:
        """End this process at once; the kernel and the undertaker end what it has started."""
        self.leave_nothing()
        os._exit(ExitCode.INTERRUPTED)

    def leave_nothing(self) -> None:
        """If the owner has ended, remove its folders."""
        if self._ended:
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _watch(self) -> None:
        # select.poll, not select.select: the descriptor's number may be above 1023
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.poll()
        self._ended = True
        if self._tell is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: this process ends anyway
                self._tell()
            threading.Event().wait(self._patience_s)
        self.end_all()
