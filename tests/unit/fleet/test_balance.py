"""The loop around HAProxy: when it reloads, and when it says that nothing goes to a former node any more."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import pytest
from support.fakes.fake_dispatcher import SERVER, status

from pytriton.exceptions import PyTritonDaemonError
from pytriton.fleet import NodeStatus
from pytriton.fleet.balancer.balance import Balancer
from pytriton.fleet.balancer.configuration import KEEP_ALIVE_S, Files, Settings
from pytriton.fleet.balancer.haproxy import HAProxy
from pytriton.ipc import messages


class FakeHAProxy:
    """Keeps a former worker until it is told that it has ended."""

    def __init__(self) -> None:
        self.folder = Path("/d")
        self.used: list[Files] = []
        self.former = 0
        self.refuses = False
        self.pid: int | None = None

    def use(self, files: Files) -> None:
        if self.refuses:
            raise PyTritonDaemonError("refused")
        self.former += self.pid is not None
        self.pid = 1
        self.used.append(files)

    def workers(self) -> list[int]:
        return list(range(self.former + 1))


class Loop:
    """A balancer, its nodes and a clock."""

    def __init__(self) -> None:
        self.haproxy = FakeHAProxy()
        self.now = 100.0
        self.applied = 0
        self.nodes = {"a": ["m"], "b": ["m"]}
        self.balancer = Balancer(
            cast(HAProxy, self.haproxy), Settings(), self._look, self._apply, lambda: self.now
        )

    def _apply(self) -> None:
        self.applied += 1

    def _look(self) -> list[NodeStatus]:
        server = msgspec.structs.replace(SERVER, http_url="http://h:1", grpc_url="grpc://h:2")
        return [
            NodeStatus(
                node,
                msgspec.structs.replace(
                    status(*(messages.ModelInfo(name, 1, "ready", []) for name in models)),
                    server=server,
                ),
            )
            for node, models in self.nodes.items()
        ]


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_it_reloads_only_what_has_changed(loop: Loop) -> None:
    assert [loop.balancer.follow(), loop.balancer.follow()] == [True, False]
    loop.nodes["b"] = []
    assert [loop.balancer.follow(), loop.balancer.follow()] == [True, False]
    loop.haproxy.pid = None  # it has ended
    assert loop.balancer.follow() is True
    assert len(loop.haproxy.used) == 3


def test_a_change_holds_once_no_former_worker_can_get_a_request(loop: Loop) -> None:
    loop.balancer.follow()
    assert loop.applied == 1
    loop.nodes["b"] = []
    loop.balancer.follow()
    assert loop.applied == 1
    loop.haproxy.former = 0
    loop.balancer.follow()
    assert loop.applied == 2
    loop.nodes["b"] = ["m"]
    loop.balancer.follow()
    loop.now += (
        KEEP_ALIVE_S  # a stream keeps the former worker, but its idle connections have ended
    )
    loop.balancer.follow()
    assert loop.applied == 2
    loop.now += 3
    loop.balancer.follow()
    assert loop.applied == 3


def test_what_was_refused_is_tried_again_and_does_not_count(loop: Loop) -> None:
    loop.balancer.follow()
    loop.nodes["c"] = ["m"]
    loop.haproxy.refuses = True
    for _ in range(2):
        with pytest.raises(PyTritonDaemonError):
            loop.balancer.follow()
    assert loop.applied == 1
    loop.haproxy.refuses = False
    assert loop.balancer.follow() is True
