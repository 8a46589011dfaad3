"""The daemon without processes or real waiting: all of the dispatcher's own code, on a virtual clock.

The daemon, its handlers, the control socket's server (without the socket), the registry, pools, supervisors,
the state directory and tritonserver's model repository are real. Workers, tritonserver, clients and processes are fakes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from fakes.fake_clients import Client, Request
from fakes.fake_processes import FakeProcesses
from fakes.fake_worker import FakeWorker
from fakes.triton.fake_frontend import FakeFrontend
from fakes.triton.fake_server import SERVER_PID, FakeServer
from fakes.virtual_time import VirtualLoop
from pytriton._host.service_manager.systemd import Notifier
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import control, messages
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.control.control_socket import ControlServer, Peer, _GuardedSocket
from pytriton.dispatcher.control.peers import Sender
from pytriton.dispatcher.daemon import Daemon
from pytriton.dispatcher.models.deployer import ModelDeployer
from pytriton.dispatcher.models.persistence.state_dir import Entry, Store, decode
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.server.frontend import PendingModels, ServerPlace

_DAEMON = "pytriton.dispatcher.services"
_WORKER = "pytriton.dispatcher.workers.worker_process.WorkerProcess"
#: Polls that show nothing on a virtual clock are rare here: they would be half of an idle daemon's work.
_SELDOM = {"telemetry.requests.collector._POLL_INTERVAL_S": 10.0}
_NOBODY = cast(Peer, None)  # proxies are asked by the fake tritonserver, which needs no answer sent


class PlannedWorker(FakeWorker):
    """Exits when asked, because it has no batch."""

    async def end_after_batch(self) -> None:
        self.is_ending = True
        if self.alive:
            self.end()


class _Socket:
    """A fake ROUTER: what is sent arrives immediately."""

    def __init__(self, hear: Callable[[bytes, bytes, messages.AnyMessage], None]) -> None:
        self._hear = hear

    async def send_multipart(self, parts: Sequence[bytes], copy: bool = True) -> None:
        number, message, _ = control.parse([bytes(part) for part in parts[1:]])
        self._hear(bytes(parts[0]), number, message)

    def close(self) -> None:
        pass


class FakeControlServer(ControlServer):
    """The control socket's server without a socket."""

    def open(self, socket: _Socket, sender_of: Callable[[bytes], Sender]) -> None:
        guard: Any = SimpleNamespace(admit=lambda frame: sender_of(frame.bytes))
        self._only = _GuardedSocket(cast(Any, socket), guard)
        self._sockets.append(self._only)

    async def _who(self, sender: Sender, message: messages.AnyMessage) -> str:
        """Return the sender's name; the process ids belong to other real processes of this machine."""
        return sender.name

    def bind(self, listener: int | None = None) -> None:
        # Requests cancelled by a stop are answered until these tasks have ended.
        self._receiving = [asyncio.create_task(self.serve())]

    async def serve(self) -> None:
        await asyncio.Event().wait()

    def receive(self, identity: bytes, frames: Sequence[bytes]) -> None:
        self._take(self._only, zmq.Frame(identity), [zmq.Frame(frame) for frame in frames])


