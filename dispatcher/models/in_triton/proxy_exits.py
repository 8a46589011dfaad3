"""The exits of a registration's proxies: detect them, wait for them, and force them if necessary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from pytriton.dispatcher.models.in_triton.attached_proxies import Proxies
from pytriton.dispatcher.workers.pool import Pool

#: A request queued in Triton with nothing ahead of it reaches a worker within this time.
_REST_S = 1.0


class ProxyExits:
    """Ends the proxies of one registration, and waits for them to exit.

    Args:
        pool: routes them to workers
        broken: called with the name of a proxy that exited without detaching

    Attributes:
        proxies: the attached proxies.
    """

    def __init__(self, pool: Pool, broken: Callable[[str], None]) -> None:
        self.proxies = Proxies(self._ended)
        self._pool = pool
        self._broken = broken
        self._detached = asyncio.Event()

    def detach(self, proxy: str) -> None:
        """Forget a proxy that has exited."""
        self.proxies.forget(proxy)
        self._pool.proxies.detach(proxy)
        self._detached.set()

    def forget_all(self, living: Collection[int] = ()) -> None:
        """Forget all proxies, which exited with tritonserver, except those of the servers in `living`."""
        kept = self.proxies.of(living)
        if kept:
            for proxy in self.proxies.names() - kept:
                self.detach(proxy)
            return
        self.proxies.clear()
        self._pool.proxies.forget_all()
        self._detached.set()

    def detach_of(self, server: int) -> None:
        """Forget the proxies of a tritonserver that has exited."""
        for proxy in self.proxies.of((server,)):
            self.detach(proxy)

    def end_all(self) -> None:
        """Kill the remaining proxies, and stop watching them."""
        self._end(self.proxies.names())
        self.proxies.clear()

    async def until_all_ended(
        self, grace_s: float, *, decoupled: bool, queue_delay_s: float = 0.0
    ) -> bool:
        """Wait up to `grace_s` until Triton has ended the proxies. Return whether all of them are idle or gone.

        Proxies of a decoupled model may linger without work: Triton 2.51 keeps a model for as long as a client holds
        the gRPC stream open on which it was answered. So it is enough that the model's workers are idle for longer than
        a request may wait in Triton's queue.
        """
        if not decoupled:
            await self._until(lambda: not self._pool.proxies, grace_s)
            return not self._pool.proxies
        look_s = _REST_S + queue_delay_s
        deadline = asyncio.get_running_loop().time() + grace_s
        before = None
        while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            await self._until(lambda: not self._pool.proxies, min(look_s, left_s))
            answered = self._pool.answered_if_idle()
            if not self._pool.proxies or (answered is not None and answered == before):
                return True
            before = answered
        return False

    async def until_ended(self, former: set[str], grace_s: float) -> None:
        """Wait until these proxies have exited; kill those that have not after a while."""
        await self._until(lambda: former.isdisjoint(self.proxies.names()), grace_s)
        self._end(former)

    def _end(self, proxies: set[str]) -> None:
        for proxy in self.proxies.end(proxies):
            self.detach(proxy)

    def _ended(self, proxy: str) -> None:
        self.detach(proxy)
        self._broken(proxy)

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds until a condition about the proxies holds."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            self._detached.clear()
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._detached.wait(), max(0.0, left_s))
            except asyncio.TimeoutError:
                return
