"""The frontend's process against hostile clients: clear errors, bounded memory, no keys in its log."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.openai_process import KEY, FakeTriton, OpenAIProcess, answered
from support.real_daemon import eventually

from pytriton._protocol.messages import OpenAICard
from pytriton.dispatcher.openai.state import ApiModel, ApiSettings, ApiState, Upstream

pytestmark = pytest.mark.programs

WRONG = "sk-wrong-and-secret"
#: What allocators may keep; a leak grows with the same load in each round.
SLACK = 24 << 20


def code(body: str) -> str:
    found: str = json.loads(body)["error"]["code"]
    return found


@pytest.fixture(scope="module")
def frontend() -> Iterator[OpenAIProcess]:
    triton = FakeTriton()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys.toml")
        keys.write_text(f'[[key]]\nname = "a"\nkey = "{KEY}"\n')
        answering = ApiSettings(str(keys), max_body_size=16 << 20)
        models = [ApiModel("m", OpenAICard(["chat"]))]
        process = OpenAIProcess(
            ApiState(answering, Upstream(triton.url), models), Path(folder, "frontend.log")
        )
        process.triton = triton
        yield process
        process.close()
        triton.close()


def chat(text: str, **more: Any) -> bytes:
    message = {"role": "user", "content": text}
    return json.dumps({"model": "m", "messages": [message], **more}).encode()


def test_large_requests_leak_no_memory(frontend: OpenAIProcess) -> None:
    large = chat("x" * (10 << 20))
    head = b'{"model":"m","messages":[{"role":"user","content":"x"}],"a":'
    deep = head + b"[" * 500_000
    many = head + b"[{}" + b",{}" * (5 << 20) + b"]}"
    broken = chat("x" * (10 << 20)).replace(b"x", b"\xff")
    bomb = gzip.compress(bytes(40 << 20), 9)
    bombed = "Content-Encoding: gzip\r\n"

    def all_of_them() -> None:
        assert frontend.ask(large)[0] == 200
        for body in (deep, broken):
            status, text = frontend.ask(body)
            assert (status, code(text)) == (400, "invalid_json")
            assert len(text) < 500
        status, text = frontend.ask(many)
        assert (status, code(text)) == (413, "request_too_large")
        status, text = frontend.ask(bomb, head=bombed)
        assert (status, code(text)) == (413, "request_too_large")
        status, text = frontend.ask(b"no gzip", head=bombed)
        assert (status, code(text)) == (400, "invalid_body")
        with frontend.connect() as client:  # it is not even read
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n"
                b"Authorization: Bearer " + KEY.encode() + b"\r\n\r\n"
            )
            assert b" 413 " in client.recv(1000).partition(b"\r\n")[0]

    # How soon the allocator reaches its plateau varies; a request that is kept adds 10 MB in every round.
    all_of_them()
    growth = []
    for _ in range(10):
        before = frontend.resident
        all_of_them()
        growth.append(frontend.resident - before)
        if growth[-1] < 4 << 20:
            return
    pytest.fail(f"each round leaves memory behind: {growth}")


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
    frontend: OpenAIProcess, encoding: str, packed: Callable[[bytes], bytes], expected: int
) -> None:
    head = f"Content-Encoding: {encoding}\r\n"
    status, text = frontend.ask(packed(chat("x" * (1 << 20))), head=head)
    assert status == expected
    assert expected == 200 or code(text) == "unsupported_encoding"
    assert frontend.ask(b"anything", key=WRONG, head=head)[0] == 401  # it was not decompressed


def test_floods_with_wrong_keys(frontend: OpenAIProcess) -> None:
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {WRONG}%d\r\n"
        "Content-Length: 2\r\n\r\n{}"
    )

    def flood(count: int) -> None:
        with frontend.connect() as client, client.makefile("rb") as answers:
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
    settled = frontend.resident
    flood(2_000)
    assert frontend.resident < settled + SLACK


def test_keys_in_malformed_requests_are_not_logged(frontend: OpenAIProcess) -> None:
    for line in (f"Authorization: Bearer {WRONG}\x00", f"Authorization: {WRONG * 900}", WRONG):
        with frontend.connect() as client:
            client.sendall(f"POST /v1/models?key={WRONG} HTTP/1.1\r\n{line}\r\n\r\n".encode())
            status, text = answered(client)
            assert (status, code(text)) == (400, "invalid_http")  # like every error of the API
            assert WRONG not in text
    assert frontend.ask(b"{}", key=WRONG)[0] == 401
    logged = frontend.log.read_text()
    assert (
        "aiohttp.server: Error handling request" in logged
    )  # the existence of the header is reported
    assert WRONG not in logged
    assert KEY not in logged
    assert len(logged.splitlines()) < 20


def test_unfinished_headers_and_bodies_time_out(frontend: OpenAIProcess) -> None:
    with frontend.hurrying(headers_s=1, body_s=2):
        headers_and_bodies_that_do_not_come(frontend)


def headers_and_bodies_that_do_not_come(frontend: OpenAIProcess) -> None:
    with frontend.connect() as silent, frontend.connect() as slow, frontend.connect() as stuck:
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
            # It ends; bytes that arrive later may reset the connection and lose the answer.
            with contextlib.suppress(ConnectionResetError):
                assert b" 408 " in slow.recv(1000)
            status, text = answered(stuck)
            assert (status, code(text)) == (408, "timeout")
        finally:
            ended.set()
            trickling.join()


def test_reading_from_upstream_pauses_for_slow_clients(frontend: OpenAIProcess) -> None:
    """For endless streams, the frontend buffers a limited amount, and the model must wait."""
    body = chat("endless", stream=True)
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    sent = frontend.triton.sent
    clients = 16

    def stall() -> int:
        """Start streams that nobody reads, until nothing moves; return the frontend's memory."""
        sent.clear()
        with contextlib.ExitStack() as stack:
            for _ in range(clients):
                client = stack.enter_context(frontend.connect())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
                client.sendall(request)
            looks: list[tuple[int, ...]] = []

            def stands_still() -> bool:
                looks.append(tuple(sent) if frontend.rests else ())
                time.sleep(0.05)
                return len(sent) == clients and all(sent) and looks[-6:] == [tuple(sent)] * 6

            eventually(stands_still, lambda: f"events of each: {sent}")
            resident = frontend.resident
        eventually(lambda: frontend.triton.open == 0, "all streams are given up")
        return resident

    before = frontend.resident
    first = stall()
    assert first < before + clients * (8 << 20)
    assert max(stall() for _ in range(2)) < first + SLACK


def test_a_frontend_exits_if_it_cannot_receive_updates(tmp_path: Path) -> None:
    process = OpenAIProcess(
        ApiState(ApiSettings(), Upstream("http://127.0.0.1:1")), tmp_path / "log"
    )
    try:
        process._states.sendall(b"no state\n")
        assert process.process.wait(30) == 0
        assert "cannot receive updates from the daemon" in process.log.read_text()
    finally:
        process.close()


def test_idle_connections_are_closed(frontend: OpenAIProcess) -> None:
    before, settled = frontend.sockets(), frontend.resident
    idle = []
    for number in range(300):
        idle.append(frontend.connect())
        if number < 150:  # an answered connection is idle, too
            idle[-1].sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            assert idle[-1].recv(1000)
    with frontend.hurrying(headers_s=1, idle_s=2):
        for client in idle:
            while client.recv(1000):  # to its end
                pass
            client.close()
        eventually(lambda: frontend.sockets() <= before, lambda: f"{frontend.sockets()} > {before}")
    assert frontend.resident < settled + SLACK
    assert frontend.ask(chat("x"))[0] == 200
