"""The daemon's life in this process, with a program in tritonserver's place: starts, exits and notifications."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.triton import fake_server_program
from support.ports import lasting_port

from pytriton._host import exit_record
from pytriton._host.client_keys import key_store
from pytriton._host.install.server_runtime import ServerChoice, ServerRuntime
from pytriton._host.install.server_tree import ServerTree
from pytriton._host.service_manager.systemd import Notifier, ServiceState
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.start_flags import StartFlags
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.daemon import Daemon
from pytriton.dispatcher.models.persistence.state_dir import Store
from pytriton.dispatcher.server.frontend import SHM

pytestmark = pytest.mark.programs


class ServiceManager(Notifier):
    """Records the daemon's notifications."""

    def __init__(self) -> None:
        super().__init__()
        self.reported: list[str] = []
        self.is_ready = asyncio.Event()
        self.state: Any = None

    def ready(self, status: str) -> None:
        self.reported.append(f"ready: {status}")
        self.is_ready.set()

    def reloading(self) -> None:
        self.reported.append("reloading")

    def stopping(self, status: str) -> None:
        self.reported.append(f"stopping: {status}")

    async def keep(self, state: Any) -> None:
        self.state = state
        await asyncio.Event().wait()


class Scene:
    """A daemon with everything that `run` passes to it."""

    def __init__(self, folder: Path, behaviour: str, **settings: Any) -> None:
        program = fake_server_program.install(folder, behaviour)
        self.rundir = RuntimeDir(folder / "run")
        self.rundir.create()
        (folder / "tree" / "onnxruntime").mkdir(parents=True)
        (folder / "native").mkdir()
        given = {
            "runtime_dir": str(self.rundir.path),
            "http_port": lasting_port(),
            "metrics_port": lasting_port(),
            "allow_grpc": False,
            "server_start_timeout_s": 110.0,
            "keys_dir": str(folder / "keys"),
            **settings,
        }
        self.config = DaemonConfig(**given)
        tree = ServerTree(program, folder / "tree", None, (), (), "2.51.0")
        runtime = ServerRuntime(tree, ServerChoice(), folder / "native", None)
        self.store = Store(self.config.state_path)
        self.manager = ServiceManager()
        self.daemon = Daemon(self.config, self.rundir, runtime, self.store, self.manager)
        self.services = self.daemon.services
        self.statuses: list[messages.Status] = []
        self._running: asyncio.Task[int] | None = None

    async def until_ready(self) -> asyncio.Task[int]:
        """Start the daemon; return the task that ends with its exit code."""
        running = self._running = asyncio.ensure_future(self.daemon.main(self.statuses.append))
        ready = asyncio.ensure_future(self.manager.is_ready.wait())
        await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
        assert ready.done(), f"it has ended with {running.result()}"
        return running

    async def close(self) -> None:
        """Stop what is left, even after a failed test."""
        if self._running is not None:
            self.services.shutdown.request("the test is over")
            await self._running
        await self.services.control.close()
        self.services.kill_on_death.close()
        self.store.close()

    def how_it_ended(self) -> tuple[int, str]:
        end = exit_record.read(self.rundir)
        assert end is not None
        return end.exit_code, end.reason


@pytest.fixture
def folder() -> Iterator[Path]:
    # Short: a unix socket's path has at most 107 bytes.
    path = Path(tempfile.mkdtemp(prefix="ptd-"))
    yield path
    shutil.rmtree(path)


@asynccontextmanager
async def daemon_in(folder: Path, behaviour: str = "", **settings: Any) -> AsyncIterator[Scene]:
    one = Scene(folder, behaviour, **settings)
    try:
        yield one
    finally:
        await one.close()


