"""Detects that the runtime directory has been deleted, or replaced by another daemon's.

Without its directory, a daemon cannot be found by commands and cannot start workers or tritonserver. In another
daemon's directory, it would do damage, because the sockets and directories there have the same names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator

from pytriton._protocol import linux
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.runtime.tasks import until_next_tick

#: Poll interval without notifications from the kernel, in seconds.
_POLL_INTERVAL_S = 1.0
#: Poll interval with notifications, which do not report mounts, nor changes by other machines on a network file system.
_NOTIFIED_POLL_INTERVAL_S = 5.0


class RuntimeDirGuard:
    """Watches this daemon's runtime directory.

    Args:
        rundir: the runtime directory
        lock: descriptor of its lock file
    """

    def __init__(self, rundir: RuntimeDir, lock: int) -> None:
        self._rundir = rundir
        self._lock = lock

    @property
    def exists(self) -> bool:
        """Whether the directory still exists; True if the daemon cannot check."""
        try:
            return os.path.samestat(os.stat(self._rundir.lock_file), os.fstat(self._lock))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # for example, on a network file system that is temporarily unavailable
            return True

    @property
    def holder(self) -> int | None:
        """Return the pid of the daemon that has recreated the directory, or None."""
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
            deleted: called once, with the reason, when the directory is gone
            taken: called once, with the reason, when another daemon has recreated it; the watch then ends
            every_s: poll interval without notifications from the kernel, in seconds
        """
        was_reported = False
        with self._notifications() as changed:
            while True:
                if changed is not None:
                    changed.clear()
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
                            f"its runtime directory {self._rundir.path} was deleted: commands cannot find the daemon, and it "
                            "cannot start workers or tritonserver"
                        )
                if changed is None or was_reported:
                    await asyncio.sleep(every_s)
                    continue
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(
                        changed.wait(), until_next_tick(_NOTIFIED_POLL_INTERVAL_S)
                    )

    @contextlib.contextmanager
    def _notifications(self) -> Iterator[asyncio.Event | None]:
        """Yield an event that is set when the directory or a part of its path may have been deleted or renamed.
        Yield None if the kernel cannot send such notifications.
        """
        path = self._rundir.path.absolute()
        try:
            fd = linux.watch_for_removal([self._rundir.lock_file, path, *path.parents])
        except OSError:  # for example, the user's limit of inotify instances is reached
            yield None
            return
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def read() -> None:
            os.read(fd, 1 << 16)
            changed.set()

        loop.add_reader(fd, read)
        try:
            yield changed
        finally:
            loop.remove_reader(fd)
            os.close(fd)
