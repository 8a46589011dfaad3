"""A request to retry an instance immediately instead of waiting for its back-off."""

from __future__ import annotations

import asyncio

from pytriton._protocol.errors import ErrorKind, RemoteFailure


class ImmediateRetry:
    """Lets callers request an immediate retry of one instance. Concurrent callers share one attempt.

    Attributes:
        hurry: Set while an immediate retry is requested.
    """

    def __init__(self) -> None:
        self.hurry = asyncio.Event()
        self._attempt: asyncio.Future[None] | None = None
        self._over: RemoteFailure | None = None

    @property
    def is_over(self) -> bool:
        """Whether no more attempts are made, because an internal error ended the supervisor."""
        return self._over is not None

    async def request(self) -> None:
        """Request a worker and wait until it is loaded.

        Raises:
            RemoteFailure: The worker could not be loaded.
        """
        if self._over is not None:
            raise self._over
        if self._attempt is None:
            self._attempt = asyncio.get_running_loop().create_future()
            self._attempt.add_done_callback(lambda attempt: attempt.exception())
            self.hurry.set()
        await asyncio.shield(self._attempt)

    def attempted(self, failure: RemoteFailure | None) -> None:
        """Report the result of an attempt to the waiting callers; None means that it succeeded."""
        self.hurry.clear()
        attempt, self._attempt = self._attempt, None
        if attempt is not None and failure is None:
            attempt.set_result(None)
        elif attempt is not None and failure is not None:
            attempt.set_exception(failure)

    def over(self, fault: BaseException | None) -> RemoteFailure:
        """Fail the waiting callers and all later ones, because an internal error ended the supervisor."""
        text = f"internal error: {fault}. Replace the model; the daemon's log has the details"
        self._over = RemoteFailure(ErrorKind.INTERNAL, text)
        self.attempted(self._over)
        return self._over
