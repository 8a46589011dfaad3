"""The status of the daemon and its models, for clients and for the service manager."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache

import structlog

from pytriton._host.service_manager.systemd import ServiceState
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.openai.supervisor import OpenAISupervisor
from pytriton.dispatcher.readiness import ReadinessController
from pytriton.dispatcher.repository.repository_models import RepositoryModels
from pytriton.dispatcher.server.restart import ServerWatch
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.workers.worker_process import DaemonCpus

_log = structlog.get_logger(__name__)

#: Maximum number of model names in one line.
_MAX_NAMED = 5


class DaemonStatus:
    """The daemon's phase, and its status as collected from the other services.

    Args:
        advice: see `advice` below
        memory: returns the memory budgets
        unpersisted: returns one sentence for each part of the state directory that cannot be written
        management_urls: returns the addresses of the management server
        is_healthy: returns whether all tasks that must run until the shutdown are running

    Attributes:
        started_at: start of the daemon, in seconds since the epoch
        phase: "starting", "ready", "draining" or "stopping"
        why_stopped: the reason for the shutdown, set in phase "stopping"
        control_tcp: the TCP address and port for clients with a key; "" if there is none
        state_dir: the state directory; "" if nothing is persisted
        advice: a warning about the settings that holds until the daemon exits; None if there is none
    """

    def __init__(
        self,
        config: DaemonConfig,
        rundir: RuntimeDir,
        *,
        server: TritonServer,
        watch: ServerWatch,
        registry: Registry,
        repository_models: RepositoryModels,
        readiness: ReadinessController,
        openai: OpenAISupervisor,
        advice: str | None,
        memory: Callable[[], list[messages.MemoryInfo]],
        unpersisted: Callable[[], list[str]],
        management_urls: Callable[[], list[str]],
        is_healthy: Callable[[], bool],
    ) -> None:
        self.phase = "starting"
        self.why_stopped = ""
        self.control_tcp = ""
        self._tcp_problem = ""
        self.advice = advice
        self._memory = memory
        self._unpersisted = unpersisted
        self._management_urls = management_urls
        self._is_healthy = is_healthy
        self.state_dir = "" if config.ephemeral else str(config.state_path)
        self._rundir = rundir
        self._server = server
        self._watch = watch
        self._registry = registry
        self._repository_models = repository_models
        self._readiness = readiness
        self._openai = openai
        self.started_at = time.time()

    def report_tcp_lost(self, address: str, why: str) -> None:
        """Record that clients with a key can no longer connect."""
        self.control_tcp = ""
        self._tcp_problem = (
            f"after an upgrade the daemon could not listen on {address} again (control_tcp): {why}. "
            "Free the address, and upgrade or restart"
        )
        _log.error("cannot listen", control_tcp=address, reason=why)

    def model_info(self, registration: Registration) -> messages.ModelInfo:
        """Return the status of a model for clients."""
        return self._model_info(registration, self._server.info().http_url)

    def _model_info(
        self, registration: Registration, http_url: str, cpus: DaemonCpus | None = None
    ) -> messages.ModelInfo:
        return registration.info(http_url, self._rundir.log_file(registration.spec.name), cpus)

    def model_infos(self) -> list[messages.ModelInfo]:
        """Return the status of all models, in the order of registration."""
        return list(self.each_model())

    def each_model(self) -> Iterator[messages.ModelInfo]:
        """Yield the status of all models, in the order of registration.

        Models may change during the iteration. Models that have been added by its end, for example because they were
        restored, come last. Models that have been removed are left out.
        """
        http_url, cpus = self._server.info().http_url, DaemonCpus.read()
        served, seen = self._registry.served, set[str]()
        for name in [one.spec.name for one in served]:
            current = served.get(name)
            if current is not None:
                seen.add(name)
                yield self._model_info(current, http_url, cpus)
        for info in self._other_infos(seen, http_url):
            seen.add(info.name)
            yield info
        for name in [one.spec.name for one in served]:
            current = served.get(name)
            if current is not None and name not in seen:
                yield self._model_info(current, http_url, cpus)

    def find_model(self, name: str) -> messages.ModelInfo | None:
        """Return the status of a model, even while it is starting; None if it is unknown."""
        served = self._registry.served
        registration = served.get(name)
        if registration is not None:
            return self.model_info(registration)
        others = self._other_infos(set(), self._server.info().http_url)
        found = next((one for one in others if one.name == name), None)
        starting = served.find_starting(name)
        return found or (None if starting is None else self.model_info(starting))

    def _other_infos(self, served: set[str], http_url: str) -> Iterator[messages.ModelInfo]:
        """Yield the status of models without a registration: those from repositories, and those not yet restored."""
        found = self._repository_models.records.infos(http_url)
        yield from found
        names = served | {info.name for info in found}
        yield from self._registry.restoring.infos(names, http_url)

    def status(self, *, models: bool = True) -> messages.Status:
        """Return the daemon's status, with or without its models."""
        problems = [
            self._watch.problem(),
            *self._registry.problems(),
            *self._repository_models.problems(),
            self._readiness.problem(),
            *self._unpersisted(),
            self._openai.problem(),
            self._tcp_problem,
            self.advice,
        ]
        return messages.Status(
            version=own_version(),
            pid=os.getpid(),
            python=sys.executable,
            runtime_dir=str(self._rundir.path),
            state=self.phase,
            started_at=self.started_at,
            server=self._server.info(),
            models=self.model_infos() if models else [],
            state_dir=self.state_dir,
            problems=[problem for problem in problems if problem],
            control_tcp=self.control_tcp,
            management_urls=self._management_urls(),
            openai_url=self._openai.url,
            memory=self._memory(),
        )

    def for_service_manager(self) -> ServiceState:
        """Return the state to report to the service manager."""
        if self.phase == "stopping":
            return ServiceState(f"stopping: {self.why_stopped}", healthy=True, busy=True)
        states = {one.spec.name: one.state for one in self._registry.served}
        others = list(self._other_infos(set(states), self._server.info().http_url))
        states.update({model.name: model.state for model in others})
        ready = sum(state in messages.SERVED_STATES for state in states.values())
        text = f"{self.phase}: {ready} of {len(states)} models ready"
        for what, names in (
            ("loading", [model.name for model in others if model.loading_since]),
            ("degraded", [name for name, state in states.items() if state == "degraded"]),
        ):
            if names:
                more = ", …" if len(names) > _MAX_NAMED else ""
                text += f"; {what} {', '.join(names[:_MAX_NAMED])}{more}"
        if self.phase != "starting" and not self._server.ready:
            text += f"; {self._watch.problem() or 'tritonserver is being started again'}"
        return ServiceState(
            text,
            healthy=self._is_healthy(),
            busy=self.phase == "starting" or not self._readiness.announced,
        )


@cache
def own_version() -> str:
    """Return the version that is running. The first call must be made before another version can be installed."""
    from importlib.metadata import version  # takes 20 ms, which would delay the start

    return version("pytriton-daemon")
