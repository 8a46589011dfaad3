"""The native frontend: how its program is started and controlled, with a scripted program in its place."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from support.frontend import fake_program
from support.ports import lasting_port

from pytriton._host.install.compiled_frontend import NativeProgram
from pytriton._host.install.server_runtime import ServerChoice, ServerRuntime
from pytriton._host.install.server_tree import ServerTree
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.openai_models import upstream
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.server.frontend import (
    SHM,
    PendingModels,
    ServerPlace,
    claim_shm_prefix,
)
from pytriton.dispatcher.server.frontends.native_frontend import NativeFrontend
from pytriton.dispatcher.server.server_process import ServerStartError
from pytriton.dispatcher.server.tritonserver import TritonServer

pytestmark = pytest.mark.programs

_TOKEN = "a-token-that-nobody-may-see"


class Scene:
    """A daemon's tritonserver with the native frontend, and the daemon's side of it."""

    def __init__(self, folder: Path, behaviour: str, **settings: Any) -> None:
        self.folder = folder
        program = fake_program.install(folder, behaviour)
        models, backends = folder / "models", folder / "backends"
        models.mkdir()
        (backends / "pytriton").mkdir(parents=True)
        self.lines: list[str] = []
        self.retired: list[int] = []
        tree = ServerTree(Path("tritonserver"), backends, None, (), (), "2.51.0")
        self.prefix = prefix = claim_shm_prefix(folder.stat())
        self._kill_on_death = KillOnDeath(SHM / prefix)
        native = NativeProgram(program, Path("/core.so"), {"z": "libz.so.1"})
        runtime = ServerRuntime(tree, ServerChoice(), folder, None, native)
        place = ServerPlace(runtime, models, backends, prefix, self._kill_on_death, self._on_line)
        given = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "server_probe_timeout_s": 0.0}
        self.config = DaemonConfig(**{**given, "frontend": "native", **settings})
        self.frontend = NativeFrontend(
            self.config,
            place,
            native,
            pending_models=PendingModels,
            on_request=lambda name: None,
        )
        self.server = TritonServer(
            self.config, place, self.frontend, on_retired=self.retired.append
        )

    def _on_line(self, pid: int, line: bytes) -> None:
        self.lines.append(line.decode())

    async def start(self) -> None:
        self.server.choose_ports()
        await self.server.start()

    @property
    def pid(self) -> int:
        pid = self.server.info().pid
        assert pid is not None
        return pid

    @property
    def received(self) -> dict[str, Any]:
        """The requests that the program received."""
        found: dict[str, Any] = json.loads((self.folder / "settings.json").read_text())
        return found

    def told(self) -> list[list[str]]:
        """Return each message about clients' connections, preceded by the pid of the program that received it."""
        return [line.split(" ", 1) for line in (self.folder / "told").read_text().splitlines()]

    async def says_ready(self) -> bool:
        path = next(self.folder.glob("frontend-*.sock"))
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
        status = await reader.readline()
        writer.close()
        return b" 200 " in status

    async def close(self) -> None:
        await self.server.stop()
        self._kill_on_death.close()


@asynccontextmanager
async def running(folder: Path, behaviour: str = "", **settings: Any) -> AsyncIterator[Scene]:
    """A scene that leaves nothing behind."""
    one = Scene(folder, behaviour, **settings)
    try:
        yield one
    finally:
        await one.close()
    assert list(folder.glob("*.sock")) == []


