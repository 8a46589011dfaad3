"""Fork servers for tests: both ends are real, and a probe replaces the worker's work.

The probe reports what kind of process it is.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytriton
from pytriton.dispatcher.runtime.child import Child
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.workers.fork_servers import ForkServer, ForkServers, InterpreterSetup

#: Replaces worker/boot.py, and imports as it does.
_BOOT = """
import json, multiprocessing.process, os, resource, signal, sys, threading
sys.path.insert(0, {source!r})
import cloudpickle, msgspec, numpy, zmq
import random
numpy.random.rand  # which loads it: forks inherit its state
from pytriton._protocol.fork_protocol import FORKS
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
    "began_in": multiprocessing.process.ORIGINAL_DIR,
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


class Stage:
    """Fork servers, and the environment of their workers."""

    def __init__(self, folder: Path, kill_on_death: KillOnDeath, most: int, waits: str) -> None:
        boot = folder / "boot.py"
        source = str(Path(pytriton.__file__).parents[1])
        boot.write_text(_BOOT.format(source=source, waits=waits))
        self.kill_on_death = kill_on_death
        self.command = [str(boot), str(folder), "ipc:///nowhere"]
        self.forks = ForkServers(most, lambda python: self.command, kill_on_death)
        self.cwd = folder / "cwd"
        self.cwd.mkdir()
        self.env = {"PATH": os.environ["PATH"], "OF_ALL": "1", "PYTHONPATH": str(folder / "path")}
        self.lines: list[bytes] = []
        self.stats = os.memfd_create("gauge")
        os.write(self.stats, b"page")

    def around(self, **variables: str) -> InterpreterSetup:
        return InterpreterSetup(
            sys.executable, str(self.cwd), frozenset({**self.env, **variables}.items())
        )

    async def fork(self, name: str = "w1", **variables: str) -> Child | None:
        """Start a worker by a fork; `variables` go to the environment, and its own variables are always the same."""
        return await self.forks.start(
            self.around(**variables),
            name,
            {"OF_ONE": name},
            cwd=str(self.cwd),
            stats=self.stats,
            on_line=self._hear,
        )

    async def forked(self, name: str = "w1", **variables: str) -> Child:
        child = await self.fork(name, **variables)
        assert child is not None
        return child

    async def start(self, name: str = "w1") -> Child:
        """Start a worker as a new process."""
        return await Child.start(
            [sys.executable, *self.command, name, str(os.getpid()), str(self.stats)],
            env={**self.env, "OF_ONE": name},
            cwd=str(self.cwd),
            on_line=self._hear,
            kill_on_death=self.kill_on_death,
            pass_fds=[self.stats],
        )

    def _hear(self, pid: int, line: bytes) -> None:
        self.lines.append(line)

    def server(self, **variables: str) -> ForkServer:
        """Return the started fork server for these variables."""
        server = self.forks._servers[self.around(**variables)].server
        assert server is not None
        return server

    @property
    def servers(self) -> list[int]:
        """Return the pids of all started fork servers."""
        return [
            one.server.child.pid
            for one in self.forks._servers.values()
            if one.server is not None and one.starting.done()
        ]


async def said(child: Child) -> dict[str, Any]:
    """Return a worker's output once it has exited."""
    code = await child.exited
    await child.stop(0)
    assert code == 0, child.last_lines()
    reported: dict[str, Any] = json.loads(child.last_lines())
    return reported


@asynccontextmanager
async def staged(folder: Path, most: int = 4, waits: str = "") -> AsyncIterator[Stage]:
    kill_on_death = KillOnDeath(Path("/dev/shm/pytriton-test-of-nothing-"))
    stage = Stage(folder, kill_on_death, most, waits)
    try:
        yield stage
    finally:
        await stage.forks.hold()
        os.close(stage.stats)
        kill_on_death.close()
