"""Export of traces to an OpenTelemetry collector."""

from __future__ import annotations

import http.server
import socket
import threading

import pytest
from support.frontend.calls import Run


class _Collector(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, address: str) -> None:
        self.address_family = family
        self.named: list[str | None] = []
        super().__init__((address, 0), _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Collector

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.named.append(self.headers["Host"])
        self.send_response(200)
        self.end_headers()


@pytest.mark.parametrize(
    ("family", "address", "written"),
    [(socket.AF_INET, "127.0.0.1", "127.0.0.1"), (socket.AF_INET6, "::1", "[::1]")],
)
def test_the_collectors_host_header_matches_its_url(
    calls: Run, family: socket.AddressFamily, address: str, written: str
) -> None:
    try:
        collector = _Collector(family, address)
    except OSError:
        pytest.skip(f"there is no {address} here")
    with collector:
        threading.Thread(target=collector.serve_forever).start()
        host = f"{written}:{collector.server_port}"
        options = ("mode=opentelemetry", f"opentelemetry,url=http://{host}/v1/traces", "rate=1",
                   "level=TIMESTAMPS")  # fmt: skip
        calls(*(f"--trace-config={option}" for option in options), "model=echo", "input=IN:FP32:1", "data=0000803f",
            "start", "wait")  # fmt: skip
        collector.shutdown()
    assert collector.named == [host]
