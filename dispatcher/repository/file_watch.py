"""Watches the files of model repositories, for the control mode "poll"."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping

import structlog

from pytriton.dispatcher.repository.model_folders import Snapshot
from pytriton.dispatcher.repository.repository_places import Placed, Places
from pytriton.dispatcher.runtime.upgrade_snapshot import SeenFiles

_log = structlog.get_logger(__name__)

#: Called with the names of changed and of removed models; loads the former and unloads the latter.
Follow = Callable[[list[str], list[str]], Awaitable[None]]


class FileWatch:
    """Polls all files and reports the models that have changed since the last poll.

    Args:
        places: the repositories
        every_s: polling interval, in seconds
        follow: called with the changes
    """

    def __init__(self, places: Places, every_s: float, follow: Follow) -> None:
        self._places = places
        self._every_s = every_s
        self._follow = follow
        self._seen: dict[str, Placed] | None = None  #: the files at the last poll
        self._may_look = asyncio.Event()
        self._may_look.set()

    async def begin(self) -> None:
        """Take the first snapshot, unless one was adopted; `run` reports changes from then on."""
        if self._seen is None:
            self._seen = await self._places.snapshots({})

    async def run(self) -> None:
        """Poll until cancelled, after `begin`."""
        while True:
            await asyncio.sleep(self._every_s)  # not all file systems report changes
            await self._may_look.wait()
            try:
                self._seen = await self._look(self._seen or {})
            except Exception:  # on any error, poll again
                _log.exception("internal error: model repositories were not polled")

    async def _look(self, seen: Mapping[str, Placed]) -> dict[str, Placed]:
        """Report the changes since `seen`; return the current snapshot."""
        now = await self._places.snapshots(seen)
        changed = [name for name in now if now[name] != seen.get(name)]
        await self._follow(changed, [name for name in seen if name not in now])
        return now

    # ── an upgrade of the daemon ─────────────────────────────────────────────────────────────────

    def hold(self) -> None:
        """Suspend polling until `release`, or until the next version resumes it."""
        self._may_look.clear()

    def release(self) -> None:
        """Resume polling."""
        self._may_look.set()

    def hand_over(self) -> SeenFiles:
        """Return the last snapshot, for the next version of the daemon."""
        return {
            name: (
                one.place,
                {os.fsencode(path): stamp for path, stamp in one.files.files.items()},
                {os.fsencode(path): why for path, why in one.files.unreadable.items()},
            )
            for name, one in (self._seen or {}).items()
        }

    def adopt(self, seen: SeenFiles) -> None:
        """Continue from the snapshot of the previous version."""
        self._seen = {
            name: Placed(
                place,
                Snapshot(
                    {os.fsdecode(path): stamp for path, stamp in files.items()},
                    {os.fsdecode(path): why for path, why in unreadable.items()},
                ),
            )
            for name, (place, files, unreadable) in seen.items()
        }