class SimulatedDaemon:
    """One daemon, running from its construction on.

    Args:
        folder: for its runtime and state directories; the next daemon in it restores what this one persisted
        queues_requests: whether requests can wait for models that tritonserver has not loaded yet
        usual_plan: what workers do: "serves", "fails", "crashes", "hangs" (never finishes loading), "silent"
        settings: of the daemon

    Attributes:
        plans: what the next workers do instead, in order.
        services: of the daemon.
        workers: all that were ever started, except those in threads of clients.
    """

    control: FakeControlServer
    server: FakeServer

    def __init__(
        self,
        folder: Path,
        *,
        usual_plan: str = "serves",
        queues_requests: bool = False,
        **settings: Any,
    ) -> None:
        self.frontend = FakeFrontend(queues_requests=queues_requests)
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.processes = FakeProcesses()
        self.plans: list[str] = []
        self.usual_plan = usual_plan
        self.workers: list[FakeWorker] = []
        self._clients: dict[bytes, Client] = {}
        self._patch = pytest.MonkeyPatch()
        self.rundir = RuntimeDir(folder / "run")
        self.rundir.create()
        self.rundir.clear()
        self.state = folder / "state"
        # Nothing here must survive a crash of the machine.
        self._patch.setattr("os.fsync", lambda descriptor: None)
        for name, seconds in _SELDOM.items():
            self._patch.setattr(f"pytriton.dispatcher.{name}", seconds)
        self.store = Store(self.state)
        # Events stay in memory: writing them would cost a thread and files that no test reads.
        settings = {"event_log_size": 0, **settings}
        self.config = DaemonConfig(
            runtime_dir=str(self.rundir.path), state_dir=str(self.state), **settings
        )
        self._replace_processes(folder)
        runtime: Any = SimpleNamespace(
            tree=SimpleNamespace(version="99.0"),
            native=folder,
            python=None,
            frontend=None,
            interposer=None,
        )
        self.daemon = self.loop.ask(
            lambda: Daemon(self.config, self.rundir, runtime, self.store, Notifier())
        )
        self.services = self.daemon.services
        self.main = self.loop.create_task(self.daemon.main(None))
        self.client = self.connect()
        self.settle()

    def _replace_processes(self, folder: Path) -> None:
        backends = folder / "backends"
        backends.mkdir(exist_ok=True)
        for name, value in {
            "TritonServer": self._make_server,
            "ControlServer": self._make_control,
            "choose_frontend": self._choose_frontend,
            "KillOnDeath": lambda regions: SimpleNamespace(close=lambda: None),
            "lay_out_backends": lambda runtime, path, is_taken_over: backends,
            "lay_out_library": lambda rundir: folder,
        }.items():
            self._patch.setattr(f"{_DAEMON}.{name}", value)
        self._patch.setattr(_WORKER, SimpleNamespace(start=self._start_worker))
        self._patch.setattr("pytriton._protocol.linux.pidfd_open", self.processes.pidfd_open)

    def _choose_frontend(
        self,
        config: DaemonConfig,
        place: ServerPlace,
        pending_models: Callable[[], PendingModels],
        on_request: Callable[[str], None],
    ) -> FakeFrontend:
        self.frontend.names, self.frontend.on_request = pending_models, on_request
        return self.frontend

    def _make_server(
        self, config: DaemonConfig, place: ServerPlace, frontend: object, **callbacks: object
    ) -> FakeServer:
        self.server = FakeServer(
            place.models,
            self._attach,
            self._detach,
            grace_s=config.grace_period_s,
            vertex_model=cast(Any, config.tritonserver_options.get("vertex-ai-default-model")),
        )
        return self.server

    def _make_control(self, endpoint: str, handle: Any, **options: Any) -> FakeControlServer:
        self.control = FakeControlServer(endpoint, handle, **options)
        self.control.open(_Socket(self._hear), self._sender_of)
        return self.control

    async def _start_worker(
        self, name: str, spec: messages.ModelSpec, instance: int, **place: Any
    ) -> FakeWorker:
        worker = PlannedWorker(int(name[1:]), spec, instance, greeted=False)
        self.workers.append(worker)
        self.loop.call_soon(self._begin, worker, self.plan())
        return worker

    def plan(self) -> str:
        return self.plans.pop(0) if self.plans else self.usual_plan

    def _begin(self, worker: FakeWorker, plan: str) -> None:
        if not worker.alive or plan == "silent":
            return
        worker.greet()
        if plan == "serves":
            worker.loaded()
        elif plan == "fails":
            worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
        elif plan == "crashes":
            worker.end()

    async def _attach(self, registration: str, proxy: str) -> None:
        await self.handle(messages.Attach(registration, proxy, SERVER_PID))

    async def _detach(self, registration: str, proxy: str) -> None:
        with contextlib.suppress(RemoteFailure):  # its registration is over
            await self.handle(messages.Detach(registration, proxy))

    async def handle(
        self, message: messages.AnyMessage, peer: Peer = _NOBODY
    ) -> messages.AnyMessage | None:
        """Pass a message to its handler, as if from a worker or proxy."""
        return await self.daemon.handle(peer, message, ())

    # ── clients ──────────────────────────────────────────────────────────────────────────────────

    def connect(self, pid: int | None = None) -> Client:
        """Return a new connection of a new process."""
        identity = f"client {len(self._clients)}".encode()
        client = Client(self, self.processes.start() if pid is None else pid, identity)
        self._clients[identity] = client
        return client

    def _sender_of(self, identity: bytes) -> Sender:
        pid = self._clients[identity].pid
        return Sender(f"process {pid}", os.geteuid(), pid)

    def _hear(self, identity: bytes, number: bytes, message: messages.AnyMessage) -> None:
        self._clients[identity].hear(number, message)

    # ── time ─────────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> None:
        self.loop.settle()

    def advance(self, seconds: float) -> None:
        self.loop.advance(seconds)

    def answered(self, request: Request, at_most_s: float = 700.0) -> messages.AnyMessage:
        """Advance the clock until a request is answered; return the answer."""
        end = self.loop.time() + at_most_s
        self.settle()
        while request.answer is None and self.loop.time() < end:
            self.advance(0.5)
        assert request.answer is not None, "no answer"
        return request.answer

    def served(self, request: Request) -> messages.ModelInfo:
        """Advance the clock until a model is served."""
        answer = self.answered(request)
        assert isinstance(answer, messages.Registered), answer
        return answer.model

    # ── what there is ────────────────────────────────────────────────────────────────────────────

    def alive(self, model: str | None = None) -> list[FakeWorker]:
        """Return the live workers of one model, or of all."""
        return [one for one in self.workers if one.alive and model in (None, one._spec.name)]

    def persisted(self) -> dict[str, Entry]:
        """Return what the state directory contains."""
        files = sorted((self.state / "models").glob("*.registration"))
        return {entry.spec.name: entry for entry in (decode(file.read_bytes()) for file in files)}

    def state_of(self, model: str) -> str:
        """Return the model's state as `status` shows it; "" for an unknown model."""
        states = {one.name: one.state for one in self.loop.ask(self.services.status.model_infos)}
        return states.get(model, "")

    def is_served(self, model: str) -> bool:
        """Return whether tritonserver has the model with attached proxies of its current registration."""
        registration = self.services.registry.served.get(model)
        loaded = self.server.models.get(model)
        if registration is None or loaded is None or loaded.registration != registration.key:
            return False
        return bool(loaded.proxies) and registration.proxies.names() >= set(loaded.proxies)

    def being_changed(self) -> set[str]:
        """Return the models that are being registered, replaced, scaled or unregistered."""
        serving: ModelDeployer = self.services.registry._deployer
        return set(serving.reservations._busy)

    def is_clean(self, model: str) -> bool:
        """Return whether nothing is left of a model."""
        registry: Registry = self.services.registry
        left = [
            *(f"{worker.name} of it runs" for worker in self.alive(model)),
            *(key for key in registry.served.keys if key.startswith(f"{model}#")),
            *(["tritonserver serves it"] if model in self.server.models else []),
            *(["its failure keeps tritonserver unready"] if model in self.server.failures else []),
            *(["its folder"] if (self.rundir.models / model).exists() else []),
            *(path.name for path in (self.state / "models").iterdir() if path.stem == model),
            *(["it is to be restored"] if registry.restoring.knows(model) else []),
        ]
        assert left == [], left
        return True

    def let_batches_end(self) -> None:
        """Answer the batches of proxies that tritonserver has given up."""
        self.loop.ask(self.server.let_go)
        self.settle()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """Shut the daemon down gracefully."""
        self.services.shutdown.request("the test is over")
        self.let_batches_end()
        self.loop.run(self.main)
        self.settle()

    def close(self) -> None:
        """Clean up, whatever has happened."""
        try:
            if not self.main.done():
                self.stop()
            assert self.alive() == []
        finally:
            for worker in self.alive():
                worker.end()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.settle()
            self.processes.end_all()
            self.store.close()
            self.loop.close()
            asyncio.set_event_loop(None)
            self._patch.undo()


@contextlib.contextmanager
def successive_daemons(
    folder: Path, *, settles_s: float = 2.0, **usual: Any
) -> Iterator[Callable[..., SimulatedDaemon]]:
    """Start daemons in one folder: each stops the previous one, and gets this long to settle."""
    running: list[SimulatedDaemon] = []

    def start(**options: Any) -> SimulatedDaemon:
        if running:
            running.pop().close()
        running.append(SimulatedDaemon(folder, **{**usual, **options}))
        running[0].advance(settles_s)
        return running[0]

    yield start
    for sim in running:
        sim.close()
