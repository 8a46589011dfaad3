"""The snapshot: everything that is counted and measured, at one moment."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Optional

from pytriton.dispatcher.base.child_output import LEFT_OUT
from pytriton.dispatcher.control.control_socket import ControlServer
from pytriton.dispatcher.figures.loop_lag import LoopLag
from pytriton.dispatcher.figures.process_memory import Memory, memory_of
from pytriton.dispatcher.figures.work import work_of
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.triton.restarting import ServerWatch
from pytriton.dispatcher.workers.tally import InstanceTally, Tally
from pytriton.dispatcher.workers.worker import Worker
from pytriton.ipc import messages
from pytriton.ipc.lanes.gauge import NOTHING, Counts
from pytriton.ipc.messages.figures import (
    DaemonFigures,
    Figures,
    InstanceFigures,
    ModelFigures,
    QueueFigures,
)

MemoryOf = Callable[[int], Optional[Memory]]


#: What tritonserver has said of its queues is believed for so long.
_QUEUES_KEPT_S = 0.5


class Snapshots:
    """Makes snapshots, without asking or waiting for anybody.

    Args:
        status: tells what `status` tells
        registry: the models
        watch: counts tritonserver's restarts
        control: counts control messages
        memory: tells the memory of a process

    Attributes:
        lag: how late the event loop is; somebody has to run it.
        queues: what tritonserver said last of its queues, by model; whoever asks it puts it here.
        gpu: memory on GPUs by process, as far as somebody has found that out.
    """

    def __init__(
        self,
        status: Callable[[], messages.Status],
        registry: Registry,
        watch: ServerWatch,
        control: ControlServer,
        *,
        memory: MemoryOf = memory_of,
    ) -> None:
        self.lag = LoopLag()
        self.queues: Mapping[str, list[QueueFigures]] = {}
        self.gpu: Mapping[int, int] = {}
        self._status = status
        self._registry = registry
        self._watch = watch
        self._control = control
        self._memory = memory
        self._asked_at = float("-inf")

    async def current(self) -> Figures:
        """Return everything as it is now, with what tritonserver says of its queues if it does so in time."""
        loop = asyncio.get_running_loop()
        url = self._status().server.metrics_url
        if url and loop.time() > self._asked_at + _QUEUES_KEPT_S:
            from pytriton.dispatcher.figures import triton_metrics

            self._asked_at = loop.time()
            self.queues = await loop.run_in_executor(None, triton_metrics.queues_at, url)
        return self.take()

    def take(self) -> Figures:
        """Return everything as it is now."""
        status = self._status()
        return Figures(
            at=time.time(),
            daemon=self._of_daemon(status),
            models=[self._of_model(info) for info in status.models],
        )

    def _of_daemon(self, status: messages.Status) -> DaemonFigures:
        outcomes = self._registry.restoring.outcomes
        requests: dict[str, dict[str, int]] = {}
        for (kind, outcome), count in self._control.answered.items():
            requests.setdefault(kind, {})[outcome] = count
        free, size = _disk(status.state_dir)
        return DaemonFigures(
            version=status.version,
            state=status.state,
            pid=status.pid,
            started_at=status.started_at,
            server_state=status.server.state,
            server_pid=status.server.pid,
            resident=self._resident(status.pid),
            server_resident=self._resident(status.server.pid),
            registrations=dict(Counter(model.state for model in status.models)),
            restored=outcomes["restored"],
            restore_failures=outcomes["failed"],
            requests=requests,
            server_restarts=dict(self._watch.restarts),
            loop_lag=self.lag.histogram(),
            lines_dropped=LEFT_OUT.lines,
            disk_free=free,
            disk_size=size,
            problems=status.problems,
        )

    def _of_model(self, info: messages.ModelInfo) -> ModelFigures:
        tally = self._registry.ledger.get(info.name) or Tally()
        registration = self._registry.get(info.name)
        counts = {key: instance.counts() for key, instance in tally.instances.items()}
        total = reduce(Counts.plus, counts.values(), NOTHING)
        spec = registration.spec if registration is not None else None
        return ModelFigures(
            name=info.name,
            version=info.version,
            state=info.state,
            served_by=info.served_by,
            isolation=info.isolation,
            desired=spec.instances if spec is not None else 0,
            spares=spec.spares if spec is not None else 0,
            retries=tally.retries,
            poison=tally.poison,
            error=info.error,
            instances=list(self._of_instances(info, tally, registration, counts)),
            work=work_of(total, tally.failed),
            queue=list(self.queues.get(info.name, ())),
        )

    def _of_instances(
        self,
        info: messages.ModelInfo,
        tally: Tally,
        registration: Registration | None,
        counts: Mapping[tuple[int, int], Counts],
    ) -> Iterator[InstanceFigures]:
        """Yield the instances that there are, then those that there were: their counters stay."""
        told: set[tuple[int, int]] = set()
        for instance in info.instances:
            key = (instance.version or info.version, instance.index)
            told.add(key)
            yield self._of_instance(
                key, instance, tally.instances.get(key), registration, counts.get(key, NOTHING)
            )
        for key in sorted(tally.instances.keys() - told):
            yield self._of_instance(key, None, tally.instances[key], None, counts[key])

    def _of_instance(
        self,
        key: tuple[int, int],
        info: messages.InstanceInfo | None,
        tally: InstanceTally | None,
        registration: Registration | None,
        counts: Counts,
    ) -> InstanceFigures:
        tally = tally or InstanceTally()
        worker = _present(tally, info.pid) if info is not None and info.pid is not None else None
        own_process = registration is not None and registration.registrant is None
        alive = worker is not None and worker.alive
        memory = self._memory(worker.pid) if worker and alive and own_process else None
        limits = registration.spec.limits if registration is not None else None
        known = [limit for limit in (limits.memory, limits.memory_hard) if limit] if limits else []
        version, number = key
        return InstanceFigures(
            version=version,
            instance=number,
            spare=info is not None and info.spare,
            state=info.state if info is not None else "",
            worker=worker.name if worker is not None else "",
            pid=worker.pid if worker is not None else None,
            device=info.device if info is not None else None,
            lanes=info.lanes if info is not None else 0,
            started_at=worker.started_at if worker is not None else None,
            batch_s=info.busy_s if info is not None else None,
            resident=memory.resident if memory else None,
            shared=memory.shared if memory else None,
            gpu=self.gpu.get(worker.pid) if worker and own_process else None,
            arenas=worker.gauge.arena_bytes if worker and alive else 0,
            load_s=worker.gauge.load_s if worker and alive else 0.0,
            warmup_s=worker.gauge.warmup_s if worker and alive else 0.0,
            memory_limit=min(known) if known else None,
            starts=tally.starts,
            ends=dict(tally.ends),
            fruitless_ends=info.fruitless_ends if info is not None else 0,
            next_try_at=info.next_try_at if info is not None else None,
            last_exit=info.last_exit if info is not None else None,
            work=work_of(counts),
        )

    def _resident(self, pid: int | None) -> int | None:
        memory = self._memory(pid) if pid is not None else None
        return memory.resident if memory is not None else None


def _present(tally: InstanceTally, pid: int) -> Worker | None:
    """Return the worker of an instance that `status` names; of threads of one process, the newest."""
    return next((worker for worker in reversed(tally.workers) if worker.pid == pid), None)


def _disk(folder: str) -> tuple[int | None, int | None]:
    """Return the free bytes and all bytes of the file system that a folder is in."""
    try:
        seen = os.statvfs(folder) if folder else None
    except OSError:
        return None, None
    return (seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize) if seen else (None, None)
