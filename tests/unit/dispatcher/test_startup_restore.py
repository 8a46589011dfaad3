"""Histories of restores of clients' and repositories' models, with failures on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes.virtual_time import VirtualLoop

from pytriton.dispatcher.startup_restore import StartupRestorer

_TAKES_S = 1.0


class Returns:
    """Records what is restored, and when each part starts and ends."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.history: list[str] = []
        self.fails: set[str] = set()
        self.known = SimpleNamespace(server_lost=False)
        self.server_starts = SimpleNamespace(
            forget_proxies=lambda: self.history.append("proxies are forgotten"),
            load_again=lambda loaded: self._do("registered models"),
        )
        registry = SimpleNamespace(restore=self._restore, server_starts=self.server_starts)
        repositories = SimpleNamespace(
            start=lambda: self._do("repositories"),
            reload_all=lambda: self._do("repositories' models"),
            records=self.known,
        )
        self.again = StartupRestorer(cast(Any, registry), cast(Any, repositories))
        self.tasks: list[asyncio.Task[None]] = []

    async def _do(self, what: str) -> None:
        await asyncio.sleep(_TAKES_S)
        if what in self.fails:
            raise KeyError(what)
        self.history.append(what)

    async def _restore(self) -> None:
        await self._do("restored")
        await asyncio.sleep(3 * _TAKES_S)  # for one that takes long

    def begin(self) -> None:
        for doing in (self.again.restore(), self.again.load_repositories()):
            self.tasks.append(self.loop.create_task(doing))
        self.loop.settle()

    def server_is_up_again(self) -> None:
        self.again.server_lost()
        self.loop.run(self.again.load_again(set()))

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.loop.settle()


@pytest.fixture
def returns(loop: VirtualLoop) -> Iterator[Returns]:
    one = Returns(loop)
    yield one
    one.close()


@pytest.mark.parametrize("fails", [set(), {"restored"}])
def test_repositories_do_not_wait_for_clients_models(returns: Returns, fails: set[str]) -> None:
    """Nor for a restore with an internal error."""
    returns.fails = fails
    returns.begin()
    returns.loop.advance(_TAKES_S + 0.1)
    assert returns.history == ["restored", "repositories"][len(fails) :]


def test_failed_restores_are_retried_when_tritonserver_is_back(returns: Returns) -> None:
    returns.fails = {"restored"}
    returns.begin()
    returns.loop.advance(100.0)
    returns.fails = set()
    assert "restored" not in returns.history
    returns.server_is_up_again()
    assert returns.known.server_lost
    returns.loop.advance(100.0)
    assert returns.history == [
        "repositories",
        "proxies are forgotten",
        "registered models",
        "repositories' models",
        "restored",
    ]


def test_a_tritonserver_restart_during_a_restore_is_not_missed(returns: Returns) -> None:
    returns.begin()
    returns.loop.advance(2.0 * _TAKES_S)
    returns.server_is_up_again()
    returns.loop.advance(100.0)
    assert returns.history.count("restored") == 2
    assert returns.history.count("repositories") == 1


def test_an_internal_error_of_repositories_does_not_affect_the_restore(returns: Returns) -> None:
    returns.fails = {"repositories"}
    returns.begin()
    returns.loop.advance(100.0)
    returns.server_is_up_again()
    returns.loop.advance(100.0)
    assert returns.history.count("restored") == 2
