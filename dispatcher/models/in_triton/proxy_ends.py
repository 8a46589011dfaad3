"""The ends of a registration's proxies: noticed, waited for, and forced where need be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from pytriton.dispatcher.models.in_triton.attached_proxies import Proxies
from pytriton.dispatcher.workers.pool import Pool

#: A request that waits in Triton, with nothing in front of it, is with a worker within this time.
_REST_S = 1.0


class ProxyEnds:
    """Ends the proxies of one registration, and waits for their ends.

    Args:
        pool: routes them to workers
        broken: is told the name of a proxy that ended without a word

    Attributes:
        proxies: those that are attached.
    """

    def __init__(self, pool: Pool, broken: Callable[[str], None]) -> None:
        self.proxies = Proxies(self._ended)
        self._pool = pool
        self._broken = broken
        self._detached = asyncio.Event()

    def detach(self, proxy: str) -> None:
        """Forget a proxy that has ended."""
        self.proxies.forget(proxy)
        self._pool.proxies.detach(proxy)
        self._detached.set()

    def forget_all(self, living: Collection[int] = ()) -> None:
        """Forget all proxies, which have ended with tritonserver, but those of servers that live on."""
        kept = self.proxies.of(living)
        if kept:
            for proxy in self.proxies.names() - kept:
                self.detach(proxy)
            return
        self.proxies.clear()
        self._pool.proxies.forget_all()
        self._detached.set()

    def detach_of(self, server: int) -> None:
        """Forget the proxies of a tritonserver that has ended."""
        for proxy in self.proxies.of((server,)):
            self.detach(proxy)

    def end_all(self) -> None:
        """End those that are left, and watch none of them any more."""
        self._end(self.proxies.names())
        self.proxies.clear()

    async def until_all_ended(
        self, grace_s: float, *, decoupled: bool, queue_delay_s: float = 0.0
    ) -> bool:
        """Wait until Triton has ended the proxies, at most `grace_s`; whether nothing is under way in them.

        Of a decoupled model they may stay for nothing: Triton (2.51) holds on to a model as long as a client holds
        the gRPC stream open on which it has answered. So it is enough that its workers have nothing to do for longer
        than a request may wait in Triton's queue.
        """
        if not decoupled:
            await self._until(lambda: not self._pool.proxies, grace_s)
            return not self._pool.proxies
        look_s = _REST_S + queue_delay_s
        deadline = asyncio.get_running_loop().time() + grace_s
        before = None
        while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            await self._until(lambda: not self._pool.proxies, min(look_s, left_s))
            answered = self._pool.at_rest()
            if not self._pool.proxies or (answered is not None and answered == before):
                return True
            before = answered
        return False

    async def until_ended(self, former: set[str], grace_s: float) -> None:
        """Wait until some proxies have ended; those that have not after a while are killed."""
        await self._until(lambda: former.isdisjoint(self.proxies.names()), grace_s)
        self._end(former)

    def _end(self, proxies: set[str]) -> None:
        for proxy in self.proxies.end(proxies):
            self.detach(proxy)

    def _ended(self, proxy: str) -> None:
        self.detach(proxy)
        self._broken(proxy)

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until a condition about the proxies holds, at most `timeout_s` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            self._detached.clear()
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._detached.wait(), max(0.0, left_s))
            except asyncio.TimeoutError:
                return
