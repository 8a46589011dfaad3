"""Handlers of messages from workers and proxies: each acts on one message and returns the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository.model_control import ModelControl
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.services import Services
from pytriton.dispatcher.settings_reload import SettingsReloader
from pytriton.dispatcher.shutdown import ShutdownController
from pytriton.dispatcher.upgrade.snapshot import PROTOCOLS
from pytriton.dispatcher.workers.call_deadlocks import PendingCalls
from pytriton.dispatcher.workers.hosted_worker import HostedWorker

#: Seconds that a request for readiness waits for a lazy model; a proxy waits 10 s for its answer.
RESTORE_WAIT_S = 5.0

Payloads = Sequence[bytes]
MessageHandler = Callable[[Peer, Any, Payloads], Awaitable[Optional[messages.AnyMessage]]]


@dataclass(frozen=True)
class WorkerHandlers:
    """Handle the messages of workers."""

    registry: Registry
    model_control: ModelControl
    pending_calls: PendingCalls
    shutdown: ShutdownController

    async def worker_hello(
        self, peer: Peer, message: messages.WorkerHello, payloads: Payloads
    ) -> None:
        """Send a new worker its model."""
        check_protocol(message.protocol, f"worker {message.worker}")
        registration, worker = self.registry.worker(message.worker)
        worker.protocol = message.protocol
        await worker.hello(peer, registration.payloads)

    async def worker_ready(
        self, peer: Peer, message: messages.WorkerReady, payloads: Payloads
    ) -> None:
        """Record that a worker is ready."""
        registration, worker = self.registry.worker(message.worker)
        why = registration.complete_config(message.completion)
        if why is None:
            worker.loaded()
        else:
            worker.failed(messages.WorkerFailed(worker.name, why, ""))

    async def worker_failed(
        self, peer: Peer, message: messages.WorkerFailed, payloads: Payloads
    ) -> None:
        """Record that a worker could not load its callable."""
        self.registry.worker(message.worker)[1].failed(message)

    async def worker_recycle_due(
        self, peer: Peer, message: messages.WorkerRecycleDue, payloads: Payloads
    ) -> None:
        """Record that a worker has passed a limit and should be recycled."""
        self.registry.worker(message.worker)[1].request_recycle(message.text)

    async def worker_unrecoverable(
        self, peer: Peer, message: messages.WorkerUnrecoverable, payloads: Payloads
    ) -> None:
        """Stop the daemon on a callable's request, so that its service manager restarts it."""
        registration, _ = self.registry.worker(message.worker)
        self.shutdown.unrecoverable(registration.spec.name, message.text)

    async def worker_readiness(
        self, peer: Peer, message: messages.WorkerReadiness, payloads: Payloads
    ) -> None:
        """Record that the answer of a model's own `is_ready` has changed."""
        registration, worker = self.registry.worker(message.worker)
        if worker.not_ready_reason != (
            None if message.ready else message.why
        ):  # otherwise it is a repetition
            await registration.pool.hear_readiness(worker, ready=message.ready, why=message.why)

    async def worker_ended(
        self, peer: Peer, message: messages.WorkerEnded, payloads: Payloads
    ) -> None:
        """Record that a hosted worker has exited."""
        worker = self.registry.worker(message.worker)[1]
        if isinstance(worker, HostedWorker):  # the kernel reports the exit of a process
            worker.mark_ended(message.how)

    async def load_other(
        self, peer: Peer, message: messages.LoadOther, payloads: Payloads
    ) -> messages.AnyMessage:
        """Load a model on request of another one."""
        await self.registry.restoring.restore_and_wait(message.name, RESTORE_WAIT_S)
        await self.model_control.load(message, payloads)
        return messages.Done()

    async def unload_other(
        self, peer: Peer, message: messages.UnloadOther, payloads: Payloads
    ) -> messages.AnyMessage:
        """Unload a model on request of another one."""
        await self.registry.restoring.restore_and_wait(message.name, RESTORE_WAIT_S)
        await self.model_control.unload(message)
        return messages.Done()

    async def ask_readiness(
        self, peer: Peer, message: messages.AskReadiness, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return whether a model is ready. Load it first if it is lazy."""
        await self.registry.restoring.restore_and_wait(message.name, RESTORE_WAIT_S)
        return messages.Readiness(self.model_control.is_ready(message.name, message.version))

    async def may_call(
        self, peer: Peer, message: messages.MayCall, payloads: Payloads
    ) -> messages.AnyMessage:
        """Check that a call back to a model can be answered, and does not deadlock."""
        pool = self.registry.by_name(message.model).pool
        return pool.proxies.judge_call(message.chain, message.workers)

    async def calls_wait(
        self, peer: Peer, message: messages.CallsWait, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return which of the calls that have waited for a while are deadlocked."""
        self.pending_calls.record(message.worker, message.pid, message.models, message.proxy)
        stuck = self.pending_calls.stuck(message.worker, self.registry.workers_of)
        text = ""
        if stuck:
            own = self.registry.worker(message.worker)[0].spec.name
            text = (
                f"the calls wait for each other in a cycle and are deadlocked: a worker of {own} waits for "
                f"{' and '.join(stuck)}, all workers of which wait for calls that wait for {own}. Break the cycle "
                "of calls, or register more instances"
            )
        return messages.StuckCalls(stuck, text)


@dataclass(frozen=True)
class ProxyHandlers:
    """Handle the messages of proxies."""

    registry: Registry
    server: TritonServer
    settings: SettingsReloader

    async def attach(
        self, peer: Peer, message: messages.Attach, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return the worker that serves a proxy."""
        check_protocol(message.protocol, "the proxy")
        registration = self.registry.by_key(message.registration)
        server = self.server.check_proxy(message.pid)
        stub = None if server == message.pid else message.pid
        registration.proxies.seen(message.instance, stub, server)
        self._check_start_not_delayed(registration)
        attached = await registration.pool.proxies.route(
            message.instance, message.lost, message.avoid, message.version, batch=message.batch
        )
        return msgspec.structs.replace(attached, tracing=self.settings.tracing)

    async def lane_lost(
        self, peer: Peer, message: messages.LaneLost, payloads: Payloads
    ) -> messages.AnyMessage:
        """Decide what to do with a batch whose worker was lost."""
        pool = self.registry.by_key(message.registration).pool
        return await pool.batch_retry.on_loss(message)

    async def batch_overdue(
        self, peer: Peer, message: messages.BatchOverdue, payloads: Payloads
    ) -> messages.AnyMessage:
        """Decide whether a proxy should keep waiting for its batch."""
        pool = self.registry.by_key(message.registration).pool
        return pool.batch_retry.on_overdue(message)

    async def detach(self, peer: Peer, message: messages.Detach, payloads: Payloads) -> None:
        """Record that a proxy has detached."""
        self.registry.by_key(message.registration).detach(message.instance)

    def _check_start_not_delayed(self, registration: Registration) -> None:
        """Refuse a proxy that would wait for a worker before tritonserver has opened its ports.

        Raises:
            RemoteFailure: it would wait; tritonserver loads its model later.
        """
        if not self.server.ready and not registration.pool.answers:
            name = registration.spec.name
            raise RemoteFailure(ErrorKind.UNAVAILABLE, f"model {name} has no worker at the moment")


def handlers_of(services: Services) -> dict[type, MessageHandler]:
    """Return the handler of each message. Each group of handlers gets the services that it uses."""
    workers = WorkerHandlers(
        services.registry,
        services.model_control,
        services.pending_calls,
        services.shutdown,
    )
    proxies = ProxyHandlers(
        services.registry,
        services.server,
        services.settings,
    )
    return {
        messages.WorkerHello: workers.worker_hello,
        messages.WorkerReady: workers.worker_ready,
        messages.WorkerFailed: workers.worker_failed,
        messages.WorkerRecycleDue: workers.worker_recycle_due,
        messages.WorkerUnrecoverable: workers.worker_unrecoverable,
        messages.WorkerEnded: workers.worker_ended,
        messages.WorkerReadiness: workers.worker_readiness,
        messages.LoadOther: workers.load_other,
        messages.UnloadOther: workers.unload_other,
        messages.AskReadiness: workers.ask_readiness,
        messages.Attach: proxies.attach,
        messages.MayCall: workers.may_call,
        messages.CallsWait: workers.calls_wait,
        messages.LaneLost: proxies.lane_lost,
        messages.BatchOverdue: proxies.batch_overdue,
        messages.Detach: proxies.detach,
    }


def check_protocol(protocol: int, who: str) -> None:
    """Check that a process speaks the daemon's protocol.

    Raises:
        RemoteFailure: it has another version.
    """
    if protocol not in PROTOCOLS:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"{who} speaks protocol {protocol} and this daemon {messages.PROTOCOL}: install the same version of "
            "pytriton-daemon on both sides and restart the daemon",
        )
