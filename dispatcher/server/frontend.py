"""The interface between the daemon and the program that runs as tritonserver: a *frontend* around Triton's core.

    tritonserver.py     what the daemon uses: load, unload, states, readiness; one object for the daemon's lifetime
      ▼
    server_process.py   one process: start, readiness, liveness probes, exit
      ▼
    Frontend, Admin     how a kind of program is started and administered
      ▼
    frontends/          the kinds: NVIDIA's executable (triton_frontend.py), our own program (native_frontend.py)

services.py chooses the frontend. The modules above this interface do not depend on that choice.
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
from pytriton.dispatcher.server.endpoints import Endpoints
from pytriton.dispatcher.server.preload_layout import GateModels
from pytriton.dispatcher.upgrade.snapshot import ServerSnapshot

_log = structlog.get_logger(__name__)

SHM = Path("/dev/shm")
#: Socket in the runtime directory on which a server reports its clients' requests to load and unload models.
MODEL_CONTROL_SOCKET = "models.sock"
#: Becomes LD_PRELOAD of tritonserver (private_shm.py).
PRELOAD_VARIABLE = "PYTRITON_PRELOAD"

#: A frontend allocates fresh memory for each large response. By default glibc returns large freed blocks to the kernel at
#: once and raises these thresholds, up to these values, only as it sees larger blocks freed. Setting them from the
#: start means that responses of 6 MB touch no new pages (500 each before), which saves a sixth of the CPU time. A
#: user's own values take precedence.
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}


@dataclass(frozen=True)
class ServerPlace:
    """The directories and callbacks that every frontend receives.

    Attributes:
        runtime: the installation of Triton
        models: the model repository to serve
        backends: the directory of its backends, see lay_out_backends()
        shm_prefix: prefix of the names of its regions in /dev/shm
        kill_on_death: kills the process and its descendants when the daemon is killed
        on_line: called with each line that the process prints; secrets are removed
    """

    runtime: ServerRuntime
    models: Path
    backends: Path
    shm_prefix: str
    kill_on_death: KillOnDeath
    on_line: OnLine

    def sweep_shared_memory(self) -> None:
        """Remove the shared memory regions left behind by a process that has exited.

        Any user can create files there, so files that this user cannot remove are left in place.
        """
        try:
            left = list(SHM.glob(f"{self.shm_prefix}*"))
        except OSError as error:  # for example, the descriptor limit is reached
            _log.warning("could not list tritonserver shared memory regions", reason=str(error))
            return
        for region in left:
            try:
                region.unlink(missing_ok=True)
            except OSError as error:  # noqa: PERF203, remove the others all the same
                _log.warning(
                    "could not remove a tritonserver shared memory region", reason=str(error)
                )


class ServerRefused(Exception):
    """The server rejected a request; the text says why."""


class Unreached(Exception):
    """The server did not answer: the connection failed or was closed before the answer."""


class ClientWork(NamedTuple):
    """The clients' work in progress at a process.

    Attributes:
        connections: open connections
        requests: requests in Triton's core
        sequences: sequences that have started and not ended
    """

    connections: int
    requests: int
    sequences: int


class Admin(Protocol):
    """A connection over which the daemon administers one server process.

    All methods raise ServerRefused or Unreached.
    """

    async def is_live(self) -> bool:
        """Probe liveness. Any answer counts as a sign of life."""

    async def version(self) -> str:
        """Return the version of Triton's core, for example "2.51.0"."""

    async def load(self, name: str, config: str | None) -> None:
        """Load a model with a configuration (JSON), or with its own if None."""

    async def unload(self, name: str) -> None:
        """Start to unload a model."""

    async def repository_states(self) -> dict[str, str]:
        """Return the state of each model in all repositories; "" for one that was never loaded."""

    async def close(self) -> None:
        """Close the connection. Pending requests raise Unreached."""


class ReadinessGate(Protocol):
    """A gate that keeps a server from reporting ready until the daemon opens it.

    Attributes:
        in_repository: whether the gate is a model in the repository
    """

    @property
    def in_repository(self) -> bool: ...

    async def open(self, server: GateModels) -> None:
        """Let the server report ready once all its models are; raise RemoteFailure on failure."""

    async def close(self, server: GateModels) -> None:
        """Make the server report "not ready". Does nothing if the server is not up."""


class PendingModels(NamedTuple):
    """Models that tritonserver has not loaded but that requests may wait for.

    Attributes:
        lazy: loaded on the first request; readiness probes report them ready, like suspended models
        loading: loaded without a request; readiness probes report them not ready
    """

    lazy: Sequence[str] = ()
    loading: Sequence[str] = ()

    def without(self, others: Collection[str]) -> PendingModels:
        """Return a copy without the models in `others`."""
        return PendingModels(*([name for name in names if name not in others] for names in self))


