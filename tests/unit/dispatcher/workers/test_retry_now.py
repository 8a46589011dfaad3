"""The wish that an instance get a worker now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.workers.supervisor import ImmediateRetry


def play(scene: Callable[[ImmediateRetry], Awaitable[None]]) -> None:
    async def played() -> None:
        await scene(ImmediateRetry())

    asyncio.run(played())


def test_several_share_one_attempt() -> None:
    async def scene(retry: ImmediateRetry) -> None:
        requests = [asyncio.create_task(retry.request()) for _ in range(3)]
        await retry.hurry.wait()
        await asyncio.sleep(0)
        retry.attempted(None)
        await asyncio.gather(*requests)
        assert not retry.hurry.is_set()

    play(scene)


def test_a_failure_reaches_all_waiters_and_the_next_request_starts_again() -> None:
    async def scene(retry: ImmediateRetry) -> None:
        requests = [asyncio.create_task(retry.request()) for _ in range(2)]
        await retry.hurry.wait()
        await asyncio.sleep(0)
        retry.attempted(RemoteFailure(ErrorKind.LOAD_FAILED, "no weights"))
        for one in requests:
            with pytest.raises(RemoteFailure, match="no weights"):
                await one
        again = asyncio.create_task(retry.request())
        await retry.hurry.wait()
        assert not again.done()
        retry.attempted(None)
        await again

    play(scene)


def test_a_cancelled_waiter_leaves_the_attempt_to_others() -> None:
    async def scene(retry: ImmediateRetry) -> None:
        impatient, patient = (asyncio.create_task(retry.request()) for _ in range(2))
        await retry.hurry.wait()
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        assert retry.hurry.is_set()
        retry.attempted(None)
        await patient

    play(scene)


def test_an_unrequested_attempt_notifies_nobody() -> None:
    async def scene(retry: ImmediateRetry) -> None:
        retry.attempted(None)
        retry.attempted(RemoteFailure(ErrorKind.INTERNAL, "a fault"))
        assert not retry.hurry.is_set()

    play(scene)


def test_a_wish_after_the_last_attempt_does_not_wait_for_another() -> None:
    async def scene(retry: ImmediateRetry) -> None:
        early = asyncio.create_task(retry.request())
        await retry.hurry.wait()
        await asyncio.sleep(0)
        retry.over(ValueError("no such proxy"))
        for wish in (early, asyncio.create_task(retry.request())):
            with pytest.raises(RemoteFailure, match="internal error: no such proxy"):
                await asyncio.wait_for(wish, 10)

    play(scene)
