"""Workers as forks: like those that have started an interpreter, and none of it stays.

The dispatcher's side and the fork server's own are real. In the place of a worker's own work is a probe, that says what
kind of process it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import pytriton
from pytriton.dispatcher.base.child import Child
from pytriton.dispatcher.base.kill_on_death import KillOnDeath
from pytriton.dispatcher.workers.one_worker import fork_servers
from pytriton.dispatcher.workers.one_worker.fork_servers import ForkServers, Surroundings
from pytriton.ipc import forking

#: Stands in the place of worker/boot.py, from where it imports as that does.
_BOOT = """
import json, os, resource, signal, sys, threading
sys.path.insert(0, {source!r})
import cloudpickle, msgspec, numpy, zmq
import random
from pytriton.ipc.forking import FORKS
from pytriton.worker import fork_server

library, endpoint, worker, parent, gauge = sys.argv[1:]
if worker == FORKS:
    forked = fork_server.serve(int(parent), int(gauge))
    if forked is None:
        sys.exit(0)
    worker, gauge = forked[0], str(forked[1])
with open("/proc/self/cmdline") as file:
    shown = file.read().rstrip(chr(0)).split(chr(0))
print(json.dumps({{
    "worker": worker, "shown": shown[2:5], "parent": os.getppid(), "cwd": os.getcwd(),
    "of_its_own": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "env": dict(os.environ), "stdin": os.readlink("/proc/self/fd/0"),
    "output": os.readlink("/proc/self/fd/1") == os.readlink("/proc/self/fd/2"),
    "descriptors": len(os.listdir("/proc/self/fd")), "page": os.pread(int(gauge), 4, 0).decode(),
    "page_is_kept": not os.get_inheritable(int(gauge)),
    "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
    "limits": [resource.getrlimit(number) for number in range(16)],
    "threads": threading.active_count(), "main": threading.get_native_id() == os.getpid(),
    "random": [random.random(), numpy.random.rand(), os.urandom(4).hex()],
    "product": float((numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum()),
    "told": getattr(sys.modules["cloudpickle"], "TOLD", None),
}}), flush=True)
while {waits!r} and os.path.exists({waits!r}):
    signal.pause()
"""
Scene = Callable[["Stage"], Awaitable[None]]


class Stage:
    """Fork servers, and what workers are given."""

    def __init__(self, folder: Path, kill_on_death: KillOnDeath, most: int, waits: str) -> None:
        boot = folder / "boot.py"
        source = str(Path(pytriton.__file__).parents[1])
        boot.write_text(_BOOT.format(source=source, waits=waits))
        self.kill_on_death = kill_on_death
        self.command = [str(boot), str(folder), "ipc:///nowhere"]
        self.forks = ForkServers(most, self.command, kill_on_death)
        self.cwd = folder / "cwd"
        self.cwd.mkdir()
        self.env = {"PATH": os.environ["PATH"], "OF_ALL": "1", "PYTHONPATH": str(folder / "path")}
        self.lines: list[bytes] = []
        self.gauge = os.memfd_create("gauge")
        os.write(self.gauge, b"page")

    def around(self, **variables: str) -> Surroundings:
        return Surroundings(
            sys.executable, str(self.cwd), frozenset({**self.env, **variables}.items())
        )

    async def fork(self, name: str = "w1", **variables: str) -> Child | None:
        """Return a worker; `variables` are the environment's, and those of its own are the same for all."""
        return await self.forks.start(
            self.around(**variables), name, {"OF_ONE": name}, gauge=self.gauge, on_line=self._hear
        )

    async def forked(self, name: str = "w1", **variables: str) -> Child:
        child = await self.fork(name, **variables)
        assert child is not None
        return child

    async def start(self, name: str = "w1") -> Child:
        """Return a worker that is no fork."""
        return await Child.start(
            [sys.executable, *self.command, name, str(os.getpid()), str(self.gauge)],
            env={**self.env, "OF_ONE": name},
            cwd=str(self.cwd),
            on_line=self._hear,
            kill_on_death=self.kill_on_death,
            pass_fds=[self.gauge],
        )

    def _hear(self, pid: int, line: bytes) -> None:
        self.lines.append(line)

    @property
    def servers(self) -> list[int]:
        return [
            one.result().child.pid
            for one in self.forks._servers.values()
            if one.done() and not one.exception()
        ]


async def said(child: Child) -> dict[str, Any]:
    """Return what a worker said, once it has ended."""
    code = await child.exited
    await child.stop(0)
    assert code == 0, child.last_lines()
    told: dict[str, Any] = json.loads(child.last_lines())
    return told


def play(folder: Path, scene: Scene, most: int = 4, waits: str = "") -> None:
    """Play a scene; nothing may be left of it."""

    async def played() -> None:
        kill_on_death = KillOnDeath(Path("/dev/shm/pytriton-test-of-nothing-"))
        stage = Stage(folder, kill_on_death, most, waits)
        try:
            await scene(stage)
        finally:
            await stage.forks.hold()
            os.close(stage.gauge)
            kill_on_death.close()

    before = len(os.listdir("/proc/self/fd")), {*psutil.Process().children()}
    asyncio.run(asyncio.wait_for(played(), 200))
    assert (len(os.listdir("/proc/self/fd")), {*psutil.Process().children()}) == before


def test_a_fork_is_like_a_process_that_was_started(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        forked, started = await said(await stage.forked()), await said(await stage.start())
        assert forked["parent"] == os.getpid()
        assert forked["shown"][0] == str(tmp_path)
        assert forked["shown"][2] == "w1"
        for one in (forked, started):
            one.pop("random")
            one.pop("page_is_kept")
        assert forked == started
        again = await said(await stage.forked("w2"))
        assert (again["worker"], again["env"]["OF_ONE"]) == ("w2", "w2")
        assert len(stage.servers) == 1

    play(tmp_path, scene)


def test_forks_draw_other_numbers_each(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        drawn = [(await said(await stage.forked()))["random"] for _ in range(3)]
        assert all(len({*column}) == 3 for column in zip(*drawn))

    play(tmp_path, scene)


def test_a_hundred_leave_nothing(tmp_path: Path) -> None:
    """Of descriptors and processes, in the fork server as here."""

    async def scene(stage: Stage) -> None:
        await said(await stage.forked())
        (pid,) = stage.servers
        held = len(os.listdir(f"/proc/{pid}/fd"))
        # More orders at once than the kernel keeps for a process that reads none.
        server = stage.forks._servers[stage.around()].result()
        server._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        os.kill(pid, signal.SIGSTOP)
        making = [asyncio.ensure_future(stage.forked()) for _ in range(100)]
        while not server._turns.locked():
            await asyncio.sleep(0)
        os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*[said(await one) for one in making])
        assert stage.servers == [pid]
        assert len(os.listdir(f"/proc/{pid}/fd")) == held
        assert psutil.Process(pid).children() == []
        assert len(stage.lines) == 101

    play(tmp_path, scene)


def test_workers_outlive_their_fork_server_and_another_one_comes(tmp_path: Path) -> None:
    waits = tmp_path / "waits"
    waits.touch()

    async def scene(stage: Stage) -> None:
        first = await stage.forked("w1")
        (pid,) = stage.servers
        os.kill(pid, signal.SIGKILL)
        second = await stage.forked("w2")
        assert stage.servers != [pid]
        assert not first.exited.done()
        for child in (first, second):
            assert psutil.Process(child.pid).ppid() == os.getpid()
            assert await child.stop(5) == -signal.SIGTERM

    play(tmp_path, scene, waits=str(waits))


@pytest.mark.parametrize("change", ["a file", "what is found first"])
def test_another_environment_takes_another_fork_server(tmp_path: Path, change: str) -> None:
    path = tmp_path / "path"
    path.mkdir()
    module = path / "cloudpickle.py"
    if change == "a file":
        module.write_text("TOLD = 'old'\n")

    async def scene(stage: Stage) -> None:
        first = await said(await stage.forked())
        before = stage.servers
        assert (await said(await stage.forked()))["told"] == first["told"]
        assert stage.servers == before
        module.write_text("TOLD = 'new one'\n")
        assert (await said(await stage.forked()))["told"] == "new one"
        assert stage.servers != before
        assert first["told"] == ("old" if change == "a file" else None)

    play(tmp_path, scene)


def test_what_has_threads_is_not_forked(tmp_path: Path) -> None:
    """A start-up file of the environment's begins one, that a fork would lack."""
    path = tmp_path / "path"
    path.mkdir()
    (path / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )

    async def scene(stage: Stage) -> None:
        assert await stage.fork() is None
        assert stage.servers == []
        assert (await said(await stage.start()))["threads"] == 2

    play(tmp_path, scene)


def test_libraries_that_count_on_their_handlers_are_known() -> None:
    line = "7f2a4c000000-7f2a4c021000 r-xp 00000000 08:01 123 /opt/conda/lib/libiomp5.so\n"
    assert forking.in_need_of_handlers(line) == "libiomp5"
    assert forking.in_need_of_handlers(line.replace("libiomp5", "libm")) == ""


@pytest.mark.parametrize(
    "python", ["/nowhere/python", "/bin/true"], ids=["is not there", "ends at once"]
)
def test_an_interpreter_that_cannot_be_forked(tmp_path: Path, python: str) -> None:
    async def scene(stage: Stage) -> None:
        for _ in range(2):
            around = Surroundings(python, None, frozenset())
            child = await stage.forks.start(
                around, "w1", {}, gauge=stage.gauge, on_line=stage._hear
            )
            assert child is None

    play(tmp_path, scene)


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await said(await stage.forked())
        stage.cwd.rmdir()
        with pytest.raises(FileNotFoundError) as raised:
            await stage.fork()
        assert raised.value.filename == str(stage.cwd)
        stage.cwd.mkdir()
        assert (await said(await stage.forked()))["cwd"] == str(stage.cwd)
        assert len(stage.servers) == 1

    play(tmp_path, scene)


def test_one_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        await said(await stage.forked())
        (pid,) = stage.servers
        os.kill(pid, signal.SIGSTOP)
        received = fork_servers._received

        async def impatient(connection: Any, limit_s: float) -> bytes:
            return await received(connection, 0.1 if stage.servers == [pid] else limit_s)

        monkeypatch.setattr(fork_servers, "_received", impatient)
        assert (await said(await stage.forked("w2")))["worker"] == "w2"
        assert not psutil.pid_exists(pid)

    play(tmp_path, scene)


def test_whoever_gives_up_leaves_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork waits until the dispatcher knows it, and ends when that does not want it any more."""

    async def scene(stage: Stage) -> None:
        await said(await stage.forked())
        asked = asyncio.Event()
        received = fork_servers._received

        async def noted(connection: Any, limit_s: float) -> bytes:
            asked.set()
            return await received(connection, limit_s)

        monkeypatch.setattr(fork_servers, "_received", noted)
        making = asyncio.ensure_future(stage.fork("w2"))
        await asked.wait()
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        await stage.forks.hold()
        assert [json.loads(line)["worker"] for line in stage.lines] == ["w1"]

    play(tmp_path, scene)


def test_as_many_are_kept_as_the_setting_says(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await said(await stage.forked())
        (first,) = stage.servers
        await said(await stage.forked(ANOTHER="1"))
        assert len(stage.servers) == 1
        assert stage.servers != [first]

    play(tmp_path, scene, most=1)


def test_without_any_every_worker_starts(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        assert await stage.fork() is None

    play(tmp_path, scene, most=0)


def test_they_are_ended_for_an_upgrade_and_come_back(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await said(await stage.forked())
        assert stage.forks.settled
        await stage.forks.hold()
        assert (stage.servers, stage.forks.settled) == ([], True)
        assert await stage.fork() is None
        stage.forks.release()
        await said(await stage.forked())

    play(tmp_path, scene)


def test_one_that_nobody_needs_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        await said(await stage.forked())
        monkeypatch.setattr(fork_servers, "_IDLE_S", 0.0)
        assert await stage.forks._server(stage.around()) is not None
        while stage.servers or not stage.forks.settled:
            await asyncio.sleep(0)

    play(tmp_path, scene)
