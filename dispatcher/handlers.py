"""The handlers of control messages: one function per message acts on it and returns the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from pytriton.dispatcher import explanations
from pytriton.dispatcher.base.logs import tail
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.events import kinds
from pytriton.dispatcher.models.admission import check_cache, check_devices
from pytriton.dispatcher.models.told_failures import failure_told
from pytriton.dispatcher.workers.hosted_worker import HostedWorker
from pytriton.dispatcher.workers.registrant import Registrant
from pytriton.ipc import messages
from pytriton.ipc.errors import ErrorKind, RemoteFailure

if TYPE_CHECKING:
    from pytriton.dispatcher.daemon import Daemon
    from pytriton.dispatcher.models.registration import Registration

_log = structlog.get_logger(__name__)

Payloads = Sequence[bytes]
#: More lines than this are not sent at once; the log files are there to be read.
_MOST_LOG_LINES = 100_000
#: Nor more bytes than this: answers wait for clients who do not read them.
MOST_LOG_BYTES = 4 << 20


async def register(
    daemon: Daemon, peer: Peer, message: messages.Register, payloads: Payloads
) -> messages.AnyMessage:
    """Serve a model, reporting progress."""
    _check_protocol(message.protocol, "the client")
    check_cache(message.spec, daemon.config)
    check_devices(message.spec)
    if message.spec.openai is not None:
        daemon.openai.open()
    hosted = message.spec.isolation == "thread"
    registrant = Registrant(peer, message.spec.name) if hosted else None
    pid = peer.sender.pid if message.temporary and not hosted else None

    def served(registration: Registration) -> None:
        if pid is not None:
            daemon.temporary.add(registration, pid)

    try:
        registration = await daemon.registry.register(
            message, payloads, peer.reply, registrant, on_served=served
        )
    except BaseException:
        if registrant is not None and daemon.registry.hosts(registrant):
            registrant.give_up()  # the last moment: it has taken its name, and its threads end
        elif registrant is not None:
            await registrant.release("its registration failed")
        raise
    await daemon.until_vertex(message.spec.name)
    return messages.Registered(daemon.model_info(registration))


async def unregister(
    daemon: Daemon, peer: Peer, message: messages.Unregister, payloads: Payloads
) -> messages.AnyMessage:
    """Stop serving a model."""
    await daemon.registry.unregister(message.name)
    return messages.Done()


async def scale(
    daemon: Daemon, peer: Peer, message: messages.Scale, payloads: Payloads
) -> messages.AnyMessage:
    """Serve a model with another number of instances, reporting progress."""
    registration = await daemon.registry.scale(
        message.name, message.instances, peer.reply, message.autoscale
    )
    return messages.Registered(daemon.model_info(registration))


async def rollback(
    daemon: Daemon, peer: Peer, message: messages.Rollback, payloads: Payloads
) -> messages.AnyMessage:
    """Put back what a model was before it was replaced, reporting progress."""
    registration = await daemon.registry.rollback(message.name, peer.reply)
    return messages.Registered(daemon.model_info(registration))


async def load_from_repository(
    daemon: Daemon, peer: Peer, message: messages.LoadFromRepository, payloads: Payloads
) -> messages.AnyMessage:
    """Load a model of a model repository."""
    await daemon.registry.until_up(message.name, "loaded", peer.reply)
    with failure_told(daemon.events, kinds.NOT_LOADED, message.name):
        await daemon.repository_models.load(message.name, message.config)
    daemon.events.tell(kinds.LOADED, model=message.name)
    return messages.Done()


async def unload_from_repository(
    daemon: Daemon, peer: Peer, message: messages.UnloadFromRepository, payloads: Payloads
) -> messages.AnyMessage:
    """Stop serving a model of a model repository."""
    await daemon.repository_models.unload(message.name)
    daemon.events.tell(kinds.UNLOADED, model=message.name)
    return messages.Done()


async def get_repository(
    daemon: Daemon, peer: Peer, message: messages.GetRepository, payloads: Payloads
) -> messages.AnyMessage:
    """Tell which models the model repositories have."""
    await daemon.index_watch.look()
    return messages.Repository(await daemon.repository_models.index())


async def list_models(
    daemon: Daemon, peer: Peer, message: messages.ListModels, payloads: Payloads
) -> messages.AnyMessage:
    """Tell which models are served."""
    await daemon.index_watch.look()
    return messages.Models(daemon.model_infos())


async def get_status(
    daemon: Daemon, peer: Peer, message: messages.GetStatus, payloads: Payloads
) -> messages.AnyMessage:
    """Tell how everything is."""
    await daemon.index_watch.look()
    return daemon.status()


async def get_figures(
    daemon: Daemon, peer: Peer, message: messages.GetFigures, payloads: Payloads
) -> messages.AnyMessage:
    """Tell everything that is counted and measured."""
    return await daemon.figures.current()


async def get_logs(
    daemon: Daemon, peer: Peer, message: messages.GetLogs, payloads: Payloads
) -> messages.AnyMessage:
    """Send the newest log lines of a model or of the daemon."""
    if message.model is not None and not daemon.registry.restoring.knows(message.model):
        daemon.registry.by_name(message.model)
    count = max(0, min(message.lines, _MOST_LOG_LINES))
    return messages.LogLines(newest(tail(daemon.rundir.log_file(message.model), count)))


async def explain(
    daemon: Daemon, peer: Peer, message: messages.Explain, payloads: Payloads
) -> messages.AnyMessage:
    """Tell why a model is as it is."""
    await daemon.index_watch.look()
    return explanations.explanation(daemon, message)


async def get_events(
    daemon: Daemon, peer: Peer, message: messages.GetEvents, payloads: Payloads
) -> messages.AnyMessage:
    """Tell what was decided."""
    return await explanations.events(daemon, message)


async def shutdown(
    daemon: Daemon, peer: Peer, message: messages.Shutdown, payloads: Payloads
) -> messages.AnyMessage:
    """Stop the daemon as SIGTERM does."""
    daemon.request_stop("asked to by a client")
    return messages.Done()


async def reload(
    daemon: Daemon, peer: Peer, message: messages.Reload, payloads: Payloads
) -> messages.AnyMessage:
    """Read the settings anew as SIGHUP does."""
    return daemon.reload()


async def replace_server(
    daemon: Daemon, peer: Peer, message: messages.ReplaceServer, payloads: Payloads
) -> messages.AnyMessage:
    """Have another tritonserver take the place of the one that runs."""
    await daemon.replace_server("asked to by a client")
    return messages.Done()


async def worker_hello(
    daemon: Daemon, peer: Peer, message: messages.WorkerHello, payloads: Payloads
) -> None:
    """Give a new worker its model."""
    _check_protocol(message.protocol, f"worker {message.worker}")
    registration, worker = daemon.registry.worker(message.worker)
    await worker.hello(peer, registration.payloads)


async def worker_ready(
    daemon: Daemon, peer: Peer, message: messages.WorkerReady, payloads: Payloads
) -> None:
    """Note that a worker serves."""
    daemon.registry.worker(message.worker)[1].loaded()


async def worker_failed(
    daemon: Daemon, peer: Peer, message: messages.WorkerFailed, payloads: Payloads
) -> None:
    """Note that a worker could not load its callable."""
    daemon.registry.worker(message.worker)[1].failed(message)


async def worker_spent(
    daemon: Daemon, peer: Peer, message: messages.WorkerSpent, payloads: Payloads
) -> None:
    """Note that a worker has passed a limit and should be replaced."""
    daemon.registry.worker(message.worker)[1].is_spent(message.text)


async def worker_unrecoverable(
    daemon: Daemon, peer: Peer, message: messages.WorkerUnrecoverable, payloads: Payloads
) -> None:
    """Stop the daemon, as a callable asks, so that its service manager starts it afresh."""
    registration, _ = daemon.registry.worker(message.worker)
    daemon.stop_unrecoverable(registration.spec.name, message.text)


async def worker_readiness(
    daemon: Daemon, peer: Peer, message: messages.WorkerReadiness, payloads: Payloads
) -> None:
    """Note that the answer of a model's own `is_ready` has changed."""
    registration, worker = daemon.registry.worker(message.worker)
    await registration.pool.hear_readiness(worker, ready=message.ready, why=message.why)


