"""A stream that the frontend writes to a client connection handed over by another process: all three ends."""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from support.frontend.process import OpenAIProcess
from support.frontend.raw_http import head
from support.frontend.talking_model import is_cancelled, private_connection, say, start_talking

Way = Callable[[OpenAIProcess], socket.socket]


def event(text: str) -> bytes:
    """Return an event of an event stream."""
    return f"data: {text}\n\n".encode()


def chunk(data: bytes) -> bytes:
    """Return a chunk of HTTP/1.1."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Stream:
    """A stream of the model "talking": the ends of the model, of the requesting process, and of its client."""

    def __init__(
        self,
        frontend: OpenAIProcess,
        folder: Path,
        *,
        pulse_ms: int = 0,
        way: Way = private_connection,
        keep_alive: bool = False,
        room: int | None = None,
    ) -> None:
        self._stack = ExitStack()
        self.asker = self._stack.enter_context(way(frontend))
        connection = f"Connection: {'keep-alive' if keep_alive else 'close'}"

        def ask(path: str) -> None:
            body = json.dumps({"script": path}).encode()
            line, relay = "POST /v2/models/talking/generate_stream", f"Pytriton-Relay: {pulse_ms}"
            self.asker.sendall(head(line, [connection, relay], body))

        self.model = self._stack.enter_context(start_talking(folder, ask))
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.client = self._stack.enter_context(socket.socket())
            if room is not None:
                self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            self.client.connect(server.getsockname())
            self.held, _ = server.accept()  #: the asker's end of the client's connection
        self._stack.enter_context(self.held)
        if room is not None:
            self.held.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        for one in (self.client, self.held):
            one.settimeout(60)
        self._heard = b""

    def say(self, text: str) -> None:
        """Have the model send a text; "" is an error."""
        say(self.model, text.encode())

    def word(self, word: bytes, *descriptors: int) -> None:
        """Send a command as the requesting process."""
        rights = array.array("i", descriptors)
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        self.asker.sendmsg([word], control)

    def hear(self, end: bytes) -> bytes:
        """Return what the requesting process receives up to this text."""
        while end not in self._heard:
            data = self.asker.recv(1 << 16)
            assert data, f"the answer ended: {self._heard!r}"
            self._heard += data
        at = self._heard.index(end) + len(end)
        heard, self._heard = self._heard[:at], self._heard[at:]
        return heard

    def hear_end(self) -> bytes:
        """Return what the requesting process receives up to the end."""
        with suppress(ConnectionResetError):
            while data := self.asker.recv(1 << 16):
                self._heard += data
        return self._heard

    def read(self, expected: bytes) -> None:
        """Read exactly these bytes as the client."""
        got = b""
        while len(got) < len(expected):
            data = self.client.recv(min(1 << 16, len(expected) - len(got)))
            assert data, f"the client's connection ended: {got[-200:]!r}"
            got += data
        assert got == expected

    def begin(self) -> None:
        """Start the stream, whose first event the requesting process receives."""
        self.say("sfirst\n\n")
        self.hear(b"first\\n\\n")

    def check_returned(self) -> None:
        """Check that the requesting process can write to the client again."""
        self.held.sendall(b"ours")
        self.read(b"ours")

    def hand_over(self) -> None:
        """Start the stream, and hand the client's connection over after its first event."""
        self.say("sfirst\n\n")
        assert b"Pytriton-Relay: yes\r\n" in self.hear(b"\r\n\r\n")
        self.hear(b"\n\n\r\n")
        self.word(b"g", self.held.fileno())
        self.say("sbegun\n\n")
        self.read(chunk(b"begun\n\n"))

    def end(self) -> None:
        """End the model's answer."""
        self.model.shutdown(socket.SHUT_WR)

    def is_cancelled(self) -> bool:
        """Wait until the model's connection ends."""
        return is_cancelled(self.model)

    def close(self) -> None:
        self._stack.close()


def descriptors(pid: int) -> int:
    """Return the number of open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


#: Creates a stream (conftest.py); see `Stream`.
Begin = Callable[..., Stream]
#: The last text of a model.
END = 'u{"completion_tokens":3}\ndata: end\n\n'
