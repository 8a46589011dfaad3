"""The clients of decoupled models, and loading and unloading, with a tritonserver that runs Python models itself."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.short_waits import wait_for_one_answer
from support.models.decoupled_models import COUPLED
from support.models.inference import Array
from support.plain_triton import PlainTriton
from support.real_daemon import eventually

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    ModelClient,
    RequestOptions,
)
from pytriton.client._inference.response_streams import Responses
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)


def count(number: int) -> Array:
    return np.array([number], np.int32)


def wait_for_responses(client: DecoupledModelClient, number: int) -> None:
    """Wait until the client has buffered `number` responses."""
    assert client._stream is not None
    buffer = client._stream.buffer
    eventually(lambda: len(buffer._responses) >= number, "it is answered")


THREE = [[0], [1], [2]]


# ── Blocking ─────────────────────────────────────────────────────────────────────────────────────


def test_responses_arrive_one_by_one(triton: PlainTriton) -> None:
    with DecoupledModelClient(triton.grpc, "count") as client:
        responses = client.infer_sample(count(3))
        assert [response["number"].tolist() for response in responses] == THREE
        batches = client.infer_batch(count=count(2)[None])
        assert [one["number"].tolist() for one in batches] == [[[0]], [[1]]]
        assert list(client.infer_sample(count(0))) == []
        assert client.model_config.decoupled


def test_a_model_without_batching(triton: PlainTriton) -> None:
    with DecoupledModelClient(triton.grpc, "plain", lazy_init=False) as client:
        responses = client.infer_sample(count(3))
        assert [response["number"].tolist() for response in responses] == THREE
        with pytest.raises(PyTritonClientModelDoesntSupportBatchingError):
            client.infer_batch(count(3))


def test_parameters_and_headers_arrive(triton: PlainTriton) -> None:
    with DecoupledModelClient(triton.grpc, "count", access_token="secret") as client:
        (response,) = client.infer_sample(
            count(1), parameters={"text": "t", "flag": True}, headers={"X-Who": "me"}
        )
        reported = json.loads(response["told"][0])
        assert {key: reported[key] for key in ("text", "flag", "x-who")} == {
            "text": "t",
            "flag": True,
            "x-who": "me",
        }
        (response,) = client.infer_sample(
            count(1), options=RequestOptions(requested_outputs=["number"])
        )
        assert list(response) == ["number"]
        with pytest.raises(PyTritonClientValueError, match="takes 1 inputs"):
            client.infer_sample(count(1), count(1))


def test_the_timeout_applies_to_each_response(triton: PlainTriton, files: Path) -> None:
    (files / "wait").touch()
    with DecoupledModelClient(triton.grpc, "count", inference_timeout_s=2.5) as client:

        def begun() -> Any:
            responses = client.infer_sample(count(3))
            with suppress(PyTritonClientTimeoutError):  # the machine may be busy for that long
                assert next(responses)["number"] == 0
                return responses
            return None

        responses = eventually(begun, "the first response comes in time")
        with pytest.raises(
            PyTritonClientTimeoutError,
            match=r"Timeout occurred during inference request\. Timeout: 2\.5 s",
        ):
            next(responses)
        eventually((files / "cancelled").exists, "the model was told")
        (files / "wait").unlink()

        def all_of_them() -> int:
            with suppress(PyTritonClientTimeoutError):
                return len(list(client.infer_sample(count(3))))
            return 0

        assert eventually(all_of_them, "all responses come in time") == 3


def test_a_request_is_sent_when_the_client_is_called(triton: PlainTriton, files: Path) -> None:
    """So two streams run in parallel: both are answered before either is read."""
    with (
        DecoupledModelClient(triton.grpc, "count") as first,
        DecoupledModelClient(triton.grpc, "count") as second,
    ):
        both = [client.infer_sample(count(3)) for client in (first, second)]
        eventually((files / "sent").exists, "the model was asked")
        for client in (first, second):
            wait_for_responses(client, 3)
        assert [[one["number"].tolist() for one in each] for each in both] == [THREE, THREE]


def test_one_request_at_a_time(triton: PlainTriton) -> None:
    with DecoupledModelClient(triton.grpc, "count") as client:
        responses = client.infer_sample(count(3))
        with pytest.raises(PyTritonClientInferenceServerError, match="already in progress"):
            client.infer_sample(count(3))  # before the first is read
        next(responses)
        with pytest.raises(PyTritonClientInferenceServerError, match="already in progress"):
            client.infer_sample(count(3))
        assert len(list(responses)) == 2
        assert list(responses) == []
        assert len(list(client.infer_sample(count(3)))) == 3


def test_an_unread_request_is_completed(triton: PlainTriton, files: Path) -> None:
    """The client can send the next request after that."""
    (files / "wait").touch()
    with DecoupledModelClient(triton.grpc, "count") as client:
        client.infer_sample(count(100))
        gc.collect()
        with pytest.raises(PyTritonClientInferenceServerError, match="already in progress"):
            client.infer_sample(count(3))
        (files / "wait").unlink()
        assert client._stream is not None
        buffer = client._stream.buffer
        eventually(lambda: buffer.last is not None, "it is done")
        assert (files / "sent").read_text() == "99"
        assert len(list(client.infer_sample(count(3)))) == 3
    assert not (files / "cancelled").exists()


def test_an_unread_request_may_fail(triton: PlainTriton) -> None:
    with DecoupledModelClient(triton.grpc, "count") as client:
        client.infer_sample(count(-2))
        assert client._stream is not None
        buffer = client._stream.buffer
        eventually(lambda: buffer.last is not None, "it has failed")
        assert len(list(client.infer_sample(count(3)))) == 3


def test_closing_an_unread_stream_cancels_it(triton: PlainTriton, files: Path) -> None:
    (files / "wait").touch()
    with DecoupledModelClient(triton.grpc, "count") as client:
        responses = client.infer_sample(count(3))
        assert isinstance(responses, Responses)
        eventually((files / "sent").exists, "the model is at it")
        responses.close()
        responses.close()
        assert list(responses) == []
        eventually((files / "cancelled").exists, "the model was told")
        (files / "wait").unlink()
        assert len(list(client.infer_sample(count(3)))) == 3


def test_closing_a_client_cancels_unread_streams(triton: PlainTriton, files: Path) -> None:
    (files / "wait").touch()
    responses = DecoupledModelClient(triton.grpc, "count").infer_sample(count(3))
    eventually((files / "sent").exists, "the model is at it")
    gc.collect()
    assert not (files / "cancelled").exists()  # an unread stream keeps its client alive
    del responses
    eventually((files / "cancelled").exists, "the model was told")


def test_a_program_exits_while_a_request_is_in_flight(triton: PlainTriton, files: Path) -> None:
    """One stream was not read at all, the other one in part."""
    (files / "wait").touch()
    code = f"""
        import numpy as np
        from pytriton.client import DecoupledModelClient
        one, two = (DecoupledModelClient({triton.grpc!r}, "count") for _ in range(2))
        unread = one.infer_sample(np.array([3], np.int32))
        read = two.infer_sample(np.array([3], np.int32))
        print(next(read)["number"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0]\n", "")
    eventually((files / "cancelled").exists, "the model was told")


def test_leaving_the_loop_early_cancels_the_stream(triton: PlainTriton, files: Path) -> None:
    (files / "wait").touch()
    with DecoupledModelClient(triton.grpc, "count") as client:
        for response in client.infer_sample(count(3)):
            assert response["number"] == 0
            break
        gc.collect()
        eventually((files / "cancelled").exists, "the model was told")
        (files / "wait").unlink()
        assert len(list(client.infer_sample(count(3)))) == 3


def test_closing_stops_a_stream(triton: PlainTriton, files: Path) -> None:
    (files / "wait").touch()
    client = DecoupledModelClient(triton.grpc, "count")
    responses = client.infer_sample(count(3))
    next(responses)
    with ThreadPoolExecutor(1) as other:
        waits = other.submit(next, responses)
        client.close()
        with pytest.raises(PyTritonClientClosedError, match="DecoupledModelClient is closed"):
            waits.result(60)
    client.close()
    with pytest.raises(PyTritonClientClosedError):
        client.infer_sample(count(3))
    eventually((files / "cancelled").exists, "the model was told")


def test_a_slow_reader_slows_down_the_model(triton: PlainTriton, files: Path) -> None:
    """The client's memory does not grow: flow control keeps unread responses in the server, and stops the model."""
    with DecoupledModelClient(triton.grpc, "count") as client:
        responses = client.infer_sample(count(2000))
        next(responses)
        wait_for_responses(client, 16)  # as many as may wait
        assert [one["number"][0] for one in responses] == list(range(1, 2000))


def test_errors(triton: PlainTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    with DecoupledModelClient(triton.grpc, "count") as client:
        responses = client.infer_sample(count(-2))
        assert [next(responses)["number"][0] for _ in range(2)] == [0, 1]
        with pytest.raises(
            PyTritonClientInferenceServerError,
            match=r"Error occurred during inference request\. Message: no negative counts",
        ):
            next(responses)
        with pytest.raises(PyTritonClientInferenceServerError, match="data-type is 'FP32'"):
            list(client.infer_sample(np.ones(1, np.float32)))
        assert len(list(client.infer_sample(count(3)))) == 3
    wait_for_one_answer(monkeypatch)
    with (
        DecoupledModelClient(triton.grpc, "nope", init_timeout_s=60) as client,
        pytest.raises(PyTritonClientModelUnavailableError, match="unknown model"),
    ):
        client.infer_sample(count(1))


def test_several_urls(triton: PlainTriton) -> None:
    with DecoupledModelClient(["grpc://127.0.0.1:1", triton.grpc], "count") as client:
        for _ in range(3):
            assert len(list(client.infer_sample(count(3)))) == 3


def test_decoupled_is_not_coupled(triton: PlainTriton) -> None:
    said = r"Model config is decoupled\. Use {}DecoupledModelClient instead\."
    for url in (triton.http, triton.grpc):
        with (
            ModelClient(url, "count") as client,
            pytest.raises(PyTritonClientInferenceServerError, match=said.format("")),
        ):
            client.infer_sample(count(1))

    async def ask() -> None:
        async with AsyncioModelClient(triton.http, "count") as client:
            with pytest.raises(PyTritonClientInferenceServerError, match=said.format("Asyncio")):
                await client.infer_sample(count(1))
        async with AsyncioDecoupledModelClient(triton.grpc, "coupled") as other:
            with pytest.raises(
                PyTritonClientInferenceServerError,
                match=r"Model config is coupled\. Use AsyncioModelClient instead\.",
            ):
                async for _ in other.infer_sample(count(1)):
                    pass

    asyncio.run(ask())


# ── Loading and unloading ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_loading_and_unloading(
    triton: PlainTriton, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = getattr(triton, protocol)
    with ModelClient(url, "coupled", access_token="secret", init_timeout_s=60) as client:
        assert client.infer_sample(count(5))["number"].tolist() == [5]
        assert client.model_config.max_batch_size == 4
        client.unload_model()
        with monkeypatch.context() as patch:
            wait_for_one_answer(patch)
            with pytest.raises(PyTritonClientModelUnavailableError):
                client.wait_for_model(60)
        client.load_model({"max_batch_size": 7, "backend": "python"} | {"name": "coupled"})
        assert client.model_config.max_batch_size == 7
        client.unload_model()
        config = {"name": "coupled", "backend": "python", "max_batch_size": 2}
        client.load_model(json.dumps(config), {"file:1/model.py": COUPLED.encode()})
        assert client.model_config.max_batch_size == 2
        client.load_model()
        assert client.infer_sample(count(5))["number"].tolist() == [5]
    with (
        ModelClient(url, "coupled") as client,
        pytest.raises(PyTritonClientInferenceServerError, match=r"restricted.*Pass access_token="),
    ):
        client.load_model()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_loading_and_unloading_with_asyncio(
    triton: PlainTriton, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        url = getattr(triton, protocol)
        async with AsyncioModelClient(url, "coupled", access_token="secret") as client:
            await client.unload_model()
            with monkeypatch.context() as patch:
                wait_for_one_answer(patch)
                with pytest.raises(PyTritonClientModelUnavailableError):
                    await client.wait_for_model(60)
            await client.load_model()
            assert (await client.infer_sample(count(5)))["number"].tolist() == [5]

    asyncio.run(ask())
