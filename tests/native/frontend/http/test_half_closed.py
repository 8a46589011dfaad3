"""Half-closed and closed connections, which look the same over TCP at first."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.raw_http import RawClient, head
from support.frontend.talking_model import is_cancelled, private_connection, say, start_talking

_LIVE = head("GET /v2/health/live")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(scope="module")
def frontend(made: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIProcess]:
    """A frontend that also listens on a unix socket."""
    with running(made, private=tmp_path_factory.mktemp("half") / "http.sock") as frontend:
        yield frontend


class Asked:
    """A request to the model "talking": the model's side and the client's."""

    def __init__(
        self, frontend: OpenAIProcess, folder: Path, way: str, method: str, version: str = "1.1"
    ) -> None:
        self._frontend = frontend
        self.client = frontend.connect() if way == "tcp" else private_connection(frontend)

        def ask(path: str) -> None:
            body = json.dumps({"script": path}).encode()
            request = head(f"POST /v2/models/talking/{method}", body=body)
            self.client.sendall(request.replace(b"HTTP/1.1", b"HTTP/" + version.encode(), 1))

        self.model = start_talking(folder, ask)
        self._read = b""

    def say(self, text: str) -> None:
        """Let the model respond with a text."""
        say(self.model, text.encode())

    def read_to(self, end: bytes) -> bytes:
        """Return what the client has read up to `end`."""
        while end not in self._read:
            data = self.client.recv(1 << 16)
            assert data, f"the connection has ended: {self._read!r}"
            self._read += data
        return self._read

    def read_all(self) -> bytes:
        """Return everything that the client reads."""
        while data := self.client.recv(1 << 16):
            self._read += data
        return self._read

    def send_no_more(self) -> None:
        """Close the client's sending side; when this returns, the frontend has handled later data of others."""
        self.client.shutdown(socket.SHUT_WR)
        for _ in range(3):
            other = RawClient(self._frontend)
            other.send(_LIVE)
            assert other.answer()[0] == 200
            other.close()


@pytest.mark.parametrize("way", ["tcp", "unix"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_half_closed_client_is_answered(
    frontend: OpenAIProcess, tmp_path: Path, way: str, version: str
) -> None:
    asked = Asked(frontend, tmp_path, way, "generate", version)
    asked.send_no_more()
    if way == "tcp" and version == "1.1":
        assert asked.read_to(b"\r\n\r\n") == _CONTINUE
    asked.say("hello")
    asked.model.close()
    said = asked.read_all()
    expected = _CONTINUE if way == "tcp" and version == "1.1" else b""
    assert said.startswith(expected + b"HTTP/1.1 200 OK\r\n"), said
    assert b'"text_output":"hello"' in said
    asked.client.close()


@pytest.mark.parametrize("way", ["tcp", "unix"])
@pytest.mark.parametrize("size", [3, 300_000], ids=["small", "large"])
def test_a_half_closed_client_gets_the_rest_of_its_stream(
    frontend: OpenAIProcess, tmp_path: Path, way: str, size: int
) -> None:
    asked = Asked(frontend, tmp_path, way, "generate_stream")
    first = "1" * size
    asked.say(first)
    asked.read_to(f'"{first}"}}\n\n\r\n'.encode())
    asked.send_no_more()
    if way == "tcp":
        asked.read_to(b"\r\n: still there?\n\n\r\n")
    asked.say("two")
    asked.model.close()
    said = asked.read_all()
    assert said.count(b"text_output") == 2
    assert said.endswith(b'"two"}\n\n\r\n0\r\n\r\n')
    assert (b": still there?" in said) == (way == "tcp")
    asked.client.close()


@pytest.mark.parametrize("way", ["tcp", "unix"])
@pytest.mark.parametrize("method", ["generate", "generate_stream"])
def test_requests_of_a_closed_connection_are_cancelled(
    frontend: OpenAIProcess, tmp_path: Path, way: str, method: str
) -> None:
    asked = Asked(frontend, tmp_path, way, method)
    if method == "generate_stream":
        asked.say("one")
        asked.read_to(b'"one"}\n\n\r\n')
    asked.client.close()
    assert is_cancelled(asked.model)
    asked.model.close()


def test_a_half_closed_client_that_disconnects_is_cancelled(
    frontend: OpenAIProcess, tmp_path: Path
) -> None:
    asked = Asked(frontend, tmp_path, "tcp", "generate")
    asked.send_no_more()
    asked.read_to(_CONTINUE)
    asked.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    asked.client.close()
    assert is_cancelled(asked.model)
    asked.model.close()


def test_pipelined_requests_are_all_answered(frontend: OpenAIProcess) -> None:
    client = RawClient(frontend)
    client.send(_LIVE * 50)
    client.socket.shutdown(socket.SHUT_WR)
    assert [client.answer()[0] for _ in range(50)] == [200] * 50
    assert client.ends()
    client.close()
