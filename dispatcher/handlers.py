"""Handlers of control messages from clients: each acts on one message and returns the answer.

The handlers for workers and proxies are in worker_handlers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher import explanations, worker_handlers
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.models.admission import check, check_cache, check_devices
from pytriton.dispatcher.models.deployer import emit_on_failure, emit_on_register_failure
from pytriton.dispatcher.models.served_models import describe_registrations
from pytriton.dispatcher.openai_models import check_aliases
from pytriton.dispatcher.runtime.logs import tail
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.requests import profiler
from pytriton.dispatcher.worker_handlers import BRING_S, Handler, Payloads, check_protocol
from pytriton.dispatcher.workers.hosted_worker import Registrant

if TYPE_CHECKING:
    from pytriton.dispatcher.daemon import Daemon
    from pytriton.dispatcher.models.registration import Registration


#: Maximum number of lines in one answer; the log files have all of them.
_MAX_LOG_LINES = 100_000
#: Maximum size of the lines in one answer, since answers stay in memory until clients read them.
MAX_LOG_BYTES = 4 << 20


async def register(
    daemon: Daemon, peer: Peer, message: messages.Register, payloads: Payloads
) -> messages.AnyMessage:
    """Serve a model, reporting progress."""
    check_protocol(message.protocol, "the client")
    check(message.spec, payloads)
    if message.spec.completed_by_workers:
        text = f"model {message.spec.name}: only a model repository's configurations are completed by workers"
        raise RemoteFailure(ErrorKind.INVALID, text)
    with emit_on_register_failure(daemon.events, message, daemon.registry.names):
        check_cache(message.spec, daemon.config, frontend_is_native=daemon.frontend_is_native)
        check_devices(message.spec)
        check_aliases(message.spec, daemon.registry)
    if message.spec.openai is not None:
        daemon.openai.open()
    hosted = message.spec.isolation == "thread"
    registrant = Registrant(peer, message.spec.name) if hosted else None
    pid = peer.sender.pid if message.ephemeral and not hosted else None

    def served(registration: Registration) -> None:
        if pid is not None:
            daemon.client_bound_models.add(registration, pid)

    try:
        registration = await daemon.registry.register(
            message, payloads, peer.reply, registrant, on_served=served
        )
    except BaseException:
        if registrant is not None and daemon.registry.hosts(registrant):
            registrant.give_up()  # too late to undo the registration itself: it has the name, and its threads end
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
    """Scale a model to another number of instances, reporting progress."""
    registration = await daemon.registry.scale(
        message.name, message.instances, peer.reply, message.autoscale
    )
    return messages.Registered(daemon.model_info(registration))


async def rollback(
    daemon: Daemon, peer: Peer, message: messages.Rollback, payloads: Payloads
) -> messages.AnyMessage:
    """Roll a model back to what it replaced, reporting progress."""
    registration = await daemon.registry.rollback(message.name, peer.reply)
    return messages.Registered(daemon.model_info(registration))


async def renew_lease(
    daemon: Daemon, peer: Peer, message: messages.RenewLease, payloads: Payloads
) -> messages.AnyMessage:
    """Renew the lease of a provisional model."""
    daemon.leases.renew(message.name, message.lease, message.share)
    return messages.Done()


async def end_lease(
    daemon: Daemon, peer: Peer, message: messages.EndLease, payloads: Payloads
) -> messages.AnyMessage:
    """Keep a provisional model, or roll it back."""
    end = daemon.leases.keep if message.keep else daemon.leases.roll_back
    await end(message.name, message.lease)
    return messages.Done()


async def load_from_repository(
    daemon: Daemon, peer: Peer, message: messages.LoadFromRepository, payloads: Payloads
) -> messages.AnyMessage:
    """Load a model from a model repository."""
    daemon.registry.check_open(message.name, "loaded")
    await daemon.registry.until_up(message.name, "loaded", peer.reply)
    with emit_on_failure(daemon.events, kinds.REPOSITORY_LOAD_FAILED, message.name):
        await daemon.repository_models.load(message.name, message.config)
    daemon.events.emit(kinds.LOADED, model=message.name)
    return messages.Done()


async def unload_from_repository(
    daemon: Daemon, peer: Peer, message: messages.UnloadFromRepository, payloads: Payloads
) -> messages.AnyMessage:
    """Stop serving a model from a model repository."""
    await daemon.repository_models.unload(message.name)
    daemon.events.emit(kinds.UNLOADED, model=message.name)
    return messages.Done()


async def get_repository(
    daemon: Daemon, peer: Peer, message: messages.GetRepository, payloads: Payloads
) -> messages.AnyMessage:
    """Return the models in the model repositories."""
    await daemon.index_watch.poll_once()
    return messages.Repository(await daemon.repository_models.index())


async def list_models(
    daemon: Daemon, peer: Peer, message: messages.ListModels, payloads: Payloads
) -> messages.AnyMessage:
    """Return the served models."""
    await daemon.index_watch.poll_once()
    return messages.Models(daemon.model_infos())


async def get_status(
    daemon: Daemon, peer: Peer, message: messages.GetStatus, payloads: Payloads
) -> messages.AnyMessage:
    """Return the state of the daemon, tritonserver, and all models."""
    await daemon.index_watch.poll_once()
    return daemon.status()


async def get_metrics(
    daemon: Daemon, peer: Peer, message: messages.GetMetrics, payloads: Payloads
) -> messages.AnyMessage:
    """Return all metrics."""
    return await daemon.metrics.snapshot()


async def get_logs(
    daemon: Daemon, peer: Peer, message: messages.GetLogs, payloads: Payloads
) -> messages.AnyMessage:
    """Return the newest log lines of a model or of the daemon."""
    if message.model is not None and not daemon.registry.restoring.knows(message.model):
        daemon.registry.by_name(message.model)
    count = max(0, min(message.lines, _MAX_LOG_LINES))
    return messages.LogLines(newest(tail(daemon.rundir.log_file(message.model), count)))


async def get_registrations(
    daemon: Daemon, peer: Peer, message: messages.GetRegistrations, payloads: Payloads
) -> messages.AnyMessage:
    """Return the registrations, so that another daemon can serve them, too."""
    kept = daemon.registry.declared(message.names)
    # In a thread: hashing a large payload takes a while the first time.
    return await asyncio.to_thread(
        describe_registrations, kept, with_payloads=message.payloads, known=message.known
    )


async def explain(
    daemon: Daemon, peer: Peer, message: messages.Explain, payloads: Payloads
) -> messages.AnyMessage:
    """Explain the state of a model."""
    await daemon.index_watch.poll_once()
    return await explanations.explanation(daemon, message)


async def get_events(
    daemon: Daemon, peer: Peer, message: messages.GetEvents, payloads: Payloads
) -> messages.AnyMessage:
    """Return the requested events."""
    return await explanations.events(daemon, message)


async def log_requests(
    daemon: Daemon, peer: Peer, message: messages.LogRequests, payloads: Payloads
) -> messages.AnyMessage:
    """Turn a model's access log on or off."""
    await daemon.registry.restoring.bring(message.name, BRING_S)
    registration = await daemon.registry.amend(message.name, access_log=message.on)
    registration.events.emit(kinds.ACCESS_LOG, numbers={"on": int(message.on)})
    daemon.requests.poll()
    return messages.Done()


