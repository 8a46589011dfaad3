"""A daemon with the native frontend: what it serves and where, and what happens when its process exits."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import trustme
from support.load.all_clients import AllClients
from support.models.inference import Array
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._cli import daemon_connection
from pytriton._cli.errors import CliError
from pytriton._host.install.server_runtime import ServerChoice, find_or_install_server
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig

_TOKEN = "a-token-that-is-long-enough"
_BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
).encode()
_INFER = "/v2/models/double/infer"


@batch
def _double(x: Array) -> dict[str, Array]:
    return {"y": x * 2}


def waiting(begun: Path, go: Path) -> Callable[..., Any]:
    """Return a callable that creates a file when it begins, and continues once another one exists."""

    @batch
    def slow(x: Array) -> dict[str, Array]:
        import time

        begun.touch()
        while not go.exists():
            time.sleep(0.01)
        return {"y": x}

    return slow


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def connection(daemon: RunningDaemon) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(daemon.http, timeout=60)


def ask(
    client: http.client.HTTPConnection, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, Any]:
    """Return the status and the body, parsed if it is JSON."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    client.request(method, path, body, named)
    response = client.getresponse()
    data = response.read()
    return response.status, json.loads(data) if data.startswith((b"{", b"[")) else data


def doubles(client: http.client.HTTPConnection) -> bool:
    status, answer = ask(client, "POST", _INFER, _BODY)
    return status == 200 and answer["outputs"][0]["data"] == [2.0, 4.0]


def over_grpc(url: str) -> Any:
    tensor = tritonclient.grpc.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
    with tritonclient.grpc.InferenceServerClient(url) as client:
        return client.infer("double", [tensor], client_timeout=60).as_numpy("y").tolist()


@pytest.fixture(scope="module")
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


@pytest.fixture(scope="module")
def daemon(sockets: Path) -> Iterator[RunningDaemon]:
    with RunningDaemon.start(
        frontend="native",
        access_token=_TOKEN,
        http_unix_socket=str(sockets / "http"),
        grpc_unix_socket=str(sockets / "grpc"),
        frontend_limit=("header_bytes=2048",),
    ) as running:
        running.client.register(_double, "double", inputs=X, outputs=Y)
        yield running


def test_a_callable_is_served_over_http_grpc_and_unix_sockets(
    daemon: RunningDaemon, sockets: Path
) -> None:
    with closing(connection(daemon)) as client:
        assert all(doubles(client) for _ in range(3))
        assert ask(client, "GET", "/v2/health/ready") == (200, b"")
    with closing(UnixConnection(sockets / "http")) as client:
        assert doubles(client)
    assert over_grpc(daemon.grpc) == [[2.0, 2.0]]
    assert over_grpc(f"unix:{sockets / 'grpc'}") == [[2.0, 2.0]]
    for name in ("http", "grpc"):
        assert (sockets / name).stat().st_mode & 0o777 == 0o600


def test_tritonclient_with_binary_tensors(daemon: RunningDaemon) -> None:
    tensor = tritonclient.http.InferInput("x", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.arange(3, dtype=np.float32)[None])
    with tritonclient.http.InferenceServerClient(daemon.http) as client:
        answer = client.infer("double", [tensor], request_compression_algorithm="gzip")
    assert answer.as_numpy("y").tolist() == [[0.0, 2.0, 4.0]]


def test_restricted_endpoints_ask_for_the_token_on_public_ports_only(
    daemon: RunningDaemon,
) -> None:
    """The daemon's own requests use its private socket."""
    with closing(connection(daemon)) as client:
        path = "/v2/repository/index"
        assert ask(client, "POST", path)[0] == 403
        status, index = ask(client, "POST", path, triton_access_token=_TOKEN)
        assert status == 200
        assert [one["name"] for one in index] == ["double"]
        status, _ = ask(client, "POST", "/admin/ready", b'{"ready": false}')
        assert status == 404
        assert ask(client, "GET", "/v2/health/ready")[0] == 200
    with tritonclient.grpc.InferenceServerClient(daemon.grpc) as grpc:
        with pytest.raises(InferenceServerException):
            grpc.get_model_repository_index()
        headers = {"triton-grpc-protocol-triton-access-token": _TOKEN}
        assert len(grpc.get_model_repository_index(headers=headers).models) == 1


