"""One registration: a model's declaration, its payloads, its pool of workers, and its way into and out of Triton.

    workers load ──▶ folder ──▶ Triton loads the proxies ──▶ proxies attach ──▶ READY
    STOPPING: Triton unloads ──▶ proxies answer what is under way and detach ──▶ workers end ──▶ folder goes

Two registrations of one name live side by side while one replaces the other: Triton keeps serving
the old proxies, which know only the old workers, until the new ones are ready.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from pytriton.dispatcher import repository
from pytriton.dispatcher.pool import Pool, ReportProgress, RestartPolicy, StartWorker
from pytriton.dispatcher.states import ModelState, StateMachine
from pytriton.dispatcher.tritonserver import TritonServer
from pytriton.ipc import messages

_log = structlog.get_logger(__name__)


#: What a worker gets to end in, even when the grace period is over.
_WORKER_END_S = 1.0


class Registration:
    """A model as it was registered once. `key` is unique among all registrations of this daemon's life."""

    def __init__(
        self,
        key: str,
        spec: messages.ModelSpec,
        payloads: Sequence[bytes],
        start_worker: StartWorker,
        policy: RestartPolicy,
        endpoint: str,
    ) -> None:
        self.key = key
        self.spec = spec
        self.pool = Pool(spec, start_worker, policy)
        self.triton_config = repository.triton_config(spec, endpoint, key)
        self._payloads = payloads
        self._machine = StateMachine(ModelState.STARTING)
        self._registered_at = time.time()
        self._proxies_gone = asyncio.Event()

    def payload(self, instance: int) -> bytes:
        """Return the pickled callable of an instance."""
        return self._payloads[instance if len(self._payloads) > 1 else 0]

    async def start(self, server: TritonServer, models: Path, report: ReportProgress) -> None:
        """Load the workers, then the model in Triton; it serves when this returns.

        Raises:
            RemoteFailure: a worker or Triton failed; the caller then calls `stop`.
        """
        await self.pool.start(report)
        await report(messages.Progress("serving", "tritonserver loads the model"))
        repository.make_folder(models, self.spec)
        await server.load(self.spec.name, self.triton_config)
        self._machine.change(ModelState.READY)

    def begin_stop(self) -> None:
        """From now on the registration is on its way out."""
        self._machine.change(ModelState.STOPPING)

    async def stop(self, grace_s: float) -> None:
        """Wait until Triton's proxies are gone, at most `grace_s`, then end the workers."""
        deadline = asyncio.get_running_loop().time() + grace_s
        if self.pool.proxies:
            try:
                await asyncio.wait_for(self._proxies_gone.wait(), grace_s)
            except asyncio.TimeoutError:
                _log.warning(
                    "batches still run after the grace period",
                    model=self.spec.name,
                    grace_s=grace_s,
                    proxies=self.pool.proxies,
                )
        left_s = deadline - asyncio.get_running_loop().time()
        await self.pool.stop(max(_WORKER_END_S, left_s))
        self._machine.change(ModelState.STOPPED)

    def detach(self, proxy: str) -> None:
        """A proxy has ended in order."""
        self.pool.detach(proxy)
        if not self.pool.proxies:
            self._proxies_gone.set()

    def forget_proxies(self) -> None:
        """tritonserver has ended, and all proxies with it."""
        self.pool.forget_proxies()
        self._proxies_gone.set()

    @property
    def ready(self) -> bool:
        return self._machine.state is ModelState.READY

    def info(self, http_url: str, log_file: Path) -> messages.ModelInfo:
        """Return what status shows."""
        name = self.spec.name
        return messages.ModelInfo(
            name=name,
            version=self.spec.version,
            state=self._machine.state.value,
            instances=self.pool.infos(),
            url=f"{http_url}/v2/models/{name}" if http_url else "",
            config=self.triton_config,
            python=self.spec.world.python,
            registered_at=self._registered_at,
            log_file=str(log_file),
        )
