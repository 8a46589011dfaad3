"""One task at a time may change a name's model; others are refused or wait."""

from __future__ import annotations

import asyncio

import pytest
from fakes.virtual_time import VirtualLoop

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.deployer import Reservations


async def hold(names: Reservations, name: str, *, undo: asyncio.Event | None = None) -> None:
    """Change a name for a minute; from `undo` on, roll that back for a minute."""
    with names.reserve(name):
        if undo is None:
            await asyncio.sleep(60)
            return
        await undo.wait()
        with names.rolling_back(name):
            await asyncio.sleep(60)


def test_a_name_is_reserved_once(loop: VirtualLoop) -> None:
    names = Reservations()

    async def main() -> None:
        holding = asyncio.ensure_future(hold(names, "m"))
        await asyncio.sleep(0)
        for attempt in (names.check, lambda name: names.reserve(name).__enter__()):
            with pytest.raises(RemoteFailure, match="by another client") as caught:
                attempt("m")
            assert caught.value.kind is ErrorKind.EXISTS
        names.check("other")
        await holding
        names.check("m")

    loop.run(main())


def test_a_name_is_always_released(loop: VirtualLoop) -> None:
    names = Reservations()

    async def main() -> None:
        holding = asyncio.ensure_future(hold(names, "m"))
        await asyncio.sleep(0)
        holding.cancel()
        await names.until_free("m")
        names.check("m")
        assert holding.cancelled()

    loop.run(main())


def test_waiting_for_an_undo_ignores_new_changes(
    loop: VirtualLoop,
) -> None:
    names = Reservations()

    async def main() -> tuple[float, float, float]:
        undo = asyncio.Event()
        tasks = [
            asyncio.ensure_future(hold(names, "m", undo=undo)),
            asyncio.ensure_future(hold(names, "n")),
        ]
        await asyncio.sleep(0)
        await names.until_rolled_back("m")
        await names.until_rolled_back("n")
        at_once = loop.time()
        undo.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await names.until_rolled_back("m")
        undone = loop.time()
        names.check("m")
        await names.until_all_free()
        await asyncio.gather(*tasks)
        return at_once, undone, loop.time()

    assert loop.run(main()) == (0.0, 60.0, 60.0)
