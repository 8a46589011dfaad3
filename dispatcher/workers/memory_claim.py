"""A pool's claim for the memory of more workers, until it is granted, refused or withdrawn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pytriton.dispatcher.elastic.memory import Amounts

if TYPE_CHECKING:
    from pytriton.dispatcher.workers.memory_account import Account


class PendingClaim:
    """A pending claim.

    Attributes:
        account: The account that claims.
        count: Total number of workers to have memory for; 0 for one temporary additional worker.
        since: When the claim was made.
        done: Resolves when the claim is granted.
        is_reported: Whether the wait has been reported as an event.
        put_off: Whether the claim was considered and not granted.
        patient: Whether no client waits for the claim, so that it may wait for long.
        judged_at: When it was last checked whether the claim can ever be granted.
        hindrance: A sentence about which models hold the memory and what would help; "" until the first check.
    """

    def __init__(self, account: Account, count: int) -> None:
        loop = asyncio.get_running_loop()
        self.account = account
        self.count = count
        self.since = loop.time()
        self.done: asyncio.Future[None] = loop.create_future()
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.is_reported = self.put_off = self.patient = False
        self.judged_at = 0.0
        self.hindrance = ""

    def needs(self) -> Amounts:
        """Return the additional memory that the claim needs."""
        return self.account.needs(self.count) if self.count else self.account.of_one

    def grant(self) -> None:
        """Reserve the memory in the account and wake the waiting caller."""
        account = self.account
        if self.count:
            account.granted = max(account.granted, self.count)
        else:
            account.beside += 1
        self.done.set_result(None)
