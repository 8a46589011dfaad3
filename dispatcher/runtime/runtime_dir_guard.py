"""Detects that a daemon's runtime directory was deleted, or replaced by another daemon's.

Without the directory, no command finds the daemon, and it cannot start workers or tritonserver. In another daemon's
directory it would do harm, since the sockets and folders there have the same names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from pytriton._protocol.files.rundir import RuntimeDir

#: Poll interval. The standard library has no inotify.
_POLL_INTERVAL_S = 1.0


class RuntimeDirGuard:
    """The runtime directory of this process.

    Args:
        rundir: the directory
        lock: the descriptor of its lock file
    """

    def __init__(self, rundir: RuntimeDir, lock: int) -> None:
        self._rundir = rundir
        self._lock = lock

    @property
    def exists(self) -> bool:
        """Return whether the directory still exists. If that cannot be determined, assume so."""
        try:
            return os.path.samestat(os.stat(self._rundir.lock_file), os.fstat(self._lock))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # for example, a network file system that is temporarily unavailable
            return True

    @property
    def holder(self) -> int | None:
        """Return the pid of the daemon that has created another directory of this name, or None."""
        with contextlib.suppress(OSError):
            pid = self._rundir.running_pid()
            return None if self.exists else pid
        return None

    async def watch(
        self,
        deleted: Callable[[str], object],
        taken: Callable[[str], object],
        every_s: float = _POLL_INTERVAL_S,
    ) -> None:
        """Watch the directory until cancelled.

        Args:
            deleted: called once when the directory is gone
            taken: called once when another daemon has created one of its name; this ends the watch
            every_s: the poll interval, in seconds
        """
        was_reported = False
        while True:
            if not self.exists:
                pid = self.holder
                if pid is not None:
                    taken(
                        f"its runtime directory {self._rundir.path} was deleted, and pid {pid} has created another one"
                    )
                    return
                if not was_reported:
                    was_reported = True
                    deleted(
                        f"its runtime directory {self._rundir.path} was deleted: no command finds it, and it cannot "
                        "start workers or tritonserver"
                    )
            await asyncio.sleep(every_s)
