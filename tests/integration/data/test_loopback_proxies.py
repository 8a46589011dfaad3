"""With a proxy in the environment, clients, the daemon and workers still connect to this machine directly."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from support.models.inference import infer_once
from support.real_daemon import RunningDaemon

from pytriton.client import AsyncioModelClient, ModelClient
from pytriton.client.utils import create_client_from_url
from pytriton.model_config import ModelConfig, Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(1,))]
URL = [Tensor(name="url", dtype=np.bytes_, shape=(1,))]
TEXT = [Tensor(name="text", dtype=np.bytes_, shape=(1,))]
ONE = np.ones(1, np.float32)


@pytest.fixture(scope="module")
def proxy() -> Iterator[socket.socket]:
    """A proxy that never answers, in the environment of this module's processes."""
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.MonkeyPatch.context() as patch:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            patch.setenv(name, url)
            patch.delenv(name.upper(), raising=False)
        for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
            patch.delenv(name, raising=False)
        listener.setblocking(False)
        yield listener


def asks(requests: Any) -> Any:
    return [
        {"text": np.array([urlopen(one["url"][0].decode(), timeout=20).read()])} for one in requests
    ]


@pytest.fixture(scope="module")
def daemon(proxy: socket.socket) -> Iterator[RunningDaemon]:
    unbatched = ModelConfig(batching=False)
    with RunningDaemon.start() as running:
        register = running.client.register
        register(lambda requests: requests, "echo", X, X, unbatched, progress=False)
        register(asks, "asks", URL, TEXT, unbatched, progress=False)
        yield running


@pytest.fixture(autouse=True)
def nobody_asked(proxy: socket.socket) -> Iterator[None]:
    yield
    try:
        connection, _ = proxy.accept()
    except BlockingIOError:
        return
    connection.close()
    pytest.fail("the proxy was asked")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_clients_bypass_the_proxy(daemon: RunningDaemon, protocol: str, host: str) -> None:
    port = getattr(daemon, protocol).rpartition(":")[2]
    url = f"{protocol}://{host}:{port}"
    limits: dict[str, Any] = {"init_timeout_s": 20.0, "inference_timeout_s": 20.0}
    with ModelClient(url, "echo", **limits) as client:
        assert client.infer_sample(ONE)["x"].tolist() == [1]

    async def ask() -> Any:
        async with AsyncioModelClient(url, "echo", **limits) as client:
            return await client.infer_sample(ONE)

    assert asyncio.run(ask())["x"].tolist() == [1]
    client = create_client_from_url(url, 20.0)
    timeout = {"client_timeout": 20.0} if protocol == "grpc" else {}
    assert client.is_server_live(**timeout)
    client.close()


def test_workers_bypass_the_proxy(daemon: RunningDaemon) -> None:
    """Also when a callable uses its own HTTP client."""
    url = f"http://{daemon.http}/v2/models/echo"
    text = infer_once(daemon, "asks", {"url": np.array([url.encode()], np.object_)})["text"][0]
    assert b'"echo"' in text
