"""The memory accounts of all pools: what their workers use of the memory budgets, and the pending claims.

Each pool has an account (memory_account.py). A pool claims memory before it starts workers, and returns it when they
have exited. `dispatcher/scaling/memory_budget.py` measures usage, decides which claims to grant, and suspends idle models
for them. Without a budget, every claim is granted at once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from pytriton._protocol import messages
from pytriton.dispatcher.elastic.known_size import KnownSize
from pytriton.dispatcher.elastic.memory import MEMORY, MIN_ESTIMATE, Amounts, Claim, added
from pytriton.dispatcher.runtime.change_signal import ChangeSignal
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.workers.memory_account import Account
from pytriton.dispatcher.workers.memory_claim import PendingClaim

#: Maximum number of model names whose size is remembered.
_MAX_SIZES = 10_000


class MemoryAccounts:
    """The accounts of all pools. The daemon has one of these.

    Args:
        limits: The budgets in bytes, by resource. Other resources are not bounded.
        gpus: Alternative names of GPUs, such as UUIDs -> name in `limits`.

    Attributes:
        mapped: Shared mappings of all workers, digest -> bytes. Each counts once.
        waiting: Pending claims, oldest first.
        changes: Notified when memory is claimed or returned.
        waits, refusals: Number of claims that had to wait, and that were refused.
        suspended: Number of times that a model was suspended for another one.
        last_grant: Time of the last grant.
        sizes: Known sizes of models by name, persisted for the next start of the daemon.
    """

    def __init__(
        self, limits: Amounts | None = None, gpus: Mapping[str, str] | None = None
    ) -> None:
        self.limits: dict[str, int] = dict(limits or {})
        self.gpus: dict[str, str] = dict(gpus or {})
        self.mapped: dict[str, int] = {}
        self.waiting: list[PendingClaim] = []
        self.changes = ChangeSignal()
        self.waits = self.refusals = self.suspended = 0
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
        """Open and return the account of a new pool.

        Args:
            spec: The pool's model.
            registration: Identifies the registration among others of the same model name, also after a daemon restart.
            payload: Size of a worker's pickled callable in bytes.
            patient: Whether no client waits for the first load, so that it may wait while other claims are granted.
            hosted: Whether the workers are threads of the registrant, whose memory does not count.
            events: Receives the events about the model's memory.
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
        """Remember the known size of a model unless it has been replaced. The oldest sizes beyond a limit are dropped."""
        name, size = account.spec.name, account.size
        newest = [one for one in self.open_accounts if one.spec.name == name][-1:]
        if size is None or newest != [account]:
            return
        self.sizes.pop(name, None)
        self.sizes[name] = size
        while len(self.sizes) > _MAX_SIZES:
            del self.sizes[next(iter(self.sizes))]

    async def until_put_off(
        self, loading: asyncio.Task[bool] | asyncio.Task[None], model: str
    ) -> None:
        """Wait until `loading` is done or the model waits for memory, so that the next load can start."""
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
            change = self.changes.next
            if any(one.put_off and one.account.spec.name == model for one in self.waiting):
                return
            await change.wait()

    def used(self) -> dict[str, int]:
        """Return the memory used by or granted to all workers, by resource."""
        shared = {MEMORY: sum(self.mapped.values())}
        held = (one.held for one in self.open_accounts)
        return added(dict.fromkeys(self.limits, 0), shared, *held)

    def claims(self) -> list[Claim]:
        """Return the pending claims."""
        return [Claim(str(id(one)), one.needs(), one.since) for one in self.waiting]

    def grant(self, key: str) -> None:
        """Grant a pending claim by its key."""
        for one in self.waiting:
            if str(id(one)) == key:
                one.grant()
                self.last_grant = asyncio.get_running_loop().time()
                self.waiting.remove(one)
                return

    @property
    def crowded(self) -> bool:
        """Whether memory is too scarce for optional uses such as prestarted workers."""
        if self.waiting or not self.limits:
            return bool(self.waiting)
        return self.used()[MEMORY] + MIN_ESTIMATE > self.limits.get(MEMORY, sys.maxsize)

    def usual(self, account: Account, kind: str) -> list[int]:
        """Return the known worker sizes of all other accounts, including the model's previous registration."""
        others = [one.known for one in self.open_accounts if one is not account and one.known]
        sizes = (one.memory if kind == MEMORY else one.gpu for one in others)
        return [size for size in sizes if size]
