"""Individual requests with the real server: their ids, the access log, the slowest and the failed ones."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forks import prefork
from support.models.inference import Inference
from support.models.stream_client import Streaming
from support.real_daemon import FRONT, RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._protocol import messages
from pytriton.exceptions import PyTritonDaemonError
from pytriton.model_config import ModelConfig, Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(1,))]
ID = [Tensor(name="id", dtype=bytes, shape=(1,))]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
_native_frontend = pytest.mark.skipif(
    FRONT == "triton", reason="NVIDIA's frontend passes on no headers by itself"
)


@pytest.fixture(scope="module")
def posts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Any]]]:
    """The webhook file, and the events posted to that webhook."""
    events: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            events.extend(body["events"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    folder = tmp_path_factory.mktemp("hooks")
    (folder / "secret").write_text("0123456789abcdef")
    (folder / "secret").chmod(0o600)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        hook = f'[[webhook]]\nname = "all"\nurl = "{url}"\nsecret_file = "secret"\n'
        (folder / "hooks.toml").write_text(hook)
        yield str(folder / "hooks.toml"), events
        server.shutdown()


@pytest.fixture(scope="module")
def daemon(posts: tuple[str, list[Any]]) -> Iterator[RunningDaemon]:
    with RunningDaemon.start(webhooks=posts[0]) as running:
        running.client.register(_say_id, "say", X, ID, progress=False)
        decoupled = ModelConfig(decoupled=True)
        running.client.register(
            _stream_ids, "stream", X, ID, decoupled, access_log=True, progress=False
        )
        yield running


@pytest.fixture
def asking(daemon: RunningDaemon) -> Iterator[Inference]:
    client = Inference("http", daemon.http)
    yield client
    client.close()


def _say_id(requests: Any) -> Any:
    """Return each request's id. A negative input is an error, another one the duration in seconds."""
    import logging
    import sys
    import time

    from pytriton.request_ids import RequestIds

    handler = logging.StreamHandler(sys.stdout)
    handler.addFilter(RequestIds())
    handler.setFormatter(logging.Formatter("says %(request_id)s: %(message)s"))
    logger = logging.getLogger("own")
    logger.propagate = False
    logger.handlers[:] = [handler]
    for request in requests:
        if request["x"][0, 0] < 0:
            raise ValueError("less than nothing")
        time.sleep(float(request["x"][0, 0]))
    logger.warning("done")
    return [{"id": np.array([[request.request_id.encode()]])} for request in requests]


def _stream_ids(requests: Any) -> Any:
    from pytriton.request_ids import request_id

    for _ in range(3):
        yield [{"id": np.array([[request_id().encode()]])}]


def ask(asking: Inference, number: float = 0, **options: Any) -> str:
    answer = asking.infer("say", {"x": np.array([[number]], np.float32)}, **options)
    return bytes(answer["id"][0, 0]).decode()


def lines_of(daemon: RunningDaemon, model: str, count: int) -> list[dict[str, Any]]:
    """Return the entries of an access log once there are `count`."""
    file = Path(daemon.client.requests(model).file)

    def found() -> list[str]:
        return file.read_text().splitlines() if file.exists() else []

    eventually(lambda: len(found()) >= count, lambda: f"{count} lines; there are {found()}")
    return [json.loads(line) for line in found()]


def sampled(daemon: RunningDaemon, name: str) -> messages.RequestEntry:
    """Return the recorded sample of a request once it exists."""

    def found() -> messages.RequestEntry | None:
        reported = daemon.client.requests("say")
        return next((one for one in (*reported.failed, *reported.slowest) if one.id == name), None)

    entry: messages.RequestEntry = eventually(found, f"no sample of {name}")
    return entry


