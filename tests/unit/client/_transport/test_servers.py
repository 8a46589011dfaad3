"""Many concurrent requests, and several servers."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from fakes.short_waits import wait_for_one_answer
from fakes.triton.fake_triton import MODEL, FakeTriton, fake_triton
from support.models.inference import Array
from support.real_daemon import eventually

from pytriton.client import AsyncioModelClient, FuturesModelClient, ModelClient, RequestOptions
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientQueueFullError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)

X = np.ones(2, np.float32)


# ── FuturesModelClient ───────────────────────────────────────────────────────────────────────────


def test_futures(fake: FakeTriton) -> None:
    with FuturesModelClient(fake.url, MODEL, max_workers=4) as client:
        futures = [client.infer_sample(X) for _ in range(40)]
        assert [future.result()["y"].tolist() for future in futures] == [[1]] * 40
        assert client.model_config().result().max_batch_size == 8
        assert client.wait_for_model(60).result() is None
        assert client.infer_batch(x=X[None]).result()["y"].shape == (1, 1)
    assert fake.count("ready") == 2  # once for all requests, once for wait_for_model


@pytest.mark.parametrize("sizes", [{"max_workers": 0}, {"max_queue_size": 0}, {"max_workers": -1}])
def test_invalid_sizes(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be greater than 0"):
        FuturesModelClient("localhost", MODEL, **sizes)  # type: ignore[arg-type]


def test_a_full_queue_is_an_error_in_non_blocking_mode(fake: FakeTriton) -> None:
    fake.gate.clear()
    with FuturesModelClient(
        fake.url, MODEL, max_workers=2, max_queue_size=1, non_blocking=True
    ) as client:
        futures = [client.infer_sample(X) for _ in range(3)]
        with pytest.raises(PyTritonClientQueueFullError, match="is full: 3 requests"):
            client.infer_sample(X)
        assert futures[2].cancel() or futures[1].cancel()  # one still waits: its place is free
        futures.append(client.infer_sample(X))
        with pytest.raises(PyTritonClientQueueFullError):
            client.infer_sample(X)
        fake.gate.set()
        assert sum(not one.cancelled() and one.result()["y"][0] == 1 for one in futures) == 3


def test_a_full_queue_blocks(fake: FakeTriton) -> None:
    fake.gate.clear()
    with FuturesModelClient(fake.url, MODEL, max_workers=1, max_queue_size=1) as client:
        futures = [client.infer_sample(X) for _ in range(2)]
        with ThreadPoolExecutor(1) as other:
            third = other.submit(client.infer_sample, X)
            fake.entered.acquire()
            assert not third.done()
            fake.gate.set()
            futures.append(third.result(30))
        assert [future.result(30)["y"].tolist() for future in futures] == [[1]] * 3


def test_an_exception_in_the_block_does_not_wait_for_answers(fake: FakeTriton) -> None:
    fake.gate.clear()
    futures = []
    with (  # noqa: PT012, the block is what is tested
        pytest.raises(KeyboardInterrupt),
        FuturesModelClient(fake.url, MODEL, max_workers=1) as client,
    ):
        futures += [client.infer_sample(X) for _ in range(3)]
        fake.entered.acquire()
        raise KeyboardInterrupt
    assert not fake.gate.is_set()
    assert not futures[0].done()
    fake.gate.set()
    assert futures[0].result(30)["y"].tolist() == [1]  # it was in flight
    for waiting in futures[1:]:
        with pytest.raises(PyTritonClientClosedError):
            waiting.result(30)


_LEFT = """
import sys
import numpy as np
from pytriton.client import FuturesModelClient

with FuturesModelClient(*sys.argv[1:3], max_workers=1, inference_timeout_s=600) as client:
    futures = [client.infer_sample(np.ones(2, np.float32)) for _ in range(3)]
    if sys.argv[3] == "in the block":
        futures[0].result()
