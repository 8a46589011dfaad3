"""Reservations of model names: one task at a time registers, scales or unregisters a name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pytriton._protocol.errors import ErrorKind, RemoteFailure


class Reservations:
    """The names that are being registered, unregistered or scaled, each with the task that does."""

    def __init__(self) -> None:
        self._busy: dict[str, asyncio.Task[object]] = {}
        self._given_up: set[str] = set()

    def is_free(self, name: str) -> bool:
        """Whether nobody changes a name."""
        return name not in self._busy

    def holder(self, name: str) -> asyncio.Task[object] | None:
        """Return the task that changes a name, if one does."""
        return self._busy.get(name)

    def check(self, name: str) -> None:
        """See that a name is free.

        Raises:
            RemoteFailure: it is not.
        """
        if name in self._busy:
            raise RemoteFailure(
                ErrorKind.EXISTS,
                f"model {name!r} is being registered or unregistered by somebody else just now",
            )

    @contextmanager
    def reserve(self, name: str) -> Iterator[asyncio.Task[object]]:
        """Keep others from changing a name meanwhile; gives this task.

        Raises:
            RemoteFailure: it is not free.
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
        """Mark a reserved name, until the block ends, as one whose change is being undone."""
        self._given_up.add(name)
        try:
            yield
        finally:
            self._given_up.discard(name)

    async def until_given_up(self, name: str) -> None:
        """Return when nothing is being undone with a name."""
        while name in self._given_up:
            await asyncio.wait([self._busy[name]])

    async def until_free(self, name: str) -> None:
        """Return when nobody changes a name."""
        while name in self._busy:
            await asyncio.wait([self._busy[name]])

    async def until_all_free(self) -> None:
        """Return when those who change a name now have ended."""
        await asyncio.gather(*self._busy.values(), return_exceptions=True)
