"""A program in place of NVIDIA's executable: takes its arguments, answers over HTTP, and misbehaves on command.

    python fake_server_program.py BEHAVIOUR --http-port=N --metrics-port=N --model-repository=FOLDER ...

BEHAVIOUR is a file, read at each start, that contains a word:

    ends          prints why and exits at once
    dies          is killed by a signal at once
    silent        neither prints anything nor listens
    broken        listens, but cannot list its models
    late          opens the metrics port only after three liveness probes
    taken         exits because a port is in use
    deaf          ignores SIGTERM

Models of these names misbehave when they are loaded: bad (refused), unpolled (its configuration is refused), fatal
(the server exits), faulty (the server aborts), frozen (the server is stopped by SIGSTOP), slow (prints a line and waits
for the file "go" in the repository), stub (starts a process). Without a behaviour, it acts like tritonserver as far as
the daemon can see.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def install(folder: Path, behaviour: str = "") -> Path:
    """Write the program into a folder and return its path; `behave` changes its behavior at the next start."""
    program = folder / "tritonserver"
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -I "{__file__}" "{folder}/behaviour" "$@"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    behave(folder, behaviour)
    return program


def behave(folder: Path, behaviour: str) -> None:
    """Set the behavior of the program in a folder from its next start on."""
    (folder / "behaviour").write_text(behaviour)


class _Models:
    """The models of this process's server, with their states."""

    def __init__(self, repository: Path, preload: list[str]) -> None:
        self.repository = repository
        self.states: dict[str, str] = {}
        self.live_questions = 0
        for name in preload:
            loads = (
                "models_are_being_loaded" not in (repository / name / "config.pbtxt").read_text()
            )
            self.states[name] = "READY" if loads else "UNAVAILABLE"

    def load(self, name: str, config: dict[str, Any]) -> str:
        """Return why the model cannot be loaded, or None."""
        if name == "fatal":
            os._exit(9)
        if name == "faulty":
            os.abort()
        if name == "frozen":
            os.kill(os.getpid(), signal.SIGSTOP)
            threading.Event().wait()  # this thread may run for another moment
        if name == "stub":
            subprocess.Popen(["sleep", "1000"])
        if name == "slow":
            print("slow is being loaded", flush=True)
            while not (self.repository / "go").exists():
                time.sleep(0.01)
        if name == "unpolled":
            place = f"E1128 14:55:51.475391 {os.getpid()} model_repository_manager.cc:1389]"
            why = f"Poll failed for model directory '{name}': 'dims' of \\\"x\\\" for {name}"
            print(f'{place} "{why}"', flush=True)
            return f"failed to load '{name}', failed to poll from model repository"
        if name == "bad" or config.get("backend") == "models_are_being_loaded":
            self.states[name] = "UNAVAILABLE"
            return f"failed to load '{name}', no memory"
        self.states[name] = "READY"
        return ""

    def index(self) -> list[dict[str, str]]:
        """Return all models; an unloaded model is listed one last time."""
        found = [
            {"name": name, "version": "1", "state": state, "reason": ""}
            for name, state in self.states.items()
        ]
        gone = [name for name, state in self.states.items() if state == "UNLOADING"]
        for name in gone:
            del self.states[name]
        return found


def _handler(models: _Models, behaviour: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/v2":
                self._answer(200, {"name": "triton", "version": "2.60.1"})
                return
            if self.path == "/v2/health/live":
                models.live_questions += 1
            ready = set(models.states.values()) <= {"READY"}
            self._answer(200 if ready or self.path != "/v2/health/ready" else 400)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == "/v2/repository/index":
                if "broken" in behaviour:
                    self._answer(500, {"error": "there is no index"})
                else:
                    self._answer(200, models.index())
                return
            _, _, _, _, name, what = self.path.split("/")
            if what == "unload":
                models.states[name] = "UNLOADING"
                self._answer(200)
                return
            given = json.loads(body or "{}").get("parameters", {}).get("config", "{}")
            why = models.load(name, json.loads(given))
            self._answer(400 if why else 200, {"error": why} if why else None)

        def _answer(self, status: int, content: Any = None) -> None:
            body = b"" if content is None else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Do nothing: the fake has no log."""

    return Handler


def main() -> None:
    behaviour = Path(sys.argv[1]).read_text()
    options: dict[str, list[str]] = {}
    for argument in sys.argv[2:]:
        name, _, value = argument[2:].partition("=")
        options.setdefault(name, []).append(value)
    if behaviour == "ends":
        print("error: creating server: Internal - out of memory", flush=True)
        sys.exit(3)
    if behaviour == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "taken":
        print("failed to listen: Address already in use", flush=True)
        sys.exit(1)
    if behaviour == "silent":
        signal.pause()
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("started with", *sys.argv[2:], flush=True)
    models = _Models(Path(options["model-repository"][0]), options.get("load-model", []))
    address = ("127.0.0.1", int(options["http-port"][0]))
    server = ThreadingHTTPServer(address, _handler(models, behaviour))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while behaviour == "late" and models.live_questions < 3:
        time.sleep(0.01)
    with socket.create_server(("127.0.0.1", int(options["metrics-port"][0]))) as metrics:
        while True:
            metrics.accept()[0].close()


if __name__ == "__main__":
    main()
