"""The loop around HAProxy: when it reloads, and when it reports that removed nodes get no more requests."""

from __future__ import annotations

import socket
import tempfile
import threading
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from fakes.fake_dispatcher import SERVER, status

from pytriton._cli.commands.fleet import run_balancer
from pytriton._protocol import messages
from pytriton.exceptions import PyTritonDaemonError
from pytriton.fleet import NodeStatus
from pytriton.fleet.balancer import configuration, haproxy
from pytriton.fleet.balancer.balance import Balancer
from pytriton.fleet.balancer.configuration import KEEP_ALIVE_S, BalancerSettings, Files
from pytriton.fleet.balancer.dns import Names
from pytriton.fleet.balancer.haproxy import HAProxy
from pytriton.fleet.placement_status import ABSENT


class FakeHAProxy:
    """Keeps a replaced worker until the test ends it."""

    def __init__(self) -> None:
        self.folder = Path("/d")
        self.used: list[Files] = []
        self.former = 0
        self.refuses = False
        self.error: Exception = PyTritonDaemonError("refused")
        self.pid: int | None = None

    def use(self, files: Files) -> None:
        if self.refuses:
            raise self.error
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
        self.urls: dict[str, str] = {}
        #: (node, model) -> its state, if that is not ready.
        self.states: dict[tuple[str, str], str] = {}
        self.silent: set[str] = set()
        #: What names resolve to.
        self.names = {"h": ["10.0.0.1"]}
        self.balancer = Balancer(
            cast(HAProxy, self.haproxy), BalancerSettings(), self._look, self._apply, lambda: self.now,
            Names(self._resolve, lambda: self.now),
        )  # fmt: skip

    def _resolve(self, name: str, *_: object, **__: object) -> list[Any]:
        if name not in self.names:
            raise OSError("unknown")
        return [(socket.AF_INET, 1, 6, "", (one, 0)) for one in self.names[name]]

    def servers(self) -> dict[str, str]:
        """Return the address of each server in HAProxy's newest configuration."""
        lines = self.haproxy.used[-1].configuration.splitlines()
        words = [line.split() for line in lines if line.split()[0] == "server"]
        return {one[1]: one[2] for one in words if one[2].endswith(":1")}

    def serving(self, model: str) -> str:
        """Return the nodes that get a model's requests, as letters."""
        _, _, found = self.haproxy.used[-1].configuration.partition(
            f"\nbackend http:model-{model}\n"
        )
        lines = found.partition("\nbackend ")[0].splitlines()
        return "".join(line.split()[1] for line in lines if line.split()[0] == "server")

    def route(self, model: str) -> str:
        """Return the backend of a model's requests."""
        table = dict(line.split() for line in self.haproxy.used[-1].models.splitlines())
        return table[model]

    def _apply(self) -> None:
        self.applied += 1

    def _look(self) -> list[NodeStatus]:
        return [
            NodeStatus(node, None if node in self.silent else self._status(node, models))
            for node, models in self.nodes.items()
        ]

    def _status(self, node: str, models: list[str]) -> messages.Status:
        url = self.urls.get(node, "http://h:1")
        infos = [
            messages.ModelInfo(name, 1, self.states.get((node, name), "ready"), [])
            for name in models
        ]
        return msgspec.structs.replace(
            status(*infos),
            server=msgspec.structs.replace(SERVER, http_url=url, grpc_url="grpc://h:2"),
        )


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_only_changes_cause_a_reload(loop: Loop) -> None:
    assert [loop.balancer.follow(), loop.balancer.follow()] == [True, False]
    loop.nodes["b"] = []
    assert [loop.balancer.follow(), loop.balancer.follow()] == [True, False]
    loop.haproxy.pid = None  # it has ended
    assert loop.balancer.follow() is True
    assert len(loop.haproxy.used) == 3


def test_a_new_node_gets_requests_once_it_serves_the_model(loop: Loop) -> None:
    """HAProxy considers new servers healthy until their second check: for two seconds, clients would get 404."""
    loop.balancer.follow()
    assert loop.serving("m") == "ab"
    # The daemon of a came back on another port, and c is new.
    loop.urls["a"], loop.nodes["c"] = "http://h:11", ["m", "n"]
    loop.states = {("a", "m"): "starting", ("c", "m"): "not_ready", ("c", "n"): "starting"}
    loop.balancer.follow()
    assert (loop.serving("m"), loop.serving("n")) == ("b", "")
    loop.states = {("a", "m"): "starting"}
    loop.balancer.follow()
    assert (loop.serving("m"), loop.serving("n")) == ("bc", "c")
    loop.states = {}
    loop.balancer.follow()
    assert loop.serving("m") == "abc"
    # What a node has served stays: whether it does so now is for HAProxy's checks.
    loop.states = {("a", "m"): "not_ready"}
    assert loop.balancer.follow() is False