async def get_requests(
    daemon: Daemon, peer: Peer, message: messages.GetRequests, payloads: Payloads
) -> messages.AnyMessage:
    """Return the slowest and the most recent failed requests of a model."""
    return daemon.requests.requests(message.model)


async def profile_worker(
    daemon: Daemon, peer: Peer, message: messages.ProfileWorker, payloads: Payloads
) -> messages.AnyMessage:
    """Sample a worker's stacks for a while, and return the profile."""
    await daemon.registry.restoring.bring(message.model, BRING_S)
    registration = daemon.registry.by_name(message.model)
    if registration.registrant is not None:
        text = f"model {message.model} runs in threads of process {registration.registrant.pid}"
        raise RemoteFailure(
            ErrorKind.INVALID, f"{text}: py-spy record --pid {registration.registrant.pid}"
        )
    counters = daemon.registry.counter_registry.of(message.model)
    workers = [one for of in counters.instances.values() for one in of.workers]
    worker = profiler.choose_worker(
        message, workers, suspended=registration.pool.suspension.suspended
    )
    return await daemon.profiler.profile(worker, message)


async def shutdown(
    daemon: Daemon, peer: Peer, message: messages.Shutdown, payloads: Payloads
) -> messages.AnyMessage:
    """Stop the daemon as SIGTERM does."""
    daemon.ending.request("requested by a client")
    return messages.Done()


