"""The clients with a real daemon: everything that PyTriton's documents promise about coupled models."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from fakes.short_waits import wait_for_one_answer
from support.models.inference import PROTOCOLS, Array
from support.real_daemon import RunningDaemon, eventually

from pytriton.client import (
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
    RequestOptions,
)
from pytriton.client.exceptions import (
    PyTritonClientInferenceServerError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.decorators import batch
from pytriton.model_config import (
    DynamicBatcher,
    ModelConfig,
    QueuePolicy,
    Tensor,
    TritonModelConfig,
)
from pytriton.proxy.types import Request

A = Tensor(name="a", dtype=np.float32, shape=(-1,))
B = Tensor(name="b", dtype=np.float32, shape=(-1,), optional=True)
SUM = Tensor(name="sum", dtype=np.float32, shape=(-1,))
LAST = Tensor(name="last", dtype=np.float32, shape=())
TEXT = Tensor(name="text", dtype=bytes, shape=(1,))


@batch
def _add(a: Array, b: Array | None = None) -> dict[str, Array]:
    if a.max() > 1000:
        raise ValueError("the number is too big")
    total = a if b is None else a + b
    return {"sum": total, "last": total[:, -1]}


def _plain(requests: list[Request]) -> list[Mapping[str, Array]]:
    return [{"sum": request["a"] * 2} for request in requests]


def _report(requests: list[Request]) -> list[Mapping[str, Array]]:
    """Return what the request contains besides its input."""
    reported = [
        json.dumps([request.parameters, request.requested_output_names]) for request in requests
    ]
    return [
        {"text": np.array([[text.encode()]], object), "sum": request["a"]}
        for text, request in zip(reported, requests)
    ]


@batch
def _scalar(x: Array) -> dict[str, Array]:
    return {"y": x * 2}


@batch
def _double_bytes(text: Array) -> dict[str, Array]:
    return {"text": np.array([[item[0] * 2] for item in text], object)}


def _none(requests: list[Request]) -> list[Mapping[str, Array]]:
    return [{"sum": np.full(request.parameters["n"], 7, np.float32)} for request in requests]  # type: ignore[index]


class _Waits:
    """Records the order of its requests, and responds once a file exists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, requests: list[Request]) -> list[Mapping[str, Array]]:
        import time

        with open(self._folder / "begun", "a") as begun:
            print(*(int(request["a"][0, 0]) for request in requests), file=begun)
        while not (self._folder / "go").exists():
            time.sleep(0.01)
        return [{"sum": request["a"]} for request in requests]


QUEUE = DynamicBatcher(
    priority_levels=2,
    default_priority_level=2,
    default_queue_policy=QueuePolicy(
        allow_timeout_override=True, default_timeout_microseconds=60_000_000
    ),
)
ONES = np.ones(3, np.float32)


@pytest.fixture(scope="module")
def served() -> Iterator[RunningDaemon]:
    options = {"http-header-forward-pattern": "X-.*", "grpc-header-forward-pattern": "x-.*"}
    with RunningDaemon.start(tritonserver_options=options) as daemon:
        register = daemon.client.register
        batching = ModelConfig(max_batch_size=8)
        scalars = [Tensor((), np.float32, name) for name in "xy"]
        register(_add, "add", [A, B], [SUM, LAST], config=batching, progress=False)
        register(_plain, "plain", [A], [SUM], config=ModelConfig(batching=False), progress=False)
        register(_report, "tell", [A], [TEXT, SUM], config=batching, progress=False)
        register(_scalar, "scalar", scalars[:1], scalars[1:], progress=False)
        register(_double_bytes, "bytes", [TEXT], [TEXT], progress=False)
        register(_none, "none", [], [SUM], progress=False)
        yield daemon


@pytest.fixture(params=PROTOCOLS)
def url(request: pytest.FixtureRequest, served: RunningDaemon) -> str:
    return f"{request.param}://{getattr(served, request.param)}"


