"""The seam between the daemon's tritonserver and the program that is started as it: a *front* around Triton's core.

    tritonserver.py     what the daemon asks for: load, unload, states, ready or not; one object for the daemon's life
      ▼
    server_process.py   one process: its start, its readiness, the watch for hanging, its end
      ▼
    Front, Admin        how a kind of program is started, and how it is asked
      ▼
    frontends/             the kinds: NVIDIA's executable (triton_frontend.py), our own program (native_frontend.py)

services.py chooses the front. The modules above the seam do not depend on that choice.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import structlog

from pytriton._host.install.server_runtime import ServerRuntime
from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.runtime.child import Child, OnLine
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.upgrade_snapshot import ServerState
from pytriton.dispatcher.server.endpoints import Endpoints
from pytriton.dispatcher.server.readiness_gate import Models

_log = structlog.get_logger(__name__)

SHM = Path("/dev/shm")
#: Where a server asks about its clients' requests to load and unload models, in the runtime directory.
MODEL_CONTROL_SOCKET = "models.sock"
#: Becomes LD_PRELOAD of tritonserver (private_shm.py).
PRELOAD_VARIABLE = "PYTRITON_PRELOAD"

#: A front takes memory for each large answer anew. glibc gives large pieces of freed memory back to the kernel at once,
#: and raises these limits by itself, up to these values, as it sees larger pieces freed. With them from the beginning
#: answers of 6 MB touch no fresh pages (500 each before), for a sixth less CPU time. A user's own values come first.
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}


@dataclass(frozen=True)
class ServerPlace:
    """The daemon's folders and hooks that every front is given.

    Attributes:
        runtime: the installation of Triton
        models: the model repository that it serves
        backends: the folder of its backends, see lay_out_backends()
        shm_prefix: what the names of its regions in /dev/shm begin with
        kill_on_death: ends the process, with all that it started, when the daemon is killed
        on_line: takes each line that it prints; secrets are left out
    """

    runtime: ServerRuntime
    models: Path
    backends: Path
    shm_prefix: str
    kill_on_death: KillOnDeath
    on_line: OnLine

    def sweep_shared_memory(self) -> None:
        """Remove the regions that a process which has ended left behind.

        Anybody may make files there, also such as this user cannot remove: they stay.
        """
        try:
            left = list(SHM.glob(f"{self.shm_prefix}*"))
        except OSError as error:  # say, no descriptor is left
            _log.warning("regions of tritonserver's may be left", reason=str(error))
            return
        for region in left:
            try:
                region.unlink(missing_ok=True)
            except OSError as error:  # noqa: PERF203, the others go
                _log.warning("a region of tritonserver's is left", reason=str(error))


class Refused(Exception):
    """The server has answered that it does not do what it was asked to; the text says why."""


class Unreached(Exception):
    """There was no answer: the connection failed, or ended under the question."""


class Work(NamedTuple):
    """What clients have under way with a process.

    Attributes:
        connections: that are open
        requests: that the core has
        sequences: that were begun and have not ended
    """

    connections: int
    requests: int
    sequences: int


class Admin(Protocol):
    """A connection to one server process, over which the daemon administers it.

    All of its questions raise Refused or Unreached.
    """

    async def is_live(self) -> bool:
        """Ask whether it lives. Any answer is a sign of life."""

    async def version(self) -> str:
        """Return the version of Triton's core, such as "2.51.0"."""

    async def load(self, name: str, config: str | None) -> None:
        """Load a model with a configuration (JSON; None: its own)."""

    async def unload(self, name: str) -> None:
        """Begin to unload a model."""

    async def repository_states(self) -> dict[str, str]:
        """Return the models in all repositories with their states; "" for one that was never loaded."""

    async def close(self) -> None:
        """Close the connection; questions under way raise Unreached."""


class ReadinessGate(Protocol):
    """A gate that keeps a server from being ready until the daemon opens it.

    Attributes:
        in_repository: it is a model that lies in the repository
    """

    @property
    def in_repository(self) -> bool: ...

    async def open(self, server: Models) -> None:
        """Have the server say that it is ready, if all its models are; raises RemoteFailure."""

    async def close(self, server: Models) -> None:
        """Have it say that it is not ready; nothing happens when it is not up."""


class Awaited(NamedTuple):
    """Models that tritonserver does not have, and that requests may wait for.

    Attributes:
        rest: come when somebody asks for them; a probe is told that they are ready, as of one that is asleep
        come: come by themselves; a probe is told that they are not ready
    """

    rest: Sequence[str] = ()
    come: Sequence[str] = ()

    def without(self, others: Collection[str]) -> Awaited:
        """Return those that are none of others."""
        return Awaited(*([name for name in names if name not in others] for names in self))


