"""Creates and connects the services of a daemon."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from pytriton._host.client_keys import key_store
from pytriton._host.install.python_on_demand import PythonOnDemand
from pytriton._host.install.server_runtime import ServerRuntime, lay_out_backends
from pytriton._host.service_manager.systemd import Notifier
from pytriton._host.settings import advisories
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.files import shared_entries
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.control.control_socket import ControlServer, Handler
from pytriton.dispatcher.daemon_status import DaemonStatus
from pytriton.dispatcher.explanations import Explainer
from pytriton.dispatcher.models.client_bound_models import ClientBoundModels
from pytriton.dispatcher.models.leases import LeaseManager
from pytriton.dispatcher.models.persistence.size_store import SizeStore
from pytriton.dispatcher.models.persistence.state_dir import Store
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.openai.supervisor import OpenAISupervisor
from pytriton.dispatcher.openai_models import api_state
from pytriton.dispatcher.readiness import ReadinessController
from pytriton.dispatcher.repository.model_control import ClientRequests, ModelControl
from pytriton.dispatcher.repository.repository_models import RepositoryModels
from pytriton.dispatcher.repository.watch import IndexWatch
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.tasks import SupervisedTasks
from pytriton.dispatcher.runtime.worker_library import lay_out_library
from pytriton.dispatcher.scaling.autoscaler import Autoscaler, machine_resources, queued_at
from pytriton.dispatcher.scaling.memory_budget import MemoryBudget, accounts_of
from pytriton.dispatcher.server.frontend import (
    MODEL_CONTROL_SOCKET,
    SHM,
    Frontend,
    PendingModels,
    ServerPlace,
    claim_shm_prefix,
)
from pytriton.dispatcher.server.frontends.native_frontend import NativeFrontend
from pytriton.dispatcher.server.frontends.triton_frontend import TritonFrontend
from pytriton.dispatcher.server.restart import ServerWatch
from pytriton.dispatcher.server.server_process import log_line
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.settings_reload import SettingsReloader
from pytriton.dispatcher.shutdown import DrainController, ShutdownController
from pytriton.dispatcher.startup_restore import StartupRestorer
from pytriton.dispatcher.telemetry.events.event_log import EventLog
from pytriton.dispatcher.telemetry.events.events import Events
from pytriton.dispatcher.telemetry.events.webhooks import Webhooks, read_hooks
from pytriton.dispatcher.telemetry.http.management import Management
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import MetricsCollector
from pytriton.dispatcher.telemetry.requests.collector import RequestCollector
from pytriton.dispatcher.telemetry.requests.profiler import Profiler
from pytriton.dispatcher.upgrade.takeover import Origin
from pytriton.dispatcher.web_routes import WebRoutes
from pytriton.dispatcher.workers.call_deadlocks import PendingCalls
from pytriton.dispatcher.workers.worker_process import WorkerFactory

_log = structlog.get_logger(__name__)

#: Number of events on the management server's page.
_SHOWN_EVENTS = 200


@dataclass(frozen=True)
class Services:
    """The services of one daemon. `build_services` creates and connects them; daemon.py runs them.

    Attributes:
        regions: prefix of the names of the daemon's shared memory
        frontend_is_native: whether the native frontend is in use, rather than NVIDIA's
        tasks: the tasks that run from start to shutdown
    """

    origin: Origin
    rundir: RuntimeDir
    notifier: Notifier
    tasks: SupervisedTasks
    event_log: EventLog
    webhooks: Webhooks
    regions: str
    kill_on_death: KillOnDeath
    control: ControlServer
    # tritonserver
    frontend: Frontend
    frontend_is_native: bool
    server: TritonServer
    server_watch: ServerWatch
    readiness: ReadinessController
    # models registered by clients
    workers: WorkerFactory
    registry: Registry
    sizes: SizeStore
    leases: LeaseManager
    pending_calls: PendingCalls
    client_bound_models: ClientBoundModels
    memory: MemoryBudget
    autoscaler: Autoscaler
    # models of repositories
    repository_models: RepositoryModels
    model_control: ModelControl
    client_requests: ClientRequests
    index_watch: IndexWatch
    restorer: StartupRestorer
    openai: OpenAISupervisor
    web_routes: WebRoutes
    # what users see
    status: DaemonStatus
    metrics: MetricsCollector
    requests: RequestCollector
    profiler: Profiler
    explainer: Explainer
    management: Management
    # what changes the daemon itself
    settings: SettingsReloader
    shutdown: ShutdownController
    drain: DrainController

    @property
    def config(self) -> DaemonConfig:
        """The current settings."""
        return self.settings.config

    @property
    def events(self) -> Events:
        """Emitter of the daemon's events."""
        return self.event_log.events


