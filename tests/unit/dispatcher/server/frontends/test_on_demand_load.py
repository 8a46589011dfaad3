"""The pipe on which a native frontend reports models that requests wait for."""

from __future__ import annotations

import asyncio
import os

import pytest

from pytriton.dispatcher.server.frontends.native_frontend import OnDemandLoads


async def _turns() -> None:
    """Data that is readable now is read in the event loop's second iteration."""
    for _ in range(4):
        await asyncio.sleep(0)


async def _reported(*pieces: bytes) -> list[str]:
    """Return the models reported to the daemon for data written in pieces until the pipe ends."""
    reported: list[str] = []
    reader, writer = os.pipe()
    asked = OnDemandLoads(reader, reported.append)
    loop = asyncio.get_running_loop()
    for piece in pieces:
        os.write(writer, piece)
        await _turns()
    os.close(writer)
    await _turns()
    assert not loop.remove_reader(reader)  # it has seen the end
    asked.close()
    asked.close()
    assert asked.descriptor < 0
    return reported


@pytest.mark.parametrize(
    ("pieces", "names"),
    [
        ((b"a\n", b"b\n"), ["a", "b"]),
        ((b"a\nb\nc", b"d\n"), ["a", "b", "cd"]),
        ((b"a\n\xff\n",), ["a", "\ufffd"]),
        ((b"half",), []),
        ((), []),
    ],
)
async def test_each_line_is_a_name(pieces: tuple[bytes, ...], names: list[str]) -> None:
    assert await _reported(*pieces) == names


async def test_the_next_version_reads_the_rest() -> None:
    """Unread data survives an upgrade of the daemon."""
    names: list[str] = []
    reader, writer = os.pipe()
    os.write(writer, b"a\nb\n")
    os.close(writer)
    asked = OnDemandLoads(reader, names.append)
    while len(names) < 2:
        await asyncio.sleep(0)
    asked.close()
    assert names == ["a", "b"]
