"""What a new server costs its clients: replaced in order, or killed, again and again, under load of every kind.

    PYTHONPATH=tests python -m chaos.server_replacement            20 replacements, 20 whose new server dies, 20 kills
    PYTHONPATH=tests python -m chaos.server_replacement --restarts 3 --failed-starts 0 --kills 0 --between 2

Loads without a pause: new connections of HTTP, connections that are kept, calls and streams of gRPC, requests that take
5 s over both, streams that last longer than the grace period. Loads with pauses: connections of both that are idle in
between, whose clients do not look whether they are still open; requests whose inputs lie in shared memory regions that
were registered once; sequences. Of replacements, nothing may fail, nor where the new server dies before it serves. Of
kills, what was begun before may; what is begun after waits, and is answered.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc
from support.models.inference import Inference
from support.models.stream_client import Streaming
from support.real_daemon import RunningDaemon, eventually

from pytriton._cli import daemon_connection
from pytriton._cli.errors import CliError
from pytriton.model_config import ModelConfig, Tensor

_X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
_Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
_ONES = np.ones((1, 2), np.float32)
_SLOW_S = 5.0
_PATIENCE_S = 60.0
_STREAM_ANSWERS = 10
#: Of streams that last longer than the grace period: 8 s.
_LONG_ANSWERS = 80
_GRACE_S = 3.0
_SEQUENCE_STEPS = 6
#: So long after a kill a client may still send on a connection that was the old server's.
_OLD_CONNECTIONS_S = 0.25
_BODY = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,1]}]}'


@dataclass
class Account:
    """The outcome of one kind of load."""

    right: int = 0
    longest_s: float = 0.0
    #: of each that failed: when it began and ended, and why
    failed: list[tuple[float, float, str]] = field(default_factory=list)


class Clients:
    """Threads that send requests until they are stopped."""

    def __init__(self, daemon: RunningDaemon) -> None:
        host, _, port = daemon.http.rpartition(":")
        self._http = (host, int(port))
        self._grpc = daemon.grpc
        self._token = daemon.config.rundir.access_token() or ""  # for those who register regions
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
            ("streams of 8 s", lambda: self._stream("long", _LONG_ANSWERS), 2),
            ("idle HTTP", self._idle_http, 12),
            ("idle gRPC", self._idle_grpc, 4),
            ("regions over HTTP", self._region_http, 2),
            ("regions over gRPC", self._region_grpc, 2),
            ("sequences", self._sequence, 1),
        ]
        self._numbers = itertools.count(1)
        self._chance = random.Random(1)
        self._memory = shared_memory.SharedMemory(create=True, size=8)
        np.ndarray(2, np.float32, self._memory.buf)[:] = 1
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
        self._memory.close()
        self._memory.unlink()

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

    def _stream(self, model: str = "stream", answers: int = _STREAM_ANSWERS) -> Callable[[], None]:
        def ask() -> None:
            with Streaming(self._grpc, model, {"x": _ONES}) as streaming:
                assert len(list(streaming)) == answers

        return ask

    def _pause(self) -> None:
        """Keep the connection idle, sometimes for longer than a replacement takes."""
        self._stop.wait(self._chance.choice((0.05, 0.5, 2.5)))

    def _idle_http(self) -> Callable[[], None]:
        """A client that does not check whether the server has closed its connection before it sends."""
        client = socket.create_connection(self._http, _PATIENCE_S)
        head = b"POST /v2/models/quick/infer HTTP/1.1\r\nHost: x\r\n"
        request = head + b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY
        answers = client.makefile("rb")

        def ask() -> None:
            self._pause()
            client.sendall(request)
            status = answers.readline()
            assert status.startswith(b"HTTP/1.1 200 "), status or "the connection has ended"
            size, closes = 0, False
            while (line := answers.readline().strip().lower()) != b"":
                if line.startswith(b"content-length:"):
                    size = int(line.partition(b":")[2])
                closes |= line == b"connection: close"
            assert b'"data":[1' in answers.read(size)
            assert not closes, "the server closes the connection"

        return ask

    def _idle_grpc(self) -> Callable[[], None]:
        ask_once = self._infer("grpc", "quick")

        def ask() -> None:
            self._pause()
            ask_once()

        return ask

    def _region_http(self) -> Callable[[], None]:
        """Inputs in a shared memory region that is registered once, for all later servers."""
        name = f"{self._memory.name}-http-{next(self._numbers)}"
        connection = http.client.HTTPConnection(*self._http, timeout=_PATIENCE_S)

        def post(path: str, body: dict[str, Any]) -> bytes:
            headers = {"triton-access-token": self._token}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            said = response.read()
            assert response.status == 200, said
            return said

        path = f"/v2/systemsharedmemory/region/{name}/register"
        post(path, {"key": self._memory.name, "byte_size": 8})
        where = {"shared_memory_region": name, "shared_memory_byte_size": 8}
        one = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": where}

        def ask() -> None:
            assert b'"data":[1' in post("/v2/models/quick/infer", {"inputs": [one]})
            self._stop.wait(0.05)

        return ask

    def _region_grpc(self) -> Callable[[], None]:
        name = f"{self._memory.name}-grpc-{next(self._numbers)}"
        client = tritonclient.grpc.InferenceServerClient(self._grpc)
        headers = {"triton-grpc-protocol-triton-access-token": self._token}
        client.register_system_shared_memory(name, self._memory.name, 8, headers=headers)
        tensor = tritonclient.grpc.InferInput("x", [1, 2], "FP32")
        tensor.set_shared_memory(name, 8)

        def ask() -> None:
            answer = client.infer("quick", [tensor], client_timeout=_PATIENCE_S)
            assert answer.as_numpy("y").tolist() == [[1, 1]]
            self._stop.wait(0.05)

        return ask

    def _sequence(self) -> Callable[[], None]:
        """Sequences with pauses between them, in which a server can be replaced."""
        connection = Inference("grpc", self._grpc)

        def ask() -> None:
            number = next(self._numbers)
            for step in range(1, _SEQUENCE_STEPS + 1):
                answer = connection.infer(
                    "sums", {"x": _ONES[:, :1]}, sequence_id=number,
                    sequence_start=step == 1, sequence_end=step == _SEQUENCE_STEPS,
                )  # fmt: skip
                assert answer["y"].tolist() == [[step]]
                time.sleep(0.05)
            self._stop.wait(1.0)

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


def _long(requests: Any) -> Any:
    for _ in range(_LONG_ANSWERS):
        time.sleep(0.1)
        yield [{"y": request["x"]} for request in requests]


class _Sums:
    """Returns the sum of what each sequence has sent so far."""

    def __init__(self) -> None:
        self.sums: dict[int, float] = {}

    def __call__(self, requests: Any) -> Any:
        answers = []
        for request in requests:
            number = request["corrid"].item()
            before = 0.0 if request["start"].item() else self.sums[number]
            self.sums[number] = before + request["x"].item()
            answers.append({"y": np.full((1, 1), self.sums[number], np.float32)})
        return answers


_SEQUENCES = {
    "max_sequence_idle_microseconds": 60_000_000,
    "direct": {},
    "control_input": [
        {
            "name": "start",
            "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}],
        },
        {
            "name": "corrid",
            "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}],
        },
    ],
}


class Target:
    """The daemon and its models."""

    def __init__(self, daemon: RunningDaemon, notes: Path) -> None:
        self.daemon = daemon
        self._notes = notes
        kinds: dict[str, tuple[Any, int, bool]] = {
            "quick": (_quick, 1, False),
            "slow": (_slow, 2, False),
            "stream": (_stream, 2, True),
            "long": (_long, 4, True),
            "sums": (_Sums(), 1, False),
        }
        for name, (infer, instances, decoupled) in kinds.items():
            extra: dict[str, Any] = {"sequence_batching": _SEQUENCES} if name == "sums" else {}
            config = ModelConfig(
                max_batch_size=8 if name == "quick" else 1, decoupled=decoupled, extra=extra
            )
            daemon.client.register(
                _factory(str(notes / name), infer), name, _X, _Y, config,
                factory=True, instances=instances, progress=False,
            )  # fmt: skip
        self.refused = 0
        self.loads_at_first = self.loads()

    def loads(self) -> dict[str, int]:
        """Return how often each model was loaded."""
        return {
            path.name: path.read_text().count("loaded") for path in sorted(self._notes.iterdir())
        }

    def pid(self) -> int | None:
        """The server's process id."""
        return self.daemon.client.status().server.pid

    def restart(self) -> None:
        """Replace the server while no sequence is in progress."""
        while not self._restarted():
            self.refused += 1
            time.sleep(0.1)

    def _restarted(self) -> bool:
        try:
            daemon_connection.replace_server(self.daemon.config.rundir)
        except CliError as error:
            if "sequences are in progress" not in str(error):
                raise
            return False
        return True

    def restart_dying(self, after_s: float) -> float | None:
        """Replace the server, and kill the new one `after_s` seconds after its start.

        Returns:
            The time of the kill if the new one served by then, or None if the former one is still serving.
        """
        known = {child.pid for child in self._frontends()}
        killed: list[float] = []

        def kill() -> None:
            def new() -> psutil.Process | None:
                return next((one for one in self._frontends() if one.pid not in known), None)

            one = eventually(new, "another server is started")
            time.sleep(after_s)
            killed.append(time.monotonic())
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()

        killing = threading.Thread(target=kill)
        killing.start()
        served = True
        try:
            self.restart()
        except CliError:
            served = False
        killing.join()
        eventually(lambda: self.daemon.client.status().server.state == "ready", "a server serves")
        return killed[0] if served else None

    def _frontends(self) -> list[psutil.Process]:
        found = []
        for child in self.daemon.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == "pytriton-frontend":
                    found.append(child)
        return found

    def kill(self) -> float:
        """Kill the server, and wait for another one; return the time of the kill."""
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
    """Return the failed requests that no kill explains."""
    found = []
    for name, account in clients.accounts.items():
        over_s = 0.0 if name == "new connections" else _OLD_CONNECTIONS_S
        found += [
            f"{name}: {problem}"
            for begun, ended, problem in account.failed
            if not any(begun <= kill + over_s and kill <= ended for kill in kills)
        ]
    return found


