"""Fork servers that exit, hang, change or start at the wrong moment: no worker is lost or left behind, and nobody waits.

Hooks of the environment (os.register_at_fork) cause what happens between a fork and the worker's start; real
environments have such hooks, too.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from support.forks.fork_harness import said, staged

from pytriton._protocol import linux
from pytriton._protocol.fork_protocol import LARGEST, ForkAnswer, Order
from pytriton.dispatcher.runtime.child import Child
from pytriton.dispatcher.workers import fork_servers
from pytriton.dispatcher.workers.fork_servers import Ended, ForkServer, Stale, Unfit

pytestmark = [pytest.mark.programs, pytest.mark.usefixtures("little_numpy", "nothing_left")]

#: Acts once, in a fork or its parent, after a file has appeared.
_HOOK = """
import os, signal
def hook(marker={marker!r}):
    if os.path.exists(marker):
        os.unlink(marker)
        {act}
"""
_HOOKED = {
    "after_in_child": "os.register_at_fork(after_in_child=hook)\n",
    "after_in_parent": "os.register_at_fork(after_in_parent=hook)\n",
    "after_setsid": "setsid = os.setsid\nos.setsid = lambda: [setsid(), hook()]\n",
}
_STOP = "os.kill(os.getpid(), signal.SIGSTOP)"
#: More than any pid (proc(5), pid_max), so that a failing test is harmless.
_NOBODY = (1 << 22) + 1
_DIE = "os.kill(os.getpid(), signal.SIGKILL)"


def start_up(folder: Path, text: str) -> None:
    """Run code when an interpreter of the environment starts."""
    with (folder / "path" / "sitecustomize.py").open("a") as file:
        file.write(text)


def hook(folder: Path, when: str, act: str) -> Path:
    """Run code at one of the fork hooks (_HOOKED); return the file that it waits for."""
    marker = folder / f"{when}.acts"
    start_up(folder, _HOOK.format(marker=str(marker), act=act) + _HOOKED[when])
    return marker


async def stopped_child() -> int:
    """Wait for a stopped child of this process, and return its pid."""
    while True:
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):  # of an earlier test
                if child.status() == psutil.STATUS_STOPPED:
                    return child.pid
        await asyncio.sleep(0.001)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[ForkServer]:
    """Return all fork servers that are started."""
    servers: list[ForkServer] = []
    launch = ForkServer.launch

    async def noted(*arguments: Any) -> ForkServer:
        servers.append(await launch(*arguments))
        return servers[-1]

    monkeypatch.setattr(ForkServer, "launch", noted)
    return servers


async def test_a_worker_being_forked_outlives_its_fork_server(tmp_path: Path) -> None:
    """It is still in the fork server's process group."""
    acts = hook(tmp_path, "after_in_child", _STOP)
    async with staged(tmp_path) as stage:
        await said(await stage.forked("w1"))
        server = stage.server()
        acts.touch()
        making = asyncio.ensure_future(stage.forked("w2"))
        worker = await stopped_child()
        holding = asyncio.ensure_future(stage.forks.hold())
        await server.child.exited
        assert not holding.done()
        os.kill(worker, signal.SIGCONT)
        child = await making
        assert child.pid == worker
        assert (await said(child))["worker"] == "w2"
        await holding


async def test_a_fork_server_that_exits_before_it_reports_the_worker(
    tmp_path: Path, launched: list[ForkServer]
) -> None:
    acts = hook(tmp_path, "after_in_parent", _DIE)
    async with staged(tmp_path) as stage:
        await said(await stage.forked("w1"))
        acts.touch()
        assert (await said(await stage.forked("w2")))["worker"] == "w2"
        assert len(launched) == 1


