"""What a new server costs its clients: replaced in order, or killed, again and again, under load of every kind.

    PYTHONPATH=tests python -m chaos.replacing                       20 replacements, 20 kills
    PYTHONPATH=tests python -m chaos.replacing --restarts 3 --kills 0 --between 2

Loads, each without a pause: new connections of HTTP, connections that are kept, calls and streams of gRPC,
requests that take 5 s over both. Of replacements, nothing may fail. Of kills, what was begun before may; what is
begun after waits, and is answered.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from support.models.inference import Inference
from support.models.streaming import Streaming
from support.running import RunningDaemon, eventually

from pytriton.cli import link
from pytriton.model_config import ModelConfig, Tensor

_X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
_Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
_ONES = np.ones((1, 2), np.float32)
_SLOW_S = 5.0
_PATIENCE_S = 60.0
_STREAM_ANSWERS = 10
#: So long after a kill a client may still send on a connection that was the old server's.
_OLD_CONNECTIONS_S = 0.25
_BODY = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,1]}]}'


@dataclass
class Account:
    """What became of one kind of load."""

    right: int = 0
    longest_s: float = 0.0
    #: of each that failed: when it began and ended, and why
    failed: list[tuple[float, float, str]] = field(default_factory=list)


class Clients:
    """Threads that ask until they are stopped."""

    def __init__(self, daemon: RunningDaemon) -> None:
        host, _, port = daemon.http.rpartition(":")
        self._http = (host, int(port))
        self._grpc = daemon.grpc
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.accounts: dict[str, Account] = collections.defaultdict(Account)
        #: of new connections: when each was begun, and what it waited for its answer
        self.waits: list[tuple[float, float]] = []
        kinds: list[tuple[str, Callable[[], Callable[[], None]], int]] = [
            ("new connections", self._fresh, 4),
            ("kept connections", self._kept, 2),
            ("calls of gRPC", lambda: self._infer("grpc", "quick"), 2),
            ("streams of gRPC", self._stream, 2),
            ("5 s over HTTP", lambda: self._infer("http", "slow"), 1),
            ("5 s over gRPC", lambda: self._infer("grpc", "slow"), 1),
        ]
        self._threads = [
            threading.Thread(target=self._ask_on, args=(name, make))
            for name, make, count in kinds
            for _ in range(count)
        ]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, name: str, make: Callable[[], Callable[[], None]]) -> None:
        ask = make()
        while not self._stop.is_set():
            begun = time.monotonic()
            problem = ""
            try:
                ask()
            except Exception as error:  # whatever it is, it is what a client sees
                problem = f"{type(error).__name__}: {error}"
            took_s = time.monotonic() - begun
            with self._lock:
                account = self.accounts[name]
                account.longest_s = max(account.longest_s, took_s)
                if problem:
                    account.failed.append((begun, begun + took_s, problem[:200]))
                else:
                    account.right += 1
                if name == "new connections":
                    self.waits.append((begun, took_s))
            if problem:
                ask = make()
                self._stop.wait(0.05)

    def _fresh(self) -> Callable[[], None]:
        head = b"POST /v2/models/quick/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        request = head + b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY

        def ask() -> None:
            with socket.create_connection(self._http, _PATIENCE_S) as client:
                client.sendall(request)
                said = b""
                while piece := client.recv(65536):
                    said += piece
            assert said.startswith(b"HTTP/1.1 200 "), said
            assert b'"data":[1' in said, said

        return ask

    def _kept(self) -> Callable[[], None]:
        connection = http.client.HTTPConnection(*self._http, timeout=_PATIENCE_S)

        def ask() -> None:
            connection.request("POST", "/v2/models/quick/infer", _BODY)
            response = connection.getresponse()
            said = response.read()
            assert response.status == 200, said

        return ask

    def _infer(self, protocol: str, model: str) -> Callable[[], None]:
        address = self._grpc if protocol == "grpc" else f"{self._http[0]}:{self._http[1]}"
        connection = Inference(protocol, address)
        options: dict[str, Any] = {"client_timeout": _PATIENCE_S} if protocol == "grpc" else {}

        def ask() -> None:
            assert connection.infer(model, {"x": _ONES}, **options)["y"].tolist() == [[1, 1]]

        return ask

    def _stream(self) -> Callable[[], None]:
        def ask() -> None:
            with Streaming(self._grpc, "stream", {"x": _ONES}) as streaming:
                assert len(list(streaming)) == _STREAM_ANSWERS

        return ask


def _factory(notes: str, infer: Any) -> Any:
    def load() -> Any:
        with open(notes, "a", encoding="ascii") as file:
            file.write("loaded\n")
        return infer

    return load


def _quick(requests: Any) -> Any:
    return [{"y": request["x"]} for request in requests]


def _slow(requests: Any) -> Any:
    time.sleep(_SLOW_S)
    return _quick(requests)


def _stream(requests: Any) -> Any:
    for _ in range(_STREAM_ANSWERS):
        time.sleep(0.1)
        yield [{"y": request["x"]} for request in requests]


class Ground:
    """The daemon and its models."""

    def __init__(self, daemon: RunningDaemon, notes: Path) -> None:
        self.daemon = daemon
        self._notes = notes
        kinds = {
            "quick": (_quick, 1, False),
            "slow": (_slow, 2, False),
            "stream": (_stream, 2, True),
        }
        for name, (infer, instances, decoupled) in kinds.items():
            daemon.client.register(
                _factory(str(notes / name), infer), name, _X, _Y,
                ModelConfig(max_batch_size=8 if name == "quick" else 1, decoupled=decoupled),
                factory=True, instances=instances, progress=False,
            )  # fmt: skip
        self.loads_at_first = self.loads()

    def loads(self) -> dict[str, int]:
        """How often each model was loaded."""
        return {
            path.name: path.read_text().count("loaded") for path in sorted(self._notes.iterdir())
        }

    def pid(self) -> int | None:
        """The server's."""
        return self.daemon.client.status().server.pid

    def restart(self) -> None:
        """Replace the server."""
        link.replace_server(self.daemon.config.rundir)

    def kill(self) -> float:
        """Kill the server, and wait for another one; return when that was."""
        pid = self.pid()
        assert pid is not None
        begun = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        eventually(
            lambda: (
                self.pid() not in (None, pid)
                and self.daemon.client.status().server.state == "ready"
            ),
            "another server has been started",
        )
        return begun


