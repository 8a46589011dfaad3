"""The registrations that survive a restart, kept in the state directory.

Reads and writes of the store run in a thread, so that the event loop never waits for the disk. A failure of the store
becomes a RemoteFailure, which reaches the client whose request it was.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator
from contextlib import contextmanager

from pytriton.dispatcher.models.state_dir import Entry, Store, StoreError, Unfinished
from pytriton.ipc.errors import ErrorKind, RemoteFailure


class Keeping(enum.Enum):
    """Whether the state directory is to hold a model that is served."""

    WRITTEN = "it is written, so that the next start serves it"
    THERE = "it is restored: it is in there already"
    NOT = "it ends with a process; what it takes the name of does not come back"
    ELSEWHERE = "its repository is what is kept; the state directory is not concerned"


class KeptModels:
    """The models of a state directory. Every method raises RemoteFailure when the store fails."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, entry: Entry) -> Unfinished:
        """Write a model, which does not count before `finish`."""
        with _as_failure():
            return await asyncio.to_thread(
                self._store.write, entry.spec, entry.payloads, entry.registered_at
            )

    async def amend(self, entry: Entry, **changes: object) -> None:
        """Have other fields of a kept model's specification count; `entry`: the model, as it is in memory."""
        with _as_failure():
            unfinished = await asyncio.to_thread(self._store.amend, entry, changes)
        finish(unfinished)

    async def previous(self, name: str) -> Entry | None:
        """Return what a model was before it was replaced, if it was."""
        with _as_failure():
            return await asyncio.to_thread(self._store.previous, name)

    async def is_first(self, name: str) -> bool:
        """Whether a model has replaced nothing."""
        with _as_failure():
            return await asyncio.to_thread(self._store.is_first, name)

    async def remove(self, name: str) -> None:
        """Forget a model."""
        with _as_failure():
            await asyncio.to_thread(self._store.remove, name)


def finish(unfinished: Unfinished) -> None:
    """Make a written registration count. It runs in the event loop, so nothing happens in between.

    Raises:
        RemoteFailure: it cannot be.
    """
    with _as_failure():
        unfinished.finish()


@contextmanager
def _as_failure() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise RemoteFailure(ErrorKind.UNAVAILABLE, str(error)) from error
