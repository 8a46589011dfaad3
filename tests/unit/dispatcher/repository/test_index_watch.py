"""tritonserver's index compared with the daemon's records: trusted only if nothing has changed during the request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes.virtual_time import VirtualLoop

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.repository.watch import IndexWatch
from pytriton.dispatcher.runtime.tasks import ChangeSignal


class Server:
    """Answers with an index after a while."""

    def __init__(self) -> None:
        self.ready = True
        self.index: dict[str, str] | None = {"m": "READY"}
        self.takes_s = 0.0
        self.asked = 0

    async def repository_states(self) -> dict[str, str]:
        self.asked += 1
        await asyncio.sleep(self.takes_s)
        if self.index is None:
            raise RemoteFailure(ErrorKind.UNAVAILABLE, "it has ended")
        return self.index


class Model:
    """A registration as the watch sees it, and the states passed to it."""

    def __init__(self, name: str) -> None:
        self.spec = self.in_triton = self
        self.name = name
        self.marked: object = "unchanged"
        self.reported: list[bool] = []

    def mark(self) -> object:
        return self.marked

    def sync_with_index(self, loaded: bool) -> None:
        self.reported.append(loaded)


class Records(list[Model]):
    """The records of a repository's models."""

    def marks(self) -> list[Any]:
        return [(one.mark, one.marked, one.sync_with_index, one.name) for one in self]


class Watched:
    def __init__(self, requests: ChangeSignal | None = None) -> None:
        self.server = Server()
        self.m, self.n, self.own = Model("m"), Model("n"), Model("own")
        parts: Any = (self.server, [self.m, self.n], Records([self.own]), requests)
        self.watch = IndexWatch(*parts)

    def seen(self) -> list[list[bool]]:
        return [self.m.reported, self.n.reported, self.own.reported]


def test_all_models_get_the_index_s_state(loop: VirtualLoop) -> None:
    watched = Watched()
    watched.server.index = {"m": "READY", "n": "UNAVAILABLE"}
    loop.run(watched.watch.poll_once())
    assert watched.seen() == [[True], [False], [False]]


def test_concurrent_changes_invalidate_the_index(loop: VirtualLoop) -> None:
    watched = Watched()
    watched.server.takes_s = 0.5
    watched.n.marked = None  # it is being loaded
    looking = loop.create_task(watched.watch.poll_once())
    loop.advance(0.1)
    watched.m.marked = "loaded anew"
    watched.n.marked = "loaded"
    loop.run(looking)
    assert watched.seen() == [[], [], [False]]


@pytest.mark.parametrize("trouble", ["down", "ends", "slow"])
def test_an_unresponsive_tritonserver_contributes_no_metrics(
    loop: VirtualLoop, trouble: str
) -> None:
    watched = Watched()
    watched.server.ready = trouble != "down"
    if trouble == "ends":
        watched.server.index = None
    if trouble == "slow":
        watched.server.takes_s = 1000.0
    loop.run(watched.watch.poll_once())
    assert watched.seen() == [[], [], []]
    assert loop.time() <= 1.0
    assert watched.server.asked == (trouble != "down")


def test_the_index_is_polled_periodically_if_tritonserver_does_not_report_requests(
    loop: VirtualLoop,
) -> None:
    watched = Watched()
    running = loop.create_task(watched.watch.run())
    loop.advance(21.0)
    assert watched.m.reported == [True] * 4
    running.cancel()
    loop.settle()


def test_the_index_is_polled_twice_after_each_request_of_a_client(loop: VirtualLoop) -> None:
    requests = ChangeSignal()
    watched = Watched(requests)
    running = loop.create_task(watched.watch.run())
    loop.advance(1000.0)
    assert watched.server.asked == 2
    requests.notify()
    loop.advance(6.0)
    assert watched.server.asked == 3
    requests.notify()
    loop.advance(1000.0)
    assert watched.server.asked == 6
    running.cancel()
    loop.settle()


@pytest.mark.parametrize("trouble", ["LOADING", "UNLOADING", "down", "ends"])
def test_the_index_is_polled_until_no_model_is_loading_or_unloading(
    loop: VirtualLoop, trouble: str
) -> None:
    watched = Watched(ChangeSignal())
    if trouble == "down":
        watched.server.ready = False
    else:
        watched.server.index = None if trouble == "ends" else {"m": trouble}
    running = loop.create_task(watched.watch.run())
    loop.advance(100.0)
    watched.server.ready = True
    watched.server.index = {"m": "READY"}
    watched.m.reported.clear()
    loop.advance(1000.0)
    assert watched.m.reported == [True] * 2
    running.cancel()
    loop.settle()
