"""Requests of all sizes for a long time: every byte returns, and nothing grows.

By default a short run of up to 16 MiB per request; `PYTRITON_SOAK_REQUESTS=100000` makes it a long one of up to 64 MiB.
`pytest -s` shows the results.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
from support.models.inference import PROTOCOLS, Array, Inference
from support.real_daemon import RunningDaemon, eventually

from pytriton.daemon import Model
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

REQUESTS = int(os.environ.get("PYTRITON_SOAK_REQUESTS", "600"))
LARGEST = (16 if REQUESTS < 1000 else 64) << 20
_PARTS = 4 if REQUESTS < 1000 else 12
#: Bytes of a row of the model that batches, so that LARGEST also bounds what is merged into one call.
ROW = 64
_CLIENTS = 4
_FRUGAL = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10), "MALLOC_TRIM_THRESHOLD_": str(128 << 10)}
#: Small blocks come and go, and a proxy may see the largest request only later; a leak of a
#: kilobyte per request passes this within 100,000 requests.
_MEMORY_SLACK = LARGEST + (32 << 20)
#: Heaps of malloc, which come and go.
_MAPPINGS_SLACK = 12


class Kind(NamedTuple):
    """A model, and a function that makes a request of about a given number of bytes for it."""

    model: str
    make: Callable[[random.Random, int], Array]


_NOISE = np.random.default_rng(1).integers(0, 256, LARGEST + (1 << 20), dtype=np.uint8)


def noise(rng: random.Random, nbytes: int) -> Array:
    """Return bytes that almost no other request has."""
    start = rng.randrange(len(_NOISE) - nbytes)
    return _NOISE[start : start + nbytes]


def rows(rng: random.Random, nbytes: int) -> Array:
    return noise(rng, max(1, nbytes // ROW) * ROW).reshape(-1, ROW)


def vector(dtype: type[Any]) -> Callable[[random.Random, int], Array]:
    size = np.dtype(dtype).itemsize
    return lambda rng, nbytes: noise(rng, nbytes // size * size).copy().view(dtype)


def strings(rng: random.Random, nbytes: int) -> Array:
    """Return either one string of all the bytes, or up to a thousand of different lengths."""
    data = noise(rng, nbytes).tobytes()
    count = rng.choice((1, rng.randrange(1, 1000)))
    cuts = sorted(rng.randrange(nbytes + 1) for _ in range(count - 1))
    array = np.empty((1, count), object)
    array[0, :] = [data[a:b] for a, b in zip([0, *cuts], [*cuts, nbytes])]
    return array


KINDS = (
    Kind("rows", rows),
    Kind("floats", vector(np.float32)),
    Kind("ints", vector(np.int64)),
    Kind("strings", strings),
)


def serve(daemon: RunningDaemon) -> list[Model]:
    """Register models: two lanes with batching and merging, two without batching (the default), and strings."""
    batching = ModelConfig(max_batch_size=LARGEST // ROW, batcher=DynamicBatcher())
    plain = ModelConfig(batching=False)
    declared: list[tuple[str, Any, tuple[int, ...], ModelConfig, int | None]] = [
        ("rows", np.uint8, (ROW,), batching, 2),
        ("floats", np.float32, (-1,), plain, None),
        ("ints", np.int64, (-1,), plain, 1),
        ("strings", bytes, (-1,), ModelConfig(max_batch_size=4), None),
    ]
    return [
        daemon.client.register(
            lambda requests: [{"y": request["x"]} for request in requests],
            name,
            [Tensor(name="x", dtype=dtype, shape=shape)],
            [Tensor(name="y", dtype=dtype, shape=shape)],
            config,
            max_inflight_batches=lanes,
            env=_FRUGAL,
            progress=False,
        )
        for name, dtype, shape, config, lanes in declared
    ]


def same(got: Array, sent: Array) -> bool:
    if got.dtype != sent.dtype or got.shape != sent.shape:
        return False
    if sent.dtype == object:
        return bool(got.tolist() == sent.tolist())
    return np.array_equal(np.ravel(got).view(np.uint8), np.ravel(sent).view(np.uint8))


class Soak:
    """Clients of one daemon that send random requests and compare the responses."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self._addresses = {"http": daemon.http, "grpc": daemon.grpc}
        self._lock = threading.Lock()
        self._left = 0
        self.nbytes = 0

    def run(self, requests: int, seed: int) -> None:
        """Send `requests` requests of all sizes from several clients."""
        self._left = requests
        self._in_threads(self._until_none_is_left, seed)

    def largest(self) -> None:
        """Send the largest request through every proxy: two clients send it concurrently, several times."""
        barrier = threading.Barrier(2)

        def send(client: Inference, rng: random.Random) -> None:
            for kind in KINDS * 3:
                barrier.wait(300)
                self._ask(client, kind, rng, LARGEST)

        self._in_threads(send, 0, 2)

    def _in_threads(
        self, work: Callable[[Inference, random.Random], None], seed: int, count: int = _CLIENTS
    ) -> None:
        def one(number: int) -> None:
            protocol = PROTOCOLS[number % len(PROTOCOLS)]
            client = Inference(protocol, self._addresses[protocol])
            try:
                work(client, random.Random(seed * 100 + number))
            finally:
                client.close()

        with ThreadPoolExecutor(count) as threads:
            for done in [threads.submit(one, number) for number in range(count)]:
                done.result()

    def _until_none_is_left(self, client: Inference, rng: random.Random) -> None:
        while True:
            with self._lock:
                if self._left <= 0:
                    return
                self._left -= 1
            # Log-uniform, 0 among them; an eighth of the huge ones is enough.
            nbytes = int(2 ** rng.uniform(-1, LARGEST.bit_length() - 1))
            if nbytes > LARGEST // 16 and rng.random() > 0.125:
                nbytes >>= 10
            self._ask(client, rng.choice(KINDS), rng, nbytes)

    def _ask(self, client: Inference, kind: Kind, rng: random.Random, nbytes: int) -> None:
        sent = kind.make(rng, nbytes)
        got = client.infer(kind.model, {"x": sent})
        assert same(got["y"], sent), f"{kind.model}: {sent.shape} came back as {got['y'].shape}"
        with self._lock:
            self.nbytes += nbytes


