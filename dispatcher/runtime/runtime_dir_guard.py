"""Whether the runtime directory of a daemon is still its own: who deletes it lets another daemon make one of that name.

Without it, a daemon is of little use: no command finds it, and no worker or tritonserver can be started again. In
another daemon's directory it would do harm: the sockets and folders there have the names of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from pytriton._protocol.files.rundir import RuntimeDir

#: Seconds between two looks: inotify, which would tell, is not in the standard library.
_LOOK_S = 1.0


class RuntimeDirGuard:
    """The runtime directory of this process.

    Args:
        rundir: where it was made
        lock: the descriptor of its lock file
    """

    def __init__(self, rundir: RuntimeDir, lock: int) -> None:
        self._rundir = rundir
        self._lock = lock

    @property
    def is_there(self) -> bool:
        """Whether it is where it was made. What cannot be looked at counts as there."""
        try:
            return os.path.samestat(os.stat(self._rundir.lock_file), os.fstat(self._lock))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # say, of a network's file system for a while
            return True

    @property
    def holder(self) -> int | None:
        """The daemon that holds another directory of that name; None where there is none."""
        with contextlib.suppress(OSError):
            pid = self._rundir.running_pid()
            return None if self.is_there else pid
        return None

    async def watch(
        self,
        deleted: Callable[[str], object],
        taken: Callable[[str], object],
        every_s: float = _LOOK_S,
    ) -> None:
        """Look for as long as this is awaited.

        Args:
            deleted: is called once when it is not there any more
            taken: is called once when another daemon holds one of its name, and nothing is looked for any more
            every_s: between two looks
        """
        told = False
        while True:
            if not self.is_there:
                pid = self.holder
                if pid is not None:
                    taken(
                        f"its runtime directory {self._rundir.path} was deleted, and pid {pid} has made another one"
                    )
                    return
                if not told:
                    told = True
                    deleted(
                        f"its runtime directory {self._rundir.path} was deleted: no command finds it, and it can start "
                        "neither workers nor tritonserver any more"
                    )
            await asyncio.sleep(every_s)
