"""The first start: a port that was snatched away is chosen anew, all else is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from pytriton._host.ports import PortError
from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.server.restart import start_server
from pytriton.dispatcher.server.server_process import ServerStartError
from pytriton.dispatcher.server.tritonserver import TritonServer

_TAKEN = ServerStartError("tritonserver exited with code 1. It said:\nAddress already in use")
_BOUND = ServerStartError("failed to start: Unavailable: could not bind; unavailable")
_BROKEN = ServerStartError("tritonserver exited with code 127: a library is missing")
_CHOSEN, _NAMED = {"http_port": 0}, {"http_port": 9000}


class Server:
    """Fails to start with one error after the other, then starts."""

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


def _start(server: Any, **settings: Any) -> None:
    """Start it; it is asked to load a model that it is told anew each time."""
    reported = start_server(
        cast(TritonServer, server), DaemonConfig(**settings), lambda: {"m": {"name": "m"}}
    )
    assert asyncio.run(reported) == {"m"}


@pytest.mark.parametrize("error", [_TAKEN, _BOUND], ids=["in use", "unavailable"])
def test_other_ports_are_tried_when_one_that_we_chose_is_taken(error: ServerStartError) -> None:
    server = Server([error, error])
    _start(server, **_CHOSEN)
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
    server = Server(list(errors))
    with pytest.raises(ServerStartError) as caught:
        _start(server, **settings)
    assert caught.value is errors[-1]
    assert server.done == ["ports", "start", "stop"] * tries


def test_a_port_that_is_taken_before_is_reported_without_a_start() -> None:
    class Taken(Server):
        def choose_ports(self) -> None:
            raise PortError("port 9000 (http_port) is in use by pid 1")

    server = Taken([])
    with pytest.raises(PortError, match="in use by pid 1"):
        _start(server, **_NAMED)
    assert server.done == []