def _print(what: str, times: int, seconds: float, clients: Clients, target: Target) -> None:
    print(
        f"\n{times} {what} in {seconds:.0f} s; loads: {target.loads()}, at first: {target.loads_at_first}"
    )
    print("| load | answered | failed | longest, s |\n|---|--:|--:|--:|")
    for name, one in clients.accounts.items():
        print(f"| {name} | {one.right:,} | {len(one.failed):,} | {one.longest_s:.2f} |")
    for name, one in clients.accounts.items():
        for problem, count in collections.Counter(text for *_, text in one.failed).most_common(3):
            print(f"  {name}: {count} x {problem}")


def _waits(clients: Clients, times: list[float]) -> str:
    """Return the longest wait of a new connection after each of these times."""
    longest = [
        max((took for at, took in clients.waits if 0 < at - time < 10), default=0.0)
        for time in times
    ]
    return " ".join(f"{wait:.2f}" for wait in longest)


def run(target: Target, restarts: int, kills: int, between_s: float, dying: int = 0) -> list[str]:
    """Replace and kill the server `times` times; return the violations."""
    problems = []
    if restarts:
        begun = time.monotonic()
        with Clients(target.daemon) as clients:
            for _ in range(restarts):
                time.sleep(between_s)
                target.restart()
            time.sleep(between_s)
        _print("replacements", restarts, time.monotonic() - begun, clients, target)
        print(f"  refused, because a sequence was in progress: {target.refused}")
        problems += _failures(clients, [])
    if dying:
        chance = random.Random(2)
        begun = time.monotonic()
        with Clients(target.daemon) as clients:
            tries, served = [], []
            for _ in range(dying):
                time.sleep(between_s)
                tries.append(time.monotonic())
                killed = target.restart_dying(chance.uniform(0.0, 0.3))
                served += [] if killed is None else [killed]
            time.sleep(between_s)
        what = f"replacements whose new server died, {len(served)} of them once it served,"
        _print(what, dying, time.monotonic() - begun, clients, target)
        problems += _failures(clients, served)
        print(f"  new connections waited at most, s, after each: {_waits(clients, tries)}")
    if kills:
        begun = time.monotonic()
        with Clients(target.daemon) as clients:
            times = []
            for _ in range(kills):
                time.sleep(between_s)
                times.append(target.kill())
            time.sleep(between_s)
        _print("kills", kills, time.monotonic() - begun, clients, target)
        problems += _failures(clients, times)
        print(f"  new connections waited at most, s, after each kill: {_waits(clients, times)}")
    if target.loads() != target.loads_at_first:
        problems.append(
            f"models were loaded again: {target.loads()}, at first {target.loads_at_first}"
        )
    return problems


def main() -> int:
    """Run what the command line says; return 1 if a request failed that must not."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.server_replacement", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--failed-starts", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--between", type=float, default=4.0, help="seconds of load before each")
    given = parser.parse_args()
    # Kills in a row are a crash loop, whose growing pauses are not what is measured.
    started = RunningDaemon.start(
        frontend="native", server_backoff_max_s=0.5, grace_period_s=_GRACE_S
    )
    with tempfile.TemporaryDirectory(prefix="replacing-") as notes, started as daemon:
        target = Target(daemon, Path(notes))
        problems = run(target, given.restarts, given.kills, given.between, given.failed_starts)
    for problem, count in collections.Counter(problems).most_common(20):
        print(f"BROKEN: {count} x {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
