"""The daemon's client of a native frontend, with a bare socket in its place: valid and invalid answers."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from pytriton.dispatcher.server.frontend import ServerRefused, Unreached
from pytriton.dispatcher.server.frontends.native_frontend import NativeAdmin

#: Never answers.
_SILENT = b""


class Scene:
    """A client, and a socket that answers every request with the same bytes."""

    def __init__(self, folder: Path, answer: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = loop.create_future()
        self.accepting: asyncio.Future[None] = loop.create_future()
        self.asked: list[str] = []
        self.bodies: list[str] = []
        self.was_asked = asyncio.Event()
        self.path = folder / "frontend.sock"
        self.admin = NativeAdmin(self.path, self.exited, self.accepting)
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError):  # a connection over which nothing was asked
                await self._take(reader)
                writer.write(self._answer)
                await writer.drain()
        finally:
            writer.close()

    async def _take(self, reader: asyncio.StreamReader) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(request.decode().partition(" HTTP")[0])
        length = re.search(rb"Content-Length: ([0-9]+)\r\n", request)
        assert length is not None
        self.bodies.append((await reader.readexactly(int(length[1]))).decode())
        self.was_asked.set()
        if self._answer == _SILENT:
            await reader.read()


def _http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@asynccontextmanager
async def answering(folder: Path, answer: bytes) -> AsyncIterator[Scene]:
    one = Scene(folder, answer)
    server = await asyncio.start_unix_server(one.serve, one.path)
    try:
        yield one
    finally:
        await one.admin.close()
        await one.admin.close()  # nothing is left to close
        server.close()


async def test_a_model_s_name_is_not_a_path(tmp_path: Path) -> None:
    async with answering(tmp_path, _http(200, b"")) as one:
        await one.admin.load("../a b", None)
        await one.admin.unload("m")
        await one.admin.set_ready(True)
        assert one.asked == [
            "POST /v2/repository/models/..%2Fa%20b/load",
            "POST /v2/repository/models/m/unload",
            "POST /admin/ready",
        ]


async def test_unavailable_versions_do_not_hide_a_ready_one(tmp_path: Path) -> None:
    models = (
        b'[{"name": "m", "state": "UNAVAILABLE"}, {"name": "m", "state": "READY"}, '
        b'{"name": "m", "state": "UNAVAILABLE"}, {"name": "n"}, {"name": "o", "state": "UNAVAILABLE"}]'
    )
    async with answering(tmp_path, _http(200, models)) as one:
        assert await one.admin.repository_states() == {"m": "READY", "n": "", "o": "UNAVAILABLE"}


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        (_http(400, b'{"error": "no memory"}'), "no memory"),
        (_http(500, b"a page"), "a page"),
        (_http(404, b'{"no": "error"}'), '{"no": "error"}'),
        (_http(404, b"[]"), "[]"),
    ],
)
async def test_an_error_response_means_refused(
    tmp_path: Path, answer: bytes, reported: str
) -> None:
    async with answering(tmp_path, answer) as one:
        with pytest.raises(ServerRefused) as caught:
            await one.admin.load("m", "{}")
        assert str(caught.value) == reported


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 20",
        b"no HTTP\r\n\r\n",
        _http(200, b"{no JSON"),
        _http(200, b"{}")[:-1],
        _http(200, b"\xff"),
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x" * 100_000,
    ],
    ids=["cut", "other", "bad", "short", "no text", "no length", "wrong length", "endless"],
)
async def test_malformed_answers_are_reported(tmp_path: Path, answer: bytes) -> None:
    async with answering(tmp_path, answer) as one:
        with pytest.raises(Unreached):
            await one.admin.load("m", None)


async def test_requests_and_answers_of_any_size(tmp_path: Path) -> None:
    """A configuration, and the index of thousands of models."""
    index = [{"name": f"model-{number}", "state": "READY"} for number in range(30_000)]
    async with answering(tmp_path, _http(200, json.dumps(index).encode())) as one:
        await one.admin.load("m", "x" * 3_000_000)
        assert one.bodies == [json.dumps({"parameters": {"config": "x" * 3_000_000}})]
        assert len(await one.admin.repository_states()) == len(index)
        assert one.bodies[1:] == ["{}"]


async def test_a_closed_connection_is_not_reused(tmp_path: Path) -> None:
    async with answering(tmp_path, _http(200, b"")) as one:
        await one.admin.close()
        with pytest.raises(Unreached, match="connection was closed"):
            await one.admin.load("m", None)
        assert one.asked == []


@pytest.mark.parametrize("closed", [False, True], ids=["it ends", "the connection is closed"])
async def test_a_request_ends_with_the_process_or_the_connection(
    tmp_path: Path, closed: bool
) -> None:
    """The daemon owns the listening socket, so a process's exit closes no connection in its backlog."""
    async with answering(tmp_path, _SILENT) as one:
        asking = asyncio.ensure_future(one.admin.load("m", None))
        await one.was_asked.wait()
        assert not asking.done()
        if closed:
            await one.admin.close()
        else:
            one.exited.set_result(-9)
        with pytest.raises(Unreached, match="has exited, or the connection was closed"):
            await asking


async def test_a_process_that_does_not_accept_yet_is_not_probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytriton.dispatcher.server.frontends.native_frontend._ACCEPTING_S", 0.01)
    async with answering(tmp_path, _http(200, b"")) as one:
        with pytest.raises(Unreached, match="is not accepting connections yet"):
            await one.admin.is_live()
        assert one.asked == []
        one.accepting.set_result(None)
        assert await one.admin.is_live()
        assert one.asked == ["GET /v2/health/live"]


@pytest.mark.programs
async def test_the_socket_of_another_daemon_is_refused(tmp_path: Path) -> None:
    """If our directory was deleted, it may lie in place of ours: a stop would end the other daemon's frontend."""
    path = tmp_path / "frontend.sock"
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True); "
        "c = s.accept()[0]; c.settimeout(100); print(c.recv(1000))"
    )
    command = [sys.executable, "-c", program, str(path)]
    loop = asyncio.get_running_loop()
    admin = NativeAdmin(path, loop.create_future(), loop.create_future())
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(Unreached, match=rf"belongs to another daemon \(pid {other.pid}\)"):
            await admin.unload("m")
        assert other.stdout.readline() == b"b''\n"