@pytest.mark.parametrize("when", ["after_in_child", "after_setsid"])
async def test_a_fork_that_exits_before_it_starts_is_retried(
    tmp_path: Path, launched: list[ForkServer], when: str
) -> None:
    acts = hook(tmp_path, when, _DIE)
    async with staged(tmp_path) as stage:
        await said(await stage.forked("w1"))
        acts.touch()
        assert (await said(await stage.forked("w2")))["worker"] == "w2"
        assert len(launched) == 2


async def test_the_fork_server_and_its_fork_exit_before_the_pid_is_reported(
    tmp_path: Path, launched: list[ForkServer]
) -> None:
    """The worker is still started."""
    all_act = [
        hook(tmp_path, "after_in_child", _DIE),
        hook(tmp_path, "after_in_parent", _DIE),
    ]
    async with staged(tmp_path) as stage:
        await said(await stage.forked("w1"))
        for acts in all_act:
            acts.touch()
        assert (await said(await stage.forked("w2")))["worker"] == "w2"
        assert len(launched) == 2


@pytest.mark.parametrize(
    "hangs_and_ends",
    [("after_in_child",), ("after_setsid",), ("after_in_child", "after_in_parent")],
    ids=["at once", "with a session of its own", "its fork server has ended"],
)
async def test_a_worker_that_hangs_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs_and_ends: tuple[str, ...]
) -> None:
    all_act = [hook(tmp_path, when, act) for when, act in zip(hangs_and_ends, (_STOP, _DIE))]
    received = fork_servers._received

    async def impatient(worker: socket.socket, limit_s: float) -> bytes:
        return await received(worker, 0.2)

    async with staged(tmp_path) as stage:
        await said(await stage.forked("w1"))
        monkeypatch.setattr(fork_servers, "_received", impatient)
        for acts in all_act:
            acts.touch()
        assert await stage.fork("w2") is None
        assert stage.servers == []


async def test_a_stale_server_is_replaced_once_for_all_waiting_starts(
    tmp_path: Path, launched: list[ForkServer]
) -> None:
    module = tmp_path / "path" / "cloudpickle.py"
    module.write_text("TOLD = 'old'\n")
    async with staged(tmp_path) as stage:
        await said(await stage.forked())
        module.write_text("TOLD = 'new one'\n")
        workers = await asyncio.gather(*[stage.forked(f"w{i}") for i in range(8)])
        assert [(await said(one))["told"] for one in workers] == ["new one"] * 8
        assert len(launched) == 2


@pytest.mark.parametrize(
    ("why", "is_fit"), [(Stale("it changes"), True), (Ended("it crashes"), False)]
)
async def test_a_changed_server_is_retried_and_a_failing_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: Unfit, is_fit: bool
) -> None:
    async def fails(*arguments: Any) -> None:
        raise why

    async with staged(tmp_path) as stage:
        with monkeypatch.context() as patched:
            patched.setattr(ForkServer, "fork", fails)
            assert await stage.fork() is None
        child = await stage.fork()
        assert (child is not None) == is_fit
        if child is not None:
            await said(child)


async def test_more_concurrent_environments_than_fork_servers(
    tmp_path: Path, launched: list[ForkServer]
) -> None:
    """Starting fork servers are in use, so no other one replaces them."""
    async with staged(tmp_path, most=2) as stage:
        children = await asyncio.gather(*[stage.fork(ONE_OF_MANY=str(i)) for i in range(6)])
        forked = [child for child in children if child is not None]
        assert [child is not None for child in children] == [True, True, *[False] * 4]
        for child in forked:
            await said(child)
        assert len(launched) == 2
        await said(await stage.forked(ONE_OF_MANY="5"))  # the others are no longer needed


async def test_a_starting_fork_server_is_stopped_at_once(tmp_path: Path) -> None:
    begins = tmp_path / "begins"
    os.mkfifo(begins)
    start_up(tmp_path, f"open({str(begins)!r}, 'w').close()\nimport signal\nsignal.pause()\n")
    async with staged(tmp_path) as stage:
        making = asyncio.ensure_future(stage.fork())
        await asyncio.to_thread(begins.read_bytes)
        await stage.forks.hold()
        assert stage.forks.is_quiescent
        assert await making is None
        stage.forks.release()
        (tmp_path / "path" / "sitecustomize.py").write_text("")
        await said(await stage.forked())  # that was no fault of the environment's


