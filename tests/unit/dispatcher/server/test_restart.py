"""The first start of tritonserver, and restarts with growing back-off, unlimited unless a setting limits them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytriton._host.ports import PortError
from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.server import restart
from pytriton.dispatcher.server.restart import ServerWatch, start_server
from pytriton.dispatcher.server.server_process import ServerStartError
from pytriton.dispatcher.server.tritonserver import TritonServer


class Unstable:
    """A tritonserver that exits as soon as it is up, and whose starts fail as `fails` says."""

    def __init__(self, ends: int, fails: tuple[int, ...] = ()) -> None:
        self._ends_left = ends
        self._fails = fails
        self.starts = 0
        self.done = asyncio.Event()  #: it has ended as often as it shall

    async def wait_exited(self) -> str:
        if not self._ends_left:
            self.done.set()
            await asyncio.Event().wait()
        self._ends_left -= 1
        return "tritonserver (pid 1) was killed by signal 11 (SIGSEGV)"

    def info(self) -> Any:
        return SimpleNamespace(pid=1)

    async def clean_up(self) -> None:
        """Do nothing: there is nothing to clean up."""

    async def start(self, preload: object) -> set[str]:
        assert preload == {"m": {}}
        self.starts += 1
        if self.starts in self._fails:
            raise ServerStartError("the port is taken. It said:\nnothing")
        return {"m"}


class Pauses:
    """Replaces asyncio.sleep: records each pause, and takes no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[float] = []
        monkeypatch.setattr("pytriton.dispatcher.server.restart.asyncio.sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.all.append(seconds)


def _watch(server: Any, loads: list[int] | None = None, **settings: Any) -> ServerWatch:
    async def load_again(loaded: set[str]) -> None:
        assert loaded == {"m"}
        if loads is not None:
            loads.append(server.starts)

    return _watching(server, DaemonConfig(**settings), load_again)


def _watching(
    server: Any, config: DaemonConfig, load_again: Callable[[set[str]], Awaitable[None]]
) -> ServerWatch:
    return ServerWatch(
        server, config, lost=lambda: None, preload=lambda: {"m": {}}, load_again=load_again
    )


async def _until_done(watch: ServerWatch, server: Unstable) -> None:
    running = asyncio.ensure_future(watch.run())
    waiting = asyncio.ensure_future(server.done.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert not running.done(), running.result()
    running.cancel()


async def test_restarts_are_unlimited_with_growing_back_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one is immediate; a failed start counts like an exit."""
    pauses = Pauses(monkeypatch)
    server, loads = Unstable(20, fails=(3, 4)), list[int]()
    watch = _watch(server, loads, server_backoff_max_s=5)
    await _until_done(watch, server)
    assert loads == [1, 2, *range(5, 23)]
    assert pauses.all == [0.5, 1, 2, 4] + [5] * 17
    problem = watch.problem()
    assert problem is not None
    assert problem.startswith(
        "tritonserver failed 22 times in a row, last: tritonserver (pid 1) was killed by signal 11 (SIGSEGV). "
        "It has been up for "
    )


async def test_a_long_running_server_restarts_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not part of a crash loop, and status shows nothing."""
    monkeypatch.setattr(restart, "_HEALTHY_S", -1.0)
    pauses = Pauses(monkeypatch)
    server = Unstable(5)
    watch = _watch(server)
    await _until_done(watch, server)
    assert watch.problem() is None
    assert pauses.all == []


class Irreplaceable(Unstable):
    """A server whose replacement fails before or after loading models."""

    def __init__(self, *, begins: bool) -> None:
        super().__init__(0)
        self._begins = begins

    async def replace(
        self,
        preload: object,
        load_again: Callable[[set[str]], Awaitable[None]],
        *,
        force: bool = False,
    ) -> int:
        if self._begins:
            await load_again({"m"})
        raise ServerStartError("it has ended")


@pytest.mark.parametrize("begins", [True, False])
async def test_needless_reloads_are_undone(begins: bool) -> None:
    undone: list[bool] = []

    async def load_again(loaded: set[str]) -> None:
        pass

    watch = ServerWatch(
        cast(Any, Irreplaceable(begins=begins)),
        DaemonConfig(),
        lost=lambda: None,
        preload=dict,
        load_again=load_again,
        undo=lambda: undone.append(True),
    )
    with pytest.raises(ServerStartError):
        await watch.replace("a test")
    assert undone == [True] * begins


async def test_an_internal_error_during_a_reload_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It counts as a failed start: a server without models is restarted."""
    Pauses(monkeypatch)
    server = Unstable(1)

    async def load_again(loaded: set[str]) -> None:
        if server.starts < 3:
            raise LookupError("a fault of ours")

    await _until_done(_watching(server, DaemonConfig(), load_again), server)
    assert server.starts == 3


_TAKEN = ServerStartError("tritonserver exited with code 1. It said:\nAddress already in use")
_BOUND = ServerStartError("failed to start: Unavailable: could not bind; unavailable")
_BROKEN = ServerStartError("tritonserver exited with code 127: a library is missing")
_CHOSEN, _NAMED = {"http_port": 0}, {"http_port": 9000}


class FailingServer:
    """Fails to start with one error after another, then starts."""

    def __init__(self, errors: list[ServerStartError]) -> None:
        self._errors = errors
        self.done: list[str] = []

    def choose_ports(self) -> None:
        self.done.append("ports")

    async def start(self, preload: Mapping[str, Any]) -> set[str]:
        self.done.append("start")
        if self._errors:
            raise self._errors.pop(0)
        return set(preload)

    async def stop(self) -> None:
        self.done.append("stop")


def _first_start(server: Any, **settings: Any) -> None:
    reported = start_server(
        cast(TritonServer, server), DaemonConfig(**settings), lambda: {"m": {"name": "m"}}
    )
    assert asyncio.run(reported) == {"m"}


@pytest.mark.parametrize("error", [_TAKEN, _BOUND], ids=["in use", "unavailable"])
def test_a_chosen_port_that_was_taken_is_replaced_by_another(error: ServerStartError) -> None:
    server = FailingServer([error, error])
    _first_start(server, **_CHOSEN)
    assert server.done == ["ports", "start", "stop"] * 2 + ["ports", "start"]


@pytest.mark.parametrize(
    ("errors", "settings", "tries"),
    [
        ([_TAKEN] * 9, _CHOSEN, 5),
        ([_TAKEN], _NAMED, 1),
        ([_BROKEN], _CHOSEN, 1),
    ],
    ids=["for ever", "a port of the settings", "something else"],
)
def test_failures_that_other_ports_do_not_fix_are_reported(
    errors: list[ServerStartError], settings: dict[str, Any], tries: int
) -> None:
    server = FailingServer(list(errors))
    with pytest.raises(ServerStartError) as caught:
        _first_start(server, **settings)
    assert caught.value is errors[-1]
    assert server.done == ["ports", "start", "stop"] * tries


def test_a_configured_port_in_use_prevents_the_start() -> None:
    class Taken(FailingServer):
        def choose_ports(self) -> None:
            raise PortError("port 9000 (http_port) is in use by pid 1")

    server = Taken([])
    with pytest.raises(PortError, match="in use by pid 1"):
        _first_start(server, **_NAMED)
    assert server.done == []
