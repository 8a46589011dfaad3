"""The accounts of memory: what the workers of all models take of the budgets, and who waits for room.

Each pool has an account (memory_account.py). It takes room for its workers before it starts them, and gives it back
when they have ended. `dispatcher/scaling/memory_budget.py` measures, decides who gets room, and has others sleep for
that; without a budget, everybody gets it at once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from pytriton._protocol import messages
from pytriton.dispatcher.elastic.known_size import KnownSize
from pytriton.dispatcher.elastic.memory import LEAST_ESTIMATE, MEMORY, Amounts, Claim, added
from pytriton.dispatcher.runtime.change_signal import ChangeSignal
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.workers.memory_account import Account
from pytriton.dispatcher.workers.memory_claim import Waiting

#: Models whose size is known though they may be gone.
_MOST_SIZES = 10_000


class MemoryAccounts:
    """The accounts of all pools. The daemon has one of these.

    Args:
        limits: the budgets, by resource; what is not there is not bounded
        gpus: other names of GPUs, such as their UUIDs -> the name in `limits`

    Attributes:
        mapped: what workers of all models have in common at the moment, digest -> bytes: it counts once.
        waiting: the claims that are not granted yet, in the order in which they came.
        news: something was claimed, or given back.
        waits, refusals: claims that had to wait, and that came to nothing.
        slept: models that slept for others.
        last_grant: when somebody was granted room.
        sizes: what is known of models, by name, for the next start of the daemon.
    """

    def __init__(
        self, limits: Amounts | None = None, gpus: Mapping[str, str] | None = None
    ) -> None:
        self.limits: dict[str, int] = dict(limits or {})
        self.gpus: dict[str, str] = dict(gpus or {})
        self.mapped: dict[str, int] = {}
        self.waiting: list[Waiting] = []
        self.news = ChangeSignal()
        self.waits = self.refusals = self.slept = 0
        self.last_grant = 0.0
        self.open_accounts: list[Account] = []
        self.sizes: dict[str, KnownSize] = {}

    def open(
        self,
        spec: messages.ModelSpec,
        *,
        payload: int = 0,
        hosted: bool = False,
        registration: str = "",
        patient: bool = False,
        events: Events = LOG_ONLY,
    ) -> Account:
        """Return the account of a new pool.

        Args:
            spec: its model
            registration: tells it from others of the model's name, also after a restart of the daemon
            payload: bytes of a worker's callable
            patient: nobody waits for its first load, so that goes on waiting as long as others get room
            hosted: its workers run in threads of a process that is not the daemon's: their memory is not either
            events: takes what is decided about the model
        """
        account = Account(
            self,
            spec,
            payload,
            bounded=bool(self.limits) and not hosted,
            registration=registration,
            patient=patient,
            events=events,
        )
        if account.bounded:
            self.open_accounts.append(account)
            size = self.sizes.get(spec.name)
            if size is not None and size.registration == registration:
                account.recall(size)
        return account

    def note(self, account: Account) -> None:
        """Keep what is known of a model, if it was not replaced meanwhile; the oldest of very many are forgotten."""
        name, size = account.spec.name, account.size
        newest = [one for one in self.open_accounts if one.spec.name == name][-1:]
        if size is None or newest != [account]:
            return
        self.sizes.pop(name, None)
        self.sizes[name] = size
        while len(self.sizes) > _MOST_SIZES:
            del self.sizes[next(iter(self.sizes))]

    async def until_put_off(
        self, loading: asyncio.Task[bool] | asyncio.Task[None], model: str
    ) -> None:
        """Return when a load of a model has ended, or waits for room: what comes next need not wait for it."""
        if not self.limits:
            await asyncio.wait([loading])
            return
        waits = asyncio.ensure_future(self._until_waits(model))
        try:
            await asyncio.wait([loading, waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits.cancel()

    async def _until_waits(self, model: str) -> None:
        while True:
            news = self.news.next
            if any(one.put_off and one.account.spec.name == model for one in self.waiting):
                return
            await news.wait()

    def used(self) -> dict[str, int]:
        """Return what all workers have, or have been granted."""
        shared = {MEMORY: sum(self.mapped.values())}
        held = (one.held for one in self.open_accounts)
        return added(dict.fromkeys(self.limits, 0), shared, *held)

    def claims(self) -> list[Claim]:
        """Return what is waited for."""
        return [Claim(str(id(one)), one.needs(), one.since) for one in self.waiting]

    def grant(self, key: str) -> None:
        """Grant one of these claims."""
        for one in self.waiting:
            if str(id(one)) == key:
                one.grant()
                self.last_grant = asyncio.get_running_loop().time()
                self.waiting.remove(one)
                return

    @property
    def crowded(self) -> bool:
        """Whether there is no memory for what is only convenient."""
        if self.waiting or not self.limits:
            return bool(self.waiting)
        return self.used()[MEMORY] + LEAST_ESTIMATE > self.limits.get(MEMORY, sys.maxsize)

    def usual(self, account: Account, kind: str) -> list[int]:
        """Return what workers of the others take; of the model's former registration, too."""
        others = [one.known for one in self.open_accounts if one is not account and one.known]
        sizes = (one.memory if kind == MEMORY else one.gpu for one in others)
        return [size for size in sizes if size]