@pytest.mark.parametrize("b", ["gone", "silent", "starting"])
def test_a_restarted_node_gets_no_requests_for_a_model_before_it_is_ready(
    loop: Loop, b: str
) -> None:
    """Not even if no other node serves the model: it might answer 404."""
    loop.balancer.follow()
    loop.urls["a"] = "http://h:11"
    loop.states = {("a", "m"): "restoring"}
    if b == "gone":
        del loop.nodes["b"]
    elif b == "silent":
        loop.silent.add("b")
    else:
        loop.states["b", "m"] = "starting"
    loop.balancer.follow()
    assert loop.serving("m") == ("" if b == "gone" else "b")
    assert loop.route("m") == ("none" if b == "gone" else "model-m")
    loop.states = {}
    loop.balancer.follow()
    assert loop.serving("m") == ("a" if b == "gone" else "ab")
    assert loop.route("m") == "model-m"


def test_a_model_that_no_node_serves_keeps_its_route(loop: Loop) -> None:
    loop.balancer.follow()
    loop.states = {("a", "m"): ABSENT}
    del loop.nodes["b"]
    loop.balancer.follow()
    assert (loop.serving("m"), loop.route("m")) == ("", "none")
    loop.states = {}
    loop.balancer.follow()
    assert (loop.serving("m"), loop.route("m")) == ("a", "model-m")


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
        KEEP_ALIVE_S  # a stream keeps the old worker alive, but its idle connections have ended
    )
    loop.balancer.follow()
    assert loop.applied == 2
    loop.now += 3
    loop.balancer.follow()
    assert loop.applied == 3


def test_refused_reloads_are_retried_and_do_not_count(loop: Loop) -> None:
    loop.balancer.follow()
    loop.nodes["c"] = ["m"]
    loop.haproxy.refuses = True
    for _ in range(2):
        with pytest.raises(PyTritonDaemonError):
            loop.balancer.follow()
    assert loop.applied == 1
    loop.haproxy.refuses = False
    assert loop.balancer.follow() is True


def test_haproxy_keeps_running_when_the_disk_is_full(loop: Loop) -> None:
    reported: list[str] = []
    stop = threading.Event()
    loop.haproxy.refuses, loop.haproxy.error = True, OSError(28, "No space left on device")

    def report(text: str) -> None:
        reported.append(text)
        if not loop.haproxy.refuses:
            stop.set()
        loop.haproxy.refuses = False

    loop.balancer.run(stop, 0.001, report)
    assert "No space left" in reported[0]
    assert reported[1] == "2 nodes, 1 models"


@pytest.mark.parametrize("url", ["http://h", "http://h:99999", "http://[h:1", "https://h:1"])
def test_only_a_node_with_invalid_reports_is_left_out(loop: Loop, url: str) -> None:
    reported: list[str] = []
    loop.balancer.follow()
    loop.urls["b"] = url
    loop.nodes = {"b": ["m"], "c": ["m"]}
    assert [loop.balancer.follow(reported.append) for _ in range(2)] == [True, False]
    assert loop.servers().keys() == {"c"}
    assert len(reported) == 1
    assert reported[0].startswith("b is left out")


def test_an_unresolvable_node_does_not_affect_the_others(loop: Loop) -> None:
    """HAProxy would refuse the whole configuration."""
    reported: list[str] = []
    loop.urls["b"] = "http://nowhere:1"
    assert loop.balancer.follow(reported.append) is True
    assert loop.servers() == {"a": "10.0.0.1:1"}
    assert [one.partition(":")[0] for one in reported] == ["b is left out"]
    loop.names["nowhere"] = ["fd00::1"]
    assert loop.balancer.follow() is False  # names are not resolved constantly
    loop.now += 30
    assert loop.balancer.follow() is True
    assert loop.servers() == {"a": "10.0.0.1:1", "b": "[fd00::1]:1"}


def test_an_unreachable_dns_removes_no_node(loop: Loop) -> None:
    loop.balancer.follow()
    del loop.names["h"]
    loop.now += 60
    loop.nodes["a"] = ["m", "n"]
    assert loop.balancer.follow() is True
    assert loop.servers() == {"a": "10.0.0.1:1", "b": "10.0.0.1:1"}


def test_the_order_of_a_names_addresses_does_not_cause_a_reload(loop: Loop) -> None:
    loop.names["h"] = ["10.0.0.2", "10.0.0.1"]
    loop.balancer.follow()
    loop.now += 60
    loop.names["h"] = ["10.0.0.0", "10.0.0.1"]
    assert loop.balancer.follow() is False
    loop.now += 60
    loop.names["h"] = ["10.0.0.9"]
    assert loop.balancer.follow() is True
    assert set(loop.servers().values()) == {"10.0.0.9:1"}


def test_a_temporary_folder_is_removed_after_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(haproxy, "find_haproxy", lambda: "/bin/false")
    seen: list[list[Path]] = []

    def render(*_: object) -> None:
        seen.append(list(tmp_path.iterdir()))
        raise PyTritonDaemonError("wrong settings")

    monkeypatch.setattr(configuration, "render", render)
    with pytest.raises(PyTritonDaemonError):
        run_balancer(list, BalancerSettings(), None, 1.0)
    assert len(seen[0]) == 1
    assert list(tmp_path.iterdir()) == []
