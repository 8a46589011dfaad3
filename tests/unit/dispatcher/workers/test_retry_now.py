"""The wish that an instance get a worker now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.workers.retry_now import ImmediateRetry


def play(scene: Callable[[ImmediateRetry], Awaitable[None]]) -> None:
    async def played() -> None:
        await scene(ImmediateRetry())

    asyncio.run(played())


def test_several_share_one_attempt() -> None:
    async def scene(healing: ImmediateRetry) -> None:
        wishes = [asyncio.create_task(healing.wish()) for _ in range(3)]
        await healing.hurry.wait()
        await asyncio.sleep(0)
        healing.attempted(None)
        await asyncio.gather(*wishes)
        assert not healing.hurry.is_set()

    play(scene)


def test_a_failure_is_told_to_all_and_the_next_wish_begins_anew() -> None:
    async def scene(healing: ImmediateRetry) -> None:
        wishes = [asyncio.create_task(healing.wish()) for _ in range(2)]
        await healing.hurry.wait()
        await asyncio.sleep(0)
        healing.attempted(RemoteFailure(ErrorKind.LOAD_FAILED, "no weights"))
        for one in wishes:
            with pytest.raises(RemoteFailure, match="no weights"):
                await one
        again = asyncio.create_task(healing.wish())
        await healing.hurry.wait()
        assert not again.done()
        healing.attempted(None)
        await again

    play(scene)


def test_who_gives_up_leaves_the_others_their_attempt() -> None:
    async def scene(healing: ImmediateRetry) -> None:
        impatient, patient = (asyncio.create_task(healing.wish()) for _ in range(2))
        await healing.hurry.wait()
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        assert healing.hurry.is_set()
        healing.attempted(None)
        await patient

    play(scene)


def test_without_a_wish_an_attempt_is_told_to_nobody() -> None:
    async def scene(healing: ImmediateRetry) -> None:
        healing.attempted(None)
        healing.attempted(RemoteFailure(ErrorKind.INTERNAL, "a fault"))
        assert not healing.hurry.is_set()

    play(scene)


def test_a_wish_after_the_last_attempt_does_not_wait_for_another() -> None:
    async def scene(healing: ImmediateRetry) -> None:
        early = asyncio.create_task(healing.wish())
        await healing.hurry.wait()
        await asyncio.sleep(0)
        healing.over(ValueError("no such proxy"))
        for wish in (early, asyncio.create_task(healing.wish())):
            with pytest.raises(RemoteFailure, match="internal error: no such proxy"):
                await asyncio.wait_for(wish, 10)

    play(scene)
