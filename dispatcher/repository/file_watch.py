"""A watch on the files of model repositories, for the control mode "poll"."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping

import structlog

from pytriton.dispatcher.repository.model_folders import Snapshot
from pytriton.dispatcher.repository.repository_places import Placed, Places
from pytriton.dispatcher.runtime.upgrade_snapshot import SeenFiles

_log = structlog.get_logger(__name__)

#: Serves the models that have changed, and no longer serves those that are gone; it gets their names.
Follow = Callable[[list[str], list[str]], Awaitable[None]]


class FileWatch:
    """Looks at all files now and then, and tells which models have changed since it looked last.

    Args:
        places: the repositories
        every_s: seconds between two looks
        follow: see there
    """

    def __init__(self, places: Places, every_s: float, follow: Follow) -> None:
        self._places = places
        self._every_s = every_s
        self._follow = follow
        self._seen: dict[str, Placed] | None = None  #: the files at the last look
        self._may_look = asyncio.Event()
        self._may_look.set()

    async def begin(self) -> None:
        """Look for the first time: what changes from now on is followed by `run`. What a former version saw counts."""
        if self._seen is None:
            self._seen = await self._places.snapshots({})

    async def run(self) -> None:
        """Look again and again, after `begin`."""
        while True:
            await asyncio.sleep(self._every_s)  # files send no news over all file systems
            await self._may_look.wait()
            try:
                self._seen = await self._look(self._seen or {})
            except Exception:  # whatever it is, it is looked again
                _log.exception("a fault of the daemon: model repositories were not looked through")

    async def _look(self, seen: Mapping[str, Placed]) -> dict[str, Placed]:
        """Follow what has changed since `seen`; return what is there now."""
        now = await self._places.snapshots(seen)
        changed = [name for name in now if now[name] != seen.get(name)]
        await self._follow(changed, [name for name in seen if name not in now])
        return now

    # ── an upgrade of the daemon ─────────────────────────────────────────────────────────────────

    def hold(self) -> None:
        """Let changes of files wait for `release`, or for the next version."""
        self._may_look.clear()

    def release(self) -> None:
        """Follow changes of files again."""
        self._may_look.set()

    def hand_over(self) -> SeenFiles:
        """Return what was seen, for the next version."""
        return {
            name: (
                one.place,
                {os.fsencode(path): stamp for path, stamp in one.files.files.items()},
                {os.fsencode(path): why for path, why in one.files.unreadable.items()},
            )
            for name, one in (self._seen or {}).items()
        }

    def adopt(self, seen: SeenFiles) -> None:
        """Go on from what a former version has seen."""
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
