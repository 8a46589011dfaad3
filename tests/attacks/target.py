"""The attacked daemon, and what can be observed of its frontend from outside."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support.models.inference import Array, Inference
from support.real_daemon import RunningDaemon, eventually

from attacks.attack import TOTAL_BYTES, Attack, Place, Tally
from attacks.latency_probe import Health, probing
from pytriton import UploadFile
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

#: Short, so that slow clients are ended soon; and totals that an attack reaches on any machine.
_LIMITS = {
    "header_s": 2,
    "body_s": 2,
    "unsent_s": 2,
    "total_body_bytes": TOTAL_BYTES,
    "total_unsent_bytes": TOTAL_BYTES,
}
_X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
_Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
#: What a model may take to answer after an attack, and connections and memory to go.
_SETTLED_S = 60.0
#: Memory that may stay of one attack: pages in part of use, and what the core's own pools keep.
GROWTH_MB = 24
#: How often the frontend's memory is read while an attack runs.
_PEAK_INTERVAL_S = 0.005
#: Connections of the dispatcher's, which come and go.
_MORE_DESCRIPTORS = 3
#: What descriptors of the compiled proxy are, which has more of them once its models have been busy.
_LANES = ("/memfd:pytriton-lane", "anon_inode:[pidfd]")


@batch
def _echo(x: Array) -> dict[str, Array]:
    return {"y": x}


def _large(requests: Any) -> Any:
    return [{"y": np.zeros((1, int(request["x"][0, 0])), np.float32)} for request in requests]


def _stream(requests: Any) -> Iterator[Any]:
    for _ in range(5):
        yield [{"y": request["x"]} for request in requests]


def upload(file: UploadFile, note: str = "") -> dict[str, Any]:
    return {"size": len(file.data), "name": file.filename}


async def events(size: int) -> AsyncIterator[str]:
    while True:
        yield "x" * size
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Holding:
    """Resources that the frontend's process uses."""

    memory_mb: float
    descriptors: int
    threads: int
    kinds: collections.Counter[str] = field(compare=False, repr=False)


@dataclass
class Row:
    """The result of one kind of attack."""

    name: str
    count: int
    seconds: float
    tally: Tally
    health: Health
    before: Holding
    peak_mb: float
    after: Holding
    problems: list[str] = field(default_factory=list)