async def test_it_starts_and_answers(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.start()
        await one.server.load("m", {"name": "m"})
        await one.server.load("a b/c", None)
        await one.server.unload("m")
        assert await one.server.repository_states() == {"m": "UNAVAILABLE", "a%20b%2Fc": "READY"}
        with pytest.raises(RemoteFailure, match="did not load model bad: failed to load 'bad'"):
            await one.server.load("bad", None)


async def test_it_is_ready_when_the_daemon_says_so(tmp_path: Path) -> None:
    """This needs no model in the repository."""
    async with running(tmp_path) as one:
        await one.start()
        assert not await one.says_ready()
        await one.server.open_gate()
        assert await one.says_ready()
        await one.server.close_gate()
        assert not await one.says_ready()
        assert list((tmp_path / "models").iterdir()) == []


async def test_readiness_may_be_decided_by_the_frontend(tmp_path: Path) -> None:
    async with running(tmp_path, readiness="server_up") as one:
        await one.start()
        assert await one.says_ready()
        await one.server.open_gate()


async def test_cloud_endpoints_exist_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vertex AI's need no restart, although their model is not loaded yet."""
    vertex = lasting_port()
    for name, value in {"HEALTH_ROUTE": "/health", "PREDICT_ROUTE": "/predict"}.items():
        monkeypatch.setenv(f"AIP_{name}", value)
    options = {
        "allow-vertex-ai": "true",
        "vertex-ai-port": str(vertex),
        "vertex-ai-default-model": "m",
    }
    async with running(tmp_path, tritonserver_options=options) as one:
        await one.start()
        assert one.server.vertex_model == "m"
        assert "vertex_ai" in [listen["protocol"] for listen in one.received["listen"]]
        assert one.received["vertex"] == {"health": "/health", "predict": "/predict", "model": "m"}
        with socket.create_connection(("127.0.0.1", vertex)):
            pass


async def test_connections_wait_while_there_is_no_process(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.start()
        os.kill(one.pid, signal.SIGKILL)
        assert "SIGKILL" in await one.server.wait_exited()
        port = one.frontend.endpoints.port("http")
        with socket.create_connection(("127.0.0.1", port)):  # not accepted yet
            await one.server.clean_up()
            await one.server.start()
        assert one.frontend.endpoints.port("http") == port
        await one.server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


async def test_another_process_replaces_it(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.start()
        await one.server.load("m", None)
        former = one.pid
        ending = asyncio.create_task(one.server.wait_exited())
        rest: list[set[str]] = []

        async def load_rest(loaded: set[str]) -> None:
            rest.append(loaded)
            assert not one.server.placed.is_set()
            assert one.received["not_accepting"]
            assert one.server.check_proxy(former)  # it still serves
            assert await one.server.repository_states() == {}  # of the other one

        successor = await one.server.replace({}, load_rest)
        assert successor == one.pid != former
        assert rest == [set()]
        assert one.told() == [
            [str(successor), "accept"],
            [str(former), "refuse"], [str(former), "retire handover-2.sock"],
        ]  # fmt: skip
        while one.server.retiring:
            await one.server.changes.next.wait()
        assert not psutil.pid_exists(former)
        assert not ending.done()
        with pytest.raises(RemoteFailure, match="did not start it"):
            one.server.check_proxy(former)
        os.kill(successor, signal.SIGKILL)
        assert "SIGKILL" in await ending


async def test_a_successor_that_exits_at_its_first_request_leaves_the_previous_one_serving(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as one:
        await one.start()
        former = one.pid
        ending = asyncio.create_task(one.server.wait_exited())
        (tmp_path / "behaviour").write_text("mute")
        with pytest.raises(ServerStartError, match="exited with code 7"):
            await one.server.replace({}, _nothing)
        assert one.pid == former
        received = one.told()
        assert [word for pid, word in received if pid == str(former)] == ["refuse", "accept"]
        assert not ending.done()
        await one.server.load("m", None)
        ending.cancel()


async def test_sequences_in_progress_keep_it_from_being_replaced_without_force(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "sequence") as one:
        await one.start()
        former = one.pid
        with pytest.raises(RemoteFailure, match=r"1 sequences are in progress.*--force"):
            await one.server.replace({}, _nothing)
        assert one.pid == former
        assert await one.server.replace({}, _nothing, force=True) != former


async def test_a_new_sequence_cancels_the_connection_handover(tmp_path: Path) -> None:
    async with running(tmp_path, "begins") as one:
        await one.start()
        former = one.pid
        with pytest.raises(RemoteFailure, match=r"sequences are in progress.*--force"):
            await one.server.replace({}, _nothing)
        assert one.pid == former
        received = one.told()
        successor = received[0][0]
        assert received == [
            [successor, "accept"], [str(former), "refuse"], [str(former), "retire handover-2.sock"],
            [str(former), "accept"], [successor, "retire handover-1.sock"],
        ]  # fmt: skip
        while one.server.retiring:
            await one.server.changes.next.wait()
        await one.server.load("m", None)


async def test_a_retiring_server_is_shown_follows_changes_and_is_stopped_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, "lingers", retire_timeout_s=100.0) as one:
        await one.start()
        ending = asyncio.create_task(one.server.wait_exited())
        former = one.pid
        admin = one.frontend.connect(former)
        await one.server.replace({}, _nothing)
        assert one.server.retiring == {former}
        assert not one.server.is_quiescent
        assert one.server.check_proxy(former) == former  # its proxies may still ask
        await one.server.load("m", None)
        assert await admin.repository_states() == {"m": "READY"}
        await one.server.unload("m")
        assert await admin.repository_states() == {"m": "UNAVAILABLE"}
        while not (received := one.server.info().retiring)[0].requests:
            await asyncio.sleep(0.05)
        assert (received[0].pid, received[0].requests, received[0].connections) == (former, 2, 1)
        assert received[0].until - received[0].since == 100.0
        # The exit of the serving one is noticed, although the previous one is still alive.
        os.kill(one.pid, signal.SIGKILL)
        assert "SIGKILL" in await ending
        assert one.server.retiring == {former}
        loop = asyncio.get_running_loop()
        # Its time is over now.
        monkeypatch.setattr(loop, "time", lambda: time.monotonic() + 100.0)
        while one.server.retiring:
            await one.server.changes.next.wait()
        assert one.retired == [former]
        assert not psutil.pid_exists(former)
        await admin.close()


@pytest.mark.parametrize("behaviour", ["ends", "slow"])
async def test_a_failing_successor_leaves_the_previous_one_serving(
    tmp_path: Path, behaviour: str
) -> None:
    async with running(tmp_path) as one:
        await one.start()
        former = one.pid
        (tmp_path / "behaviour").write_text(behaviour)
        if behaviour == "slow":  # it never starts; the first one had no time limit
            msgspec.structs.force_setattr(one.config, "server_start_timeout_s", 0.5)
        with pytest.raises(ServerStartError):
            await one.server.replace({}, _nothing)
        assert one.pid == former
        assert one.server.ready
        await one.server.load("m", None)


async def test_a_successor_that_exits_during_loads_does_not_take_over(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.start()
        former = one.pid
        ending = asyncio.create_task(one.server.wait_exited())

        async def load_rest(loaded: set[str]) -> None:
            pid = one.pid
            assert pid != former
            os.kill(pid, signal.SIGKILL)
            while one.server.info().pid == pid:
                await asyncio.sleep(0.01)

        with pytest.raises(ServerStartError, match="SIGKILL"):
            await one.server.replace({}, load_rest)
        assert one.pid == former
        assert not ending.done()
        ending.cancel()


async def _nothing(loaded: set[str]) -> None:
    pass


async def test_a_start_that_fails_is_reported(tmp_path: Path) -> None:
    async with running(tmp_path, "ends") as one:
        with pytest.raises(ServerStartError, match=r"code 1 while starting.*\n.*no core is here"):
            await one.start()


async def test_a_slow_start_is_awaited(tmp_path: Path) -> None:
    async with running(tmp_path, "slow") as one:
        starting = asyncio.create_task(one.start())
        done, _ = await asyncio.wait([starting], timeout=2.0)
        assert not done
        (tmp_path / "go").touch()
        await starting


async def test_a_start_that_times_out_is_reported(tmp_path: Path) -> None:
    async with running(tmp_path, "slow", server_start_timeout_s=0.1) as one:
        with pytest.raises(ServerStartError, match="it is not accepting connections yet"):
            await one.start()


async def test_a_failed_replacement_leaves_nothing(tmp_path: Path) -> None:
    """The process to be replaced keeps serving, and still answers the daemon."""
    async with running(tmp_path) as one:
        await one.start()
        former = one.pid
        seen: list[int] = []
        waiting: list[asyncio.Task[Any]] = []

        async def fail(loaded: set[str]) -> None:
            seen.append(one.pid)
            assert one.server.ready
            waiting.append(asyncio.create_task(one.server.placed.wait()))
            for number in (1, 2):
                (SHM / f"{one.prefix}{number}-region").touch()
            raise RuntimeError("a model cannot be loaded")

        with pytest.raises(RuntimeError):
            await one.server.replace({}, fail)
        await waiting[0]
        assert seen != [former]
        assert not psutil.pid_exists(seen[0])
        assert one.pid == former
        await one.server.load("m", None)
        await one.server.open_gate()
        assert [path.name for path in tmp_path.glob("frontend-*.sock")] == ["frontend-1.sock"]
        assert [path.name for path in SHM.glob(f"{one.prefix}*")] == [f"{one.prefix}1-region"]


async def test_the_settings_passed_to_the_frontend(tmp_path: Path) -> None:
    options = {
        "log-verbose": "1",
        "http-header-forward-pattern": "x-.*",
        "http-thread-count": "4",
        "grpc-use-ssl": "true",
        "grpc-server-cert": "/gc",
        "grpc-server-key": "/gk",
    }
    settings = {
        "http_certificate": "/c",
        "http_key": "/k",
        "http_unix_socket": str(tmp_path / "clients.sock"),
    }
    async with running(
        tmp_path,
        tritonserver_options=options,
        frontend_limit=("streams=5",),
        access_token=_TOKEN,
        restricted_endpoints=("model-repository",),
        **settings,
    ) as one:
        await one.start()
        received = one.received
        assert received["core"] == "/core.so"
        assert ["model-repository", str(tmp_path / "models")] in received["options"]
        assert ["log-verbose", "1"] in received["options"]
        assert ["allow-metrics", "true"] in received["options"]
        assert not [name for name, _ in received["options"] if name.startswith(("http", "grpc"))]
        assert received["limits"]["streams"] == 5
        restricted = [["model-repository"], "triton-access-token", _TOKEN]
        assert received["restricted"] == {"http": [restricted], "grpc": [restricted]}
        assert received["forward"] == {"http": "x-.*", "grpc": None}
        listen = [
            (listen["protocol"], listen["tls"] and listen["tls"]["certificate"])
            for listen in received["listen"]
        ]
        assert listen == [
            ("http", None), ("http", "/c"), ("grpc", "/gc"), ("metrics", None), ("http", None), ("admin", None),
            ("handover", None),
        ]  # fmt: skip
        assert (tmp_path / "clients.sock").is_socket()
        assert upstream(one.config, one.frontend).socket == str(tmp_path / "http.sock")
        assert (tmp_path / "http.sock").stat().st_mode & 0o777 == 0o600
        assert one.frontend.endpoints.urls()["http_url"].startswith("https://")
    assert not (tmp_path / "clients.sock").exists()