async def drain(
    daemon: Daemon, peer: Peer, message: messages.Drain, payloads: Payloads
) -> messages.AnyMessage:
    """Drain the daemon: load balancers notice before it stops, so no request is lost."""
    await daemon.draining.begin(message)
    return messages.Done()


async def upgrade(
    daemon: Daemon, peer: Peer, message: messages.Upgrade, payloads: Payloads
) -> None:
    """Answer, then upgrade to another version of the daemon."""
    await daemon.upgrade.prepare(message)
    await peer.reply(messages.Done())
    daemon.upgrade.begin(message)


async def reload(
    daemon: Daemon, peer: Peer, message: messages.Reload, payloads: Payloads
) -> messages.AnyMessage:
    """Reload the settings, like SIGHUP."""
    return daemon.settings.reload()


async def replace_server(
    daemon: Daemon, peer: Peer, message: messages.ReplaceServer, payloads: Payloads
) -> messages.AnyMessage:
    """Replace the running tritonserver with a new one."""
    former = daemon.status().server.pid or 0
    pid = await daemon.settings.replace_server("requested by a client", force=message.force)
    return messages.ServerReplaced(pid, former)


_HANDLERS: dict[type, Handler] = {
    messages.Register: register,
    messages.Unregister: unregister,
    messages.Scale: scale,
    messages.Rollback: rollback,
    messages.RenewLease: renew_lease,
    messages.EndLease: end_lease,
    messages.LoadFromRepository: load_from_repository,
    messages.UnloadFromRepository: unload_from_repository,
    messages.GetRepository: get_repository,
    messages.ListModels: list_models,
    messages.GetStatus: get_status,
    messages.GetMetrics: get_metrics,
    messages.GetLogs: get_logs,
    messages.GetRegistrations: get_registrations,
    messages.Explain: explain,
    messages.GetEvents: get_events,
    messages.LogRequests: log_requests,
    messages.GetRequests: get_requests,
    messages.ProfileWorker: profile_worker,
    messages.Shutdown: shutdown,
    messages.Drain: drain,
    messages.Upgrade: upgrade,
    messages.Reload: reload,
    messages.ReplaceServer: replace_server,
    **worker_handlers.HANDLERS,
}


async def handle(
    daemon: Daemon, peer: Peer, message: messages.AnyMessage, payloads: Payloads
) -> messages.AnyMessage | None:
    """Call the handler of a message. Return its answer, or None.

    Raises:
        RemoteFailure: the failure to send to the client.
    """
    handler = _HANDLERS.get(type(message))
    if handler is None:
        raise RemoteFailure(
            ErrorKind.INVALID, f"{type(message).__name__} is not a message for the dispatcher"
        )
    return await handler(daemon, peer, message, payloads)


def newest(lines: Sequence[str], most_bytes: int = MAX_LOG_BYTES) -> list[str]:
    """Return as many of the last lines as fit, in their order."""
    kept: list[str] = []
    for line in reversed(lines):
        most_bytes -= len(line.encode("utf-8", "replace"))
        if most_bytes < 0:
            break
        kept.append(line)
    return kept[::-1]
