"""Gives the event loop access to persisted registrations. A thread reads and writes the state directory.

Errors of the state directory become a RemoteFailure, which is sent to the client that made the request.
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
    """Whether and how a served model is persisted."""

    PERSISTED = "written to the state directory; the next start serves it"
    ALREADY_PERSISTED = "already in the state directory, because it is being restored"
    EPHEMERAL = "bound to a process; removes the persisted model that it replaces"
    EXTERNAL = "the repository that contains it is persisted instead"


class PendingChange(Protocol):
    """An uncommitted change to the state directory."""

    def finish(self) -> None:
        """Commit the change. If that fails, change nothing and raise StoreError."""

    def discard(self) -> None:
        """Remove uncommitted files."""


class PendingRemoval:
    """An uncommitted removal of a model. If it fails, the model's files are restored.

    Args:
        files: paths of the model's files, which need not exist
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._moved: list[tuple[Path, Path]] = []

    def finish(self) -> None:
        """Commit the removal.

        Raises:
            StoreError: a file cannot be removed. The model is still persisted.
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
        """Delete the files of a committed removal."""
        for _, aside in self._moved:
            with suppress(OSError):  # the next start removes leftovers
                aside.unlink()


class RegistrationStore:
    """The models in a state directory. Every method raises RemoteFailure if the directory cannot be read or written."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def prepare(self, entry: Entry, persistence: Persistence) -> PendingChange | None:
        """Prepare a change, to be committed by `finish` once the model is serving. Return None if nothing changes."""
        if persistence is Persistence.PERSISTED:
            return await self.write(entry)
        if persistence is Persistence.EPHEMERAL:
            return PendingRemoval(self._store.files_of(entry.spec.name))
        return None

    async def write(self, entry: Entry) -> PendingChange:
        """Write a model. `finish` commits it."""
        return await _written(self._store.write, entry.spec, entry.payloads, entry.registered_at)

    async def amend(self, entry: Entry, **changes: object) -> None:
        """Write changed fields of a persisted model's specification. `entry` is the current registration."""
        prepared = await _written(self._store.amend, entry, changes)
        try:
            finish(prepared)
        finally:
            prepared.discard()

    @asynccontextmanager
    async def amending(
        self, entry: Entry | None, undo: Callable[[], Awaitable[None]], **changes: object
    ) -> AsyncIterator[None]:
        """Write changed fields before the block runs, and commit them if the block succeeds.

        If the fields cannot be written, the block does not run. If they cannot be committed, `undo` is called.

        Args:
            entry: the current registration; None if it is not persisted
            undo: reverts the effects of the block
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
        """Return the entry that a model replaced, or None."""
        with _as_failure():
            return await asyncio.to_thread(self._store.previous, name)

    async def is_first(self, name: str) -> bool:
        """Return whether a model is the first with its name, rather than a replacement of an earlier registration."""
        with _as_failure():
            return await asyncio.to_thread(self._store.is_first, name)

    async def remove(self, name: str) -> None:
        """Delete a model from the store."""
        with _as_failure():
            await asyncio.to_thread(self._store.remove, name)


async def _written(write: Callable[..., Unfinished], *what: object) -> Unfinished:
    """Call `write` in a thread and return its result. On cancellation, discard the written file."""
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


def finish(prepared: PendingChange) -> None:
    """Commit a change. This runs in the event loop, so nothing else can run at the same time.

    Raises:
        RemoteFailure: the commit failed.
    """
    with _as_failure():
        prepared.finish()


@contextmanager
def _as_failure() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise RemoteFailure(ErrorKind.UNAVAILABLE, str(error)) from error