@pytest.fixture
def frugal_daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningDaemon]:
    """A daemon whose processes return large blocks as soon as they are freed.

    Otherwise, after a block of up to 32 MiB was freed, malloc starts to cache such blocks (mallopt(3),
    M_MMAP_THRESHOLD), which looks like a leak for a long time.
    """
    for name, value in _FRUGAL.items():
        monkeypatch.setenv(name, value)
    with RunningDaemon.start() as running:
        yield running


def footprint(daemon: RunningDaemon, models: list[Model]) -> dict[str, int]:
    """Return the memory, mappings and descriptors of the dispatcher, of all proxies and of all workers."""
    pids = {"dispatcher": [daemon.process.pid]}
    pids["workers"] = [i.pid for model in models for i in model.instances if i.pid is not None]
    pids["proxies"] = [stub.pid for stub in daemon.stubs()]
    found: dict[str, int] = {}
    for name, members in pids.items():
        found[f"{name}"] = len(members)
        found[f"{name} private memory"] = sum(map(_private, members))
        found[f"{name} shared memory"] = sum(map(_shared, members))
        found[f"{name} mappings"] = sum(map(_mappings, members))
        found[f"{name} descriptors"] = sum(psutil.Process(pid).num_fds() for pid in members)
    return found


def _private(pid: int) -> int:
    """Return the bytes of memory that only this process uses: heaps, stacks (proc(5), smaps_rollup)."""
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:"))


def _shared(pid: int) -> int:
    """Return the total size of the memfds and files in /dev/shm that the process maps, each counted once."""
    ends: dict[str, int] = {}
    with open(f"/proc/{pid}/maps") as lines:
        for line in lines:
            addresses, _, offset, _, inode, *path = line.split(maxsplit=5)
            if path and path[0].startswith(("/memfd:", "/dev/shm/")):
                start, end = (int(edge, 16) for edge in addresses.split("-"))
                ends[inode] = max(ends.get(inode, 0), int(offset, 16) + end - start)
    return sum(ends.values())


def _mappings(pid: int) -> int:
    with open(f"/proc/{pid}/maps") as lines:
        return sum(1 for _ in lines)


def grown(before: dict[str, int], now: dict[str, int]) -> dict[str, str]:
    """Return the figures that have grown more than allowed."""
    slack = {"memory": _MEMORY_SLACK, "mappings": _MAPPINGS_SLACK}
    return {
        what: f"{before[what]} -> {now[what]}"
        for what in before
        if now[what] > before[what] + slack.get(what.rpartition(" ")[2], 0)
    }


def show(title: str, figures: dict[str, int]) -> None:
    line = ", ".join(
        f"{what} {value >> 20} MiB" if what.endswith("memory") else f"{what} {value}"
        for what, value in figures.items()
    )
    print(f"{title}: {line}")


@pytest.mark.slow
@pytest.mark.timeout(600 + REQUESTS // 10)
def test_requests_of_all_sizes_round_trip_and_nothing_grows(frugal_daemon: RunningDaemon) -> None:
    models = serve(frugal_daemon)
    soak = Soak(frugal_daemon)
    soak.largest()
    soak.run(max(100, REQUESTS // _PARTS), seed=1)
    before = footprint(frugal_daemon, models)
    show("warm", before)
    begun, soak.nbytes = time.monotonic(), 0
    for part in range(1, _PARTS + 1):
        soak.run(REQUESTS // _PARTS, seed=1 + part)
        show(f"{part * (REQUESTS // _PARTS)} requests", footprint(frugal_daemon, models))
    took_s = time.monotonic() - begun
    print(f"{REQUESTS} requests, {soak.nbytes / 1e9:.1f} GB each way, {took_s:.0f} s")
    eventually(
        lambda: not grown(before, footprint(frugal_daemon, models)),
        lambda: f"no more than before: {grown(before, footprint(frugal_daemon, models))}",
    )
    assert [i.restarts for model in models for i in model.instances] == [0] * len(models)