async def test_it_serves_until_stopped(folder: Path) -> None:
    async with daemon_in(folder) as one:
        running = await one.until_ready()
        (at_first,) = one.statuses
        assert (at_first.state, at_first.server.state, at_first.models) == ("ready", "ready", [])
        assert at_first.server.http_url == f"http://127.0.0.1:{one.config.http_port}"
        assert at_first.state_dir == str(one.config.state_path)
        assert one.manager.reported == ["ready: ready: 0 of 0 models ready"]
        assert one.manager.state() == ServiceState(
            "ready: 0 of 0 models ready", healthy=True, busy=False
        )
        one.services.shutdown.request("asked to by a client")
        one.services.shutdown.request("and again")
        assert await running == ExitCode.OK
        assert one.manager.reported[1:] == ["stopping: stopping: asked to by a client"]
        assert one.manager.state().busy
        status = one.services.status.status()
        assert (status.state, status.server.state, status.server.pid) == (
            "stopping",
            "stopped",
            None,
        )
        assert one.how_it_ended() == (ExitCode.OK, "asked to by a client")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", one.config.http_port))


async def test_it_removes_the_shared_memory_of_a_killed_daemon(folder: Path) -> None:
    """systemd kills the helper that does so together with the daemon."""
    folders = folder / "1", folder / "2"
    for one in folders:
        one.mkdir()
    async with daemon_in(folders[0]) as killed:
        region = SHM / f"{killed.services.regions}1"
    region.touch()
    async with daemon_in(folders[1], state_dir=str(killed.config.state_path)):
        assert not region.exists()


async def test_a_signal_stops_it(folder: Path) -> None:
    async with daemon_in(folder) as one:
        running = await one.until_ready()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == ExitCode.OK
        assert one.how_it_ended() == (ExitCode.OK, "SIGTERM")


@pytest.mark.parametrize(
    ("behaviour", "code", "reported"),
    [
        (
            "ends",
            ExitCode.SERVER_FAILED,
            "tritonserver exited with code 3 while starting. Its last output:",
        ),
        ("taken", ExitCode.SERVER_FAILED, "Address already in use"),
    ],
)
async def test_a_tritonserver_that_does_not_start_stops_the_daemon(
    folder: Path, behaviour: str, code: ExitCode, reported: str
) -> None:
    async with daemon_in(folder, behaviour) as one:
        assert await one.daemon.main(one.statuses.append) == code
        assert not one.statuses
        assert not one.manager.reported
        ended, why = one.how_it_ended()
        assert (ended, reported in why) == (code, True), why


async def test_a_used_port_has_its_own_exit_code(folder: Path) -> None:
    async with daemon_in(folder) as one:
        with socket.create_server(("127.0.0.1", one.config.http_port)):
            assert await one.daemon.main(None) == ExitCode.PORT_IN_USE
        assert f"port {one.config.http_port} (http_port)" in one.how_it_ended()[1]


@pytest.mark.parametrize("taken", [False, True])
async def test_an_unusable_tcp_address_prevents_the_start(folder: Path, taken: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        async with daemon_in(folder, control_tcp=address) as one:
            if taken:
                key_store(one.config).make_server_key()
            code = await one.daemon.main(None)
            assert code == (ExitCode.PORT_IN_USE if taken else ExitCode.USAGE)
            assert one.services.status.status().server.state == "starting"


async def test_settings_are_reloaded_once_it_is_ready(folder: Path) -> None:
    async with daemon_in(folder) as one:
        config = one.config
        kept = {name: getattr(config, name) for name in ("http_port", "metrics_port", "allow_grpc")}
        kept |= {
            "server_start_timeout_s": 110.0,
            "keys_dir": config.keys_dir,
            "grace_period_s": 7.0,
        }
        StartFlags(kept, None, str(folder)).write(one.rundir)
        refused = one.services.settings.reload()
        assert refused.problem == "the daemon is starting; try again when ready"
        assert one.services.config.grace_period_s == 30.0
        running = await one.until_ready()
        assert one.services.settings.reload().applied == ["grace_period_s"]
        assert one.services.config.grace_period_s == 7.0
        assert one.manager.reported[1:] == ["reloading", "ready: ready: 0 of 0 models ready"]
        one.services.shutdown.request("the test is over")
        await running