class Frontend(Protocol):
    """A kind of program around Triton's core. Created once; `start` is called for each process."""

    @property
    def program(self) -> Path:
        """The executable, as shown by status."""

    @property
    def endpoints(self) -> Endpoints:
        """The endpoints where clients reach the frontend."""

    @property
    def http_socket(self) -> Path | None:
        """The unix socket of its HTTP endpoint for the daemon's own processes, independent of the clients' settings; or
        None.
        """

    def choose_ports(self) -> None:
        """Choose the ports to listen on.

        Raises:
            PortError: an address from the settings cannot be listened on.
        """

    def make_gate(self, backend: str) -> ReadinessGate:
        """Put the daemon in control of all processes' readiness; `backend` can load the harmless placeholder model."""

    async def start(
        self, preload: Sequence[str], *, vertex: bool, as_successor: bool = False
    ) -> Child:
        """Start a process. It need not be ready when this returns.

        Args:
            preload: names of models in the repository to load before accepting requests. A model that fails to load
                does not end the process.
            vertex: whether Vertex AI's frontend may start because its model is among them
            as_successor: another process keeps serving until `switch_over`; requires `replaces`

        Raises:
            OSError: the process could not be started.
        """

    @property
    def replaces(self) -> bool:
        """Whether a process can start beside another one and replace it without losing a request."""

    @property
    def queues_requests(self) -> bool:
        """Whether requests can wait for models that a process has not loaded yet; see `set_pending_models`."""

    def set_pending_models(
        self, names: Callable[[], PendingModels], on_request: Callable[[str], None]
    ) -> None:
        """Let requests wait for the models that `names` returns when a process starts.

        `on_request` is called with the name of each model that a request waits for. The request resumes when
        the model is loaded, when `forget_pending` is called, or after `resume_timeout_s`.
        """

    async def forget_pending(self, name: str) -> None:
        """Stop letting requests wait for a model."""

    @property
    def vertex_needs_model(self) -> bool:
        """Whether Vertex AI's frontend starts only after its model is loaded."""

    async def switch_over(self, former: int, successor: int, *, force: bool) -> bool:
        """Move clients' connections to a process that was started beside the serving one.

        The successor has answered a request when this returns. The former process hands over its idle connections,
        finishes requests in progress, and exits with its last connection.

        Returns:
            False if sequences are in progress and `force` is not set; then the successor retires instead.

        Raises:
            ServerRefused, Unreached, TimeoutError: the successor does not serve; the former process still does.
        """

    async def work(self, pid: int) -> ClientWork:
        """Return the clients' work in progress at a process; raises ServerRefused, Unreached."""

    async def stop_accepting(self) -> None:
        """Stop accepting connections; return when the open ones have ended or the grace period has expired.

        Connections in the backlog of a service manager's socket are left to the next daemon.
        """

    def use(self, config: DaemonConfig) -> None:
        """Use these settings for the next process; the listening addresses do not change."""

    def connect(self, pid: int) -> Admin:
        """Return a new connection to a started process, which need not listen yet."""

    def forget(self, pid: int) -> None:
        """Remove what an exited process and its descendants have left behind."""

    async def check_listening(self) -> None:
        """Check that every endpoint accepts connections.

        Raises:
            OSError: an endpoint does not.
        """

    def hide_secrets(self, pid: int) -> None:
        """Hide the secrets in a process's arguments from other users. The process must have read them."""

    def close(self) -> None:
        """Stop listening permanently. Processes that were started may still run."""


@runtime_checkable
class SupportsHandover(Protocol):
    """A frontend whose process keeps running while the daemon upgrades itself in place."""

    def hand_over(self, pid: int, child: Child, restarts: Mapping[str, int]) -> ServerSnapshot:
        """Return the state that the next version adopts."""

    def adopt(self, state: ServerSnapshot) -> Child:
        """Adopt that state; raises OSError if the process or a socket is gone."""


def model_control(place: ServerPlace) -> dict[str, str]:
    """Return the environment that makes a server ask the daemon about clients' requests to load and unload models.

    `privately` preloads the library only for tritonserver, not for the Python launcher before it.
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
    """Return a command that runs `argv` with shared memory private to this user and kills it when this process dies."""
    launcher = str(Path(__file__).with_name("private_shm.py"))
    return [sys.executable, "-I", "-S", launcher, str(os.getpid()), *argv]