class Front(Protocol):
    """A kind of program around Triton's core. It is made once, and started whenever there is to be a process."""

    @property
    def program(self) -> Path:
        """The file that is executed, for people who look at the status."""

    @property
    def endpoints(self) -> Endpoints:
        """The endpoints where clients reach the front."""

    @property
    def http_socket(self) -> Path | None:
        """The unix socket of its HTTP for the daemon's own processes, whatever clients may use; None: it has none."""

    def settle(self) -> None:
        """Choose where it will listen.

        Raises:
            PortError: it cannot listen where the settings say.
        """

    def make_gate(self, backend: str) -> ReadinessGate:
        """Have the readiness of all processes be the daemon's to tell; `backend` loads what is harmless."""

    async def start(self, preload: Sequence[str], *, vertex: bool, beside: bool = False) -> Child:
        """Start a process; it need not be ready when this returns.

        Args:
            preload: names of models in the repository that it loads before it takes requests. One that cannot be
                loaded does not end it.
            vertex: Vertex AI's frontend may be started: its model is among them
            beside: another process serves until `change_over`, where `replaces` says that this can be

        Raises:
            OSError: it could not be started.
        """

    @property
    def replaces(self) -> bool:
        """Whether a process can be started beside another one, to take its place without a request lost."""

    @property
    def awaits(self) -> bool:
        """Whether requests can wait for models that a process does not have yet: see `await_models`."""

    def await_models(self, names: Callable[[], Awaited], asked: Callable[[str], None]) -> None:
        """Have requests wait for these models, as they are when a process starts; `asked` is told which one.

        Such a request goes on when the model is loaded, when `forget_awaited` is called, or after `wake_timeout_s`.
        """

    async def forget_awaited(self, name: str) -> None:
        """Have requests wait no more for a model."""

    @property
    def vertex_needs_model(self) -> bool:
        """Whether Vertex AI's frontend does not start before its model is loaded."""

    async def change_over(self, former: int, successor: int, *, force: bool) -> bool:
        """Have a process that was started beside another one take clients' connections in its place.

        The successor has answered a request when this returns. The former one hands over its idle connections, goes on
        with what is under way, and ends with its last connection.

        Returns:
            False: sequences are in progress, and it is not to be by `force`; it is the successor that retires.

        Raises:
            Refused, Unreached, TimeoutError: the successor does not serve; the former one still does.
        """

    async def work(self, pid: int) -> Work:
        """Return what clients have under way with a process; raises Refused, Unreached."""

    async def leave(self) -> None:
        """Accept no more connections; return when those that are open have ended in order, or the grace period is over.

        What waits in the backlog of a service manager's socket is left to the next daemon.
        """

    def use(self, config: DaemonConfig) -> None:
        """Start the next process with other settings; where it listens stays as it was settled."""

    def connect(self, pid: int) -> Admin:
        """Return a new connection to a process that was started. It need not listen yet."""

    def forget(self, pid: int) -> None:
        """Remove what a process has left that has ended with all that it had started."""

    async def check_open(self) -> None:
        """See that every endpoint takes connections.

        Raises:
            OSError: one does not.
        """

    def conceal(self, pid: int) -> None:
        """Hide the secrets in a process's arguments from other users; it has read them by now."""

    def close(self) -> None:
        """Listen no more, for good; processes that were started may still run."""


@runtime_checkable
class HandsOver(Protocol):
    """A front whose process lives on while the daemon becomes another version of itself."""

    def hand_over(self, pid: int, child: Child, restarts: Mapping[str, int]) -> ServerState:
        """Return what the next version goes on with."""

    def adopt(self, state: ServerState) -> Child:
        """Go on with that; raises OSError where the process or a socket is gone."""


def model_control(place: ServerPlace) -> dict[str, str]:
    """Return what has a server ask the daemon about its clients' requests to load and unload models.

    `privately` preloads the library: the Python before tritonserver shall not have it.
    """
    library = place.runtime.interposer
    if library is None:
        return {}
    former = os.environ.get("LD_PRELOAD")
    return {
        PRELOAD_VARIABLE: f"{library}:{former}" if former else str(library),
        "PYTRITON_MODEL_CONTROL": str(place.models.parent / MODEL_CONTROL_SOCKET),
    }


def new_shm_prefix() -> str:
    """Return a new prefix for the names of one daemon's regions in /dev/shm."""
    return f"pytriton-{os.getpid()}-{secrets.token_hex(4)}-"


def privately(argv: Sequence[str]) -> list[str]:
    """Return a command that runs `argv`: its shared memory is for this user alone, and it dies with this process."""
    launcher = str(Path(__file__).with_name("private_shm.py"))
    return [sys.executable, "-I", "-S", launcher, str(os.getpid()), *argv]