def build_services(
    config: DaemonConfig,
    rundir: RuntimeDir,
    runtime: ServerRuntime,
    store: Store,
    notifier: Notifier,
    origin: Origin,
    handle: Handler,
) -> Services:
    """Create a daemon's services in the order of their dependencies.

    If two services need each other, the first one gets a function that refers to the second one. The function is only
    called later. `handle` handles the messages on the control socket.
    """
    takeover = origin.takeover
    tasks = SupervisedTasks()
    webhooks = Webhooks(read_hooks(config.webhooks))
    event_log = EventLog(
        config.state_path,
        config.event_log_size,
        [webhooks.enqueue],
        after=0 if takeover is None else takeover.state.events,
    )
    events = event_log.events

    # tritonserver
    backends = lay_out_backends(runtime, rundir.path, is_taken_over=takeover is not None)
    if takeover is None:
        regions = claim_shm_prefix(os.fstat(store.lock))
        kill_on_death = KillOnDeath(SHM / regions)
    else:
        regions = takeover.state.regions
        kill_on_death = KillOnDeath.adopt(*takeover.state.helper)
    place = ServerPlace(runtime, rundir.models, backends, regions, kill_on_death, log_line)
    frontend = choose_frontend(
        config,
        place,
        pending_models=lambda: registry.restoring.awaitable_names(),
        on_request=lambda name: registry.restoring.on_request(name),
    )
    frontend_is_native = runtime.frontend is not None
    if frontend_is_native:  # until tritonserver reports its own
        logs.set_triton_log_settings(
            logs.TritonLogSettings.from_options(config.tritonserver_options)
        )
    server = TritonServer(
        config,
        place,
        frontend,
        on_retired=lambda pid: registry.server_starts.forget_retired(pid),
    )

    def metrics_url() -> str:
        return server.info().metrics_url

    # Models registered by clients
    library = lay_out_library(rundir)
    workers = WorkerFactory(
        config,
        rundir,
        library,
        kill_on_death,
        on_unrecoverable=lambda model: shutdown.on_unrecoverable_exit(model),
    )
    sizes = SizeStore(config.state_path)
    registry = Registry(
        config,
        rundir,
        server,
        workers.start,
        store,
        events,
        accounts_of(config, sizes),
        on_unavailable=frontend.forget_pending,
    )
    memory = MemoryBudget(
        registry,
        sizes,
        suspend_any_idle_model=config.suspend_any_idle_model,
        shared=lambda: shared_entries.all_of(rundir.shared),
    )
    autoscaler = Autoscaler(
        registry,
        resources=lambda: memory.available(machine_resources()),
        queued=lambda: queued_at(metrics_url),
    )

    # Models of repositories
    repository_models = RepositoryModels(
        config,
        models=rundir.models,
        backends=backends,
        python=PythonOnDemand(runtime, backends),
        library=library,
        server=server,
        registry=registry,
        is_adopted=takeover is not None,
        events=events,
    )
    client_requests = ClientRequests(
        rundir.models.parent / MODEL_CONTROL_SOCKET, server, registry.served, repository_models
    )
    restorer = StartupRestorer(registry, repository_models)
    server_watch = ServerWatch(
        server,
        config,
        lost=restorer.server_lost,
        preload=registry.server_starts.preload,
        load_again=restorer.load_again,
        undo=repository_models.undo_reload,
        events=events,
    )
    readiness = ReadinessController(
        config,
        server,
        registry,
        repository_models,
        server_watch,
        announce=lambda: notifier.ready(status.for_service_manager().text),
    )
    openai = OpenAISupervisor(
        config,
        library,
        kill_on_death,
        describe=lambda: api_state(
            settings.config, frontend, registry.served, registry.restoring.expected_entries()
        ),
        changes=(registry.changes, registry.restoring.changes, server.changes),
    )

    web_routes = WebRoutes(registry, frontend, rundir.path, config.cors_origins)

    # What users see
    status = DaemonStatus(
        config,
        rundir,
        server=server,
        watch=server_watch,
        registry=registry,
        repository_models=repository_models,
        readiness=readiness,
        openai=openai,
        advice=advisories.warning(config, runtime.tree.version, native=frontend_is_native),
        memory=memory.infos,
        unpersisted=lambda: [text for text in (event_log.problem, sizes.problem) if text],
        management_urls=lambda: management.urls,
        is_healthy=lambda: tasks.is_healthy,
    )
    control = ControlServer(
        rundir.control_endpoint,
        handle,
        group=config.control_group,
        keys=key_store(config),
    )
    metrics = MetricsCollector(
        lambda: status.status(models=False),
        status.each_model,
        metrics_url,
        status.state_dir,
        registry,
        server_watch,
        control,
        webhooks=webhooks.metrics,
        openai=openai.metrics,
        events_lost=lambda: event_log.lost,
        # None while one is starting or stopping.
        server_pid=lambda: server.info().pid if server.has_single_process else None,
        shared_weights=lambda: shared_entries.size_of_all(rundir.shared),
    )
    requests = RequestCollector(registry, rundir.access_log_file, logs.open_file)
    explainer = Explainer(event_log, registry, status, metrics, requests)
    management = Management(
        config,
        rundir,
        metrics,
        status.status,
        requests.requests,
        lambda name: explainer.explain(messages.Explain(name)),
        lambda audit_only: event_log.recent(_SHOWN_EVENTS, audit_only=audit_only),
    )

    # What changes the daemon itself
    settings = SettingsReloader(
        config,
        rundir,
        notifier,
        events,
        status=status,
        registry=registry,
        repository_models=repository_models,
        server=server,
        watch=server_watch,
    )
    shutdown = ShutdownController(status, events, rundir, server, registry)
    drain = DrainController(
        status, readiness, registry, shutdown, events, settings.set_grace_period
    )

    return Services(
        origin=origin,
        rundir=rundir,
        notifier=notifier,
        tasks=tasks,
        event_log=event_log,
        webhooks=webhooks,
        regions=regions,
        kill_on_death=kill_on_death,
        control=control,
        frontend=frontend,
        frontend_is_native=frontend_is_native,
        server=server,
        server_watch=server_watch,
        readiness=readiness,
        workers=workers,
        registry=registry,
        sizes=sizes,
        leases=LeaseManager(registry),
        pending_calls=PendingCalls(),
        client_bound_models=ClientBoundModels(registry.end),
        memory=memory,
        autoscaler=autoscaler,
        repository_models=repository_models,
        model_control=ModelControl(registry.served, repository_models),
        client_requests=client_requests,
        index_watch=IndexWatch(
            server,
            registry.served,
            repository_models.records,
            None if runtime.interposer is None else client_requests.passed_on,
        ),
        restorer=restorer,
        openai=openai,
        web_routes=web_routes,
        status=status,
        metrics=metrics,
        requests=requests,
        profiler=Profiler(rundir.path),
        explainer=explainer,
        management=management,
        settings=settings,
        shutdown=shutdown,
        drain=drain,
    )


def choose_frontend(
    config: DaemonConfig,
    place: ServerPlace,
    *,
    pending_models: Callable[[], PendingModels],
    on_request: Callable[[str], None],
) -> Frontend:
    """Return the frontend that serves clients.

    Args:
        config: settings of the daemon
        place: where tritonserver runs
        pending_models: returns the models that requests may wait for; called when a process starts
        on_request: called with the name of each model that a request waits for
    """
    native = place.runtime.frontend
    if config.response_cache_size and native is None:
        _log.warning(
            "response cache disabled",
            reason="NVIDIA's frontend is in use; the cache needs frontend = native",
        )
    if "cache-config" in config.tritonserver_options:
        _log.warning(
            "Triton's own cache may answer a request with the response to a different request",
            reason="its key lacks parameters, headers, shapes and requested outputs; before 25.09 it also leaks memory",
            fix="remove cache-config from tritonserver_options and set response_cache_size",
        )
    if native is None:
        return TritonFrontend(config, place)
    return NativeFrontend(
        config, place, native, pending_models=pending_models, on_request=on_request
    )