def test_metrics_of_the_core_and_of_the_frontend(daemon: RunningDaemon) -> None:
    with closing(connection(daemon)) as client:
        status, _ = ask(client, "GET", "/v2/health/live", X_Long="x" * 3000)
        assert status == 431
    url = daemon.client.status().server.metrics_url
    with closing(http.client.HTTPConnection(url.split("/")[2], timeout=60)) as client:
        status, text = ask(client, "GET", "/metrics")
    assert status == 200
    assert b"nv_inference_request_success{" in text
    assert b'pytriton_frontend_refusals_total{limit="header_bytes"} 1' in text
    assert b"pytriton_frontend_connections " in text


def test_a_registered_model_is_ready_until_it_is_unregistered(daemon: RunningDaemon) -> None:
    daemon.client.register(_double, "other", inputs=X, outputs=Y)
    with closing(connection(daemon)) as client:
        assert ask(client, "GET", "/v2/models/other/ready")[0] == 200
        daemon.client.unregister("other")
        assert ask(client, "GET", "/v2/models/other/ready")[0] == 400
        assert doubles(client)


def test_clients_wait_while_a_killed_frontend_restarts(
    daemon: RunningDaemon,
) -> None:
    """No connection is refused, the port stays the same, and no worker reloads its model."""
    before = daemon.client.status()
    assert before.server.pid is not None
    workers = [one.pid for one in before.models[0].instances]
    answers: list[bool] = []

    address = daemon.http
    os.kill(before.server.pid, signal.SIGKILL)

    def served() -> bool:
        with closing(http.client.HTTPConnection(address, timeout=60)) as client:
            return doubles(client)

    threads = [threading.Thread(target=lambda: answers.append(served())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert all(answers)
    # It answers requests a little before the daemon hears that it is ready.
    eventually(lambda: daemon.client.status().server.state == "ready", "the other one is ready")
    after = daemon.client.status()
    assert after.server.pid not in (None, before.server.pid)
    assert [one.pid for one in after.models[0].instances] == workers


def test_the_server_is_replaced_under_load_and_nothing_is_lost(daemon: RunningDaemon) -> None:
    """No worker reloads its model either."""
    workers = [one.pid for one in daemon.client.status().models[0].instances]
    pids = set()
    with AllClients(daemon, doubles) as load:
        for _ in range(3):
            pids.add(daemon.client.status().server.pid)
            daemon_connection.replace_server(daemon.config.rundir)
            load.wait_for_progress()
    after = daemon.client.status()
    assert load.wrong == []
    assert len(pids | {after.server.pid}) == 4
    assert [one.pid for one in after.models[0].instances] == workers
    eventually(lambda: not daemon.client.status().server.retiring, "the replaced ones have ended")
    assert "".join(daemon.commands().values()).count("pytriton-frontend --settings=") == 1
    with closing(connection(daemon)) as client:
        assert ask(client, "GET", "/v2/health/ready")[0] == 200


def test_a_replacement_finishes_requests_in_flight(daemon: RunningDaemon, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    daemon.forget_said()
    daemon.client.register(waiting(begun, go), "waits", inputs=X, outputs=Y)
    first = daemon.client.status().server.pid
    with closing(connection(daemon)) as client:
        client.request("POST", "/v2/models/waits/infer", _BODY)
        eventually(begun.exists, "the request has begun")
        replacing = threading.Thread(
            target=daemon_connection.replace_server, args=(daemon.config.rundir,)
        )
        replacing.start()
        eventually(lambda: "tritonserver was replaced" in daemon.said(), "the other one serves")
        assert daemon.client.status().server.pid != first
        replacing.join()  # which does not wait for the request
        retiring = daemon.client.status().server.retiring
        assert [one.pid for one in retiring] == [first]
        go.touch()
        response = client.getresponse()
        assert json.loads(response.read())["outputs"][0]["data"] == [1.0, 2.0]
        assert doubles_or_not(client)
    eventually(lambda: not daemon.client.status().server.retiring, "it ends with its last request")
    daemon.client.unregister("waits")


def doubles_or_not(client: http.client.HTTPConnection) -> bool:
    return ask(client, "GET", "/v2/models/double/ready")[0] == 200


def test_a_folder_with_only_the_cores_libraries_is_enough(tmp_path: Path) -> None:
    """It has no executable, no backends, and no version file: the core itself reports its version."""
    whole = find_or_install_server(ServerChoice(), print).tree
    (libraries,) = (one for one in whole.libraries if list(one.glob("libtritonserver*.so")))
    (tmp_path / "lib").symlink_to(libraries)
    with RunningDaemon.start(frontend="native", tritonserver=str(tmp_path)) as running:
        running.client.register(_double, "double", X, Y, progress=False)
        with closing(connection(running)) as client:
            assert doubles(client)
        server = running.client.status().server
        assert Path(server.binary).name == "pytriton-frontend"
        assert server.version == (whole.version or server.version) != ""


def test_nvidias_frontend_serves_as_an_alternative() -> None:
    with RunningDaemon.start(frontend="triton", access_token=_TOKEN) as running:
        assert running.client.status().server.binary.endswith("/tritonserver")
        running.client.register(_double, "double", inputs=X, outputs=Y)
        with closing(connection(running)) as client:
            assert doubles(client)
            assert ask(client, "POST", "/v2/repository/models/double/unload")[0] >= 400
        assert over_grpc(running.grpc) == [[2.0, 2.0]]

        with pytest.raises(CliError, match="requires frontend=native"):
            daemon_connection.replace_server(running.config.rundir)

        former = running.client.status().server.pid
        assert former is not None
        os.kill(former, signal.SIGKILL)
        eventually(lambda: running.client.status().server.pid not in (None, former), "another one")
        eventually(lambda: _serves(running), "it serves again, with the same worker")
        running.client.unregister("double")
        with closing(connection(running)) as client:
            assert ask(client, "GET", "/v2/models/double/ready")[0] == 400


def _serves(daemon: RunningDaemon) -> bool:
    try:
        with closing(connection(daemon)) as client:
            return doubles(client)
    except OSError:  # that frontend owns its sockets, so nothing listens until it has restarted
        return False


def test_https_with_a_client_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key"))
    authority.cert_pem.write_to_path(str(tmp_path / "root"))
    files = {name: str(tmp_path / name) for name in ("cert", "key", "root")}
    with RunningDaemon.start(
        frontend="native",
        http_certificate=files["cert"],
        http_key=files["key"],
        http_client_authorities=files["root"],
    ) as running:
        running.client.register(_double, "double", inputs=X, outputs=Y)
        assert running.client.status().server.http_url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=files["root"])
        stranger = http.client.HTTPSConnection(running.http, timeout=60, context=context)
        with closing(stranger), pytest.raises((ssl.SSLError, ConnectionError)):
            doubles(stranger)
        authority.issue_cert("somebody@example.test").configure_cert(context)
        with closing(
            http.client.HTTPSConnection(running.http, timeout=60, context=context)
        ) as friend:
            assert doubles(friend)


def test_nvidias_frontend_is_used_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy was built earlier and is in the cache."""
    monkeypatch.setenv("CC", "/nowhere/cc")
    cache = tmp_path / "cache"
    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pytriton-daemon"
    cache.mkdir()
    for one in home.iterdir():
        if one.name != "native-frontend":
            (cache / one.name).symlink_to(one)
    with pytest.raises(AssertionError, match="the native frontend cannot be built: no C compiler"):
        RunningDaemon.start(frontend="native", cache_dir=str(cache))
    with RunningDaemon.start(frontend="auto", cache_dir=str(cache)) as running:
        said = running.said()
        assert "using NVIDIA's frontend instead of the native one" in said
        assert "no C compiler is on PATH" in said
        assert Path(running.client.status().server.binary).name == "tritonserver"


@pytest.mark.parametrize("how", ["restart --server", "kill -9", "upgrade"])
def test_shared_memory_regions_survive_a_new_server(daemon: RunningDaemon, how: str) -> None:
    memory = shared_memory.SharedMemory(create=True, size=8)
    np.ndarray(2, np.float32, memory.buf)[:] = 1
    where = {"shared_memory_region": "kept", "shared_memory_byte_size": 8}
    one = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": where}
    body = json.dumps({"inputs": [one]}).encode()
    registration = json.dumps({"key": memory.name, "byte_size": 8}).encode()
    path = "/v2/systemsharedmemory/region/kept"

    def answered() -> bool:
        with closing(connection(daemon)) as client:
            status, said = ask(client, "POST", "/v2/models/double/infer", body)
            assert status == 200, said
            return bool(said["outputs"][0]["data"] == [2, 2])

    try:
        with closing(connection(daemon)) as client:
            assert (
                ask(client, "POST", f"{path}/register", registration, triton_access_token=_TOKEN)[0]
                == 200
            )
        assert answered()
        before = daemon.client.status().server.pid
        assert before is not None
        if how == "upgrade":
            daemon.client.upgrade()
        if how == "kill -9":
            os.kill(before, signal.SIGKILL)
        else:
            daemon_connection.replace_server(daemon.config.rundir)
        assert answered()
        # The new server answers requests a little before the daemon knows that it is ready.
        eventually(lambda: daemon.client.status().server.state == "ready", "the server is ready")
        assert daemon.client.status().server.pid != before
        with closing(connection(daemon)) as client:
            assert ask(client, "POST", f"{path}/unregister", triton_access_token=_TOKEN)[0] == 200
    finally:
        memory.close()
        memory.unlink()


def _remembers(requests: Any) -> Any:
    return [{"y": request["x"]} for request in requests]


def test_a_replacement_breaks_a_sequence_only_if_forced(daemon: RunningDaemon) -> None:
    config = ModelConfig(
        max_batch_size=4,
        extra={"sequence_batching": {"max_sequence_idle_microseconds": 300_000_000, "direct": {}}},
    )
    daemon.client.register(_remembers, "sequences", X, Y, config, progress=False)
    first = daemon.client.status().server.pid

    def step(number: int, parameters: dict[str, object]) -> int:
        one = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
        body = {"inputs": [one], "parameters": {"sequence_id": number, **parameters}}
        with closing(connection(daemon)) as client:
            path = "/v2/models/sequences/infer"
            return ask(client, "POST", path, json.dumps(body).encode())[0]

    assert step(7, {"sequence_start": True}) == 200
    assert step(8, {"sequence_start": True}) == 200
    with pytest.raises(CliError, match="2 sequences are in progress"):
        daemon_connection.replace_server(daemon.config.rundir)
    assert daemon.client.status().server.pid == first
    assert step(8, {"sequence_end": True}) == 200
    with pytest.raises(CliError, match=r"1 sequences are in progress.*--force"):
        daemon_connection.replace_server(daemon.config.rundir)
    assert step(7, {}) == 200  # it goes on
    replaced = daemon_connection.replace_server(daemon.config.rundir, force=True)
    assert (replaced.former, replaced.pid) == (first, daemon.client.status().server.pid)
    assert step(7, {}) == 400
    assert step(7, {"sequence_start": True, "sequence_end": True}) == 200
    daemon_connection.replace_server(daemon.config.rundir)  # nothing is in progress any more
    daemon.client.unregister("sequences")
