"""Watches repository models for changed files, and for loads and unloads by tritonserver's clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.repository.model_folders import Snapshot
from pytriton.dispatcher.repository.model_records import ModelRecords
from pytriton.dispatcher.repository.repositories import ModelSnapshot, Repositories
from pytriton.dispatcher.runtime.tasks import ChangeSignal, until_next_tick
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.upgrade.snapshot import SeenFiles

_log = structlog.get_logger(__name__)

#: Called with the names of changed and of removed models; loads the former and unloads the latter.
Follow = Callable[[list[str], list[str]], Awaitable[None]]


class FileWatch:
    """Polls the files of all repositories, and reports the models that have changed since the last poll.

    Args:
        places: the repositories
        interval_s: polling interval, in seconds
        follow: awaited with the changed and the removed models
    """

    def __init__(self, places: Repositories, interval_s: float, follow: Follow) -> None:
        self._places = places
        self._interval_s = interval_s
        self._follow = follow
        self._seen: dict[str, ModelSnapshot] | None = None  #: the files at the last poll
        self._may_poll = asyncio.Event()
        self._may_poll.set()

    async def begin(self) -> None:
        """Take the first snapshot, unless `adopt` has set one. `run` reports the changes since then."""
        if self._seen is None:
            self._seen = await self._places.snapshots({})

    async def run(self) -> None:
        """Poll until cancelled. `begin` must be called first."""
        while True:
            await asyncio.sleep(self._interval_s)  # not all file systems report changes
            await self._may_poll.wait()
            try:
                self._seen = await self._poll(self._seen or {})
            except Exception:  # on any error, poll again
                _log.exception("internal error: model repositories were not polled")

    async def _poll(self, seen: Mapping[str, ModelSnapshot]) -> dict[str, ModelSnapshot]:
        """Report the changes since the snapshot `seen`. Return the current snapshot."""
        now = await self._places.snapshots(seen)
        changed = [name for name in now if now[name] != seen.get(name)]
        await self._follow(changed, [name for name in seen if name not in now])
        return now

    # ── an upgrade of the daemon ─────────────────────────────────────────────────────────────────

    def hold(self) -> None:
        """Suspend polling until `release` is called or an upgrade is done."""
        self._may_poll.clear()

    def release(self) -> None:
        """Resume polling."""
        self._may_poll.set()

    def hand_over(self) -> SeenFiles:
        """Return the last snapshot, to be handed over in an upgrade."""
        return {
            name: (
                one.place,
                {os.fsencode(path): stamp for path, stamp in one.files.files.items()},
                {os.fsencode(path): why for path, why in one.files.unreadable.items()},
            )
            for name, one in (self._seen or {}).items()
        }

    def adopt(self, seen: SeenFiles) -> None:
        """Continue with the snapshot from before an upgrade."""
        self._seen = {
            name: ModelSnapshot(
                place,
                Snapshot(
                    {os.fsdecode(path): stamp for path, stamp in files.items()},
                    {os.fsdecode(path): why for path, why in unreadable.items()},
                ),
            )
            for name, (place, files, unreadable) in seen.items()
        }


# ── Watches tritonserver's index, because its clients can also load and unload models ──

#: Polling interval: tritonserver does not notify.
_POLL_INTERVAL_S = 5.0
#: Maximum wait of a status request for the index.
_MAX_DELAY_S = 1.0
#: Number of polls after a client's request, and after the last load or unload in progress.
_MIN_POLLS = 2
_IN_PROGRESS = ("LOADING", "UNLOADING")


class IndexWatch:
    """Polls tritonserver's index to detect which models its clients have loaded or unloaded.

    Args:
        server: the tritonserver
        served: the registrations
        records: the models of repositories
        requests: signals that Triton's core is about to load or unload a model; None if tritonserver does not report that,
            so that the index must always be polled
    """

    def __init__(
        self,
        server: TritonServer,
        served: ServedModels,
        records: ModelRecords,
        requests: ChangeSignal | None,
    ) -> None:
        self._server = server
        self._served = served
        self._records = records
        self._requests = requests

    async def run(self) -> None:
        """Poll until cancelled, with `requests` only while models may be loading or unloading."""
        left = _MIN_POLLS  # an earlier version of the daemon may have passed on a request
        while True:
            request = None if self._requests is None else self._requests.next
            await asyncio.sleep(until_next_tick(_POLL_INTERVAL_S))
            is_settled = await self.poll_once()
            if request is None:
                continue
            left = left - 1 if is_settled and not request.is_set() else _MIN_POLLS
            if left == 0:
                await request.wait()
                left = _MIN_POLLS

    async def poll_once(self) -> bool:
        """Query tritonserver's index once. If tritonserver answers in time, update the models' states.

        Returns:
            whether it has answered, and no load or unload is in progress
        """
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(self._poll(), _MAX_DELAY_S)
        return False

    async def _poll(self) -> bool:
        if not self._server.ready:
            return False
        # Ignore the answer if the daemon itself loads or unloads the model in the meantime.
        marks: list[tuple[Any, object, Callable[[bool], None], str]] = [
            (one.mark, one.mark(), one.sync_with_index, name)
            for name, one in ((one.spec.name, one.in_triton) for one in self._served)
        ]
        marks += self._records.marks()
        try:
            states = await self._server.repository_states()
        except RemoteFailure:
            return False
        for mark, before, on_state, name in marks:
            if before is not None and mark() == before:
                on_state(states.get(name, "") == "READY")
        return not any(state in _IN_PROGRESS for state in states.values())
