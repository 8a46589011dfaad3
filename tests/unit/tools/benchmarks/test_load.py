"""The benchmark's own client and generator in Python, against a little HTTP server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from benchmarks.load import python_load
from benchmarks.load.client import Connection
from benchmarks.load.python_load import apply_python
from benchmarks.load.wire import Request, WrongAnswer, _check_raw


class Echo(BaseHTTPRequestHandler):
    """Returns what it gets; at /wrong something else, in a good status; at /refused, 500."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = b"an error in disguise" if self.path == "/wrong" else body
        head = f"HTTP/1.1 {500 if self.path == '/refused' else 200} OK\r\n"
        self.wfile.write(f"{head}content-length: {len(answer)}\r\n\r\n".encode() + answer)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def base() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def request(url: str) -> Request:
    return Request(url, b"16 bytes of data", partial(_check_raw, b"16 bytes of data"))


def test_a_right_answer_has_its_size_on_the_wire(base: str) -> None:
    """Head and body, the same each time: what wrk's count of bytes is compared with."""
    connection = Connection(request(f"{base}/"))
    sizes = {connection.send() for _ in range(3)}
    connection.close()
    assert sizes == {len(b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n") + 16}


@pytest.mark.parametrize(
    ("path", "said"), [("/wrong", "an error in disguise"), ("/refused", "HTTP 500")]
)
def test_a_wrong_answer_is_an_error(base: str, path: str, said: str) -> None:
    """Whatever the status says."""
    connection = Connection(request(base + path))
    with pytest.raises(WrongAnswer, match=said):
        connection.send()
    connection.close()


@pytest.mark.programs
def test_the_generator_in_python_counts_right_and_wrong_answers(base: str) -> None:
    """It looks at every answer, in processes of its own."""
    right = apply_python(request(f"{base}/"), clients=2, seconds=1.0)
    assert right.requests > 0
    assert (right.failed, right.hidden) == (0, 0)
    assert 0 < right.p50_ms <= right.p99_ms
    wrong = apply_python(request(f"{base}/wrong"), clients=2, seconds=1.0)
    assert wrong.requests == 0
    assert wrong.failed > 0


def test_the_generator_in_python_does_not_count_the_time_to_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0

    class SlowToConnect:
        def __init__(self, request: Request) -> None:
            self.send(2.0)

        def send(self, takes_s: float = 0.5) -> None:
            nonlocal now_s
            now_s += takes_s

        def close(self) -> None:
            pass

    clock = SimpleNamespace(
        monotonic=lambda: now_s, perf_counter=lambda: now_s, process_time=lambda: now_s
    )
    monkeypatch.setattr(python_load, "Connection", SlowToConnect)
    monkeypatch.setattr(python_load, "time", clock)
    assert python_load._share(request("http://x/"), 1.0, 1)[:2] == ([500.0, 500.0], 0)
