"""The life of tritonserver's process, and the requests to it, with a scripted program in its place."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.triton import fake_server_program
from support.ports import lasting_port
from support.real_daemon import eventually

from pytriton._host.install.server_runtime import ServerChoice, ServerRuntime
from pytriton._host.install.server_tree import ServerTree
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.runtime.child import Child
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.states import ServerState
from pytriton.dispatcher.runtime.task_limits import Headroom
from pytriton.dispatcher.server import server_process, tritonserver
from pytriton.dispatcher.server.frontend import SHM, ServerPlace, claim_shm_prefix
from pytriton.dispatcher.server.frontends.triton_frontend import TritonFrontend
from pytriton.dispatcher.server.server_process import ServerCrashed, ServerLost, ServerStartError
from pytriton.dispatcher.server.tritonserver import TritonServer

pytestmark = pytest.mark.programs

_TOKEN = "a-token-that-nobody-may-see"
_MODEL = {"name": "m", "backend": "pytriton"}


class Scene:
    """A daemon's tritonserver, and the daemon's side of it."""

    def __init__(self, folder: Path, behaviour: str, **settings: Any) -> None:
        self.folder = folder
        program = fake_server_program.install(folder, behaviour)
        self.models, backends = folder / "models", folder / "backends"
        self.models.mkdir()
        (backends / "pytriton").mkdir(parents=True)
        self.lines: list[str] = []
        self.printed = asyncio.Event()
        tree = ServerTree(program, backends, None, (), (), "2.51.0")
        prefix = claim_shm_prefix(folder.stat())
        self.shm = SHM / prefix
        self._kill_on_death = KillOnDeath(self.shm)
        place = ServerPlace(
            ServerRuntime(tree, ServerChoice(), folder, None),
            self.models,
            backends,
            prefix,
            self._kill_on_death,
            self._on_line,
        )
        given = {
            "http_port": lasting_port(),
            "metrics_port": lasting_port(),
            "allow_grpc": False,
            "access_token": _TOKEN,
            "server_start_timeout_s": 110.0,
            "server_probe_timeout_s": 0.0,
            **settings,
        }
        self.config = DaemonConfig(**given)
        self.server = TritonServer(
            self.config, place, TritonFrontend(self.config, place), on_retired=lambda pid: None
        )

    def _on_line(self, pid: int, line: bytes) -> None:
        self.lines.append(line.decode())
        self.printed.set()

    async def until_printed(self, text: str) -> None:
        while not any(text in line for line in self.lines):
            self.printed.clear()
            await self.printed.wait()

    def make_model(self, name: str) -> None:
        (self.models / name / "1").mkdir(parents=True)

    async def start(self, preload: dict[str, dict[str, Any]] | None = None) -> set[str]:
        self.server.choose_ports()
        return await self.server.start(preload)

    @property
    def pid(self) -> int:
        pid = self.server.info().pid
        assert pid is not None
        return pid

    async def says_ready(self) -> bool:
        """Send a readiness probe as any client may."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.config.http_port)
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
    before = psutil.Process().children(recursive=True)
    one = Scene(folder, behaviour, **settings)
    try:
        yield one
    finally:
        await one.close()
    assert list(SHM.glob(f"{one.shm.name}*")) == []
    assert set(psutil.Process().children(recursive=True)) <= set(before)


