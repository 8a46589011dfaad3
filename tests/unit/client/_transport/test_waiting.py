"""Timeouts, and how the clients wait for servers and models."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import grpc
import numpy as np
import pytest
from fakes.short_waits import wait_for_one_answer
from fakes.triton.fake_triton import MODEL, FakeTriton, fake_triton
from support.ports import lasting_port
from support.real_daemon import eventually

from pytriton.client import AsyncioModelClient, ModelClient
from pytriton.client._inference import core
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.utils import (
    create_client_from_url,
    wait_for_model_ready,
    wait_for_server_ready,
)

X = np.ones(2, np.float32)


@pytest.fixture(params=["http", "grpc"])
def mute(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"{request.param}://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture(params=["http", "grpc"])
def nobody(request: pytest.FixtureRequest) -> Iterator[str]:
    """A URL where nothing listens, and nothing else can start listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"{request.param}://127.0.0.1:{bound.getsockname()[1]}"


LATE = r"Waiting for model fake/<latest> to be ready timed out\. After .*://127\.0\.0\.1:"


def test_a_silent_server(mute: str) -> None:
    with ModelClient(mute, MODEL, init_timeout_s=0.3) as client:
        with pytest.raises(PyTritonClientTimeoutError, match=LATE) as caught:
            client.infer_sample(X)
        assert not isinstance(caught.value, PyTritonClientModelUnavailableError)
        with pytest.raises(PyTritonClientTimeoutError, match="Waiting for server to be ready"):
            client.wait_for_server(0.3)
    with pytest.raises(PyTritonClientTimeoutError, match=LATE):
        ModelClient(mute, MODEL, lazy_init=False, init_timeout_s=0.3)


def test_a_silent_server_with_asyncio(mute: str) -> None:
    async def ask() -> None:
        async with AsyncioModelClient(mute, MODEL, init_timeout_s=0.3) as client:
            with pytest.raises(PyTritonClientTimeoutError, match=LATE):
                await client.infer_sample(X)
            with pytest.raises(PyTritonClientTimeoutError, match="Waiting for server"):
                await client.wait_for_server(0.3)
        with pytest.raises(PyTritonClientTimeoutError, match=LATE):
            async with AsyncioModelClient(mute, MODEL, lazy_init=False, init_timeout_s=0.3):
                pass

    asyncio.run(ask())


def test_reading_the_configuration_has_a_timeout(mute: str) -> None:
    with (
        ModelClient(mute, MODEL, ensure_model_is_ready=False, init_timeout_s=0.3) as client,
        pytest.raises(
            PyTritonClientTimeoutError,
            match=r"Timeout occurred during reading the configuration of model fake/<latest>\. "
            r"Timeout: 0\.3 s",
        ),
    ):
        _ = client.model_config


