"""Handlers of messages from workers and proxies: each acts on one message and returns the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.runtime.upgrade_snapshot import PROTOCOLS
from pytriton.dispatcher.workers.hosted_worker import HostedWorker

if TYPE_CHECKING:
    from pytriton.dispatcher.daemon import Daemon

#: Seconds that a request for readiness waits for a lazy model; a proxy waits 10 s for its answer.
BRING_S = 5.0

Payloads = Sequence[bytes]
Handler = Callable[[Any, Peer, Any, Payloads], Awaitable[Optional[messages.AnyMessage]]]


async def worker_hello(
    daemon: Daemon, peer: Peer, message: messages.WorkerHello, payloads: Payloads
) -> None:
    """Send a new worker its model."""
    check_protocol(message.protocol, f"worker {message.worker}")
    registration, worker = daemon.registry.worker(message.worker)
    worker.protocol = message.protocol
    await worker.hello(peer, registration.payloads)


async def worker_ready(
    daemon: Daemon, peer: Peer, message: messages.WorkerReady, payloads: Payloads
) -> None:
    """Record that a worker is ready."""
    registration, worker = daemon.registry.worker(message.worker)
    why = registration.complete_config(message.completion)
    if why is None:
        worker.loaded()
    else:
        worker.failed(messages.WorkerFailed(worker.name, why, ""))


async def worker_failed(
    daemon: Daemon, peer: Peer, message: messages.WorkerFailed, payloads: Payloads
) -> None:
    """Record that a worker could not load its callable."""
    daemon.registry.worker(message.worker)[1].failed(message)


async def worker_recycle_due(
    daemon: Daemon, peer: Peer, message: messages.WorkerRecycleDue, payloads: Payloads
) -> None:
    """Record that a worker has passed a limit and should be recycled."""
    daemon.registry.worker(message.worker)[1].request_recycle(message.text)


async def worker_unrecoverable(
    daemon: Daemon, peer: Peer, message: messages.WorkerUnrecoverable, payloads: Payloads
) -> None:
    """Stop the daemon on a callable's request, so that its service manager restarts it."""
    registration, _ = daemon.registry.worker(message.worker)
    daemon.ending.unrecoverable(registration.spec.name, message.text)


async def worker_readiness(
    daemon: Daemon, peer: Peer, message: messages.WorkerReadiness, payloads: Payloads
) -> None:
    """Record that the answer of a model's own `is_ready` has changed."""
    registration, worker = daemon.registry.worker(message.worker)
    if worker.not_ready_reason != (
        None if message.ready else message.why
    ):  # otherwise it is a repetition
        await registration.pool.hear_readiness(worker, ready=message.ready, why=message.why)


async def worker_ended(
    daemon: Daemon, peer: Peer, message: messages.WorkerEnded, payloads: Payloads
) -> None:
    """Record that a hosted worker has exited."""
    worker = daemon.registry.worker(message.worker)[1]
    if isinstance(worker, HostedWorker):  # the kernel reports the exit of a process
        worker.mark_ended(message.how)


async def load_other(
    daemon: Daemon, peer: Peer, message: messages.LoadOther, payloads: Payloads
) -> messages.AnyMessage:
    """Load a model on request of another one."""
    await daemon.registry.restoring.bring(message.name, BRING_S)
    await daemon.model_control.load(message, payloads)
    return messages.Done()


async def unload_other(
    daemon: Daemon, peer: Peer, message: messages.UnloadOther, payloads: Payloads
) -> messages.AnyMessage:
    """Unload a model on request of another one."""
    await daemon.registry.restoring.bring(message.name, BRING_S)
    await daemon.model_control.unload(message)
    return messages.Done()


async def ask_readiness(
    daemon: Daemon, peer: Peer, message: messages.AskReadiness, payloads: Payloads
) -> messages.AnyMessage:
    """Return whether a model is ready. Load it first if it is lazy."""
    await daemon.registry.restoring.bring(message.name, BRING_S)
    return messages.Readiness(daemon.model_control.is_ready(message.name, message.version))


async def attach(
    daemon: Daemon, peer: Peer, message: messages.Attach, payloads: Payloads
) -> messages.AnyMessage:
    """Return the worker that serves a proxy."""
    check_protocol(message.protocol, "the proxy")
    registration = daemon.registry.by_key(message.registration)
    server = daemon.check_proxy(message.pid)
    stub = None if server == message.pid else message.pid
    registration.proxies.seen(message.instance, stub, server)
    daemon.refuse_to_hold_up_a_start(registration)
    attached = await registration.pool.proxies.route(
        message.instance, message.lost, message.avoid, message.version, batch=message.batch
    )
    return msgspec.structs.replace(attached, tracing=daemon.settings.tracing)


async def may_call(
    daemon: Daemon, peer: Peer, message: messages.MayCall, payloads: Payloads
) -> messages.AnyMessage:
    """Check that a call back to a model can be answered, and does not deadlock."""
    pool = daemon.registry.by_name(message.model).pool
    return pool.proxies.judge_call(message.chain, message.workers)


async def calls_wait(
    daemon: Daemon, peer: Peer, message: messages.CallsWait, payloads: Payloads
) -> messages.AnyMessage:
    """Return which of the calls that have waited for a while are deadlocked."""
    daemon.waiting.record(message.worker, message.pid, message.models, message.proxy)
    stuck = daemon.waiting.stuck(message.worker, daemon.registry.workers_of)
    text = ""
    if stuck:
        own = daemon.registry.worker(message.worker)[0].spec.name
        text = (
            f"the calls wait for each other in a circle and can never end: a worker of {own} waits for "
            f"{' and '.join(stuck)}, all workers of which wait for calls that wait for {own}. Break the circle "
            "of calls, or register more instances"
        )
    return messages.StuckCalls(stuck, text)


async def lane_lost(
    daemon: Daemon, peer: Peer, message: messages.LaneLost, payloads: Payloads
) -> messages.AnyMessage:
    """Decide what to do with a batch whose worker was lost."""
    pool = daemon.registry.by_key(message.registration).pool
    return await pool.batch_retry.on_loss(message)


async def batch_overdue(
    daemon: Daemon, peer: Peer, message: messages.BatchOverdue, payloads: Payloads
) -> messages.AnyMessage:
    """Decide whether a proxy should keep waiting for its batch."""
    pool = daemon.registry.by_key(message.registration).pool
    return pool.batch_retry.on_overdue(message)


async def detach(daemon: Daemon, peer: Peer, message: messages.Detach, payloads: Payloads) -> None:
    """Record that a proxy has detached."""
    daemon.registry.by_key(message.registration).detach(message.instance)


HANDLERS: dict[type, Handler] = {
    messages.WorkerHello: worker_hello,
    messages.WorkerReady: worker_ready,
    messages.WorkerFailed: worker_failed,
    messages.WorkerRecycleDue: worker_recycle_due,
    messages.WorkerUnrecoverable: worker_unrecoverable,
    messages.WorkerEnded: worker_ended,
    messages.WorkerReadiness: worker_readiness,
    messages.LoadOther: load_other,
    messages.UnloadOther: unload_other,
    messages.AskReadiness: ask_readiness,
    messages.Attach: attach,
    messages.MayCall: may_call,
    messages.CallsWait: calls_wait,
    messages.LaneLost: lane_lost,
    messages.BatchOverdue: batch_overdue,
    messages.Detach: detach,
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
