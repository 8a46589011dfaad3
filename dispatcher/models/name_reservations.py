"""Reservations of model names: one task at a time registers, scales or unregisters a name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pytriton._protocol.errors import ErrorKind, RemoteFailure


class Reservations:
    """The names being registered, unregistered or scaled, with the task that does it."""

    def __init__(self) -> None:
        self._busy: dict[str, asyncio.Task[object]] = {}
        self._given_up: set[str] = set()

    def is_free(self, name: str) -> bool:
        """Return whether a name is not being changed."""
        return name not in self._busy

    def holder(self, name: str) -> asyncio.Task[object] | None:
        """Return the task that is changing a name, or None."""
        return self._busy.get(name)

    def check(self, name: str) -> None:
        """Check that a name is not being changed.

        Raises:
            RemoteFailure: it is being changed.
        """
        if name in self._busy:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"model {name!r} is being registered or unregistered by another client",
            )

    @contextmanager
    def reserve(self, name: str) -> Iterator[asyncio.Task[object]]:
        """Reserve a name for the block, and yield the current task.

        Raises:
            RemoteFailure: the name is already reserved.
        """
        self.check(name)
        task = asyncio.current_task()
        assert task is not None  # handlers run in tasks
        self._busy[name] = task
        try:
            yield task
        finally:
            del self._busy[name]

    @contextmanager
    def giving_up(self, name: str) -> Iterator[None]:
        """Mark a reserved name as being rolled back until the block ends."""
        self._given_up.add(name)
        try:
            yield
        finally:
            self._given_up.discard(name)

    async def until_given_up(self, name: str) -> None:
        """Wait until no change of the name is being rolled back."""
        while name in self._given_up:
            await asyncio.wait([self._busy[name]])

    async def until_free(self, name: str) -> None:
        """Wait until the name is not being changed."""
        while name in self._busy:
            await asyncio.wait([self._busy[name]])

    async def until_all_free(self) -> None:
        """Wait until all current holders of names have ended."""
        await asyncio.gather(*self._busy.values(), return_exceptions=True)