"""


@pytest.mark.programs
@pytest.mark.parametrize("where", ["in the block", "at its end"])
def test_ctrl_c_ends_a_process_with_requests_in_flight(fake: FakeTriton, where: str) -> None:
    fake.gate.clear()
    program = [sys.executable, "-c", _LEFT, fake.url, MODEL, where]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        fake.entered.acquire()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=100)[1]
    assert "KeyboardInterrupt" in said
    assert process.returncode == -signal.SIGINT
    assert len(fake.inferences()) == 1  # waiting requests did not start


_AWAITED = """
import sys
import numpy as np
from pytriton.client import FuturesModelClient

client = FuturesModelClient(*sys.argv[1:3], max_workers=2)
for _ in range(5):
    client.infer_sample(np.ones(2, np.float32)).add_done_callback(lambda one: print(one.result()["y"]))
"""


def test_an_unclosed_client_does_not_keep_its_process_alive(fake: FakeTriton) -> None:
    program = [sys.executable, "-c", _AWAITED, fake.url, MODEL]
    said = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said.count("[1.]") == 5


def test_no_limits(fake: FakeTriton) -> None:
    fake.gate.clear()
    with FuturesModelClient(fake.url, MODEL, max_workers=None, max_queue_size=None) as client:
        futures = [client.infer_sample(X) for _ in range(20)]
        fake.gate.set()
        assert all(future.result()["y"] == 1 for future in futures)


def test_closing_with_wait_finishes_all_requests(fake: FakeTriton) -> None:
    client = FuturesModelClient(fake.url, MODEL, max_workers=1)
    futures = [client.infer_sample(X) for _ in range(5)]
    client.close()
    assert all(future.done() and future.result()["y"] == 1 for future in futures)
    client.close()
    for call in (lambda: client.infer_sample(X), client.model_config, client.__enter__):
        with pytest.raises(PyTritonClientClosedError, match="FuturesModelClient is closed"):
            call()


def test_closing_without_wait_drops_pending_requests(fake: FakeTriton) -> None:
    fake.gate.clear()
    client = FuturesModelClient(fake.url, MODEL, max_workers=1)
    first, second = client.infer_sample(X), client.infer_sample(X)
    fake.entered.acquire()
    client.close(wait=False)
    assert not first.done()
    fake.gate.set()
    assert first.result(30)["y"] == 1
    with pytest.raises(PyTritonClientClosedError):
        second.result(30)


def test_a_subclass_that_splits_batches(fake: FakeTriton) -> None:
    """As in PyTriton's guide on chunking."""

    class ChunkingClient(FuturesModelClient):
        def infer_in_chunks(self, x: Array) -> list[float]:
            size = self.model_config().result().max_batch_size
            futures = [
                super(ChunkingClient, self).infer_batch(x[start : start + size])
                for start in range(0, len(x), size)
            ]
            return [float(future.result()["y"][0, 0]) for future in futures]

    with ChunkingClient(fake.url, MODEL) as client:
        assert client.infer_in_chunks(np.ones((20, 2), np.float32)) == [1, 1, 1]


# ── Threads ──────────────────────────────────────────────────────────────────────────────────────


def test_threads_share_a_client(fake: FakeTriton) -> None:
    with ModelClient(fake.url, MODEL) as client, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: client.infer_sample(X)["y"][0], range(80)))
    assert results == [1] * 80
    assert (fake.count("ready"), fake.count("config")) == (1, 1)


def test_a_client_may_be_closed_and_garbage_collected_in_another_thread(fake: FakeTriton) -> None:
    clients = [ModelClient(fake.url, MODEL), ModelClient(fake.url, MODEL)]
    for client in clients:
        client.infer_sample(X)
    del client

    def drop() -> None:
        clients[0].close()
        clients[0].close()
        clients.clear()
        gc.collect()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()  # what it failed with would be pytest's error


