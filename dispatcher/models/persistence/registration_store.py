"""The registrations that survive a restart, kept in the state directory.

Reads and writes of the store run in a thread, so that the event loop never waits for the disk. A failure of the store
becomes a RemoteFailure, which reaches the client whose request it was.
"""

from __future__ import annotations

import asyncio
import enum
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.persistence.state_dir import (
    UNFINISHED,
    Entry,
    Store,
    StoreError,
    Unfinished,
    sync_folder,
)


class Persistence(enum.Enum):
    """Whether the state directory is to hold a model that is served."""

    WRITTEN = "it is written, so that the next start serves it"
    THERE = "it is restored: it is in there already"
    NOT = "it ends with a process; what it takes the name of does not come back"
    ELSEWHERE = "its repository is what is kept; the state directory is not concerned"


class Prepared(Protocol):
    """A change of the state directory that does not count yet."""

    def finish(self) -> None:
        """Let it count from now on; raises StoreError, and nothing has changed then."""

    def discard(self) -> None:
        """Leave nothing of it but what counts."""


class Removal:
    """A model that is to be forgotten, with what it has replaced.

    Args:
        files: where they lie, if they do
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._moved: list[tuple[Path, Path]] = []

    def finish(self) -> None:
        """Let it be forgotten from now on.

        Raises:
            StoreError: the disk refuses; it is still kept.
        """
        try:
            for path in self._files:
                aside = path.with_name(f"{secrets.token_hex(8)}{UNFINISHED}")
                with suppress(FileNotFoundError):
                    os.replace(path, aside)
                    self._moved.append((path, aside))
            if self._moved:
                sync_folder(path.parent)
        except OSError as error:
            while self._moved:
                with suppress(OSError):
                    os.replace(*reversed(self._moved.pop()))
            raise StoreError(f"{path} cannot be removed: {error.strerror}") from error

    def discard(self) -> None:
        """Remove what has been forgotten."""
        for _, aside in self._moved:
            with suppress(OSError):  # what is left is removed at the next start
                aside.unlink()


class RegistrationStore:
    """The models of a state directory. Every method raises RemoteFailure when the store fails."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def prepare(self, entry: Entry, keeping: Persistence) -> Prepared | None:
        """Return what `finish` lets count when a model is served; None: it concerns nothing that is kept."""
        if keeping is Persistence.WRITTEN:
            return await self.write(entry)
        if keeping is Persistence.NOT:
            return Removal(self._store.files_of(entry.spec.name))
        return None

    async def write(self, entry: Entry) -> Prepared:
        """Write a model, which does not count before `finish`."""
        return await _written(self._store.write, entry.spec, entry.payloads, entry.registered_at)

    async def amend(self, entry: Entry, **changes: object) -> None:
        """Have other fields of a kept model's specification count; `entry`: the model, as it is in memory."""
        prepared = await _written(self._store.amend, entry, changes)
        try:
            finish(prepared)
        finally:
            prepared.discard()

    @asynccontextmanager
    async def amending(
        self, entry: Entry | None, undo: Callable[[], Awaitable[None]], **changes: object
    ) -> AsyncIterator[None]:
        """Have other fields count when the block has ended well; they are written before it begins.

        So what cannot be kept is not even begun; what fails at the very end, `undo` takes back.

        Args:
            entry: the model, as it is in memory; None: it is not kept
            undo: takes back what the block has done
            changes: fields of its specification
        """
        if entry is None:
            yield
            return
        prepared = await _written(self._store.amend, entry, changes)
        try:
            yield
            try:
                finish(prepared)
            except RemoteFailure:
                await undo()
                raise
        finally:
            prepared.discard()

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


async def _written(write: Callable[..., Unfinished], *what: object) -> Unfinished:
    """Return what a thread writes; of what is given up meanwhile nothing stays."""
    writing = asyncio.ensure_future(asyncio.to_thread(write, *what))
    try:
        with _as_failure():
            return await asyncio.shield(writing)
    except asyncio.CancelledError:
        writing.add_done_callback(_discard)
        raise


def _discard(writing: asyncio.Future[Unfinished]) -> None:
    if not writing.cancelled() and writing.exception() is None:
        writing.result().discard()


def finish(prepared: Prepared) -> None:
    """Make a change count. It runs in the event loop, so nothing happens in between.

    Raises:
        RemoteFailure: it cannot be.
    """
    with _as_failure():
        prepared.finish()


@contextmanager
def _as_failure() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise RemoteFailure(ErrorKind.UNAVAILABLE, str(error)) from error