# ── how it starts ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("behaviour", "settings", "reported"),
    [
        ("ends", {}, r"exited with code 3 while starting\. Its last output:\n.*out of memory"),
        ("dies", {}, r"was killed by signal 9 \(SIGKILL\) while starting\. Its last output:\n$"),
        (
            "silent",
            {"server_start_timeout_s": 0.5},
            r"was not ready within 0\.5 s\. "
            r"The last probe failed: .*(refused|[Cc]onnect).*Its last output:\n$",
        ),
        (
            "broken",
            {},
            r"is up but does not work \(there is no index\)\. Its last output:\nstarted with",
        ),
    ],
)
async def test_a_failed_start_is_reported_and_can_be_retried(
    tmp_path: Path, behaviour: str, settings: dict[str, Any], reported: str
) -> None:
    async with running(tmp_path, behaviour, **settings) as one:
        with pytest.raises(ServerStartError, match=reported) as caught:
            await one.start()
        assert _TOKEN not in str(caught.value)
        assert one.server.state is ServerState.STARTING
        await one.server.clean_up()
        assert one.server.info().pid is None
        if not settings:
            fake_server_program.behave(tmp_path, "")
            assert await one.server.start() == set()
            assert one.server.ready


async def test_it_is_ready_when_every_endpoint_listens(tmp_path: Path) -> None:
    async with running(tmp_path, "late") as one:
        assert one.server.state is ServerState.STARTING
        await one.start()
        assert one.server.ready
        _, writer = await asyncio.open_connection("127.0.0.1", one.config.metrics_port)
        writer.close()
        info = one.server.info()
        # The core's version; the file beside it says 2.51.0.
        assert (info.state, info.version) == ("ready", "2.60.1")
        assert info.http_url == f"http://127.0.0.1:{one.config.http_port}"
        assert (info.grpc_url, info.binary) == ("", str(tmp_path / "tritonserver"))
        await one.server.stop()
        assert (one.server.state, one.server.is_stopping) == (ServerState.STOPPED, True)
        await one.server.stop()  # nothing happens