def _failures(clients: Clients, kills: list[float]) -> list[str]:
    """Say which requests failed that may not: those that no kill came across."""
    found = []
    for name, account in clients.accounts.items():
        over_s = 0.0 if name == "new connections" else _OLD_CONNECTIONS_S
        found += [
            f"{name}: {problem}"
            for begun, ended, problem in account.failed
            if not any(begun <= kill + over_s and kill <= ended for kill in kills)
        ]
    return found


def _print(what: str, times: int, seconds: float, clients: Clients, ground: Ground) -> None:
    print(
        f"\n{times} {what} in {seconds:.0f} s; loads: {ground.loads()}, at first: {ground.loads_at_first}"
    )
    print("| load | answered | failed | longest, s |\n|---|--:|--:|--:|")
    for name, one in clients.accounts.items():
        print(f"| {name} | {one.right:,} | {len(one.failed):,} | {one.longest_s:.2f} |")
    for name, one in clients.accounts.items():
        for problem, count in collections.Counter(text for *_, text in one.failed).most_common(3):
            print(f"  {name}: {count} x {problem}")


def run(ground: Ground, restarts: int, kills: int, between_s: float) -> list[str]:
    """Replace and kill so often; return what may not be."""
    problems = []
    if restarts:
        begun = time.monotonic()
        with Clients(ground.daemon) as clients:
            for _ in range(restarts):
                time.sleep(between_s)
                ground.restart()
            time.sleep(between_s)
        _print("replacements", restarts, time.monotonic() - begun, clients, ground)
        problems += _failures(clients, [])
    if kills:
        begun = time.monotonic()
        with Clients(ground.daemon) as clients:
            times = []
            for _ in range(kills):
                time.sleep(between_s)
                times.append(ground.kill())
            time.sleep(between_s)
        _print("kills", kills, time.monotonic() - begun, clients, ground)
        problems += _failures(clients, times)
        waits = [
            max((took for at, took in clients.waits if 0 < at - kill < 10), default=0.0)
            for kill in times
        ]
        print(
            "  new connections waited at most, s, after each kill: "
            + " ".join(f"{wait:.2f}" for wait in waits)
        )
    if ground.loads() != ground.loads_at_first:
        problems.append(
            f"models were loaded again: {ground.loads()}, at first {ground.loads_at_first}"
        )
    return problems


def main() -> int:
    """Do what the command line says; 1 when something failed that may not."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.replacing", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--between", type=float, default=4.0, help="seconds of load before each")
    given = parser.parse_args()
    # Kills in a row are a crash loop, whose growing pauses are not what is measured.
    started = RunningDaemon.start(front="native", server_backoff_max_s=0.5)
    with tempfile.TemporaryDirectory(prefix="replacing-") as notes, started as daemon:
        ground = Ground(daemon, Path(notes))
        problems = run(ground, given.restarts, given.kills, given.between)
    for problem, count in collections.Counter(problems).most_common(20):
        print(f"BROKEN: {count} x {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
