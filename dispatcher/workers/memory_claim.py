"""A claim of a pool for the memory of more workers, until it is granted, refused or given up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pytriton.dispatcher.elastic.memory import Amounts

if TYPE_CHECKING:
    from pytriton.dispatcher.workers.memory_account import Account


class Waiting:
    """A claim that has not been granted yet.

    Attributes:
        account: whose it is
        count: workers that it shall have room for; 0: one more beside those that it has, for a while
        since: when it came
        done: set when it is granted
        told: whether somebody has been told that it waits
        put_off: whether it was looked at, and not granted
        patient: whether nobody waits for it, so that it may take long
        judged_at: when it was last seen whether there will ever be as much
        hindrance: who keeps it from its memory, and what would help, in words; "" as long as nobody has looked
    """

    def __init__(self, account: Account, count: int) -> None:
        loop = asyncio.get_running_loop()
        self.account = account
        self.count = count
        self.since = loop.time()
        self.done: asyncio.Future[None] = loop.create_future()
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.told = self.put_off = self.patient = False
        self.judged_at = 0.0
        self.hindrance = ""

    def needs(self) -> Amounts:
        """Return the memory that the claim still lacks."""
        return self.account.needs(self.count) if self.count else self.account.of_one

    def grant(self) -> None:
        """Grant the claim."""
        account = self.account
        if self.count:
            account.granted = max(account.granted, self.count)
        else:
            account.beside += 1
        self.done.set_result(None)