def test_nobody_listens(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_one_answer(monkeypatch)
    with (
        ModelClient(nobody, MODEL, init_timeout_s=60) as client,
        pytest.raises(PyTritonClientTimeoutError, match="refused"),
    ):
        client.infer_sample(X)


def test_an_inference_has_a_timeout(fake: FakeTriton) -> None:
    """A late answer is not taken for the next request's."""
    with ModelClient(fake.url, MODEL, inference_timeout_s=0.3) as client:
        fake.gate.clear()
        with pytest.raises(
            PyTritonClientTimeoutError,
            match=r"Timeout occurred during inference request\. Timeout: 0\.3 s\. Message: ",
        ):
            client.infer_sample(X)
        fake.number = 2
        fake.gate.set()

        def answer() -> list[float] | None:
            with suppress(PyTritonClientTimeoutError):  # the machine may be busy for that long
                return list(client.infer_sample(X)["y"].tolist())
            return None

        assert eventually(answer, "it is answered") == [2]


def test_an_inference_has_a_timeout_with_asyncio(fake: FakeTriton) -> None:
    async def ask() -> None:
        async with AsyncioModelClient(fake.url, MODEL, inference_timeout_s=0.3) as client:
            fake.gate.clear()
            with pytest.raises(PyTritonClientTimeoutError, match=r"Timeout: 0\.3 s"):
                await client.infer_sample(X)
            fake.number = 2
            fake.gate.set()
            answers: list[list[float]] = []
            deadline = time.monotonic() + 60
            while not answers and time.monotonic() < deadline:
                with suppress(PyTritonClientTimeoutError):  # the machine may be busy for that long
                    answers.append((await client.infer_sample(X))["y"].tolist())
            assert answers == [[2]]

    asyncio.run(ask())


def test_a_trickling_answer_does_not_extend_the_timeout() -> None:
    """Each byte arrives in time, but the answer never completes."""
    stop = threading.Event()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    listening.settimeout(60)

    def drip() -> None:
        with suppress(OSError):  # the client has gone, perhaps before it connected
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not stop.wait(0.05):
                    connection.sendall(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with (
            ModelClient(url, MODEL, ensure_model_is_ready=False, init_timeout_s=0.5) as client,
            pytest.raises(PyTritonClientTimeoutError, match=r"Timeout: 0\.5 s"),
        ):
            _ = client.model_config
    finally:
        stop.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        listening.close()


UNKNOWN = r"Waiting for model fake/<latest> to be ready timed out\. .*unknown model: 'fake'"


def test_an_unknown_model(fake: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.knows = False
    wait_for_one_answer(monkeypatch)
    with ModelClient(fake.url, MODEL, init_timeout_s=60) as client:
        with pytest.raises(PyTritonClientModelUnavailableError, match=UNKNOWN) as caught:
            client.infer_sample(X)
        assert isinstance(caught.value, PyTritonClientTimeoutError)  # what PyTriton raises
        with pytest.raises(PyTritonClientModelUnavailableError, match=UNKNOWN):
            client.wait_for_model(60)


def test_an_unknown_model_is_awaited_for_a_shorter_time_than_a_server(
    fake: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "UNKNOWN_MODEL_GRACE_S", 0.2)
    fake.knows = False
    with (
        ModelClient(fake.url, MODEL) as client,  # the default would be 300 s: pytest's is shorter
        pytest.raises(PyTritonClientModelUnavailableError, match=r"init_timeout_s=\.\.\."),
    ):
        client.infer_sample(X)


def test_a_model_that_is_loaded_later(fake: FakeTriton) -> None:
    fake.knows = False
    results: list[float] = []

    def ask() -> None:
        with ModelClient(fake.url, MODEL, init_timeout_s=60) as client:
            results.extend(client.infer_sample(X)["y"].tolist())

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: fake.count("config") > 1, "the client has asked more than once")
    fake.knows = True
    thread.join(60)
    assert results == [1]


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_server_that_starts_later(scheme: str) -> None:
    port = lasting_port()
    url = f"{scheme}://127.0.0.1:{port}"
    results: list[float] = []
    begun = threading.Event()

    def ask() -> None:
        with ModelClient(url, MODEL, init_timeout_s=60) as client:
            with pytest.raises(PyTritonClientTimeoutError):
                client.wait_for_server(0.2)
            begun.set()
            results.extend(client.infer_sample(X)["y"].tolist())

    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(60)
    with fake_triton(scheme, port=port):
        thread.join(60)
    assert results == [1]


def test_waiting_with_tritonclients_own_client(
    fake: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.knows = False
    wait_for_one_answer(monkeypatch)
    with create_client_from_url(fake.url) as client:
        wait_for_server_ready(client, timeout_s=60, headers={"triton-access-token": "t"})
        assert fake.received[-1].headers["triton-access-token"] == "t"
        with pytest.raises(PyTritonClientModelUnavailableError, match=r"model fake/2 .* unknown"):
            wait_for_model_ready(client, MODEL, "2", timeout_s=60)
        fake.knows = True
        wait_for_model_ready(client, MODEL, timeout_s=60)


def test_waiting_in_vain_with_tritonclients_own_client(nobody: str) -> None:
    with create_client_from_url(nobody) as client:
        with pytest.raises(PyTritonClientTimeoutError, match="server to be ready timed out"):
            wait_for_server_ready(client, 0.1)
        with pytest.raises(PyTritonClientTimeoutError, match="model m/<latest>"):
            wait_for_model_ready(client, "m", timeout_s=0.1)
        with pytest.raises(PyTritonClientValueError, match="timeout_s must be a number"):
            wait_for_server_ready(client, -1)


def test_closing_ends_a_wait(fake: FakeTriton) -> None:
    fake.knows = False
    client = ModelClient(fake.url, MODEL, init_timeout_s=600)
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            client.infer_sample(X)
        except PyTritonClientClosedError as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: fake.count("config") > 1, "the client waits")
    client.close()
    thread.join(60)
    assert [str(error) for error in caught] == ["ModelClient is closed"]


def test_readiness_and_configuration_are_requested_once(fake: FakeTriton) -> None:
    async def ask() -> None:
        async with AsyncioModelClient(fake.url, MODEL) as client:
            await asyncio.gather(*[client.infer_sample(X) for _ in range(20)])
            await client.infer_sample(X)
            assert (await client.model_config).batching
            async with AsyncioModelClient.from_existing_client(client) as other:
                await other.infer_sample(X)

    asyncio.run(ask())
    assert (fake.count("ready"), fake.count("config"), fake.count("infer")) == (1, 1, 22)
    fake.received.clear()
    with ModelClient(fake.url, MODEL) as client:
        for _ in range(3):
            client.infer_sample(X)
        with ModelClient.from_existing_client(client) as other:
            other.infer_sample(X)
    assert (fake.count("ready"), fake.count("config"), fake.count("infer")) == (1, 1, 4)


def test_a_new_client_from_an_unused_one(fake: FakeTriton) -> None:
    client = ModelClient(fake.url, MODEL, "1", access_token="t", inference_timeout_s=7)
    with ModelClient.from_existing_client(client) as other:
        other.infer_sample(X)
        assert other.model_version == "1"
        assert repr(other) == f"<ModelClient of model fake/1 at {fake.url}>"
    assert (fake.count("ready"), fake.count("config"), fake.count("infer")) == (0, 1, 1)
    client.close()


def test_one_cancelled_task_does_not_end_the_wait_of_others(fake: FakeTriton) -> None:
    async def ask() -> None:
        fake.knows = False
        async with AsyncioModelClient(fake.url, MODEL, init_timeout_s=60) as client:
            first = asyncio.ensure_future(client.infer_sample(X))
            second = asyncio.ensure_future(client.infer_sample(X))
            while fake.count("config") < 2:
                await asyncio.sleep(0.01)
            first.cancel()
            fake.knows = True
            assert (await second)["y"].tolist() == [1]
            with pytest.raises(asyncio.CancelledError):
                await first

    asyncio.run(ask())


@pytest.mark.parametrize(
    "error",
    [
        (429, grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size"),
        (500, grpc.StatusCode.INTERNAL, "ValueError: wrong"),
        (400, grpc.StatusCode.INVALID_ARGUMENT, "unexpected inference input"),
    ],
)
def test_a_server_error_ends_the_wait(
    fake: FakeTriton, error: tuple[int, grpc.StatusCode, str]
) -> None:
    fake.error = error
    with (
        ModelClient(fake.url, MODEL) as client,
        pytest.raises(PyTritonClientInferenceServerError) as caught,
    ):
        client.infer_sample(X)
    assert str(caught.value) == f"Error occurred during inference request. Message: {error[2]}"

    async def ask() -> None:
        async with AsyncioModelClient(fake.url, MODEL) as client:
            await client.infer_sample(X)

    with pytest.raises(PyTritonClientInferenceServerError) as caught:
        asyncio.run(ask())
    assert str(caught.value) == f"Error occurred on Triton Inference Server side: {error[2]}"


def test_a_long_refusal_is_not_read_to_its_end(
    fake: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the error page of a reverse proxy: it must not keep the connection busy."""
    wait_for_one_answer(monkeypatch)
    fake.knows, fake.refusal = False, "<html>502</html>" * 1000
    with ModelClient(fake.url, MODEL, init_timeout_s=60) as client:
        with pytest.raises(PyTritonClientModelUnavailableError, match="unknown model"):
            client.wait_for_model(60)
        fake.knows = True
        assert client.infer_sample(X)["y"].tolist() == [1]