def test_samples_and_batches(url: str) -> None:
    with ModelClient(url, "add") as client:
        for result in (client.infer_sample(ONES, ONES), client.infer_sample(b=ONES, a=ONES)):
            assert result["sum"].tolist() == [2, 2, 2]
            assert result["last"].shape == ()
        result = client.infer_batch(np.ones((2, 3), np.float32))  # without the optional one
        assert (result["sum"].tolist(), result["last"].tolist()) == ([[1, 1, 1]] * 2, [1, 1])
        assert client.is_batching_supported
        config = client.model_config
    assert isinstance(config, TritonModelConfig)
    assert (config.model_name, config.max_batch_size, config.decoupled) == ("add", 8, False)
    assert [(spec.name, spec.dtype, spec.shape) for spec in config.inputs or ()] == [
        ("a", np.float32, (-1,)),
        ("b", np.float32, (-1,)),
    ]


def test_a_given_model_configuration_is_not_requested_from_the_server(url: str) -> None:
    with ModelClient(url, "add", lazy_init=False) as first:
        known = first.model_config
    with ModelClient(url, "add", model_config=known, ensure_model_is_ready=False) as client:
        assert client.infer_sample(ONES)["sum"].tolist() == [1, 1, 1]


def test_a_model_without_batching(url: str) -> None:
    with ModelClient(url, "plain", "1") as client:
        assert client.infer_sample(ONES)["sum"].tolist() == [2, 2, 2]
        assert not client.is_batching_supported
        with pytest.raises(
            PyTritonClientModelDoesntSupportBatchingError,
            match="Model plain doesn't support batching - use infer_sample method instead",
        ):
            client.infer_batch(ONES)


def test_scalars(url: str) -> None:
    """Triton has no tensors without dimensions. The client hides that Triton's shape is [1]."""
    with ModelClient(url, "scalar") as client:
        assert client.infer_sample(np.float32(4))["y"] == np.array(8, np.float32)
        assert client.infer_batch(np.array([1, 2], np.float32))["y"].tolist() == [2, 4]
        assert client.infer_batch(np.array([[1], [2]], np.float32))["y"].tolist() == [2, 4]


def test_bytes(url: str) -> None:
    with ModelClient(url, "bytes") as client:
        objects = np.array([b"a\0"], object)
        assert client.infer_sample(objects)["text"].tolist() == [b"a\0a\0"]
        assert client.infer_sample(np.array([b"abc"]))["text"].tolist() == [b"abcabc"]


def test_a_model_without_inputs(url: str) -> None:
    with ModelClient(url, "none") as client:
        assert client.model_config.inputs == []
        assert client.infer_sample(parameters={"n": 2})["sum"].tolist() == [7, 7]


def test_byte_order_and_layout_do_not_matter(url: str) -> None:
    with ModelClient(url, "add") as client:
        big = np.arange(3, dtype=">f4")
        assert client.infer_sample(big)["sum"].tolist() == [0, 1, 2]
        assert client.infer_sample(np.arange(6, dtype="f4")[::2])["sum"].tolist() == [0, 2, 4]


def test_parameters_headers_and_requested_outputs(url: str) -> None:
    with ModelClient(url, "tell") as client:
        result = client.infer_sample(
            ONES,
            parameters={"text": "t", "count": 3, "flag": True},
            headers={"x-who": "me", "other": "no"},
            options=RequestOptions(requested_outputs=["text"]),
        )
    assert list(result) == ["text"]
    parameters, wanted = json.loads(result["text"][0])
    assert parameters == {"text": "t", "count": 3, "flag": True, "x-who": "me"}
    assert wanted == ["text"]


