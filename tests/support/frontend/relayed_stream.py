"""A stream that the frontend writes to a client connection handed over by another process: all three ends."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from support.frontend.process import OpenAIProcess

Way = Callable[[OpenAIProcess], socket.socket]


def private(frontend: OpenAIProcess) -> socket.socket:
    """Return a connection to the server's socket that accepts descriptors."""
    asker = socket.socket(socket.AF_UNIX)
    asker.settimeout(60)
    asker.connect(str(frontend.private))
    return asker


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
        way: Way = private,
        keep_alive: bool = False,
        room: int | None = None,
    ) -> None:
        self._stack = ExitStack()
        listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        path = folder / f"script{id(self)}"
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(60)
        self.asker = self._stack.enter_context(way(frontend))
        body = json.dumps({"script": str(path)}).encode()
        head = [
            "POST /v2/models/talking/generate_stream HTTP/1.1",
            "Host: h",
            f"Connection: {'keep-alive' if keep_alive else 'close'}",
            f"Pytriton-Relay: {pulse_ms}",
            f"Content-Length: {len(body)}",
        ]
        self.asker.sendall("\r\n".join([*head, "", ""]).encode() + body)
        self.model, _ = listener.accept()
        self._stack.enter_context(self.model)
        path.unlink()
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.client = self._stack.enter_context(socket.socket())
            if room is not None:
                self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            self.client.connect(server.getsockname())
            self.held, _ = server.accept()  #: the asker's end of the client's connection
        self._stack.enter_context(self.held)
        if room is not None:
            self.held.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        for one in (self.model, self.client, self.held):
            one.settimeout(60)
        self._heard = b""

    def say(self, text: str) -> None:
        """Have the model send a text; "" is an error."""
        data = text.encode()
        self.model.sendall(struct.pack("=I", len(data)) + data)

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

    def hand_over(self) -> None:
        """Start the stream, and hand the client's connection over after its first event."""
        self.say("sfirst\n\n")
        head = self.hear(b"\r\n\r\n")
        assert b"Pytriton-Relay: yes\r\n" in head
        self.hear(b"\n\n\r\n")
        self.word(b"g", self.held.fileno())
        self.say("sbegun\n\n")
        self.read(chunk(b"begun\n\n"))

    def end(self) -> None:
        """End the model's answer."""
        self.model.shutdown(socket.SHUT_WR)

    def is_cancelled(self) -> bool:
        """Wait until the model's connection ends."""
        with suppress(ConnectionResetError):
            return self.model.recv(1) == b""
        return True

    def close(self) -> None:
        self._stack.close()


def descriptors(frontend: OpenAIProcess) -> int:
    """Return the number of open descriptors of the frontend's process."""
    return len(os.listdir(f"/proc/{frontend.process.pid}/fd"))


#: Creates a stream (conftest.py); see `Stream`.
Begin = Callable[..., Stream]
#: The last text of a model.
END = 'u{"completion_tokens":3}\ndata: end\n\n'
