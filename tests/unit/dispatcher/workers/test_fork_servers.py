"""Forked workers behave like started interpreters, and leave nothing behind.

The dispatcher's side and the fork server are real. A probe, which reports what kind of process it is, replaces the
worker's work.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.forks.fork_harness import said, staged
from support.real_daemon import eventually

from pytriton._protocol import fork_protocol
from pytriton.dispatcher.workers import fork_servers
from pytriton.dispatcher.workers.fork_servers import ForkServer, InterpreterSetup

#: Forks of what has had threads are the subject, unless `little_numpy` is used, which has none.
pytestmark = [pytest.mark.programs, pytest.mark.usefixtures("usual_threads", "nothing_left")]
little_numpy = pytest.mark.usefixtures("little_numpy")


async def test_a_fork_is_like_a_started_process(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        forked, started = await said(await stage.forked()), await said(await stage.start())
        assert forked["parent"] == os.getpid()
        assert forked["shown"][0] == str(tmp_path)
        assert forked["shown"][2] == "w1"
        again = await said(await stage.forked("w2"))
        drawn = [one.pop("random") for one in (forked, started, again)]
        assert all(len({*column}) == 3 for column in zip(*drawn))
        for one in (forked, started):
            one.pop("page_is_kept")
        assert forked == started
        assert (again["worker"], again["env"]["OF_ONE"]) == ("w2", "w2")
        assert len(stage.servers) == 1


@little_numpy
async def test_workers_in_other_folders_share_a_fork_server(tmp_path: Path) -> None:
    """Each model of a repository has its own folder."""
    async with staged(tmp_path) as stage:
        folders = [tmp_path / name for name in ("one", "other")]
        for folder in folders:
            folder.mkdir()
            around = InterpreterSetup.of(sys.executable, str(folder), stage.env)
            child = await stage.forks.start(
                around, "w1", {}, cwd=str(folder), stats=stage.stats, on_line=stage._hear
            )
            assert child is not None
            reported = await said(child)
            assert [reported["cwd"], reported["began_in"]] == [str(folder)] * 2
        assert len(stage.servers) == 1


PYTHON = "/usr/bin/python3"


@pytest.mark.parametrize(
    ("python", "env", "matters"),
    [
        (PYTHON, {}, False),
        (PYTHON, {"PYTHONPATH": "/a:/b", "LD_PRELOAD": "libjemalloc.so.2 /lib/x.so"}, False),
        (PYTHON, {"PYTHONPATH": "", "PYTHONUNBUFFERED": "1"}, False),
        (PYTHON, {"PYTHONPATH": "/a:src"}, True),
        (PYTHON, {"PYTHONPATH": "/a:"}, True),
        (PYTHON, {"LD_LIBRARY_PATH": "lib"}, True),
        (PYTHON, {"LD_PRELOAD": "libm.so.6:./mine.so"}, True),
        ("env/bin/python", {}, True),
    ],
)
def test_the_working_directory_matters_if_the_interpreter_reads_from_it(
    python: str, env: dict[str, str], matters: bool
) -> None:
    one, other = (InterpreterSetup.of(python, folder, env) for folder in ("/one", "/other"))
    assert (one != other) is matters
    assert one.cwd == ("/one" if matters else "/")
    # A worker that starts in the daemon's folder needs no working directory.
    assert InterpreterSetup.of(python, None, env).cwd is None


@little_numpy
async def test_a_hundred_forks_leak_nothing(tmp_path: Path) -> None:
    """Neither descriptors nor processes, in the fork server or here."""
    async with staged(tmp_path) as stage:
        await said(await stage.forked())
        (pid,) = stage.servers
        held = len(os.listdir(f"/proc/{pid}/fd"))
        # More orders at once than the kernel queues for a process that reads none.
        server = stage.server()
        server._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        os.kill(pid, signal.SIGSTOP)
        making = [asyncio.ensure_future(stage.forked()) for _ in range(100)]
        while not server._turns.locked():
            await asyncio.sleep(0)
        os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*[said(await one) for one in making])
        assert stage.servers == [pid]
        # It may still be closing what the last order gave it.
        eventually(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= held, "it has closed them")
        eventually(lambda: not psutil.Process(pid).children(), "its children have ended")
        assert len(stage.lines) == 101


@little_numpy
async def test_workers_outlive_their_fork_server_which_is_replaced(tmp_path: Path) -> None:
    waits = tmp_path / "waits"
    waits.touch()
    async with staged(tmp_path, waits=str(waits)) as stage:
        first = await stage.forked("w1")
        (pid,) = stage.servers
        os.kill(pid, signal.SIGKILL)
        second = await stage.forked("w2")
        assert stage.servers != [pid]
        assert not first.exited.done()
        for child in (first, second):
            assert psutil.Process(child.pid).ppid() == os.getpid()
            assert await child.stop(5) == -signal.SIGTERM


@little_numpy
@pytest.mark.parametrize("change", ["a file", "what is found first"])
async def test_another_environment_needs_another_fork_server(tmp_path: Path, change: str) -> None:
    module = tmp_path / "path" / "cloudpickle.py"
    if change == "a file":
        module.write_text("TOLD = 'old'\n")
    async with staged(tmp_path) as stage:
        first = await said(await stage.forked())
        before = stage.servers
        assert (await said(await stage.forked()))["told"] == first["told"]
        assert stage.servers == before
        module.write_text("TOLD = 'new one'\n")
        assert (await said(await stage.forked()))["told"] == "new one"
        assert stage.servers != before
        assert first["told"] == ("old" if change == "a file" else None)


@little_numpy
async def test_processes_with_threads_are_not_forked(tmp_path: Path) -> None:
    """A start-up file of the environment starts a thread, which a fork would lack."""
    (tmp_path / "path" / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    async with staged(tmp_path) as stage:
        assert await stage.fork() is None
        assert stage.servers == []
        assert (await said(await stage.start()))["threads"] == 2


def test_libraries_with_fork_handlers_are_recognized() -> None:
    line = "7f2a4c000000-7f2a4c021000 r-xp 00000000 08:01 123 /opt/conda/lib/libiomp5.so\n"
    assert fork_protocol.library_with_fork_handlers(line) == "libiomp5"
    assert fork_protocol.library_with_fork_handlers(line.replace("libiomp5", "libm")) == ""


@pytest.mark.parametrize(
    "python", ["/nowhere/python", "/bin/true"], ids=["is not there", "exits at once"]
)
async def test_an_interpreter_that_cannot_be_forked(tmp_path: Path, python: str) -> None:
    async with staged(tmp_path) as stage:
        for _ in range(2):
            around = InterpreterSetup(python, None, frozenset())
            child = await stage.forks.start(
                around, "w1", {}, cwd=None, stats=stage.stats, on_line=stage._hear
            )
            assert child is None


@little_numpy
async def test_a_missing_working_directory(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await said(await stage.forked())
        stage.cwd.rmdir()
        with pytest.raises(FileNotFoundError) as raised:
            await stage.fork()
        assert raised.value.filename == str(stage.cwd)
        stage.cwd.mkdir()
        assert (await said(await stage.forked()))["cwd"] == str(stage.cwd)
        assert len(stage.servers) == 1


@little_numpy
async def test_a_hung_fork_server_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path) as stage:
        await said(await stage.forked())
        (pid,) = stage.servers
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(fork_servers, "_FORK_TIMEOUT_S", 0.1)
        stage.server().child.exited.add_done_callback(lambda _: monkeypatch.undo())
        assert (await said(await stage.forked("w2")))["worker"] == "w2"
        assert not psutil.pid_exists(pid)


@little_numpy
async def test_a_cancelled_start_leaves_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork waits until the dispatcher knows it, and exits if the dispatcher no longer wants it."""
    async with staged(tmp_path) as stage:
        await said(await stage.forked())
        asked = asyncio.Event()
        fork = ForkServer._pid

        async def noted(self: ForkServer, *arguments: Any) -> int:
            asked.set()
            return await fork(self, *arguments)

        monkeypatch.setattr(ForkServer, "_pid", noted)
        making = asyncio.ensure_future(stage.fork("w2"))
        await asked.wait()
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        await stage.forks.hold()
        assert [json.loads(line)["worker"] for line in stage.lines] == ["w1"]


async def test_without_fork_servers_every_worker_starts_an_interpreter(tmp_path: Path) -> None:
    async with staged(tmp_path, most=0) as stage:
        assert await stage.fork() is None


@little_numpy
async def test_fork_servers_stop_for_an_upgrade_and_start_again(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await said(await stage.forked())
        assert stage.forks.is_quiescent
        await stage.forks.hold()
        assert (stage.servers, stage.forks.is_quiescent) == ([], True)
        assert await stage.fork() is None
        stage.forks.release()
        await said(await stage.forked())


@little_numpy
async def test_an_unused_fork_server_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged(tmp_path) as stage:
        await said(await stage.forked())
        monkeypatch.setattr(fork_servers, "_IDLE_S", 0.0)
        stage.forks._use(stage.around(), stage.forks._servers[stage.around()])
        while stage.servers or not stage.forks.is_quiescent:
            await asyncio.sleep(0)
