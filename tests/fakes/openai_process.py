"""The OpenAI frontend's process with a fake tritonserver, which streams endlessly on request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
from aiohttp import web
from support.real_daemon import eventually

from pytriton._protocol.messages import OpenAICard
from pytriton.dispatcher.openai.state import ApiModel, ApiSettings, ApiState

#: A key in its keys file.
KEY = "sk-the-key-of-these-tests"
_EVENT = f"data: {json.dumps({'text_output': 's' + 'x' * (1 << 14)})}\n\n".encode()
_ANSWER = 'u{"prompt_tokens":1,"completion_tokens":1}\n{"choices":[]}'


class FakeTriton:
    """Answers every request of the frontend in a thread."""

    def __init__(self) -> None:
        self.sent: list[int] = []  #: events of each endless answer
        self.open = 0  #: endless answers that nobody has given up
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        async def generate(request: web.Request) -> web.StreamResponse:
            if b"endless" in await request.read():
                return await self._endless(request)
            return web.Response(body=f"data: {json.dumps({'text_output': _ANSWER})}\n\n".encode())

        async def main() -> None:
            self._stop = asyncio.Event()
            app = web.Application(client_max_size=1 << 30)
            app.router.add_post("/v2/models/m/generate_stream", generate)
            runner = web.AppRunner(app, handler_cancellation=True)
            await runner.setup()
            listener = socket.create_server(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            await web.SockSite(runner, listener).start()
            self._started.set()
            await self._stop.wait()
            await runner.cleanup()

        self._loop.run_until_complete(main())
        self._loop.close()

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        number = len(self.sent)
        self.sent.append(0)
        self.open += 1
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            while True:
                await answer.write(_EVENT)
                self.sent[number] += 1
                await asyncio.sleep(0)  # let other tasks run
        finally:
            self.open -= 1

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


class OpenAIProcess:
    """The frontend, started as the daemon starts it."""

    triton: FakeTriton

    def __init__(self, state: ApiState, log: Path) -> None:
        self.log = log
        self._state = state
        self._reported = 0
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.address = listener.getsockname()
        self._states, theirs = socket.socketpair()
        argv = [sys.executable, "-m", "pytriton.dispatcher.openai"]
        fds = (listener.fileno(), theirs.fileno())
        with listener, theirs, open(log, "wb") as output:
            self.process = subprocess.Popen(
                [*argv, f"--listen={fds[0]}", f"--state={fds[1]}"],
                pass_fds=fds, stdout=output, stderr=output,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        self._states.sendall(msgspec.json.encode(state) + b"\n")
        assert self._states.recv(16) == b"ready\n"
        self._seen = psutil.Process(self.process.pid)

    @contextlib.contextmanager
    def hurrying(self, **limits: float) -> Iterator[None]:
        """Shorten the clients' time limits. Other tests keep the defaults, because a busy machine is slow."""
        self._report(msgspec.structs.replace(self._state.settings, **limits))
        try:
            yield
        finally:
            self._report(self._state.settings)

    def _report(self, answering: ApiSettings) -> None:
        """Change the frontend's settings, and return once it uses them; it then lists another model."""
        self._reported += 1
        named = ApiModel(f"told-{self._reported}", OpenAICard(["chat"]))
        models = [*self._state.models, named]
        state = msgspec.structs.replace(self._state, settings=answering, models=models)
        self._states.sendall(msgspec.json.encode(state) + b"\n")
        eventually(lambda: named.name in self._models(), "the frontend used the new settings")

    def _models(self) -> str:
        with self.connect() as client:
            client.sendall(
                f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            return answered(client)[1]

    @property
    def resident(self) -> int:
        return self._seen.memory_info().rss

    @property
    def rests(self) -> bool:
        """Return whether the process is blocked in a wait rather than running or waiting for a core."""
        return bool(self._seen.status() == psutil.STATUS_SLEEPING)

    def sockets(self) -> int:
        return len(self._seen.net_connections("tcp"))

    def close(self) -> None:
        self._states.close()
        self.process.wait(30)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)

    def ask(self, body: bytes, *, key: str = KEY, head: str = "") -> tuple[int, str]:
        """Send one request on a new connection; return the status and body of the answer."""
        with self.connect() as client:
            client.sendall(
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
                f"Connection: close\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode()
                + body
            )
            return answered(client)


def answered(client: socket.socket) -> tuple[int, str]:
    """Return the status and body of everything received until the connection ends; status 0 for nothing."""
    data = bytearray()
    while chunk := client.recv(1 << 16):
        data += chunk
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]) if head else 0, body.decode()
