"""The front's process against clients that mean it harm: clear errors, no growth, no key in its log."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from aiohttp import web
from support.running import eventually

from pytriton.dispatcher.openai_front.state import Answering, Served, State, Upstream
from pytriton.ipc.messages import OpenAICard

pytestmark = pytest.mark.programs

KEY = "sk-the-key-of-these-tests"
WRONG = "sk-wrong-and-secret"
#: What allocators may keep; the same load makes more of it in each round where something stays.
SLACK = 24 << 20
EVENT = f"data: {json.dumps({'text_output': 's' + 'x' * (1 << 14)})}\n\n".encode()
ANSWER = 'u{"prompt_tokens":1,"completion_tokens":1}\n{"choices":[]}'


class FakeTriton:
    """Answers every request of the front's, in a thread."""

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
            return web.Response(body=f"data: {json.dumps({'text_output': ANSWER})}\n\n".encode())

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
                await answer.write(EVENT)
                self.sent[number] += 1
                await asyncio.sleep(0)  # the others' turn
        finally:
            self.open -= 1

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


class FrontProcess:
    """The front as the daemon starts it."""

    triton: FakeTriton

    def __init__(self, state: State, log: Path) -> None:
        self.log = log
        self._state = state
        self._told = 0
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.address = listener.getsockname()
        self._states, theirs = socket.socketpair()
        argv = [sys.executable, "-m", "pytriton.dispatcher.openai_front"]
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
        """Have clients little time: a busy machine may take longer for what other tests send."""
        self._tell(msgspec.structs.replace(self._state.answering, **limits))
        try:
            yield
        finally:
            self._tell(self._state.answering)

    def _tell(self, answering: Answering) -> None:
        """Have it answer in another way, and return when it does so: then it knows of another model, too."""
        self._told += 1
        named = Served(f"told-{self._told}", OpenAICard(["chat"]))
        models = [*self._state.models, named]
        state = msgspec.structs.replace(self._state, answering=answering, models=models)
        self._states.sendall(msgspec.json.encode(state) + b"\n")
        eventually(lambda: named.name in self._models(), "the front is told")

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
        """Whether it waits for others, and not for a core."""
        return bool(self._seen.status() == psutil.STATUS_SLEEPING)

    def sockets(self) -> int:
        return len(self._seen.net_connections("tcp"))

    def close(self) -> None:
        self._states.close()
        self.process.wait(30)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)

    def ask(self, body: bytes, *, key: str = KEY, head: str = "") -> tuple[int, str]:
        """Return the status and the body of the answer to a request on a connection of its own."""
        with self.connect() as client:
            client.sendall(
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
                f"Connection: close\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode()
                + body
            )
            return answered(client)


def answered(client: socket.socket) -> tuple[int, str]:
    """Return the status and the body of what comes until the connection ends."""
    data = bytearray()
    while chunk := client.recv(1 << 16):
        data += chunk
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body.decode()


def code(body: str) -> str:
    found: str = json.loads(body)["error"]["code"]
    return found


@pytest.fixture(scope="module")
def front() -> Iterator[FrontProcess]:
    triton = FakeTriton()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys.toml")
        keys.write_text(f'[[key]]\nname = "a"\nkey = "{KEY}"\n')
        answering = Answering(str(keys), max_body_size=16 << 20)
        models = [Served("m", OpenAICard(["chat"]))]
        process = FrontProcess(
            State(answering, Upstream(triton.url), models), Path(folder, "front.log")
        )
        process.triton = triton
        yield process
        process.close()
        triton.close()


def chat(text: str, **more: Any) -> bytes:
    message = {"role": "user", "content": text}
    return json.dumps({"model": "m", "messages": [message], **more}).encode()


def test_what_is_large_leaves_nothing(front: FrontProcess) -> None:
    large = chat("x" * (10 << 20))
    head = b'{"model":"m","messages":[{"role":"user","content":"x"}],"a":'
    deep = head + b"[" * 500_000
    many = head + b"[{}" + b",{}" * (5 << 20) + b"]}"
    broken = chat("x" * (10 << 20)).replace(b"x", b"\xff")
    bomb = gzip.compress(bytes(40 << 20), 9)
    bombed = "Content-Encoding: gzip\r\n"

    def all_of_them() -> None:
        assert front.ask(large)[0] == 200
        for body in (deep, broken):
            status, text = front.ask(body)
            assert (status, code(text)) == (400, "invalid_json")
            assert len(text) < 500
        status, text = front.ask(many)
        assert (status, code(text)) == (413, "request_too_large")
        status, text = front.ask(bomb, head=bombed)
        assert (status, code(text)) == (413, "request_too_large")
        status, text = front.ask(b"no gzip", head=bombed)
        assert (status, code(text)) == (400, "invalid_body")
        with front.connect() as client:  # it is not even read
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n"
                b"Authorization: Bearer " + KEY.encode() + b"\r\n\r\n"
            )
            assert b" 413 " in client.recv(1000).partition(b"\r\n")[0]

    for _ in range(2):
        all_of_them()
    settled = front.resident
    for _ in range(4):
        all_of_them()
    assert front.resident < settled + SLACK