def test_a_closed_client(fake: FakeTriton) -> None:
    client = ModelClient(fake.url, MODEL)
    with client:
        client.infer_sample(X)
    client.close()
    for call in (
        lambda: client.infer_sample(X),
        lambda: client.model_config,
        lambda: client.wait_for_model(1),
        lambda: client.wait_for_server(1),
        client.load_model,
        client.unload_model,
        client.__enter__,
    ):
        with pytest.raises(PyTritonClientClosedError, match="ModelClient is closed"):
            call()

    async def ask() -> None:
        async with AsyncioModelClient(fake.url, MODEL) as client:
            await client.infer_sample(X)
        await client.close()
        with pytest.raises(PyTritonClientClosedError, match="AsyncioModelClient is closed"):
            await client.infer_sample(X)
        with pytest.raises(PyTritonClientClosedError):
            await client.model_config

    asyncio.run(ask())


# ── Several servers ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["http", "grpc"])
def pair(request: pytest.FixtureRequest) -> Iterator[list[FakeTriton]]:
    with fake_triton(request.param, 1) as first, fake_triton(request.param, 2) as second:
        yield [first, second]


def asked(client: ModelClient, times: int = 6) -> Counter[float]:
    return Counter(float(client.infer_sample(X)["y"][0]) for _ in range(times))


def test_servers_are_used_in_turn(pair: list[FakeTriton]) -> None:
    with ModelClient([one.url for one in pair], MODEL) as client:
        assert asked(client) == {1: 3, 2: 3}


def test_servers_are_used_in_turn_with_asyncio(pair: list[FakeTriton]) -> None:
    async def ask() -> Counter[float]:
        async with AsyncioModelClient([one.url for one in pair], MODEL) as client:
            results = await asyncio.gather(*[client.infer_sample(X) for _ in range(6)])
            return Counter(float(result["y"][0]) for result in results)

    assert asyncio.run(ask()) == {1: 3, 2: 3}


def test_a_server_without_the_model_is_skipped_until_it_has_it(
    pair: list[FakeTriton], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytriton.client._transport.servers._SKIP_S", 0.05)
    with ModelClient([one.url for one in pair], MODEL) as client:
        assert asked(client) == {1: 3, 2: 3}
        pair[0].knows = False
        assert asked(client) == {2: 6}
        pair[0].knows = True
        eventually(lambda: asked(client)[1], "the first server is asked again")


def test_a_stopped_server_is_skipped(pair: list[FakeTriton]) -> None:
    scheme = pair[0].url.partition(":")[0]
    with ExitStack() as stack:
        third = stack.enter_context(fake_triton(scheme, 3))
        client = stack.enter_context(ModelClient([third.url, pair[0].url], MODEL))
        assert asked(client) == {1: 3, 3: 3}
        with fake_triton(scheme, 4) as gone:
            other = stack.enter_context(ModelClient([gone.url, pair[0].url], MODEL))
            assert other.model_config.model_name == MODEL
        assert asked(other) == {1: 6}


def test_all_servers_are_down(pair: list[FakeTriton], monkeypatch: pytest.MonkeyPatch) -> None:
    for one in pair:
        one.knows = False
    wait_for_one_answer(monkeypatch)
    with (
        ModelClient([one.url for one in pair], MODEL, init_timeout_s=60) as client,
        pytest.raises(PyTritonClientTimeoutError) as caught,
    ):
        client.infer_sample(X)
    assert all(one.url in str(caught.value) for one in pair)


def test_an_error_is_not_retried_on_another_server(pair: list[FakeTriton]) -> None:
    """The server may have done the work: retrying is the user's decision."""
    for one in pair:
        one.gate.clear()
    with ModelClient([one.url for one in pair], MODEL, inference_timeout_s=2) as client:
        with pytest.raises(PyTritonClientTimeoutError):
            client.infer_sample(X)
        eventually(lambda: any(one.count("infer") for one in pair), "it has come")
        assert sum(one.count("infer") for one in pair) == 1


def test_a_sequence_requires_a_single_server(pair: list[FakeTriton]) -> None:
    with (
        ModelClient([one.url for one in pair], MODEL) as client,
        pytest.raises(PyTritonClientValueError, match="Use a client with a single url"),
    ):
        client.infer_sample(X, options=RequestOptions(sequence_id=1))
