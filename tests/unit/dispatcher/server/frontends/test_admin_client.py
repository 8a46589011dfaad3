"""The daemon's own client of tritonserver, with a bare socket as the server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from support.ports import lasting_port
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.server.frontend import ServerRefused, Unreached
from pytriton.dispatcher.server.frontends import triton_frontend
from pytriton.dispatcher.server.frontends.triton_frontend import AdminClient


async def test_a_load_fails_when_its_connection_is_closed() -> None:
    """It must fail instead of looking cancelled, because a client waits for the reason."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        client = AdminClient(DaemonConfig(), port, port)
        load = asyncio.create_task(client.load("model", "{}"))
        connection, _ = await asyncio.get_running_loop().sock_accept(server)
        with connection:  # and never answer
            await client.close()
            done, _ = await asyncio.wait([load], timeout=30)
    assert done
    assert not load.cancelled()
    assert isinstance(load.exception(), Unreached)


@asynccontextmanager
async def _http(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[AdminClient]:
    """Start a server, and an HTTP client of it."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = AdminClient(DaemonConfig(allow_grpc=False), port, port)
    try:
        yield client
    finally:
        await client.close()
        server.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 20", b"\x16\x03\x01 no HTTP\r\n\r\n"])
async def test_a_closed_connection_or_another_protocol_is_not_an_answer(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with _http(serve) as client:
        with pytest.raises(Unreached):
            await client.load("m", None)


def test_a_load_over_http_may_take_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        loop = asyncio.get_running_loop()
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + 10_000)
        await asyncio.sleep(0)  # every timer that is due fires
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def load() -> None:
        async with _http(serve) as client:
            await client.load("m", None)

    asyncio.run(load())  # a loop without the timer that limits every test


@pytest.mark.parametrize("grpc", [False, True])
async def test_a_missing_server_is_unreachable(grpc: bool) -> None:
    port = lasting_port()
    client = AdminClient(DaemonConfig(allow_grpc=grpc), port, port)
    with pytest.raises(Unreached, match=r"(?i)connect"):
        await client.repository_states()
    await client.close()


class _Server(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Reads the daemon's gRPC requests with tritonclient's own messages."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.index: list[tuple[str, str, str]] = []

    def _took(self, request: Any, context: Any) -> None:
        assert ("token", "secret") in context.invocation_metadata()
        self.asked.append(request)

    def ServerLive(self, request: Any, context: Any) -> Any:
        self._took(request, context)
        return service_pb2.ServerLiveResponse(live=len(self.asked) == 1)

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        self._took(request, context)
        return service_pb2.ServerMetadataResponse(
            name="triton", version="2.60.1", extensions=["one", "two"]
        )

    def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        self._took(request, context)
        if request.model_name == "broken":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "failed to load 'broken': no é")
        return service_pb2.RepositoryModelLoadResponse()

    def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        self._took(request, context)
        return service_pb2.RepositoryModelUnloadResponse()

    def RepositoryIndex(self, request: Any, context: Any) -> Any:
        self._took(request, context)
        answer = service_pb2.RepositoryIndexResponse()
        for name, version, state in self.index:
            answer.models.add(name=name, version=version, state=state, reason="r" * 300)
        return answer


@asynccontextmanager
async def _grpc() -> AsyncIterator[tuple[AdminClient, _Server]]:
    """Start a gRPC server, and a client of it."""
    servicer = _Server()
    any_size = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(2), options=any_size)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = AdminClient(DaemonConfig(access_token="secret"), 1, port)
    client._headers = {"token": "secret"}
    try:
        yield client, servicer
    finally:
        await client.close()
        server.stop(None).wait()


async def test_grpc_requests_match_tritonclient_s() -> None:
    config = '{"name": "é"}' * 400_000  # 5.6 MB: more than gRPC's default limit
    async with _grpc() as (client, server):
        assert await client.is_live()
        assert not await client.is_live()
        await client.load("é" * 100, None)
        await client.load("m", config)
        await client.unload("m")
    live, _, bare, load, unload = server.asked
    assert live == service_pb2.ServerLiveRequest()
    assert bare == service_pb2.RepositoryModelLoadRequest(model_name="é" * 100)
    expected = service_pb2.RepositoryModelLoadRequest(model_name="m")
    expected.parameters["config"].string_param = config
    assert load == expected
    assert unload == service_pb2.RepositoryModelUnloadRequest(model_name="m")


async def test_the_index_over_grpc_has_any_size_and_one_state_for_each_model() -> None:
    many = [(f"model-{number}", "1", "READY") for number in range(15_000)]  # 5 MB
    async with _grpc() as (client, server):
        assert await client.repository_states() == {}
        server.index = [("a", "1", "UNAVAILABLE"), ("a", "2", "READY"), ("a", "3", "UNAVAILABLE")]
        server.index.append(("never", "", ""))
        assert await client.repository_states() == {"a": "READY", "never": ""}
        server.index = many
        assert len(await client.repository_states()) == len(many)


async def test_the_version_over_grpc_is_that_of_the_core() -> None:
    async with _grpc() as (client, server):
        assert await client.version() == "2.60.1"
        assert server.asked == [service_pb2.ServerMetadataRequest()]


async def test_a_refusal_over_grpc_has_a_reason() -> None:
    async with _grpc() as (client, _):
        with pytest.raises(ServerRefused, match=r"^failed to load 'broken': no é$"):
            await client.load("broken", "{}")


@pytest.mark.parametrize(
    "message",
    [b"\x80", b"\x0a", b"\x0a\x05ab", b"\x0b\x01", b"\x0d\x00\x00\x00\x00", b"\x08\xff"],
    ids=["no tag", "no length", "too short", "a group", "of fixed size", "no end"],
)
def test_malformed_protocol_messages_are_reported(message: bytes) -> None:
    with pytest.raises(ValueError, match="from tritonserver"):
        list(triton_frontend._fields(message))
