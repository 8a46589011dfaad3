"""The wish that an instance get a worker now, instead of after a pause or never."""

from __future__ import annotations

import asyncio

from pytriton._protocol.errors import ErrorKind, RemoteFailure


class ImmediateRetry:
    """The wish of whoever does not want to wait for one instance's next try; several share that try.

    Attributes:
        hurry: set while somebody wishes so.
    """

    def __init__(self) -> None:
        self.hurry = asyncio.Event()
        self._attempt: asyncio.Future[None] | None = None
        self._over: RemoteFailure | None = None

    @property
    def is_over(self) -> bool:
        """Whether there are no more attempts: a fault of ours has ended what makes them."""
        return self._over is not None

    async def wish(self) -> None:
        """Wish for a worker, and wait for it.

        Raises:
            RemoteFailure: it could not be loaded.
        """
        if self._over is not None:
            raise self._over
        if self._attempt is None:
            self._attempt = asyncio.get_running_loop().create_future()
            self._attempt.add_done_callback(lambda attempt: attempt.exception())
            self.hurry.set()
        await asyncio.shield(self._attempt)

    def attempted(self, failure: RemoteFailure | None) -> None:
        """Tell those who wait whether the attempt to load a worker succeeded."""
        self.hurry.clear()
        attempt, self._attempt = self._attempt, None
        if attempt is not None and failure is None:
            attempt.set_result(None)
        elif attempt is not None and failure is not None:
            attempt.set_exception(failure)

    def over(self, fault: BaseException | None) -> RemoteFailure:
        """Tell those who wait, and all that come later, that a fault of ours has ended what makes attempts."""
        text = f"a fault of the daemon: {fault} (its log says more). Replace the model"
        self._over = RemoteFailure(ErrorKind.INTERNAL, text)
        self.attempted(self._over)
        return self._over