async def test_models_are_loaded_before_the_ports_open_and_the_gate_delays_readiness(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as one:
        one.make_model("m")
        loaded = await one.start({"m": _MODEL, "without a folder": _MODEL})
        assert loaded == {"m"}
        assert not (one.models / "m" / "config.pbtxt").exists()
        assert not await one.says_ready()
        await one.server.open_gate()
        assert await one.says_ready()
        assert await one.server.repository_states() == {"m": "READY"}
        await one.server.close_gate()
        assert not await one.says_ready()


async def test_without_a_gate_it_reports_ready_itself(tmp_path: Path) -> None:
    async with running(tmp_path, readiness="server_up") as one:
        await one.start()
        assert await one.says_ready()
        await one.server.close_gate()
        await one.server.open_gate()
        assert await one.server.repository_states() == {}


async def test_the_access_token_is_not_visible(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.start()
        assert any("triton-access-token=***" in line for line in one.lines)
        assert not any(_TOKEN in line for line in one.lines)
        assert _TOKEN not in Path(f"/proc/{one.pid}/cmdline").read_text()


async def test_created_files_are_private(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.start()
        assert "Umask:\t0077" in Path(f"/proc/{one.pid}/status").read_text()
        environ = Path(f"/proc/{one.pid}/environ").read_text()
        assert "MALLOC_MMAP_THRESHOLD_=" in environ
        assert os.readlink(f"/proc/{one.pid}/cwd") == str(tmp_path / "backends" / "pytriton")


# ── how it ends ──────────────────────────────────────────────────────────────────────────────────


async def test_an_exited_server_is_restarted(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.start()
        first = one.pid
        changes = one.server.changes.next
        one.shm.with_name(f"{one.shm.name}left").touch()
        os.kill(first, signal.SIGSEGV)
        assert await one.server.wait_exited() == (
            f"tritonserver (pid {first}) was killed by signal 11 (SIGSEGV)"
        )
        assert one.server.state is ServerState.STARTING
        assert one.server.info().pid is None
        with pytest.raises(ServerLost, match="cannot load model m: tritonserver is starting"):
            await one.server.load("m", None)
        await one.server.clean_up()
        assert changes.is_set()
        assert list(SHM.glob(f"{one.shm.name}*")) == []
        await one.server.start()
        assert one.server.ready
        assert one.pid != first


async def test_a_hung_server_is_killed_and_its_load_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_hung = server_process.wait_hung

    async def probe_once_stopped(child: Child, *connections: Any, **limits: Any) -> bool:
        while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.01)
        return await wait_hung(child, *connections, **limits)

    monkeypatch.setattr(server_process, "wait_hung", probe_once_stopped)
    async with running(tmp_path, server_probe_interval_s=0.05, server_probe_timeout_s=0.5) as one:
        await one.start()
        with pytest.raises(ServerLost, match=r"SIGKILL\) while it loaded model frozen"):
            await one.server.load("frozen", _MODEL)
        assert (await one.server.wait_exited()).endswith(
            "was killed by signal 9 (SIGKILL): the daemon killed it, because it had not answered for 0.5 s "
            "(server_probe_timeout_s); its state was T (stopped)"
        )
        await one.server.clean_up()
        await one.server.start()
        await one.server.load("m", _MODEL)


@pytest.mark.parametrize("busy_for", [0, 2])
async def test_shutdown_leaves_time_for_requests_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_for: int
) -> None:
    """A server that ignores SIGTERM is killed once no request is in flight."""
    monkeypatch.setattr("pytriton.dispatcher.server.server_process.EXIT_GRACE_S", 0.05)
    async with running(tmp_path, "deaf") as one:
        await one.start()
        asked = 0

        def busy() -> bool:
            nonlocal asked
            asked += 1
            return asked <= busy_for

        await one.server.shut_down(busy)
        assert asked > busy_for
        asked = 0
        assert "SIGKILL" in await one.server.wait_exited()
        await one.server.shut_down(busy)  # nothing is left to end
        assert asked == 0


async def test_descendants_are_killed_with_the_server(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.start()
        await one.server.load("stub", _MODEL)
        (stub,) = psutil.Process(one.pid).children()
        one.server.kill()
        await one.server.wait_exited()
        await one.server.clean_up()
        eventually(lambda: not psutil.pid_exists(stub.pid), "the stub has ended")


# ── what it is asked ─────────────────────────────────────────────────────────────────────────────


async def test_a_crash_during_the_only_load_is_blamed_on_it(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.start()
        how = rf"tritonserver \(pid {one.pid}\) was killed by signal 6 \(SIGABRT\) while it loaded model faulty"
        with pytest.raises(ServerCrashed, match=how):
            await one.server.load("faulty", _MODEL)
        await one.server.wait_exited()
        await one.server.clean_up()
        await one.server.start()
        other = asyncio.create_task(one.server.load("slow", _MODEL))
        await one.until_printed("slow is being loaded")
        for load in (one.server.load("faulty", _MODEL), other):
            with pytest.raises(ServerLost) as lost:
                await load
            assert not isinstance(lost.value, ServerCrashed)


@pytest.mark.parametrize(
    ("config", "left", "needed"),
    [
        ({"backend": "pytriton_native", "instance_group": [{"count": 4}]}, 13, 14),
        ({"backend": "pytriton", "instance_group": [{"count": 2}, {"count": 1}]}, 49, 50),
        (None, 17, 18),
    ],
)
async def test_a_model_that_exceeds_the_thread_limit_is_not_loaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any] | None,
    left: int,
    needed: int,
) -> None:
    async with running(tmp_path) as one:
        await one.start()
        asked: list[int] = []
        room = Headroom(left, "pids.max of control group /a is 99")

        def headroom(pid: int) -> Headroom:
            asked.append(pid)
            return room

        monkeypatch.setattr(tritonserver, "headroom", headroom)
        said = rf"needs about {needed} threads, but only {left} more may be started \(pids\.max of control group /a is 99"
        with pytest.raises(RemoteFailure, match=said) as caught:
            await one.server.load("faulty", config)  # which it would not survive
        assert caught.value.kind is ErrorKind.LOAD_FAILED
        assert one.server.ready
        assert asked == [one.pid]
        room = Headroom(needed, "")
        await one.server.load("m", config)


async def test_a_load_is_not_awaited_when_the_daemon_stops(tmp_path: Path) -> None:
    """tritonserver cannot interrupt a load, and is killed."""
    async with running(tmp_path) as one:
        await one.start()
        loading = asyncio.create_task(one.server.load("slow", _MODEL))
        await one.until_printed("slow is being loaded")
        one.server.abandon_loads()
        with pytest.raises(RemoteFailure, match="slow was not loaded: the daemon is stopping"):
            await loading
        await one.server.clear_failure("slow")  # which would wait for that load
        await one.server.load("m", _MODEL)  # what takes a model's place


async def test_models_beyond_the_thread_limit_are_not_preloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tritonserver, "headroom", lambda pid: Headroom(56 + 2 * 18, ""))
    async with running(tmp_path) as one:
        for name in ("a", "b", "c"):
            one.make_model(name)
        assert await one.start({name: {**_MODEL, "name": name} for name in "abc"}) == {"a", "b"}


async def test_refused_loads_and_crashes_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "_LINE_S", 60.0)
    async with running(tmp_path) as one:
        await one.start()
        with pytest.raises(RemoteFailure) as caught:
            await one.server.load("bad", _MODEL)
        assert not isinstance(caught.value, ServerLost)
        assert caught.value.kind is ErrorKind.LOAD_FAILED
        assert caught.value.text == (
            "tritonserver did not load model bad: failed to load 'bad', no memory"
        )
        # Why a configuration is refused is only in the server's log.
        with pytest.raises(RemoteFailure, match=r"""repository: 'dims' of "x" for unpolled$"""):
            await one.server.load("unpolled", _MODEL)
        with pytest.raises(
            ServerLost, match=r"exited with code 9 while it loaded model fatal"
        ) as lost:
            await one.server.load("fatal", _MODEL)
        assert lost.value.kind is ErrorKind.UNAVAILABLE
        assert await one.server.wait_exited() == (
            f"tritonserver (pid {one.server._process.pid}) exited with code 9"  # type: ignore[union-attr]
        )


