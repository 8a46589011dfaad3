"""Starts workers: processes of the dispatcher's own, and threads of registrants. The daemon makes one factory."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from pytriton._host.settings import trace_settings
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.runtime.child import OnLine
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.upgrade_snapshot import WorkerState
from pytriton.dispatcher.workers.process import slots
from pytriton.dispatcher.workers.process.fork_servers import ForkServers, boot_arguments
from pytriton.dispatcher.workers.process.hosted_worker import HostedWorker
from pytriton.dispatcher.workers.process.registrant import Registrant
from pytriton.dispatcher.workers.process.worker import Worker
from pytriton.dispatcher.workers.process.worker_process import WorkerPlace, WorkerProcess


class StartWorker(Protocol):
    """Starts the worker of one slot of a model; `WorkerFactory.start` is the one that the daemon has."""

    def __call__(
        self, spec: messages.ModelSpec, slot: int, registrant: Registrant | None, /
    ) -> Awaitable[Worker]: ...


class WorkerFactory:
    """Starts workers, each with a name that no other worker of this daemon's life has."""

    def __init__(
        self, config: DaemonConfig, rundir: RuntimeDir, library: Path, kill_on_death: KillOnDeath
    ) -> None:
        self._rundir = rundir
        tracing = trace_settings.uses_opentelemetry(config)
        boot = functools.partial(boot_arguments, library, rundir.control_endpoint)
        #: Make workers of one environment quickly.
        self.forks = ForkServers(
            config.fork_servers, boot, kill_on_death, config.worker_start_timeout_s
        )
        self._place = WorkerPlace(
            rundir.control_endpoint,
            library,
            kill_on_death,
            trace_settings.worker_environment(config, os.environ) if tracing else None,
            self.forks,
            config.grace_period_s,
        )
        #: The number of the last worker.
        self.serial = 0
        #: Is told the model of a worker that ended because its callable is unrecoverable.
        self.on_given_up: Callable[[str], None] = lambda model: None

    async def start(
        self, spec: messages.ModelSpec, slot: int, registrant: Registrant | None, /
    ) -> Worker:
        """Start a worker; it says hello by itself.

        Args:
            spec: the model
            slot: which of the model's workers it is, see slots.py
            registrant: in whose threads it runs; None: it is a process

        Raises:
            RemoteFailure: it cannot be started: what it needs is not there.
        """
        self.serial += 1
        name = f"w{self.serial}"
        lane_path = self._rundir.lane_socket(name)
        if registrant is not None:
            return HostedWorker.start(name, spec, slot, registrant=registrant, lane_path=lane_path)
        return await self._start_process(name, spec, slot, lane_path)

    def adopt(self, state: WorkerState, spec: messages.ModelSpec, slot: int, peer: Peer) -> Worker:
        """Go on with a worker of a former version of this process; raises as `WorkerProcess.adopt`."""
        spec, instance = slots.taken_by(spec, slot)
        on_line = _log_lines(state.name, spec.name, instance)
        worker = WorkerProcess.adopt(
            state, spec, instance, place=self._place, on_line=on_line, peer=peer
        )
        return self._minded(worker, spec.name)

    async def _start_process(
        self, name: str, spec: messages.ModelSpec, slot: int, lane_path: Path
    ) -> WorkerProcess:
        spec, instance = slots.taken_by(spec, slot)
        on_line = _log_lines(name, spec.name, instance)
        worker = await WorkerProcess.start(
            name, spec, instance, place=self._place, lane_path=lane_path, on_line=on_line
        )
        return self._minded(worker, spec.name)

    def _minded(self, worker: WorkerProcess, model: str) -> WorkerProcess:
        """Hear from how a worker ends that it gave up: its word is lost where the daemon becomes another version."""

        def ended(_: object) -> None:
            if worker.gave_up:
                self.on_given_up(model)

        worker.exited.add_done_callback(ended)
        return worker


def _log_lines(worker: str, model: str, instance: int) -> OnLine:
    logger = logs.child_logger(source="worker", model=model, instance=instance, worker=worker)

    def on_line(pid: int, line: bytes) -> None:
        logs.log_child_line(logger.bind(pid=pid), line)

    return on_line
