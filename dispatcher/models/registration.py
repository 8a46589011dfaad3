"""One registration: a model's declaration, payloads, pool of workers, and lifecycle.

    workers load ──▶ folder ──▶ Triton loads the proxies ──▶ proxies attach ──▶ READY (see model_in_triton.py)
    STOPPING: Triton unloads ──▶ proxies finish requests in flight and detach ──▶ workers exit ──▶ folder is removed

While one registration replaces another of the same name, both exist: until the new proxies are ready, Triton uses the
old ones, which know only the old workers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.declaration import CurrentDeclaration, info_of
from pytriton.dispatcher.models.in_triton.model_in_triton import ModelInTriton
from pytriton.dispatcher.models.persistence.state_dir import Entry
from pytriton.dispatcher.models.server_wait import ServerWait
from pytriton.dispatcher.runtime.states import ModelState
from pytriton.dispatcher.runtime.tasks import uninterrupted
from pytriton.dispatcher.server import own_repository
from pytriton.dispatcher.server.server_process import ServerCrashed, ServerLost
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.upgrade.snapshot import RegistrationState
from pytriton.dispatcher.workers.hosted_worker import Registrant
from pytriton.dispatcher.workers.memory_account import Account
from pytriton.dispatcher.workers.model_counters import ModelCounters
from pytriton.dispatcher.workers.pool import AdoptWorker, Pool, ReportProgress
from pytriton.dispatcher.workers.prestarted import PrestartedWorkers
from pytriton.dispatcher.workers.supervisor import RestartPolicy
from pytriton.dispatcher.workers.worker_process import DaemonCpus, WorkerStarter
from pytriton.formats import complete

#: Maximum number of attempts to load a model while tritonserver exits; the load may be the cause.
_LOAD_ATTEMPTS = 3
#: Seconds that a worker gets to exit even if the grace period is over.
_WORKER_END_S = 1.0


class Registration:
    """One registration of a model. Its `key` is unique for the lifetime of the daemon."""

    def __init__(
        self,
        key: str,
        entry: Entry,
        start_worker: WorkerStarter,
        policy: RestartPolicy,
        endpoint: str,
        registrant: Registrant | None = None,
        *,
        native: bool = False,
        kept: bool = True,
        former: Registration | None = None,
        counters: ModelCounters | None = None,
        events: Events = LOG_ONLY,
        suspended: bool = False,
        prestarted: PrestartedWorkers | None = None,
        account: Account | None = None,
        on_scaling_change: Callable[[], object] = lambda: None,
    ) -> None:
        self.key = key
        self._on_scaling_change = on_scaling_change
        self._declared = CurrentDeclaration(entry)
        #: Whether the state directory contains it for the next start.
        self.kept = kept
        #: The process in whose threads its workers run; None if they are child processes of the dispatcher.
        self.registrant = registrant
        #: Receives decisions about the model.
        self.events = events.about(entry.spec.name, entry.spec.version)
        self.pool = Pool(
            entry.spec,
            start_worker,
            policy,
            registrant,
            counters,
            self.events,
            suspended=suspended,
            prestarted=prestarted,
            account=account,
            native=native,
            on_resume=on_scaling_change,
        )
        #: Held while Triton loads or unloads the model; shared with the registration that this one replaces.
        self.load_lock: asyncio.Lock = asyncio.Lock() if former is None else former.load_lock
        #: The model in tritonserver.
        self.in_triton = ModelInTriton(
            self.spec.name, self._config, self.pool, self.load_lock, self.events
        )
        self.proxies = self.in_triton.ends.proxies
        self._machine = self.in_triton.machine
        self._endpoint = endpoint
        self._native = native
        self.left_to_server = False  #: its proxies exit with tritonserver, which is about to exit
        self.scaling = ""  #: human-readable description of its autoscaling, set by the autoscaler
        self._in_doubt = (
            False  #: its number of instances was changed, and tritonserver has not accepted it yet
        )

    @property
    def spec(self) -> messages.ModelSpec:
        """The current declaration."""
        return self._declared.spec

    @spec.setter
    def spec(self, spec: messages.ModelSpec) -> None:
        former, self._declared.spec = self._declared.spec, spec
        if spec.autoscale != former.autoscale:
            self._on_scaling_change()

    def complete_config(self, completion: messages.Completion | None) -> str | None:
        """Complete the declaration with the configuration that a worker read from the model's file.

        The first worker to load the file determines the configuration, and tritonserver loads the model with it. Return
        None, or the reason why the declaration cannot be completed, for example because a later worker read another
        configuration.
        """
        spec = self.spec
        if not spec.completed_by_workers:
            return None
        if completion is None:
            return "its worker did not report the configuration that it read from the model's file"
        config = completion.applied_to(spec.config)
        completed = msgspec.structs.replace(
            spec, config=config, max_inflight_batches=complete.lanes_for(config)
        )
        if completed == spec:
            return None
        if complete.is_complete(spec.config):
            return (
                "its file has changed since it was loaded, and now has other inputs or outputs. Load it again: "
                f"pytriton-daemon repository load {spec.name}"
            )
        if not complete.is_complete(completed.config):
            return "its worker reported a configuration without inputs or outputs"
        self.spec = completed
        self.pool.redeclare(completed)
        return None

    def check_persisted(self) -> None:
        """Check that the model is persisted. Otherwise there is no stored version to roll back to.

        Raises:
            RemoteFailure: it is not persisted; the text gives the reason.
        """
        if self.kept:
            return
        why = "is not stored in the state directory"
        if self.registrant is not None:
            why = f"runs in threads of process {self.registrant.pid}"
        text = f"model {self.spec.name} {why}: no previous version is stored to roll back to"
        raise RemoteFailure(ErrorKind.INVALID, text)

    def entry(self) -> Entry:
        """Return the entry to persist, with the current declaration."""
        return self._declared.entry()

    def digest(self) -> str:
        """Return the digest of the declaration and the payloads."""
        return self._declared.digest()

    def payloads(self, instance: int) -> list[bytes]:
        """Return the pickled callable of an instance, followed by the model's check if it has one."""
        return self._declared.payloads(instance)

    def _config(self, mended: int) -> dict[str, Any]:
        return own_repository.triton_config(
            self.spec,
            self._endpoint,
            self.key,
            self.pool.lanes,
            mended,
            self._declared.proxied,
            native=self._native,
        )

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def start(
        self,
        server: TritonServer,
        models: Path,
        report: ReportProgress,
        server_wait: ServerWait,
        take_over: Callable[[], Awaitable[None]],
        *,
        not_ready_after_s: float,
        grace_s: float,
    ) -> None:
        """Load the workers, then the model in Triton. The model is serving when this returns.

        If tritonserver exits, wait for it according to `server_wait`. `take_over` is awaited right after the load, while
        nothing else can load or unload the model: the replaced registration must not load itself again.

        Raises:
            RemoteFailure: a worker or Triton failed. The caller must call `stop`.
        """
        await self.pool.start(report)
        await report(messages.Progress("serving", "tritonserver loads the model"))
        for left in reversed(range(_LOAD_ATTEMPTS)):
            await server_wait.until_up()
            async with self.load_lock:
                if await self._is_loaded(server, models, may_fail=left > 0):
                    self._machine.change(ModelState.READY)
                    await take_over()
                    break
        self.in_triton.start_tasks(server, not_ready_after_s=not_ready_after_s, grace_s=grace_s)

    def begin_suspended(
        self, server: TritonServer, models: Path, *, not_ready_after_s: float, grace_s: float
    ) -> None:
        """Serve without a worker. tritonserver is about to start, and will load the model."""
        own_repository.make_folder(models, self.spec)
        self.in_triton.use_folder(models)
        self.in_triton.server_lost = True
        self._machine.change(ModelState.READY)
        self.in_triton.start_tasks(server, not_ready_after_s=not_ready_after_s, grace_s=grace_s)

    @property
    def is_quiescent(self) -> bool:
        """Whether an upgrade can hand over the registration. If so, nothing except requests is in progress."""
        return not self._in_doubt and self.in_triton.is_quiescent and self.pool.is_quiescent

    def hand_over(self, owner: int | None) -> RegistrationState:
        """Return the state of a quiescent model for an upgrade. `owner` is the pid that the model is bound to."""
        entry = self.entry()
        return RegistrationState(
            self.key,
            self.spec,
            entry.registered_at,
            self.kept,
            [] if self.kept else entry.payloads,
            self._machine.state.value,
            self.pool.hand_over(),
            owner,
            *self.in_triton.numbers(),
            self.pool.account.registration,
        )

    def adopt(
        self,
        state: RegistrationState,
        server: TritonServer,
        models: Path,
        adopt_worker: AdoptWorker,
        *,
        not_ready_after_s: float,
        grace_s: float,
    ) -> None:
        """Adopt a model after an upgrade. Its workers and proxies are not affected."""
        self.pool.adopt(state.pool, adopt_worker)
        self.in_triton.adopt(state, models)
        self.in_triton.start_tasks(server, not_ready_after_s=not_ready_after_s, grace_s=grace_s)

    async def _is_loaded(self, server: TritonServer, models: Path, *, may_fail: bool) -> bool:
        """Load the model in Triton. Return False if tritonserver crashed during the load."""
        self.in_triton.server_lost = False
        own_repository.make_folder(models, self.spec)
        self.in_triton.use_folder(models)
        try:
            await self.in_triton.load(server)
        except ServerLost as lost:
            self.in_triton.forget_proxies()
            # The next tritonserver would crash as well, so it must not load this model.
            if not may_fail or isinstance(lost, ServerCrashed):
                raise
            return False
        return True

    async def scale(
        self,
        instances: int,
        server: TritonServer,
        report: ReportProgress,
        grace_s: float,
        autoscale: messages.Autoscale | None = None,
    ) -> None:
        """Change the number of instances without failing requests.

        A cancellation takes effect only while workers load.

        Raises:
            RemoteFailure: the model cannot have this number of instances, or a new worker or Triton failed. The change
                was undone.
        """
        new = self._declared.scaled(instances, autoscale)
        await self.pool.grow(new, report)
        await uninterrupted(self._serve_with(new, server, report, grace_s))

    async def _serve_with(
        self, new: messages.ModelSpec, server: TritonServer, report: ReportProgress, grace_s: float
    ) -> None:
        old = self.spec
        async with self.load_lock:
            self._declared.keep_proxies()
            self.spec, self._in_doubt = new, True
            if new.instances != old.instances and not self._declared.is_bound_to_proxies:
                # If only the count changes, Triton 2.51 adds or removes instances in place, and waits for them. It
                # does so only when the model's queue is empty, which has taken 100 s. A fresh load gets a new queue,
                # and workers only see their lanes change.
                self.in_triton.request_new_proxies()
            try:
                if self.ready:
                    await report(messages.Progress("serving", "tritonserver loads the model"))
                    await self.in_triton.load(server)
                else:
                    self.in_triton.write_config()
            except BaseException:
                self.spec = old
                await self.pool.shrink(old, grace_s)
                raise
            finally:
                self._in_doubt = False
        await self.pool.shrink(new, grace_s)

    async def suspend(self, idle_s: float, grace_s: float, why: str = "") -> None:
        """Suspend the model: stop its workers until the next request. tritonserver keeps the model and its proxies."""
        await uninterrupted(self.pool.suspend(idle_s, grace_s, why))

    @property
    def instances(self) -> int:
        """The declared number of instances; 0 while the model is suspended."""
        return 0 if self.pool.suspension.suspended else self.spec.instances

    async def retry_now(self, report: ReportProgress) -> None:
        """Start a worker now for each instance without one. Return once the model is served.

        Raises:
            RemoteFailure: a worker could not be loaded. The back-off of its instance continues.
        """
        await self.pool.retry_now(report)
        await self.pool.until(
            lambda: self.ready or self.in_triton.unloaded or not self.pool.can_serve
        )

    @property
    def loads_again(self) -> bool:
        """Whether a restarted tritonserver that has not loaded the model yet can load it."""
        return self.in_triton.server_lost and self.ready

    @property
    def preloadable(self) -> bool:
        """Whether a starting tritonserver can load the model: it has a worker or is suspended."""
        return self.ready and self.pool.answers and not self._in_doubt

    async def refuse_requests(self, server: TritonServer) -> None:
        """Unload the model, but answer clients with 503 and the reason until tritonserver exits.

        A plain unload would answer them with 404 (no such model). A suspended model stays loaded: the daemon fails its
        batches.

        Raises:
            RemoteFailure: tritonserver refused.
        """
        if self._native and self.pool.suspension.suspended and not self.pool.can_serve:
            self.left_to_server = True
            return
        async with self.load_lock:
            if server.ready and self._native and self.pool.proxies:
                text = f"model {self.spec.name}: the server is being stopped"
                with contextlib.suppress(
                    RemoteFailure
                ):  # otherwise Triton would never end its proxies
                    await self.in_triton.refuse_requests(server, text)
                    return
        await self.unload(server)

    async def unload(self, server: TritonServer) -> None:
        """Unload the model from Triton. Triton then ends the model's proxies.

        Raises:
            RemoteFailure: tritonserver refused.
        """
        async with self.load_lock:
            if server.ready:  # otherwise its proxies are gone already
                await server.unload(self.spec.name)

    def begin_stop(self) -> None:
        """Mark the registration as STOPPING, and stop reloading its model into Triton."""
        self.in_triton.cancel_tasks()
        self._machine.change(ModelState.STOPPING)

    async def stop(self, grace_s: float, why: str, reason: str = "stop") -> None:
        """Wait up to `grace_s` seconds for Triton's proxies to end, then stop the workers.

        `why` is sent to the registrant that hosts the workers, if any. `reason`, one of EXIT_REASONS, is counted.
        """
        deadline = asyncio.get_running_loop().time() + grace_s
        ended = self.left_to_server or await self.in_triton.ends.until_all_ended(
            grace_s,
            decoupled=self._declared.is_decoupled,
            queue_delay_s=self._declared.queue_delay_s,
        )
        if not ended and self.pool.proxies:
            self.events.emit(
                kinds.GRACE_PERIOD_EXPIRED,
                numbers={"grace_s": grace_s, "proxies": len(self.pool.proxies)},
            )
        self.in_triton.ends.end_all()
        left_s = deadline - asyncio.get_running_loop().time()
        await self.pool.stop(max(_WORKER_END_S, left_s), reason)
        if self.registrant is not None:
            await self.registrant.release(why)
        self._machine.change(ModelState.STOPPED)

    def detach(self, proxy: str) -> None:
        """Forget a proxy that has detached."""
        self.in_triton.ends.detach(proxy)

    @property
    def ready(self) -> bool:
        return self.in_triton.ready

    @property
    def registered_at(self) -> float:
        """When the model was registered, in seconds since the epoch."""
        return self._declared.registered_at

    @property
    def serial(self) -> int:
        """Position in the state directory's order if the model was restored from there, else 0."""
        return self._declared.serial

    @property
    def state(self) -> str:
        """The registration's state as shown by `status`."""
        if self.loads_again:
            return "not_ready"
        suspension = self.pool.suspension
        if self.ready and suspension.in_effect:
            return "suspended" if suspension.suspended else "resuming"
        if self.ready and self.pool.degradations():
            return "degraded"
        return self._machine.state.value

    def _scaling_text(self) -> str:
        if self.spec.autoscale is not None:
            return self.scaling
        suspension = self.pool.suspension
        return suspension.text() if suspension.suspended else ""

    def info(
        self, http_url: str, log_file: Path, cpus: DaemonCpus | None = None
    ) -> messages.ModelInfo:
        """Return the model's status. `cpus` describes the daemon's CPUs, if the caller already knows them."""
        state = self.state
        why = self.pool.degradations() if state in ("degraded", "not_ready") else []
        return msgspec.structs.replace(
            info_of(self.spec, state, self._declared.registered_at, self.pool.infos(), cpus),
            error="; ".join(why) or None,
            url=f"{http_url}/v2/models/{self.spec.name}" if http_url else "",
            config=self.in_triton.config,
            scaling=self._scaling_text(),
            log_file=str(log_file),
        )