async def test_a_recorded_failure_is_cleared(tmp_path: Path) -> None:
    """Otherwise the server would never be ready again."""
    async with running(tmp_path, readiness="server_up") as one:
        await one.start()
        with pytest.raises(RemoteFailure):
            await one.server.load("m", {"backend": "models_are_being_loaded"})
        assert not await one.says_ready()
        await one.server.clear_failure("m")
        await one.server.repository_states()  # the model is there for the last time
        assert await one.says_ready()
        await one.server.clear_failure("bad")  # which it refuses, with just a line in the log


async def test_unloading_from_an_exited_server_succeeds(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.start()
        await one.server.load("m", _MODEL)
        os.kill(one.pid, signal.SIGKILL)
        await one.server.wait_exited()
        await one.server.unload("m")


async def test_a_cancelled_load_returns_when_its_outcome_is_known(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.start()
        load = asyncio.ensure_future(one.server.load("slow", _MODEL))
        await one.until_printed("slow is being loaded")
        load.cancel()
        await asyncio.sleep(0)
        assert not load.done()
        (one.models / "go").touch()
        with pytest.raises(asyncio.CancelledError):
            await load
        assert (await one.server.repository_states())["slow"] == "READY"


async def test_its_proxy_processes_are_recognized(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        with pytest.raises(RemoteFailure, match="is not a proxy: tritonserver did not start it"):
            one.server.check_proxy(os.getpid())
        await one.start()
        await one.server.load("stub", _MODEL)
        (stub,) = psutil.Process(one.pid).children()
        assert one.server.check_proxy(one.pid) == one.pid
        assert one.server.check_proxy(stub.pid) == one.pid
        for stranger in (os.getpid(), 1, 0, -1, 2**22 + 1, 2**80):
            with pytest.raises(RemoteFailure, match=f"process {stranger} is not a proxy"):
                one.server.check_proxy(stranger)
