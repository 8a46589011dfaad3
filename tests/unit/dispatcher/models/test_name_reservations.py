"""A stopping daemon waits for all changes of models; test_registration_histories.py shows that each excludes others."""

from __future__ import annotations

import asyncio

from fakes.virtual_time import VirtualLoop

from pytriton.dispatcher.models.deployer import Reservations


def test_all_changes_are_awaited(loop: VirtualLoop) -> None:
    names = Reservations()
    ended: list[str] = []

    async def change(name: str, seconds: float) -> None:
        with names.reserve(name):
            await asyncio.sleep(seconds)
            ended.append(name)
            raise ValueError("a failed change")

    async def main() -> None:
        tasks = [asyncio.ensure_future(change("m", 60)), asyncio.ensure_future(change("n", 30))]
        await asyncio.sleep(0)
        await names.until_all_free()
        assert ended == ["n", "m"]
        await asyncio.gather(*tasks, return_exceptions=True)

    loop.run(main())