async def worker_ended(
    daemon: Daemon, peer: Peer, message: messages.WorkerEnded, payloads: Payloads
) -> None:
    """Note that a hosted worker has ended."""
    worker = daemon.registry.worker(message.worker)[1]
    if isinstance(worker, HostedWorker):  # of a process, the kernel tells
        worker.has_ended(message.how)


async def load_other(
    daemon: Daemon, peer: Peer, message: messages.LoadOther, payloads: Payloads
) -> messages.AnyMessage:
    """Load a model because another one asks for it."""
    await daemon.model_control.load(message, payloads)
    return messages.Done()


async def unload_other(
    daemon: Daemon, peer: Peer, message: messages.UnloadOther, payloads: Payloads
) -> messages.AnyMessage:
    """Unload a model because another one asks for it."""
    await daemon.model_control.unload(message)
    return messages.Done()


async def ask_readiness(
    daemon: Daemon, peer: Peer, message: messages.AskReadiness, payloads: Payloads
) -> messages.AnyMessage:
    """Tell whether a model is ready."""
    return messages.Readiness(daemon.model_control.is_ready(message.name, message.version))


async def attach(
    daemon: Daemon, peer: Peer, message: messages.Attach, payloads: Payloads
) -> messages.AnyMessage:
    """Tell a proxy which worker serves it."""
    _check_protocol(message.protocol, "the proxy")
    registration = daemon.registry.by_key(message.registration)
    native = daemon.check_proxy(message.pid)
    registration.proxies.seen(message.instance, None if native else message.pid)
    daemon.refuse_to_hold_up_a_start(registration)
    attached = await registration.pool.route(
        message.instance, message.lost, message.avoid, message.version
    )
    return msgspec.structs.replace(attached, tracing=daemon.tracing)


