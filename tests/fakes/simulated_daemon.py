"""The daemon without processes and without waiting: all of the dispatcher's own code, on a virtual clock.

Real are the daemon, its handlers, the control socket's server but for the socket, the registry, pools, supervisors,
the state directory, tritonserver's model repository. Workers, tritonserver, clients and their processes are fakes.
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
#: What tells nothing on a virtual clock happens seldom: it would be half of what a daemon does that has nothing to do.
_SELDOM = {
    "telemetry.metrics.daemon_metrics._POLL_INTERVAL_S": 10.0,
    "telemetry.requests.collector._POLL_INTERVAL_S": 10.0,
}
_NOBODY = cast(Peer, None)  # proxies are asked by the fake tritonserver, which needs no answer sent


class PlannedWorker(FakeWorker):
    """Ends when it is told to: it has no batch."""

    async def end_after_batch(self) -> None:
        self.is_ending = True
        if self.alive:
            self.end()


class _Socket:
    """The ROUTER: what is sent is heard at once."""

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
        """Return the name that it has: the machine has other processes of these numbers."""
        return sender.name

    def bind(self, listener: int | None = None) -> None:
        # As long as the end of these takes, requests that have heard that the daemon stops are answered.
        self._receiving = [asyncio.create_task(self.serve())]

    async def serve(self) -> None:
        await asyncio.Event().wait()

    def receive(self, identity: bytes, frames: Sequence[bytes]) -> None:
        self._take(self._only, zmq.Frame(identity), [zmq.Frame(frame) for frame in frames])


class SimulatedDaemon:
    """One daemon, from its start on.

    Args:
        folder: for its runtime directory and its state directory; the next one in it restores what this one kept
        queues_requests: requests can wait for models that tritonserver does not have yet
        usual_plan: what becomes of workers: "serves", "fails", "crashes", "hangs" (it loads for ever), "silent"
        settings: of the daemon

    Attributes:
        plans: what becomes of the next workers instead, in order.
        services: of the daemon.
        workers: all that were ever started, but those in threads of a client.
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
        self._patch.setattr("os.fsync", lambda descriptor: None)  # nothing here outlives a machine
        for name, seconds in _SELDOM.items():
            self._patch.setattr(f"pytriton.dispatcher.{name}", seconds)
        self.store = Store(self.state)
        # Events stay in memory: a thread that writes them wakes for each, and what no test reads costs files.
        settings = {"event_log_size": 0, **settings}
        self.config = DaemonConfig(
            runtime_dir=str(self.rundir.path), state_dir=str(self.state), **settings
        )
        self._replace_processes(folder)
        runtime: Any = SimpleNamespace(
            tree=SimpleNamespace(version="99.0"), native=folder, python=None, frontend=None
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
        """Hand a message to its handler, as it comes from a worker or a proxy."""
        return await self.daemon.handle(peer, message, ())

    # ── clients ──────────────────────────────────────────────────────────────────────────────────

    def connect(self, pid: int | None = None) -> Client:
        """Return a new connection, of a new process."""
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
        """Let time pass until a request is answered; return the answer."""
        end = self.loop.time() + at_most_s
        self.settle()
        while request.answer is None and self.loop.time() < end:
            self.advance(0.5)
        assert request.answer is not None, "no answer"
        return request.answer

    def served(self, request: Request) -> messages.ModelInfo:
        """Let time pass until a model is served."""
        answer = self.answered(request)
        assert isinstance(answer, messages.Registered), answer
        return answer.model

    # ── what there is ────────────────────────────────────────────────────────────────────────────

    def alive(self, model: str | None = None) -> list[FakeWorker]:
        """Return the workers that live, of one model or of all."""
        return [one for one in self.workers if one.alive and model in (None, one._spec.name)]

    def persisted(self) -> dict[str, Entry]:
        """Return what the state directory holds."""
        files = sorted((self.state / "models").glob("*.registration"))
        return {entry.spec.name: entry for entry in (decode(file.read_bytes()) for file in files)}

    def state_of(self, model: str) -> str:
        """Return where a model stands, as status shows it; "" for one that there is not."""
        states = {one.name: one.state for one in self.loop.ask(self.services.status.model_infos)}
        return states.get(model, "")

    def is_served(self, model: str) -> bool:
        """Return whether tritonserver has a model, with attached proxies of the registration that counts."""
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
        """The batches of proxies that tritonserver has given up are answered."""
        self.loop.ask(self.server.let_go)
        self.settle()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """Stop the daemon in order."""
        self.services.shutdown.request("the test is over")
        self.let_batches_end()
        self.loop.run(self.main)
        self.settle()

    def close(self) -> None:
        """Leave nothing, whatever has happened."""
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
    """Starts daemons in one folder: each ends the one before, and has so long to settle."""
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
