"""The factory of workers: names them, and starts them as child processes or in threads of a registrant."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.opentelemetry import uses_opentelemetry, worker_environment
from pytriton._protocol import messages
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.runtime.child import OnLine
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.upgrade.snapshot import WorkerState
from pytriton.dispatcher.workers import slots
from pytriton.dispatcher.workers.fork_servers import ForkServers
from pytriton.dispatcher.workers.hosted_worker import HostedWorker, Registrant
from pytriton.dispatcher.workers.worker import Worker
from pytriton.dispatcher.workers.worker_process import (
    WorkerContext,
    WorkerProcess,
    boot_arguments,
)


class WorkerStarter(Protocol):
    """Starts the worker of one slot of a model. The daemon uses `WorkerFactory.start`."""

    def __call__(
        self, spec: messages.ModelSpec, slot: int, registrant: Registrant | None, /
    ) -> Awaitable[Worker]: ...


class WorkerFactory:
    """Starts workers, each with a name that is unique for the lifetime of the daemon, which has one factory."""

    def __init__(
        self, config: DaemonConfig, rundir: RuntimeDir, library: Path, kill_on_death: KillOnDeath
    ) -> None:
        self._rundir = rundir
        tracing = uses_opentelemetry(config)
        boot = functools.partial(boot_arguments, library, rundir.control_endpoint)
        #: Fork servers, which start workers faster than a new interpreter.
        self.forks = ForkServers(
            config.max_fork_servers, boot, kill_on_death, config.worker_start_timeout_s
        )
        self._context = WorkerContext(
            rundir.control_endpoint,
            library,
            kill_on_death,
            worker_environment(config, os.environ) if tracing else None,
            self.forks,
            config.grace_period_s,
        )
        #: Number of the last worker.
        self.serial = 0
        #: Called with the model of a worker that exited because its callable raised PyTritonUnrecoverableError.
        self.on_unrecoverable: Callable[[str], None] = lambda model: None

    async def start(
        self, spec: messages.ModelSpec, slot: int, registrant: Registrant | None, /
    ) -> Worker:
        """Start a worker and return it. The worker then says hello.

        Args:
            spec: The model.
            slot: Which of the model's workers to start, see slots.py.
            registrant: The process whose thread runs the worker; None to start a process.

        Raises:
            RemoteFailure: The worker cannot be started.
        """
        self.serial += 1
        name = f"w{self.serial}"
        lane_path = self._rundir.lane_socket(name)
        if registrant is not None:
            return HostedWorker.start(name, spec, slot, registrant=registrant, lane_path=lane_path)
        return await self._start_process(name, spec, slot, lane_path)

    def adopt(self, state: WorkerState, spec: messages.ModelSpec, slot: int, peer: Peer) -> Worker:
        """Adopt a worker that was started before an upgrade; raises what `WorkerProcess.adopt` raises."""
        spec, instance = slots.worker_spec(spec, slot)
        on_line = _log_lines(state.name, spec.name, instance)
        worker = WorkerProcess.adopt(
            state, spec, instance, context=self._context, on_line=on_line, peer=peer
        )
        return self._with_exit_callback(worker, spec.name)

    async def _start_process(
        self, name: str, spec: messages.ModelSpec, slot: int, lane_path: Path
    ) -> WorkerProcess:
        spec, instance = slots.worker_spec(spec, slot)
        on_line = _log_lines(name, spec.name, instance)
        worker = await WorkerProcess.start(
            name, spec, instance, context=self._context, lane_path=lane_path, on_line=on_line
        )
        return self._with_exit_callback(worker, spec.name)

    def _with_exit_callback(self, worker: WorkerProcess, model: str) -> WorkerProcess:
        """Report an unrecoverable worker when it exits: its own message could be lost during an upgrade."""

        def ended(_: object) -> None:
            if worker.is_unrecoverable:
                self.on_unrecoverable(model)

        worker.exited.add_done_callback(ended)
        return worker


def _log_lines(worker: str, model: str, instance: int) -> OnLine:
    logger = logs.child_logger(source="worker", model=model, instance=instance, worker=worker)

    def on_line(pid: int, line: bytes) -> None:
        logs.log_child_line(logger.bind(pid=pid), line)

    return on_line
