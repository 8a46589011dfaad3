"""The OpenAI frontend's process behind a native frontend; the test scripts the answers of the model "talking"."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pytriton._protocol.messages import OpenAICard
from pytriton.dispatcher.openai.state import READY, ApiModel, ApiSettings, ApiState, Upstream
from support.frontend.talking_model import say, start_talking

MODEL = "talking"
USAGE = '{"prompt_tokens":1,"completion_tokens":2}'
#: The model's last text, and the event that it becomes.
END = f"u{USAGE}\ndata: end\n\n"
ENDED = b"data: end\n\ndata: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """Return a chunk of HTTP."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextmanager
def openai_frontend(private: Path, **answering: Any) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start the process; yield it and its port."""
    ours, its = socket.socketpair()
    state = ApiState(
        ApiSettings(**{"keepalive_s": 0.0, **answering}),
        Upstream("http://x", str(private)),
        [ApiModel(MODEL, OpenAICard(["chat"]))],
    )
    with socket.create_server(("127.0.0.1", 0)) as listener, ours:
        argv = [
            *(sys.executable, "-m", "pytriton.dispatcher.openai"),
            *(f"--listen={listener.fileno()}", f"--state={its.fileno()}"),
        ]
        fds = (listener.fileno(), its.fileno())
        process = subprocess.Popen(argv, pass_fds=fds, stdout=subprocess.PIPE, text=True)
        its.close()
        try:
            ours.sendall(msgspec.json.encode(state) + b"\n")
            assert ours.recv(len(READY)) == READY
            yield process, listener.getsockname()[1]
        finally:
            process.terminate()
            process.communicate(timeout=60)


class Talk:
    """One request, and the model's side of it. `client` may be an already used connection."""

    def __init__(
        self,
        port: int,
        folder: Path,
        *headers: str,
        version: str = "1.1",
        client: socket.socket | None = None,
        room: int | None = None,
        behind: bytes = b"",
    ) -> None:
        self._stack = ExitStack()
        self.client = client or self._stack.enter_context(connected(port, room))

        def ask(path: str) -> None:
            self.client.sendall(request_of(f"script:{path};", *headers, version=version) + behind)

        self.model = self._stack.enter_context(start_talking(folder, ask))

    def say(self, text: str) -> None:
        """Have the model send a text; "" is an error."""
        say(self.model, text.encode())

    def end(self) -> None:
        """End the model's answer."""
        self.model.shutdown(socket.SHUT_WR)

    def head(self) -> bytes:
        """Read the head of the answer."""
        got = b""
        while not got.endswith(b"\r\n\r\n"):
            data = self.client.recv(1)
            assert data, got
            got += data
        return got

    def read(self, expected: bytes) -> None:
        """Read exactly these bytes, skipping a preceding keep-alive comment, which a slow machine may cause."""
        pulse = chunk(b": still there?\n\n")
        got = b""
        while len(got) < len(expected):
            got += self._receive(min(1 << 16, len(expected) - len(got)), got)
            head = got[: len(pulse)]
            if pulse.startswith(head) and not expected.startswith(head):
                while len(got) < len(pulse):
                    got += self._receive(len(pulse) - len(got), got)
                got = got[len(pulse) :]
        assert got == expected

    def _receive(self, count: int, before: bytes) -> bytes:
        data = self.client.recv(count)
        assert data, f"the connection ended: {before[-200:]!r}"
        return data

    def rest(self) -> bytes:
        """Read to the end."""
        got = b""
        while data := self.client.recv(1 << 16):
            got += data
        return got

    def close(self) -> None:
        """Close everything that is open."""
        self._stack.close()


def connected(port: int, room: int | None = None) -> socket.socket:
    """Return a connection; `room` is the size of its receive buffer."""
    client = socket.socket()
    client.settimeout(60)
    if room is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    client.connect(("127.0.0.1", port))
    return client


def request_of(text: str, *headers: str, version: str = "1.1", stream: bool = True) -> bytes:
    """Return a chat request."""
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"model": MODEL, "messages": messages, "stream": stream})
    lines = [f"POST /v1/chat/completions HTTP/{version}", "Host: h", f"Content-Length: {len(body)}"]
    return ("\r\n".join([*lines, *headers, "", ""]) + body).encode()
