"""The tritonserver that the daemon owns: its command line, its start and readiness, its models, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from pytriton.dispatcher.base.child import Child, OnLine, bound_to_us, describe_exit
from pytriton.dispatcher.base.kill_on_death import KillOnDeath
from pytriton.dispatcher.base.news import News
from pytriton.dispatcher.base.ports import settle_ports
from pytriton.dispatcher.base.states import ServerState, StateMachine
from pytriton.dispatcher.base.tasks import uninterrupted
from pytriton.dispatcher.install.proxy_compiler import NATIVE_BACKEND
from pytriton.dispatcher.install.server_runtime import (
    ServerRuntime,
    python_link,
    server_environment,
)
from pytriton.dispatcher.settings import grpc_tls
from pytriton.dispatcher.settings.declarations import DaemonConfig
from pytriton.dispatcher.triton import (
    admin_token,
    liveness,
    own_repository,
    preloading,
    vertex_stand_in,
)
from pytriton.dispatcher.triton.admin_client import AdminClient, reachable
from pytriton.dispatcher.triton.own_repository import BACKEND
from pytriton.ipc import messages
from pytriton.ipc.calls import KEY_VARIABLE
from pytriton.ipc.errors import ErrorKind, RemoteFailure

_log = structlog.get_logger(__name__)

#: tritonserver offers no event for "ready" that survives --log-info=false, so it is asked this
#: often.
_READY_INTERVAL_S = 0.02
#: Once its models are unloaded nothing is under way: tritonserver then only waits for idle
#: connections.
_EXIT_GRACE_S = 2.0
#: A process that is ending closes its connections first.
_END_SEEN_S = 1.0
SHM = Path("/dev/shm")
#: Starts a program whose shared memory is for this user alone.
_PRIVATELY = (sys.executable, "-I", "-S", str(Path(__file__).with_name("private_shm.py")))

#: Its HTTP part takes memory for each answer anew. glibc gives large pieces of freed memory back to the kernel at once,
#: and raises these limits by itself, up to these values, as it sees larger pieces freed. With them from the beginning
#: answers of 6 MB touch no fresh pages (500 each before), for a sixth less CPU time. A user's own values come first.
_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}


class ServerStartError(Exception):
    """tritonserver did not come up; the text holds what it said last."""


class ServerLost(RemoteFailure):
    """tritonserver is not up, or ended before it had answered."""


def new_shm_prefix() -> str:
    """Return what the names of one daemon's regions in /dev/shm begin with."""
    return f"pytriton-{os.getpid()}-{secrets.token_hex(4)}-"