class Target:
    """A daemon with the native frontend, three models and two typed functions."""

    def __init__(self, daemon: RunningDaemon, shortest_limit_s: float) -> None:
        self.daemon = daemon
        self._shortest_limit_s = shortest_limit_s
        config = ModelConfig(max_batch_size=8)
        register = daemon.client.register
        register(_echo, "echo", _X, _Y, config, progress=False)
        register(_large, "large", _X, _Y, ModelConfig(max_batch_size=1), progress=False)
        register(
            _stream, "stream", _X, _Y, ModelConfig(max_batch_size=1, decoupled=True), progress=False
        )
        for function in (upload, events):
            register(function, progress=False)
        self._pid = daemon.client.status().server.pid
        self.place = Place(
            _address(daemon.http),
            _address(daemon.grpc),
            "echo",
            "large",
            "stream",
            "upload",
            "events",
        )
        self._check_models()
        self._calm()

    def attack(self, name: str, kind: Attack, count: int) -> Row:
        """Run an attack, and check the frontend afterwards."""
        before = self.holding()
        tally = Tally()
        begun = time.monotonic()
        with probing(self.place.http, self._shortest_limit_s) as seen, self._peak() as peak_mb:
            kind.run(self.place, count, tally)
        seconds = time.monotonic() - begun
        problems = []
        if tally.hung:
            problems.append(f"{tally.hung} connections hung")
        others = {what: number for what, number in tally.seen.items() if what not in kind.allowed}
        if kind.allowed and others and not tally.hung:
            problems.append(f"these may not be: {others}")
        if kind.peak_mb and peak_mb[0] > kind.peak_mb:
            problems.append(f"{peak_mb[0]:.0f} MB at the peak, more than {kind.peak_mb}")
        if seen[0].failed:
            problems.append(f"{seen[0].failed} health requests failed")
        try:
            self._check_models()
            self._calm(before)
        except AssertionError as error:
            problems.append(str(error))
        server = self.daemon.client.status().server
        if server.pid != self._pid:
            problems.append(f"the frontend has crashed: {server.pid} now, was {self._pid}")
            self._pid = server.pid
        return Row(
            name, count, seconds, tally, seen[0], before, peak_mb[0], self.holding(), problems
        )

    @contextlib.contextmanager
    def _peak(self) -> Iterator[list[float]]:
        """Yield a list with the frontend's peak of anonymous memory in MB since the start of the block."""
        ended = threading.Event()
        peak_mb = [0.0]

        def sample() -> None:
            while not ended.wait(_PEAK_INTERVAL_S):
                with contextlib.suppress(OSError), open(f"/proc/{self._pid}/status", "rb") as file:
                    kib = next(line for line in file if line.startswith(b"RssAnon:")).split()[1]
                    peak_mb[0] = max(peak_mb[0], int(kib) / 1024)

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            yield peak_mb
        finally:
            ended.set()
            sampler.join()

    def holding(self) -> Holding:
        """Return the resources of the frontend's process."""
        assert self._pid is not None
        with open(f"/proc/{self._pid}/smaps_rollup", encoding="ascii") as file:
            anonymous = next(line for line in file if line.startswith("Anonymous:"))
        kinds: collections.Counter[str] = collections.Counter()
        for name in os.listdir(f"/proc/{self._pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # it has been closed since
                kinds[os.readlink(f"/proc/{self._pid}/fd/{name}")] += 1
        for name in list(kinds):
            if name.startswith(_LANES):
                del kinds[name]
        threads = len(os.listdir(f"/proc/{self._pid}/task"))
        return Holding(int(anonymous.split()[1]) / 1024, sum(kinds.values()), threads, kinds)

    def _check_models(self) -> None:
        x = np.array([[1, 2]], np.float32)
        for protocol, address in (("http", self.daemon.http), ("grpc", self.daemon.grpc)):
            connection = Inference(protocol, address)
            answer = connection.infer("echo", {"x": x})
            assert answer["y"].tolist() == x.tolist(), f"{protocol}: {answer}"
            connection.close()

    def _calm(self, before: Holding | None = None) -> None:
        """Wait until the clients' connections are closed, and their resources released."""
        eventually(
            lambda: self._connections() == 0,
            lambda: f"{self._connections()} connections stay",
            _SETTLED_S,
        )
        if before is None:
            return

        def settled() -> bool:
            now = self.holding()
            return (
                now.descriptors <= before.descriptors + _MORE_DESCRIPTORS
                and now.memory_mb < before.memory_mb + GROWTH_MB
            )

        def story() -> str:
            now = self.holding()
            return f"it holds {now}, before: {before}; new: {dict(now.kinds - before.kinds)}"

        eventually(settled, story, _SETTLED_S)

    def _connections(self) -> int:
        url = f"http://{_host_port(self.daemon.client.status().server.metrics_url)}/metrics"
        with urllib.request.urlopen(url, timeout=_SETTLED_S) as response:
            lines = response.read().decode().splitlines()
        (count,) = (line for line in lines if line.startswith("pytriton_frontend_connections "))
        return int(count.split()[1]) - 1  # without the one that asks


def _host_port(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def attacked_target(**limits: float) -> Iterator[Target]:
    """Yield a running daemon; in the end it has to shut down in order."""
    given = {**_LIMITS, **limits}
    pairs = tuple(f"{name}={value}" for name, value in given.items())
    with RunningDaemon.start(frontend="native", frontend_limit=pairs) as daemon:
        yield Target(daemon, min(value for name, value in given.items() if name.endswith("_s")))