@pytest.mark.parametrize(
    ("encoding", "packed", "expected"),
    [
        ("gzip", gzip.compress, 200),
        ("Deflate", zlib.compress, 200),
        ("identity", bytes, 200),
        ("br", bytes, 415),
        ("zstd", bytes, 415),
    ],
)
def test_compressed_bodies(
    front: FrontProcess, encoding: str, packed: Callable[[bytes], bytes], expected: int
) -> None:
    head = f"Content-Encoding: {encoding}\r\n"
    status, text = front.ask(packed(chat("x" * (1 << 20))), head=head)
    assert status == expected
    assert expected == 200 or code(text) == "unsupported_encoding"
    assert front.ask(b"anything", key=WRONG, head=head)[0] == 401  # nobody has inflated it


def test_floods_with_wrong_keys(front: FrontProcess) -> None:
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {WRONG}%d\r\n"
        "Content-Length: 2\r\n\r\n{}"
    )

    def flood(count: int) -> None:
        with front.connect() as client, client.makefile("rb") as answers:
            for start in range(0, count, 50):
                client.sendall("".join(request % n for n in range(start, start + 50)).encode())
                for _ in range(50):
                    assert b" 401 " in answers.readline()
                    length = 0
                    while (line := answers.readline()) != b"\r\n":
                        if line.lower().startswith(b"content-length"):
                            length = int(line.split(b":")[1])
                    assert WRONG not in answers.read(length).decode()

    flood(500)
    settled = front.resident
    flood(2_000)
    assert front.resident < settled + SLACK


def test_keys_in_requests_that_cannot_be_read_are_not_logged(front: FrontProcess) -> None:
    for line in (f"Authorization: Bearer {WRONG}\x00", f"Authorization: {WRONG * 900}", WRONG):
        with front.connect() as client:
            client.sendall(f"POST /v1/models?key={WRONG} HTTP/1.1\r\n{line}\r\n\r\n".encode())
            status, text = answered(client)
            assert (status, code(text)) == (400, "invalid_http")  # as every error of the API
            assert WRONG not in text
    assert front.ask(b"{}", key=WRONG)[0] == 401
    logged = front.log.read_text()
    assert "aiohttp.server: Error handling request" in logged  # it is told that there are such
    assert WRONG not in logged
    assert KEY not in logged
    assert len(logged.splitlines()) < 20


def test_headers_and_bodies_that_do_not_come(front: FrontProcess) -> None:
    with front.hurrying(headers_s=1, body_s=2):
        headers_and_bodies_that_do_not_come(front)


def headers_and_bodies_that_do_not_come(front: FrontProcess) -> None:
    with front.connect() as silent, front.connect() as slow, front.connect() as stuck:
        stuck.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
            b"Connection: close\r\nAuthorization: Bearer " + KEY.encode() + b'\r\n\r\n{"'
        )
        slow.sendall(b"GET /health HTTP/1.1\r\n")
        ended = threading.Event()

        def trickle() -> None:
            for _ in range(100):  # fewer than aiohttp takes, which are 128
                try:
                    slow.sendall(b"X: y\r\n")
                except ConnectionError:
                    return
                if ended.wait(0.05):
                    return

        trickling = threading.Thread(target=trickle)
        trickling.start()
        try:
            assert answered(silent)[0] == 408
            # It ends; what trickles in after that may take the answer away.
            with contextlib.suppress(ConnectionResetError):
                assert b" 408 " in slow.recv(1000)
            status, text = answered(stuck)
            assert (status, code(text)) == (408, "timeout")
        finally:
            ended.set()
            trickling.join()


def test_clients_that_do_not_read_are_not_read_for(front: FrontProcess) -> None:
    """Streams without an end: the front takes some of each, the model has to wait, and nothing is left."""
    body = chat("endless", stream=True)
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    sent = front.triton.sent
    clients = 16

    def stall() -> int:
        """Have streams begin that nobody reads, until nothing moves; return the front's memory then."""
        sent.clear()
        with contextlib.ExitStack() as stack:
            for _ in range(clients):
                client = stack.enter_context(front.connect())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
                client.sendall(request)
            looks: list[tuple[int, ...]] = []

            def stands_still() -> bool:
                looks.append(tuple(sent) if front.rests else ())
                time.sleep(0.05)
                return len(sent) == clients and all(sent) and looks[-6:] == [tuple(sent)] * 6

            eventually(stands_still, lambda: f"events of each: {sent}")
            resident = front.resident
        eventually(lambda: front.triton.open == 0, "all streams are given up")
        return resident

    before = front.resident
    first = stall()
    assert first < before + clients * (8 << 20)
    assert max(stall() for _ in range(2)) < first + SLACK


def test_a_front_that_cannot_follow_the_daemon_ends(tmp_path: Path) -> None:
    process = FrontProcess(State(Answering(), Upstream("http://127.0.0.1:1")), tmp_path / "log")
    try:
        process._states.sendall(b"no state\n")
        assert process.process.wait(30) == 0
        assert "cannot follow the daemon" in process.log.read_text()
    finally:
        process.close()


def test_connections_that_idle_are_closed(front: FrontProcess) -> None:
    before, settled = front.sockets(), front.resident
    idle = []
    for number in range(300):
        idle.append(front.connect())
        if number < 150:  # one that has been answered idles, too
            idle[-1].sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            assert idle[-1].recv(1000)
    with front.hurrying(headers_s=1, idle_s=2):
        for client in idle:
            while client.recv(1000):  # to its end
                pass
            client.close()
        eventually(lambda: front.sockets() <= before, lambda: f"{front.sockets()} > {before}")
    assert front.resident < settled + SLACK
    assert front.ask(chat("x"))[0] == 200
