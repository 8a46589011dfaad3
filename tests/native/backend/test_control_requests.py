"""The timeout of a control request covers all of it: connecting, the handshake and the answer."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytriton._protocol import messages

#: What a ZeroMQ socket says first, and that it is ready (https://rfc.zeromq.org/spec/23/).
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
LIMIT_MS = 200
#: Far beyond the limit: who waits so long waits for ever.
_HANGS_S = 60.0


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(tmp_path / "control"))
        listening.listen(1)
        yield listening


def ask(program: Path, path: str, limit_ms: int = LIMIT_MS) -> subprocess.Popen[str]:
    argv: list[str | Path] = [program, f"ipc://{path}", str(limit_ms)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def reported(asking: subprocess.Popen[str]) -> str:
    said, _ = asking.communicate(timeout=_HANGS_S)
    assert asking.returncode == 0
    return said


def test_a_dispatcher_that_accepts_no_connection_times_out(
    ask_program: Path, listener: socket.socket
) -> None:
    with ExitStack() as stack:
        while True:  # until no more can wait to be taken
            waiting = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            waiting.setblocking(False)
            try:
                waiting.connect(listener.getsockname())
            except BlockingIOError:
                break
        assert "cannot send a request to the dispatcher: " in reported(
            ask(ask_program, listener.getsockname())
        )


@pytest.mark.parametrize(
    "said", [b"", GREETING[:20], GREETING, GREETING + READY[:5], GREETING + READY]
)
def test_a_dispatcher_that_stops_in_the_handshake_times_out(
    ask_program: Path, listener: socket.socket, said: bytes
) -> None:
    asking = ask(ask_program, listener.getsockname())
    connection, _ = listener.accept()
    with closing(connection):
        connection.sendall(said)
        assert "cannot send a request to the dispatcher: Connection timed out" in reported(asking)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        assert piece, "it has hung up"
        found += piece
    return found


@pytest.mark.parametrize("heard", [0, 1], ids=["before it greets", "after the question"])
def test_a_request_is_repeated_after_an_upgrade_of_the_dispatcher(
    ask_program: Path, listener: socket.socket, heard: int
) -> None:
    """The dispatcher closes the connection, and listens: the request is sent again on a new one."""
    asking = ask(ask_program, listener.getsockname(), 60_000)
    for last in (False, True):
        connection, _ = listener.accept()
        with closing(connection):
            if not last and not heard:
                continue
            connection.sendall(GREETING + READY)
            _exactly(connection, len(GREETING))
            _, size = _exactly(connection, 2)
            _exactly(connection, size)
            head = _exactly(connection, 2 + 8)
            _, size = _exactly(connection, 2)
            _exactly(connection, size)
            if last:
                answer = msgspec.msgpack.encode(messages.StuckCalls([], ""))
                connection.sendall(head + bytes([0, len(answer)]) + answer)
                assert reported(asking).endswith("answered\n")


def test_a_dispatcher_that_closes_every_connection_is_given_up(
    ask_program: Path, listener: socket.socket
) -> None:
    asking = ask(ask_program, listener.getsockname())
    listener.settimeout(_HANGS_S)
    taken = 0
    while asking.poll() is None:
        connection, _ = listener.accept()
        connection.close()
        taken += 1
        if taken == 8:
            break
    assert "cannot send a request to the dispatcher: " in reported(asking)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (messages.StuckCalls([], ""), "answered"),
        (messages.Failure("unavailable", "no worker is left"), "no worker is left"),
        ({"type": "StuckCalls", "models": []}, "malformed message: StuckCalls.text is missing"),
        ({"type": "Hello"}, "sent an invalid answer: something other than a message"),
    ],
)
def test_a_dispatchers_answer_is_returned(
    ask_program: Path, tmp_path: Path, answer: Any, expected: str
) -> None:
    """The same program accepts only answers to messages of proxies."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(f"ipc://{tmp_path}/router")
        asking = ask(ask_program, f"{tmp_path}/router", 60_000)
        peer, number, _ = router.recv_multipart()
        router.send_multipart([peer, number, msgspec.msgpack.encode(answer)])
        assert reported(asking).endswith(f"{expected}\n")
