"""A real HAProxy, and small HTTP servers that play the nodes behind it."""

from __future__ import annotations

import csv
import http.client
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from pytriton.fleet.balancer.configuration import BalancerSettings, Files, render
from pytriton.fleet.balancer.haproxy import HAProxy
from pytriton.fleet.balancer.layout import Node, NodeEndpoint
from support.real_daemon import eventually


class Server(ThreadingHTTPServer):
    """A node: it answers with its name, and is ready for the models that it has. `routes`: path -> model."""

    daemon_threads = True

    def __init__(self, name: str, *models: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name = name
        self.models = set(models)
        self.shares: dict[str, float] = {}
        self.routes: dict[str, str] = {}
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def node(self) -> Node:
        endpoint = NodeEndpoint("127.0.0.1", self.server_address[1])
        return Node(
            self.name,
            endpoint,
            None,
            frozenset(self.models),
            shares=self.shares,
            routes=self.routes,
        )

    def handle_error(self, *_: Any) -> None:
        pass  # HAProxy resets connections when it exits

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Any = self.server
        parts = self.path.split("/")
        if parts[1] == "v2":
            known = parts[2] != "models" or parts[3] in server.models
        else:
            known = server.routes.get(unquote(urlsplit(self.path).path)) in server.models
        body = server.name.encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Frontend:
    """The HAProxy of one test."""

    def __init__(self, haproxy: HAProxy, port: int) -> None:
        self.haproxy = haproxy
        self.port = port

    def files(self, *servers: Server) -> Files:
        settings = BalancerSettings(f"127.0.0.1:{self.port}", "")
        return render([one.node for one in servers], settings, str(self.haproxy.folder))

    def use(self, *servers: Server) -> None:
        self.haproxy.use(self.files(*servers))

    def ask(self, path: str, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(
            "GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def until_up(self, count: int) -> None:
        def up() -> bool:
            return sum(one == "UP" for one in self.states().values()) == count

        eventually(up, lambda: str(self.states()))

    def states(self) -> dict[tuple[str, str], str]:
        """Return (backend, server) -> "UP", "DOWN", ..."""
        return {
            (row["# pxname"], row["svname"]): row["status"].split()[0]
            for row in statistics(self.haproxy)
        }


def statistics(haproxy: HAProxy) -> list[dict[str, str]]:
    """Return what the current worker counts, one row for each server of each backend."""
    text = haproxy.ask("@1 show stat -1 4 -1").strip()
    return list(csv.DictReader(io.StringIO(text))) if text.startswith("# ") else []
