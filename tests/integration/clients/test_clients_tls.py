"""The clients over https and grpcs. tritonserver serves no https itself, so a small proxy terminates it."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import trustme
from support.models.inference import Array
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon

from pytriton.client import AsyncioModelClient, FuturesModelClient, ModelClient, TlsOptions
from pytriton.client.exceptions import PyTritonClientError, PyTritonClientTlsError
from pytriton.decorators import batch

ONES = np.ones(2, np.float32)


@batch
def _double(x: Array) -> dict[str, Array]:
    return {"y": x * 2}


@contextmanager
def _https(address: str, context: ssl.SSLContext) -> Iterator[str]:
    """Terminate TLS, and forward the bytes."""
    loop = asyncio.new_event_loop()
    host, _, port = address.rpartition(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except (ConnectionError, ssl.SSLError) as error:
            print("a connection ended:", error)
        finally:
            writer.close()

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(host, int(port))
        writers.extend([writer, there[1]])
        await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))

    loop.set_exception_handler(lambda _, about: print("in the proxy:", about["message"]))
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def stop() -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A connection whose client has closed it only just: what the loop has not closed when it stops, is complained
        # of in whatever test the collector finds it.
        for writer in writers:
            writer.transport.abort()
        for _ in range(5):
            await asyncio.sleep(0)

    try:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Secure:
    """The URLs of one daemon, and what a client needs to trust them."""

    def __init__(self, urls: dict[str, str], tls: TlsOptions, trust_only: TlsOptions) -> None:
        self.urls = urls
        self.tls = tls
        self.trust_only = trust_only


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder: Path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = {
        "server": authority.issue_cert("localhost"),
        "client": authority.issue_cert("someone@example.test"),
    }
    root = folder / "root.pem"
    authority.cert_pem.write_to_path(str(root))
    for name, certificate in issued.items():
        certificate.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
        certificate.private_key_pem.write_to_path(str(folder / f"{name}.key"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(root)
    context.verify_mode = ssl.CERT_REQUIRED
    options = {
        "grpc-use-ssl-mutual": "true",
        "grpc-server-cert": str(folder / "server.pem"),
        "grpc-server-key": str(folder / "server.key"),
        "grpc-root-cert": str(root),
    }
    with (
        RunningDaemon.start(tritonserver_options=options) as daemon,
        _https(daemon.http, context) as https,
    ):
        daemon.client.register(_double, "double", X, Y, progress=False)
        urls = {"https": https, "grpcs": f"grpcs://localhost:{daemon.grpc.rpartition(':')[2]}"}
        tls = TlsOptions(root, folder / "client.pem", folder / "client.key")
        yield Secure(urls, tls, TlsOptions(root))


SCHEMES = ("https", "grpcs")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_blocking_clients(scheme: str, secure: Secure) -> None:
    with ModelClient(secure.urls[scheme], "double", tls=secure.tls) as client:
        client.wait_for_server(60)
        assert client.infer_sample(ONES)["y"].tolist() == [2, 2]
        with ModelClient.from_existing_client(client) as other:
            assert other.infer_sample(ONES)["y"].tolist() == [2, 2]
    with FuturesModelClient(secure.urls[scheme], "double", tls=secure.tls) as futures:
        assert futures.infer_sample(ONES).result(60)["y"].tolist() == [2, 2]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_asyncio(scheme: str, secure: Secure) -> None:
    async def ask() -> list[float]:
        async with AsyncioModelClient(secure.urls[scheme], "double", tls=secure.tls) as client:
            answer: list[float] = (await client.infer_sample(ONES))["y"].tolist()
            return answer

    assert asyncio.run(ask()) == [2, 2]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_untrusted_certificate_is_an_error_at_once(scheme: str, secure: Secure) -> None:
    """Waiting for the server would not make its certificate trusted."""
    with (
        ModelClient(secure.urls[scheme], "double") as client,  # would wait for 300 s
        pytest.raises(PyTritonClientTlsError, match=r"tls=TlsOptions\(ca_certificate=\.\.\.\)"),
    ):
        client.infer_sample(ONES)

    async def ask() -> None:
        async with AsyncioModelClient(secure.urls[scheme], "double") as client:
            await client.infer_sample(ONES)

    with pytest.raises(PyTritonClientTlsError, match="No secure connection to"):
        asyncio.run(ask())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_client_without_a_certificate_is_refused(scheme: str, secure: Secure) -> None:
    with (
        ModelClient(
            secure.urls[scheme], "double", tls=secure.trust_only, init_timeout_s=1
        ) as client,
        pytest.raises(PyTritonClientError, match=r"://localhost:"),
    ):
        client.infer_sample(ONES)


def test_a_certificate_for_another_name_is_refused(secure: Secure) -> None:
    for url in secure.urls.values():
        by_address = url.replace("localhost", "127.0.0.1")
        with (
            ModelClient(by_address, "double", tls=secure.tls, init_timeout_s=60) as client,
            pytest.raises(PyTritonClientTlsError, match="No secure connection"),
        ):
            client.infer_sample(ONES)