class TritonServer:
    """One tritonserver process at a time, started again by the daemon when it ends by itself."""

    def __init__(
        self,
        config: DaemonConfig,
        runtime: ServerRuntime,
        *,
        models: Path,
        backends: Path,
        shm_prefix: str,
        kill_on_death: KillOnDeath,
        on_line: OnLine,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._models = models
        self._backends = backends
        self._on_line = on_line
        self._machine = StateMachine(ServerState.STARTING)
        #: Of its states.
        self.news = News()
        self._child: Child | None = None
        self._client: AdminClient | None = None
        self._watch: asyncio.Task[None] | None = None
        self._hung = ""  #: how the process was found to hang, if it was
        self._silence = ""  #: why it was not reached last
        self._shm_prefix = shm_prefix
        self._kill_on_death = kill_on_death
        #: Of Vertex AI's frontend, when that is up: it insists on a loaded model as soon as it starts.
        self.vertex_model: str | None = None
        self.http_port = config.http_port
        self.grpc_port = config.grpc_port
        self.metrics_port = config.metrics_port

    @property
    def proxy_is_native(self) -> bool:
        """Whether models are served by the compiled proxy."""
        return self._runtime.native is not None

    def choose_ports(self) -> None:
        """Settle the ports: 0 becomes a free one, any other has to be free.

        Raises:
            PortError: a port is in use, or wanted twice; names who holds it.
        """
        config = self._config
        wanted = {
            f"{name}_port": (getattr(config, f"{name}_address"), getattr(config, f"{name}_port"))
            for name in ("http", "grpc", "metrics")
            if getattr(config, f"allow_{name}")
        }
        for name, port in settle_ports(wanted).items():
            setattr(self, name, port)

    async def start(self, preload: Mapping[str, Mapping[str, Any]] | None = None) -> set[str]:
        """Start the process and return when it is ready to load models.

        Args:
            preload: models that it shall load before it opens its ports: name -> configuration

        Returns:
            Those of them that it has loaded.

        Raises:
            ServerStartError: it ended, or did not become ready in time.
        """
        preload = preload or {}
        self.vertex_model = vertex_stand_in.wanted(self._config.tritonserver_options)
        if self.vertex_model not in preload:
            self.vertex_model = None
        if self._machine.state is not ServerState.STARTING:
            self._change(ServerState.STARTING)
        names = preloading.lay_out(self._models, preload, gate=self._gated)
        argv = bound_to_us([*_PRIVATELY, str(self._runtime.tree.binary), *self._arguments(names)])
        python = python_link(self._backends)
        env = {**_MEMORY, **server_environment(self._runtime, os.environ, python)}
        env[KEY_VARIABLE] = secrets.token_hex(16)
        # The stub's sys.path begins with "": in any other folder a user's numpy.py would run in the
        # proxy.
        cwd = str(self._backends / BACKEND)
        # 077: what it creates in /dev/shm and in its cache is for this user alone.
        self._child = await Child.start(
            argv,
            env=env,
            cwd=cwd,
            on_line=self._say,
            kill_on_death=self._kill_on_death,
            umask=0o077,
        )
        self._client = self._connect()
        await self._wait_ready(self._child, self._client)
        states = await self._states_at_first(self._child, self._client)
        preloading.clear(self._models, names)
        admin_token.blank_out(self._child.pid, self._config.access_token)
        self._hung = ""
        self._watch = asyncio.create_task(self._kill_when_hung(self._child, self._client))
        self._change(ServerState.READY)
        _log.info("tritonserver is ready", server_pid=self._child.pid, **self._urls())
        verbose = self._config.tritonserver_options.get("log-verbose", "0")
        if verbose not in ("0", "false"):
            _log.warning(
                "tritonserver's verbose log is on: it may slow inference", level_of_it=verbose
            )
        return {name for name in preload if states.get(name) == "READY"}

    async def _states_at_first(self, child: Child, client: AdminClient) -> dict[str, str]:
        """Return the states of the models that it was to load before it opened its ports.

        Raises:
            ServerStartError: it has none: something else of it could not be initialized.
        """
        try:
            return await client.repository_states()
        except Exception as error:  # InferenceServerException, or its transport's own
            raise ServerStartError(
                f"tritonserver is up but does not work ({error}). It said:\n{self._last_lines(child)}"
            ) from error

    async def show_ready(self) -> None:
        """From now on it says that it is ready (`/v2/health/ready`), if all models that it has are.

        Raises:
            RemoteFailure: tritonserver refused it or is not up.
        """
        if not self._gated:
            return
        preloading.make_gate(self._models)
        await self._load_and_unload(preloading.GATE)
        await self._until_unloaded(preloading.GATE)
        preloading.remove_gate(self._models)

    async def forget_failure(self, name: str) -> None:
        """A model could not be loaded, and is not to be: without this, tritonserver is never ready again."""
        try:
            await self._load_and_unload(name)
        except RemoteFailure as failure:
            _log.warning("tritonserver remembers a load that failed", model=name, why=failure.text)

    async def _load_and_unload(self, name: str) -> None:
        backend = NATIVE_BACKEND if self.proxy_is_native else BACKEND
        await self.load(name, preloading.harmless(name, backend))
        await self.unload(name)

    async def _until_unloaded(self, name: str) -> None:
        """Wait until a model has gone whose unload has begun: tritonserver is not ready before that."""
        while (await self.repository_states()).get(name) in ("READY", "UNLOADING"):
            await asyncio.sleep(_READY_INTERVAL_S)  # tritonserver has no event for it either

    async def show_unready(self) -> None:
        """From now on it says that it is not ready; nothing happens when it is not up."""
        if not self._gated:
            return
        preloading.make_gate(self._models)
        with contextlib.suppress(RemoteFailure):  # which is what a closed gate is
            await self.load(preloading.GATE, preloading.closed_gate())

    async def quit(self, busy: Callable[[], bool]) -> None:
        """Have the process end, to be started again: what is under way is answered, at most for the grace period."""
        child = self._child
        if child is None or child.exited.done():
            return
        os.kill(child.pid, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + self._config.grace_period_s
        while not child.exited.done():
            await asyncio.wait([child.exited], timeout=_EXIT_GRACE_S)
            if not busy() or asyncio.get_running_loop().time() > deadline:
                child.signal_group(signal.SIGKILL)

    @property
    def _gated(self) -> bool:
        """Whether its readiness is the daemon's to tell."""
        strict = self._config.tritonserver_options.get("strict-readiness", "true")
        return self._config.ready_when != "up" and strict not in ("false", "0")

    async def ended(self) -> str:
        """Wait for the process to end, and say how it did."""
        assert self._child is not None
        code = await asyncio.shield(self._child.exited)
        self._child.signal_group(signal.SIGKILL)  # its stubs, which wait for it in vain
        await self._child.drained()
        return f"tritonserver (pid {self._child.pid}) {describe_exit(code)}{self._hung}"

    async def clean_up(self) -> None:
        """After the process ended by itself, or did not start: end what is left of it. It may be started again then."""
        if self._machine.state is not ServerState.STARTING:
            self._change(ServerState.STARTING)
        await self._close_client()
        if self._child is not None:
            await self._child.stop(0)  # its stubs
        self._sweep_shared_memory()

    async def load(self, name: str, config: dict[str, Any] | None) -> None:
        """Load a model, or load it anew with another configuration while the old one serves on until then.

        Without a configuration, it is the one in the model's folder. tritonserver cannot be stopped in the middle:
        cancelled, this returns when it knows the outcome.

        Raises:
            ServerLost: it is not up, or has ended meanwhile.
            RemoteFailure: tritonserver refused it (it says why).
            CancelledError: it was cancelled; the model may be loaded.
        """
        text = None if config is None else json.dumps(config)
        child = self._child
        loading = self._ask("load", f"model {name}", lambda client: client.load(name, text))
        try:
            await uninterrupted(loading, self._config.grace_period_s)
        except RemoteFailure as failure:
            if isinstance(failure, ServerLost) or child is None:
                raise
            if not _is_answer(failure.__cause__) and await _ends(child):
                raise ServerLost(ErrorKind.UNAVAILABLE, failure.text) from failure
            raise

    async def unload(self, name: str) -> None:
        """Begin to unload a model: it takes no more requests, and its proxies detach when all are answered.

        A tritonserver that ends meanwhile has no models any more.

        Raises:
            RemoteFailure: tritonserver refused or is not up.
        """
        child = self._child
        try:
            await self._ask("unload", f"model {name}", lambda client: client.unload(name))
        except RemoteFailure:
            if child is None or not await _ends(child):
                raise

    async def repository_states(self) -> dict[str, str]:
        """Return the names of all models that it sees, served or not, with their states.

        Raises:
            RemoteFailure: it is not up, or a repository cannot be read.
        """
        states: dict[str, str] = {}

        async def ask(client: AdminClient) -> None:
            states.update(await client.repository_states())

        await self._ask("list", "its models", ask)
        return states

    async def stop(self) -> None:
        """End the process; its models should be unloaded by now."""
        if self._machine.state is ServerState.STOPPED:
            return
        self._change(ServerState.STOPPING)
        await self._close_client()
        if self._child is not None:
            await self._child.stop(_EXIT_GRACE_S)
        self._sweep_shared_memory()
        self._change(ServerState.STOPPED)

    def kill(self) -> None:
        """End the process and its stubs at once, and give back the shared memory that they cannot."""
        if self._child is not None and not self._child.exited.done():
            self._child.signal_group(signal.SIGKILL)
        self._sweep_shared_memory()

    @property
    def ready(self) -> bool:
        return self.state is ServerState.READY

    @property
    def ends(self) -> bool:
        """Whether it is stopped, or being stopped, for good."""
        return self._machine.state in (ServerState.STOPPING, ServerState.STOPPED)

    @property
    def state(self) -> ServerState:
        """Where it stands; from its end on it is being started again, though cleaning up comes first."""
        ended = self._machine.state is ServerState.READY and not self._running
        return ServerState.STARTING if ended else self._machine.state

    @property
    def _running(self) -> bool:
        return self._child is not None and not self._child.exited.done()

    def info(self) -> messages.ServerInfo:
        """Return what status shows."""
        return messages.ServerInfo(
            state=self.state.value,
            pid=self._child.pid if self._child is not None and self._running else None,
            version=self._runtime.tree.version or "",
            binary=str(self._runtime.tree.binary),
            **self._urls(),
        )

    def _urls(self) -> dict[str, str]:
        config = self._config
        http = reachable(config.http_address)
        grpc = reachable(config.grpc_address)
        scheme = "grpcs" if grpc_tls.uses_tls(config) else "grpc"
        metrics = reachable(config.metrics_address)
        return {
            "http_url": f"http://{http}:{self.http_port}" if config.allow_http else "",
            "grpc_url": f"{scheme}://{grpc}:{self.grpc_port}" if config.allow_grpc else "",
            "metrics_url": (
                f"http://{metrics}:{self.metrics_port}/metrics" if config.allow_metrics else ""
            ),
        }

    def _arguments(self, preload: list[str]) -> list[str]:
        config = self._config
        options: dict[str, str | list[str]] = {
            "model-repository": [str(self._models), *own_repository.cloud(config.model_repository)],
            "model-control-mode": "explicit",
            "backend-directory": str(self._backends),
            **self._completion(),
            "backend-config": [f"python,shm-region-prefix-name={self._shm_prefix}"],
            "exit-timeout-secs": str(max(1, round(config.grace_period_s))),
            **admin_token.restrictions(config),
        }
        if preload:
            options["load-model"] = preload
            options["exit-on-error"] = (
                "false"  # else it ends with a model, or the gate, that it cannot load
            )
        for name in ("http", "grpc", "metrics"):
            allowed = getattr(config, f"allow_{name}")
            options[f"allow-{name}"] = "true" if allowed else "false"
            if allowed:
                options[f"{name}-address"] = getattr(config, f"{name}_address")
                options[f"{name}-port"] = str(getattr(self, f"{name}_port"))
        if self._runtime.tree.caches is not None:
            options["cache-directory"] = str(self._runtime.tree.caches)
        if config.response_cache_size:
            options["cache-config"] = f"local,size={config.response_cache_size}"
        no_vertex = (
            vertex_stand_in.wanted(config.tritonserver_options) and self.vertex_model is None
        )
        if no_vertex:
            options["allow-vertex-ai"] = "false"  # on Vertex AI ($AIP_MODE), its default is true
        for name, value in config.tritonserver_options.items():
            if name == "exit-on-error" or (no_vertex and "vertex-ai" in name):
                continue
            former = options.get(name)
            given = value if isinstance(value, list) else [value]
            options[name] = [*former, *given] if isinstance(former, list) else value
        return [
            f"--{name}={value}" if value else f"--{name}"
            for name, values in options.items()
            for value in (values if isinstance(values, list) else [values])
        ]

    def _completion(self) -> dict[str, str | list[str]]:
        """A registered model's configuration is complete; asking the proxy to complete it would start every stub
        twice. Only models of other backends than Python's may need it."""
        others = {one.name for one in self._backends.iterdir()} - {
            BACKEND,
            NATIVE_BACKEND,
            "python",
        }
        needed = self._config.model_repository and others
        return {} if needed else {"disable-auto-complete-config": ""}

    def _change(self, state: ServerState) -> None:
        self._machine.change(state)
        self.news.tell()

    def _connect(self) -> AdminClient:
        return AdminClient(self._config, self.http_port, self.grpc_port)

    async def _kill_when_hung(self, child: Child, client: AdminClient) -> None:
        """Make a process that hangs one that ended; the daemon knows how to go on from there."""
        config = self._config
        interval_s, timeout_s = config.server_probe_interval_s, config.server_probe_timeout_s
        if not interval_s or not await liveness.wait_hung(
            child, client, self._connect, interval_s=interval_s, timeout_s=timeout_s
        ):
            return
        self._hung = (
            f": the daemon killed it, because it had given no sign of life for {timeout_s:g} s "
            f"(server_probe_timeout_s); its state was {liveness.process_state(child.pid)}"
        )
        child.signal_group(signal.SIGKILL)

    async def _wait_ready(self, child: Child, client: AdminClient) -> None:
        deadline = asyncio.get_running_loop().time() + self._config.server_start_timeout_s
        while not await self._answers(client):
            if child.exited.done():
                await child.drained()
                end = describe_exit(child.exited.result())
                raise ServerStartError(
                    f"tritonserver {end} while starting. It said:\n{self._last_lines(child)}"
                )
            if asyncio.get_running_loop().time() > deadline:
                raise ServerStartError(
                    f"tritonserver was not ready within {self._config.server_start_timeout_s:g} s "
                    f"(server_start_timeout_s). Asking it failed with: {self._silence}. "
                    f"It said:\n{self._last_lines(child)}"
                )
            await asyncio.wait([child.exited], timeout=_READY_INTERVAL_S)

    async def _answers(self, client: AdminClient) -> bool:
        """Whether it is live, and every endpoint listens: they come up one after another."""
        try:
            live = await client.is_live()
            for name in ("http", "grpc", "metrics"):
                if live and getattr(self._config, f"allow_{name}"):
                    address = reachable(getattr(self._config, f"{name}_address")).strip("[]")
                    _, writer = await asyncio.open_connection(
                        address, getattr(self, f"{name}_port")
                    )
                    writer.close()
            return live
        except Exception as error:  # each of its transports has connection errors of its own
            self._silence = f"{type(error).__name__}: {error}"
            _log.debug("tritonserver does not answer yet", error=self._silence)
            return False

    def _say(self, pid: int, line: bytes) -> None:
        token = self._config.access_token
        self._on_line(pid, line if token is None else line.replace(token.encode(), b"***"))

    def _last_lines(self, child: Child) -> str:
        return admin_token.hide(child.last_lines(), self._config.access_token)

    async def _ask(
        self, verb: str, what: str, call: Callable[[AdminClient], Awaitable[None]]
    ) -> None:
        client = self._client
        if not self.ready or client is None:
            raise ServerLost(
                ErrorKind.UNAVAILABLE,
                f"cannot {verb} {what}: tritonserver is {self.state.value}",
            )
        try:
            await call(client)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # InferenceServerException, or its transport's own
            said = getattr(error, "message", None)
            text = said() if callable(said) else f"{type(error).__name__}: {error}"
            raise RemoteFailure(
                ErrorKind.LOAD_FAILED, f"tritonserver did not {verb} {what}: {text}"
            ) from error

    async def _close_client(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
            self._watch = None
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _sweep_shared_memory(self) -> None:
        for left in SHM.glob(f"{self._shm_prefix}*"):
            left.unlink(missing_ok=True)


def _is_answer(error: BaseException | None) -> bool:
    """Whether an error of the admin client is tritonserver's own answer, and not one of the connection."""
    status = getattr(error, "status", None)
    code = status() if callable(status) else None
    return code is not None and code not in ("StatusCode.UNAVAILABLE", "StatusCode.CANCELLED")


async def _ends(child: Child) -> bool:
    """Whether a process has ended, or does so in this moment."""
    await asyncio.wait([child.exited], timeout=_END_SEEN_S)
    return child.exited.done()