def test_errors(url: str) -> None:
    with ModelClient(url, "add") as client:
        with pytest.raises(PyTritonClientInferenceServerError) as caught:
            client.infer_sample(ONES * 2000)
        assert re.fullmatch(
            r"Error occurred during inference request\. Message: ValueError: the number is too big "
            r"\[request id: \S+\]",
            str(caught.value),
        )
        with pytest.raises(PyTritonClientInferenceServerError, match="batch-size must be <= 8"):
            client.infer_batch(np.ones((9, 3), np.float32))
        with pytest.raises(PyTritonClientInferenceServerError, match="data-type is 'FP64'"):
            client.infer_sample(ONES.astype(np.float64))
        with pytest.raises(PyTritonClientInferenceServerError, match="unexpected inference input"):
            client.infer_sample(nothing=ONES)
        with pytest.raises(PyTritonClientValueError, match="takes 2 inputs"):
            client.infer_sample(ONES, ONES, ONES)
        assert client.infer_sample(ONES)["sum"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(("model", "version"), [("nope", None), ("add", 7)])
def test_an_unknown_model_or_version_is_reported(
    url: str, model: str, version: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_one_answer(monkeypatch)
    said = rf"Waiting for model {model}/{version or '<latest>'} to be ready timed out\."
    with pytest.raises(PyTritonClientModelUnavailableError, match=said) as caught:
        ModelClient(url, model, version, lazy_init=False, init_timeout_s=60)
    assert isinstance(caught.value, PyTritonClientTimeoutError)
    assert "unknown model" in str(caught.value)


def test_restricted_endpoints_need_the_token(url: str, served: RunningDaemon) -> None:
    """Inference, health and configuration need none, loading does. Loads are refused with the daemon's own message."""
    with (
        ModelClient(url, "add") as client,
        pytest.raises(PyTritonClientInferenceServerError, match=r"restricted.*Pass access_token="),
    ):
        client.unload_model()
    with ModelClient(url, "nope", access_token=served.client.access_token) as client:
        client.unload_model()  # Triton has nothing against it
        with pytest.raises(PyTritonClientInferenceServerError, match="failed to load 'nope'"):
            client.load_model()
    with (
        ModelClient(url, "add", access_token="wrong") as client,
        pytest.raises(PyTritonClientInferenceServerError, match="restricted"),
    ):
        client.unload_model()


def test_coupled_is_not_decoupled(served: RunningDaemon) -> None:
    with (
        DecoupledModelClient(f"grpc://{served.grpc}", "add") as client,
        pytest.raises(
            PyTritonClientInferenceServerError,
            match=r"Model config is coupled\. Use ModelClient instead\.",
        ),
    ):
        client.infer_sample(ONES)


def test_the_inference_timeout_is_kept(url: str, served: RunningDaemon, tmp_path: Path) -> None:
    name = f"waits-{url[:4]}"
    served.client.register(_Waits(tmp_path), name, [A], [SUM], progress=False)
    with ModelClient(url, name, inference_timeout_s=0.5) as client:
        said = r"Timeout occurred during inference request\. Timeout: 0\.5 s"
        with pytest.raises(PyTritonClientTimeoutError, match=said):
            client.infer_sample(ONES)
        (tmp_path / "go").touch()
        # Its own answer, not the late one of the first. The server may still be busy with that.
        assert eventually(lambda: _answered(client, ONES * 5), "the model is free") == [5, 5, 5]
    served.client.unregister(name)


def _answered(client: ModelClient, value: Array) -> list[float] | None:
    try:
        answer: list[float] = client.infer_sample(value)["sum"].tolist()
    except PyTritonClientTimeoutError:
        return None
    return answer


def _pending(daemon: RunningDaemon, model: str) -> int:
    text = urlopen(daemon.client.status().server.metrics_url).read().decode()
    lines = [
        line for line in text.splitlines() if f'pending_request_count{{model="{model}"' in line
    ]
    return int(lines[0].split()[-1]) if lines else 0


def _pending_at_least(daemon: RunningDaemon, model: str, number: int) -> bool:
    return _pending(daemon, model) >= number


def test_priorities_and_queue_timeouts(url: str, served: RunningDaemon, tmp_path: Path) -> None:
    """A later request of priority 1 is served before a waiting one of priority 2, the default."""
    name = f"queue-{url[:4]}"
    config = ModelConfig(max_batch_size=1, batcher=QUEUE)
    served.client.register(_Waits(tmp_path), name, [A], [SUM], config=config, progress=False)
    begun = tmp_path / "begun"
    with ModelClient(url, name) as client, ThreadPoolExecutor(4) as threads:

        def ask(number: int, **fields: Any) -> list[float]:
            value = np.full(1, number, np.float32)
            answer: list[float] = client.infer_sample(value, options=RequestOptions(**fields))[
                "sum"
            ].tolist()
            return answer

        answers = [threads.submit(ask, 1)]
        eventually(begun.exists, "the first has begun")
        for number, priority in ((2, 0), (3, 1)):
            answers.append(threads.submit(ask, number, priority=priority))
            waiting = partial(_pending_at_least, served, name, number - 1)
            eventually(waiting, "it waits in the queue")
        late = threads.submit(ask, 4, timeout_s=0.001)
        eventually(lambda: _pending(served, name) >= 3 or late.done(), "it waits, or is refused")
        (tmp_path / "go").touch()
        assert [one.result(60) for one in answers] == [[1], [2], [3]]
        with pytest.raises(PyTritonClientInferenceServerError, match="timeout expired"):
            late.result(60)
    assert begun.read_text().split() == ["1", "3", "2"]
    served.client.unregister(name)


# ── The other clients ────────────────────────────────────────────────────────────────────────────


def test_futures(url: str) -> None:
    with FuturesModelClient(url, "add", max_workers=8) as client:
        futures = [client.infer_sample(ONES * number) for number in range(50)]
        sums = [future.result()["sum"][0] for future in futures]
        assert sums == list(range(50))
        failed = client.infer_sample(ONES * 2000)
        with pytest.raises(PyTritonClientInferenceServerError, match="the number is too big"):
            failed.result()


def test_asyncio(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with AsyncioModelClient(url, "add", lazy_init=False) as client:
            answers = await asyncio.gather(
                *[client.infer_sample(ONES * number) for number in range(50)]
            )
            assert [answer["sum"][0] for answer in answers] == list(range(50))
            assert (await client.infer_batch(a=ONES[None]))["last"].tolist() == [1]
            config = await client.model_config
            assert config.max_batch_size == 8
            with pytest.raises(
                PyTritonClientInferenceServerError,
                match="Error occurred on Triton Inference Server side: ValueError: the number",
            ):
                await client.infer_sample(ONES * 2000)
            with pytest.raises(PyTritonClientValueError, match="Use either positional"):
                await client.infer_sample(ONES, b=ONES)
            with pytest.raises(PyTritonClientInferenceServerError, match="Pass access_token="):
                await client.unload_model()
            async with AsyncioModelClient.from_existing_client(client) as other:
                assert (await other.infer_sample(ONES))["last"] == 1
        wait_for_one_answer(monkeypatch)
        async with AsyncioModelClient(url, "nope", init_timeout_s=60) as client:
            with pytest.raises(PyTritonClientModelUnavailableError, match="unknown model"):
                await client.infer_sample(ONES)

    asyncio.run(ask())


def test_a_client_can_be_created_before_its_event_loop_runs(url: str) -> None:
    """As web applications do when they are imported."""
    shared = AsyncioModelClient(url, "add")

    async def handle(number: int) -> float:
        client = AsyncioModelClient.from_existing_client(shared)
        async with client:
            return float((await client.infer_sample(ONES * number))["last"])

    async def application() -> list[float]:
        await shared.wait_for_server(60)
        await shared.wait_for_model(60)
        await shared.model_config
        answers = await asyncio.gather(*[handle(number) for number in range(5)])
        await shared.close()
        return answers

    assert asyncio.run(application()) == [0, 1, 2, 3, 4]