@_native_frontend
def test_a_request_keeps_the_id_of_its_client(daemon: RunningDaemon, asking: Inference) -> None:
    headers = {"X-Request-Id": "h-1", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    assert ask(asking, request_id="order-17", headers=headers) == "order-17"
    assert ask(asking, headers=headers) == "h-1"
    del headers["X-Request-Id"]
    assert ask(asking, headers=headers) == TRACE
    given = {ask(asking), ask(asking)}
    assert len(given) == 2
    assert "" not in given
    eventually(
        lambda: any("says order-17: done" in line for line in daemon.client.logs("say")),
        "the id in the callable's own log",
    )


@_native_frontend
def test_a_grpc_request_keeps_the_id_of_its_headers(daemon: RunningDaemon) -> None:
    client = Inference("grpc", daemon.grpc)
    headers = {"x-request-id": "g-1", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    assert ask(client, request_id="order-18", headers=headers) == "order-18"
    assert ask(client, headers=headers) == "g-1"
    with pytest.raises(InferenceServerException, match=r"nothing \[request id: g-1\]"):
        ask(client, -1, headers=headers)
    client.close()


def test_a_failure_names_the_request(daemon: RunningDaemon, asking: Inference) -> None:
    with pytest.raises(
        InferenceServerException, match=r"less than nothing \[request id: wrong-one\]$"
    ):
        ask(asking, -1, request_id="wrong-one")

    def named() -> bool:
        return any(
            json.loads(line).get("request_ids") == ["wrong-one"]
            for line in daemon.client.logs("say")
        )

    eventually(named, "the failure's id in the log")
    entry = sampled(daemon, "wrong-one")
    assert (entry.status, entry.model, entry.bytes_in, entry.bytes_out) == ("callable", "say", 4, 0)
    assert entry.error == "ValueError"


def test_slow_requests_are_recorded_without_an_access_log(
    daemon: RunningDaemon, asking: Inference, command: Callable[..., str]
) -> None:
    ask(asking, 0.3, request_id="slow-one")
    entry = sampled(daemon, "slow-one")
    assert 0.3e9 < entry.compute_ns < 60e9
    assert entry.queue_ns is not None
    assert daemon.client.requests("say").slowest[0].compute_ns >= entry.compute_ns
    assert not daemon.client.requests("say").access_log
    shown = command("requests", "say")
    assert "slow-one" in shown
    assert "access log: off" in shown


@contextlib.contextmanager
def terminal(*command: str) -> Iterator[Callable[..., str]]:
    """Run a command in a terminal of 80 columns; yield a function that calls tmux."""
    folder = tempfile.mkdtemp(prefix="tmux-")  # short: a unix socket's path has at most 107 bytes

    def tmux(*arguments: str) -> str:
        asked = ["tmux", "-S", f"{folder}/socket", "-f", "/dev/null", *arguments]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout

    tmux("new-session", "-d", "-x", "80", "-y", "24", shlex.join(command))
    try:
        yield tmux
    finally:
        tmux("kill-server")
        shutil.rmtree(folder)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not here")
def test_top_in_a_terminal_shows_the_models_and_their_slowest_requests(
    daemon: RunningDaemon, asking: Inference
) -> None:
    ask(asking, 0.3, request_id="in-a-terminal")
    sampled(daemon, "in-a-terminal")
    runtime_dir = str(daemon.config.runtime_dir)
    command = (sys.executable, "-m", "pytriton._cli", "top", "--runtime-dir", runtime_dir)
    with terminal(*command) as tmux:

        def screen() -> str:
            return tmux("capture-pane", "-p")

        def shows(*texts: str) -> None:
            eventually(lambda: all(one in screen() for one in texts), screen)

        shows("2 models", "say", "stream", "r reqs")
        assert max(map(len, screen().splitlines())) <= 80
        tmux("send-keys", "r")
        shows("slowest of the last hour", "in-a-terminal")
        tmux("send-keys", "u")
        shows("Unregister say?")
        tmux("send-keys", "n", "q")
        eventually(lambda: not tmux("list-sessions"), screen)
    assert ask(asking, request_id="still-there") == "still-there"


def test_the_access_log_can_be_toggled_while_the_model_serves(
    daemon: RunningDaemon, asking: Inference, command: Callable[..., str]
) -> None:
    pid = daemon.client.model("say").instances[0].pid
    ask(asking, 0.5, request_id="before")
    sampled(daemon, "before")  # nor can requests before it be logged any more
    command("access-log", "say", "on")
    names = [f"logged-{number}" for number in range(50)]
    for name in names:
        ask(asking, request_id=name)
    entries = lines_of(daemon, "say", 50)
    assert [entry["id"] for entry in entries] == names
    assert {(one["status"], one["version"], one["instance"], one["batch_rows"]) for one in entries} == {
        ("ok", 1, 0, 1)
    }  # fmt: skip
    assert all(one["bytes_in"] == 4 and one["bytes_out"] > 0 for one in entries)
    assert "logged-49" in command("access-log", "say")
    daemon.client.log_requests("say", False)
    ask(asking, 0.5, request_id="not logged")
    sampled(daemon, "not logged")
    assert len(lines_of(daemon, "say", 50)) == 50
    assert daemon.client.requests("say").logged == 50
    assert daemon.client.requests("say").left_out == 0
    assert daemon.client.model("say").instances[0].pid == pid
    changes = [one.numbers["on"] for one in daemon.client.events("say", kinds=["access_log"])]
    assert changes == [1, 0]


def test_a_stream_is_recorded_as_one_request(daemon: RunningDaemon) -> None:
    with Streaming(
        daemon.grpc, "stream", {"x": np.zeros((1, 1), np.float32)}, request_id="s-1"
    ) as streaming:
        responses = list(streaming)
    assert [bytes(one["id"][0, 0]).decode() for one in responses] == ["s-1"] * 3
    (entry,) = lines_of(daemon, "stream", 1)
    assert (entry["id"], entry["status"], entry["bytes_out"]) == ("s-1", "ok", 3 * (4 + 3))


@pytest.fixture
def command(daemon: RunningDaemon) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        done = prefork.command(*arguments, "--runtime-dir", daemon.config.runtime_dir)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_events_are_posted_to_the_webhook(
    daemon: RunningDaemon, posts: tuple[str, list[Any]]
) -> None:
    def registered() -> set[str]:
        return {one["model"] for one in posts[1] if one["kind"] == "registered"}

    eventually(lambda: registered() == {"say", "stream"}, lambda: f"events: {posts[1]}")
    # The daemon counts a post when it has the answer.
    eventually(lambda: daemon.client.metrics().daemon.webhooks["all"].sent >= 2, "both are counted")
    assert daemon.client.metrics().daemon.webhooks["all"].dropped == 0


def test_a_profile_says_where_the_time_goes(
    daemon: RunningDaemon, command: Callable[..., str], tmp_path: Path
) -> None:
    asking = Inference("http", daemon.http)
    looked = threading.Event()

    def ask_on() -> None:
        while not looked.is_set():
            ask(asking, 1)

    asked = threading.Thread(target=ask_on)
    asked.start()
    picture = tmp_path / "say.svg"
    try:
        shown = command("profile", "say", "--seconds", "3", "-o", str(picture))
    except AssertionError as error:
        if "CAP_SYS_PTRACE" in str(error):
            pytest.skip("nobody may look into another process here")
        raise
    finally:
        looked.set()
        asked.join()
        asking.close()
    assert "callable" in shown
    assert "_say_id" in shown
    assert "_say_id" in picture.read_text()
    assert picture.read_text().startswith("<svg ")
    with pytest.raises(PyTritonDaemonError, match="no worker of instance 9"):
        daemon.client.profile("say", 1, instance=9)
