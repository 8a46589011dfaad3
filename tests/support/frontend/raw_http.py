"""Send the frontend requests byte by byte, and read the raw answers from the connection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from support.frontend.process import OpenAIProcess


def head(line: str, headers: Sequence[str] = (), body: bytes = b"") -> bytes:
    """Return a request with its body."""
    length = [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([f"{line} HTTP/1.1", "Host: h", *length, *headers, "", ""]).encode() + body


def tensor(shape: list[int], datatype: str, data: Sequence[object]) -> bytes:
    """Return the body of an inference with one input."""
    one = {"name": "x", "shape": shape, "datatype": datatype, "data": list(data)}
    return json.dumps({"inputs": [one]}).encode()


def json_of(values: Sequence[float] = (1, 2)) -> bytes:
    """Return the body of an inference with these numbers."""
    return tensor([len(values)], "FP32", values)


def post(model: str, body: bytes, *headers: str) -> bytes:
    """Return a request for an inference."""
    return head(f"POST /v2/models/{model}/infer", headers, body)


class RawClient:
    """A connection that sends requests in arbitrary pieces and reads answers."""

    def __init__(self, frontend: OpenAIProcess) -> None:
        self.socket = frontend.connect()
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes, sizes: Sequence[int] = ()) -> None:
        for size in sizes:
            self.socket.sendall(data[:size])
            data = data[size:]
        self.socket.sendall(data)

    def answer(self, *, head: bool = False) -> tuple[int, dict[str, str], bytes]:
        line = self._file.readline()
        assert line, "the connection has ended"
        headers = {}
        while (field := self._file.readline().strip()) != b"":
            name, _, value = field.decode().partition(": ")
            headers[name.lower()] = value
        size = 0 if head else int(headers.get("content-length", 0))
        return int(line.split()[1]), headers, self._file.read(size)

    def ends(self) -> bool:
        return self._file.read(1) == b""

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def ask(frontend: OpenAIProcess, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send one request on a new connection and return the answer."""
    client = RawClient(frontend)
    client.send(request)
    answer = client.answer()
    client.close()
    return answer


def ask_admin(frontend: OpenAIProcess, path: str, body: Any = None) -> tuple[int, bytes]:
    """Send the dispatcher's request, a GET without a body; return the status and the body."""
    line = f"{'GET' if body is None else 'POST'} {path}"
    encoded = (
        b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    )
    status, _, answer = ask(replace(frontend, http=frontend.admin), head(line, (), encoded))
    return status, answer


def data_of(answer: tuple[int, dict[str, str], bytes]) -> Any:
    """Return the first output's data of a successful answer."""
    assert answer[0] == 200, answer
    return json.loads(answer[2])["outputs"][0]["data"]