async def test_a_fork_server_whose_start_is_no_longer_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: list[ForkServer]
) -> None:
    """It is stopped like any other unused one."""
    async with staged(tmp_path) as stage:
        monkeypatch.setattr(fork_servers, "_IDLE_S", 0.0)
        making = asyncio.ensure_future(stage.fork())
        while not launched:
            await asyncio.sleep(0)
        making.cancel()
        while stage.forks._servers or not stage.forks.is_quiescent:
            await asyncio.sleep(0)


async def test_an_exited_fork_server_is_removed(tmp_path: Path) -> None:
    """Its pid may belong to another process by the next start."""
    async with staged(tmp_path) as stage:
        await said(await stage.forked())
        os.kill(stage.servers[0], signal.SIGKILL)
        while stage.servers or not stage.forks.is_quiescent:
            await asyncio.sleep(0)


@pytest.mark.parametrize("lacking", ["a pipe", "what tells of the worker's end"])
async def test_too_many_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def fails(*arguments: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with staged(tmp_path) as stage:
        await said(await stage.forked())
        with monkeypatch.context() as patched:
            where = (os, "pipe") if lacking == "a pipe" else (linux, "pidfd_open")
            patched.setattr(*where, fails)
            with pytest.raises(OSError, match="Too many open files"):
                await stage.fork()
            with pytest.raises(OSError, match="Too many open files"):
                await stage.start()
        await said(await stage.forked())


async def test_a_failing_start_up_file(tmp_path: Path, launched: list[ForkServer]) -> None:
    """The fork server runs it before each fork, after all imports."""
    start_up(
        tmp_path,
        "import os, sys\n"
        "def fails(path, pid=os.getpid()):\n"
        "    module = sys.modules.get('pytriton.worker.fork_server')\n"
        "    if hasattr(module, 'installation') and os.getpid() == pid:\n"
        "        raise RuntimeError('not now')\n"
        "    raise ImportError\n"
        "sys.path_hooks.insert(0, fails)\n",
    )
    async with staged(tmp_path) as stage:
        for _ in range(2):
            await said(await stage.forked())
        assert len(launched) == 1


@pytest.mark.parametrize(
    ("word", "reported"),
    [
        (b"\xc1", "was killed by signal 9"),
        (msgspec.msgpack.encode({"pid": "many"}), "was killed by signal 9"),
        (msgspec.msgpack.encode(ForkAnswer(pid=_NOBODY)), f"not a child of the daemon: {_NOBODY}"),
        (
            msgspec.msgpack.encode(ForkAnswer(pid=-_NOBODY)),
            f"not a child of the daemon: -{_NOBODY}",
        ),
    ],
    ids=["no message", "no answer", "no child", "a group"],
)
async def test_a_fork_server_of_a_hostile_environment(
    tmp_path: Path, word: bytes, reported: str
) -> None:
    async with staged(tmp_path) as stage:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        child = await Child.start(
            ["/bin/sleep", "1000"],
            env={},
            cwd=None,
            on_line=stage._hear,
            kill_on_death=stage.kill_on_death,
        )
        server = ForkServer(child, ours)
        with theirs:
            theirs.send(msgspec.msgpack.encode(ForkAnswer(pid=child.pid)))
            await server.wait_until_ready(60)
            making = asyncio.ensure_future(server.fork(Order("w1", None), stage.stats, stage.stats))
            while not server.orders:
                await asyncio.sleep(0)
            theirs.recv(LARGEST)  # and the descriptors with it, which are closed at once
            theirs.send(word)
            with pytest.raises(Unfit, match=reported):
                await making
            await server.end()