async def may_call(
    daemon: Daemon, peer: Peer, message: messages.MayCall, payloads: Payloads
) -> messages.AnyMessage:
    """Tell a proxy whether a call that comes back to a model can ever be answered."""
    pool = daemon.registry.by_name(message.model).pool
    return pool.judge_call(message.chain, message.workers)


async def calls_wait(
    daemon: Daemon, peer: Peer, message: messages.CallsWait, payloads: Payloads
) -> messages.AnyMessage:
    """Tell a proxy which of the calls that have waited for a while can never be answered."""
    daemon.waiting.tell(message.worker, message.pid, message.models, message.proxy)
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
    """Tell a proxy what becomes of the batch whose worker it lost."""
    pool = daemon.registry.by_key(message.registration).pool
    return await pool.verdicts.on_loss(message)


async def batch_overdue(
    daemon: Daemon, peer: Peer, message: messages.BatchOverdue, payloads: Payloads
) -> messages.AnyMessage:
    """Tell a proxy whether to wait on for its batch."""
    pool = daemon.registry.by_key(message.registration).pool
    return pool.verdicts.on_overdue(message)


async def detach(daemon: Daemon, peer: Peer, message: messages.Detach, payloads: Payloads) -> None:
    """Note that a proxy has ended."""
    daemon.registry.by_key(message.registration).detach(message.instance)


_HANDLERS: dict[
    type, Callable[[Any, Peer, Any, Payloads], Awaitable[messages.AnyMessage | None]]
] = {
    messages.Register: register,
    messages.Unregister: unregister,
    messages.Scale: scale,
    messages.Rollback: rollback,
    messages.LoadFromRepository: load_from_repository,
    messages.UnloadFromRepository: unload_from_repository,
    messages.GetRepository: get_repository,
    messages.ListModels: list_models,
    messages.GetStatus: get_status,
    messages.GetFigures: get_figures,
    messages.GetLogs: get_logs,
    messages.Explain: explain,
    messages.GetEvents: get_events,
    messages.Shutdown: shutdown,
    messages.Reload: reload,
    messages.ReplaceServer: replace_server,
    messages.WorkerHello: worker_hello,
    messages.WorkerReady: worker_ready,
    messages.WorkerFailed: worker_failed,
    messages.WorkerSpent: worker_spent,
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


async def handle(
    daemon: Daemon, peer: Peer, message: messages.AnyMessage, payloads: Payloads
) -> messages.AnyMessage | None:
    """Hand a message to its handler and return the answer, if it has one.

    Raises:
        RemoteFailure: what the sender is told.
    """
    handler = _HANDLERS.get(type(message))
    if handler is None:
        raise RemoteFailure(
            ErrorKind.INVALID, f"{type(message).__name__} is not a message for the dispatcher"
        )
    return await handler(daemon, peer, message, payloads)


def newest(lines: Sequence[str], most_bytes: int = MOST_LOG_BYTES) -> list[str]:
    """Return as many of the last lines as fit, in their order."""
    kept: list[str] = []
    for line in reversed(lines):
        most_bytes -= len(line.encode("utf-8", "replace"))
        if most_bytes < 0:
            break
        kept.append(line)
    return kept[::-1]


def _check_protocol(protocol: int, who: str) -> None:
    if protocol != messages.PROTOCOL:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"{who} speaks protocol {protocol} and this daemon {messages.PROTOCOL}: install the same version of "
            "pytriton-daemon on both sides and restart the daemon",
        )
