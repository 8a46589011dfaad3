"""A program in place of the native frontend: it reads its settings, listens where they say, and answers the daemon.

    python fake_program.py --settings=FD

The file "behaviour" beside it names its misbehavior: `ends`, `slow` (until a file "go" exists), `mute` (accepts clients'
connections, and exits at their first request), `sequence` (a sequence is in progress), `begins` (one starts when it
should retire), `lingers` (a request keeps it alive when it retires).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_HERE = Path(sys.argv[0]).parent


def install(folder: Path, behaviour: str = "") -> Path:
    """Write the program with this behavior into a folder; return its path."""
    program = folder / "frontend"
    program.write_text(f"#!{sys.executable}\n{Path(__file__).read_text()}")
    program.chmod(0o755)
    (folder / "behaviour").write_text(behaviour)
    return program


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, listener: socket.socket, held: bool, behaviour: str, clients: int | None = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.held = held
        self.behaviour = behaviour
        self.models: dict[str, str] = {}
        self.has_begun = False
        self.is_clients = clients is None
        self._clients = clients

    def note(self, what: str) -> None:
        """Record a request."""
        with open(_HERE / "told", "a", encoding="ascii") as file:
            file.write(f"{os.getpid()} {what}\n")

    def serve_clients(self) -> None:
        """Answer on the clients' private socket."""
        if self._clients is not None:
            listener = socket.socket(fileno=os.dup(self._clients))
            other = _Server(listener, self.held, self.behaviour)
            threading.Thread(target=other.serve_forever, daemon=True).start()

    def get_request(self) -> tuple[Any, Any]:
        connection, _ = self.socket.accept()
        return connection, ("unix", 0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        if self.server.is_clients and self.server.behaviour == "mute":
            os._exit(7)
        if self.path == "/admin/work":
            sequences = int(self.server.behaviour == "sequence" or self.server.has_begun)
            self._answer(200, {"connections": 1, "requests": 2, "sequences": sequences})
            return
        if self.path == "/v2":
            self._answer(200, {"name": "triton", "version": "2.60.1"})
            return
        ready = self.path != "/v2/health/ready" or not self.server.held
        self._answer(200 if ready else 400, None)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        name, _, verb = self.path.removeprefix("/v2/repository/models/").partition("/")
        if self.path == "/admin/ready":
            self.server.held = not body["ready"]
        elif self.path == "/admin/accept":
            self.server.note("accept" if body["accept"] else "refuse")
            if body["accept"]:
                self.server.serve_clients()
        elif self.path == "/admin/retire":
            self.server.note(f"retire {Path(body['successor']).name}")
            if self.server.behaviour == "begins" and not body["force"]:
                self.server.has_begun = True
                self._answer(409, {"error": "1 sequences are in progress"})
                return
            if self.server.behaviour != "lingers":
                try:  # the client may be gone by then
                    self._answer(200, None)
                finally:
                    os._exit(0)
        elif self.path == "/v2/repository/index":
            index = [{"name": name, "state": state} for name, state in self.server.models.items()]
            self._answer(200, index)
            return
        elif verb == "load" and name == "bad":
            self._answer(400, {"error": "failed to load 'bad'"})
            return
        elif verb in ("load", "unload"):
            self.server.models[name] = "READY" if verb == "load" else "UNAVAILABLE"
        self._answer(200, None)

    def _answer(self, status: int, value: Any) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        print(self.path, flush=True)


def _main() -> None:
    with os.fdopen(int(sys.argv[1].partition("=")[2])) as file:
        settings = json.load(file)
    behaviour = (_HERE / "behaviour").read_text()
    (_HERE / "settings.json").write_text(json.dumps(settings))
    if behaviour == "ends":
        sys.exit("no core is here")
    while behaviour == "slow" and not (_HERE / "go").exists():
        time.sleep(0.01)
    fds = {one["protocol"]: one["fd"] for one in settings["listen"]}
    private = next(one["fd"] for one in settings["listen"] if one["relays"])
    server = _Server(socket.socket(fileno=fds["admin"]), settings["not_ready"], behaviour, private)
    os.write(settings["ready_fd"], b"1")
    server.serve_forever()


if __name__ == "__main__":
    _main()
