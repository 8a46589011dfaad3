"""A worker that is a child process of the dispatcher: how it starts and ends, and how its exit is described.

Below it: the environment of the process, the factory that starts workers of both kinds, and the number of compute
threads of a worker.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import structlog

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.opentelemetry import (
    exports_elsewhere,
    uses_opentelemetry,
    worker_environment,
)
from pytriton._protocol import linux, messages
from pytriton._protocol.calls.call_connection import socket_path
from pytriton._protocol.env_variables import with_direct_loopback
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.exit_codes import WORKER_UNRECOVERABLE
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton._protocol.files.shared_entries import ENV_SHARED_DIR
from pytriton._protocol.lanes.stats_page import FAILURES, WorkerStatsPage
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.runtime.child import Child, OnLine, describe_exit, signal_name
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.worker_library import library_of
from pytriton.dispatcher.server.server_process import process_state
from pytriton.dispatcher.upgrade.snapshot import WorkerState
from pytriton.dispatcher.workers.fork_servers import ForkServers, InterpreterSetup
from pytriton.dispatcher.workers.hosted_worker import HostedWorker, Registrant
from pytriton.dispatcher.workers.worker import (
    LAST_MESSAGE_TIMEOUT_S,
    STATS_POLL_INTERVAL_S,
    Worker,
    instance_of,
    spec_of_slot,
)

_log = structlog.get_logger(__name__)

#: Variables of the daemon's environment that a worker inherits unless its registrant sent a value.
_DAEMON_DEFAULTS = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "TZ")
#: The line before each thread's stack when a hung worker dumps its stacks (faulthandler).
_STACK = b"(most recent call first)"
_DEVICE_ORDER = "CUDA_DEVICE_ORDER"
#: Time limit for the stack dump. It takes long only on an overloaded machine.
_STACK_DUMP_TIMEOUT_S = 10.0
#: Grace period of a hung worker between SIGTERM and SIGKILL. Few hung workers react to SIGTERM.
_HUNG_GRACE_S = 0.5
#: How long an idle worker that was asked to exit may sleep before it is considered unable to react.
_UNRESPONSIVE_AFTER_S = 5.0


@dataclass(frozen=True)
class WorkerContext:
    """Parameters that are the same for all worker processes of a daemon.

    Attributes:
        endpoint: The control endpoint.
        library: The directory that contains `pytriton`.
        kill_on_death: Kills the worker's processes if the daemon is killed.
        tracing: Environment variables for exporting spans; None unless tritonserver traces with OpenTelemetry.
        forks: Starts workers as forks, without starting an interpreter.
        clean_up_s: Seconds that a worker may take to clean up and exit after its last batch.
    """

    endpoint: str
    library: Path
    kill_on_death: KillOnDeath
    tracing: Mapping[str, str] | None = None
    forks: ForkServers | None = None
    clean_up_s: float = math.inf


class WorkerProcess(Worker):
    """A worker that is a child process of the dispatcher."""

    def __init__(
        self,
        name: str,
        child: Child,
        spec: messages.ModelSpec,
        instance: int,
        *,
        lane_path: Path,
        stats: WorkerStatsPage,
        tracing: bool = False,
        clean_up_s: float = math.inf,
    ) -> None:
        super().__init__(
            name, child.pid, spec, instance, lane_path=lane_path, stats=stats, exited=child.exited
        )
        self._child = child
        self._oom_kills = linux.oom_kills()
        self._tracing = tracing
        self._clean_up_s = clean_up_s
        self._payloads_of: Callable[[int], Sequence[bytes]] | None = None

    @classmethod
    async def start(
        cls,
        name: str,
        spec: messages.ModelSpec,
        instance: int,
        *,
        context: WorkerContext,
        lane_path: Path,
        on_line: OnLine,
    ) -> WorkerProcess:
        """Start a worker process and return it before it has said hello.

        Raises:
            RemoteFailure: The interpreter or the working directory cannot be used, or a resource limit was reached.
        """
        try:
            stats, stats_fd = WorkerStatsPage.create()
            try:
                child = await _start_child(name, spec, instance, context, on_line, stats_fd)
            except BaseException:
                stats.close()
                raise
            finally:
                os.close(stats_fd)
        except OSError as error:
            raise _not_started(spec, error) from error
        tracing = context.tracing is not None
        return cls(
            name,
            child,
            spec,
            instance,
            lane_path=lane_path,
            stats=stats,
            tracing=tracing,
            clean_up_s=context.clean_up_s,
        )

    @classmethod
    def adopt(
        cls,
        state: WorkerState,
        spec: messages.ModelSpec,
        instance: int,
        *,
        context: WorkerContext,
        on_line: OnLine,
        peer: Peer,
    ) -> WorkerProcess:
        """Adopt a serving worker that was started before an upgrade.

        Raises:
            OSError: The process is not a child of this one, or its statistics page is missing.
        """
        child = Child.adopt(state.child, on_line, context.kill_on_death)
        worker = cls(
            state.name,
            child,
            spec,
            instance,
            lane_path=Path(state.lane_path),
            stats=WorkerStatsPage.adopt(state.stats),
            tracing=context.tracing is not None,
            clean_up_s=context.clean_up_s,
        )
        worker._peer = peer
        worker.started_at, worker.not_ready_reason = state.started_at, state.not_ready_reason
        worker.protocol = state.protocol
        worker.greeted.set_result(None)
        worker.loaded()
        if state.recycle_due is not None:
            worker.request_recycle(state.recycle_due)
        return worker

    def hand_over(self) -> WorkerState:
        """Return the state to be handed over in an upgrade. The worker must be alive."""
        assert self.stats.kept is not None  # the worker is alive
        recycle_due = self.recycle_due.result() if self.recycle_due.done() else None
        return WorkerState(
            self.name,
            self._child.hand_over(),
            self.stats.kept,
            str(self.lane_path),
            self.started_at,
            self.protocol,
            self.not_ready_reason,
            recycle_due,
        )

    async def hello(self, peer: Peer, payloads_of: Callable[[int], Sequence[bytes]]) -> None:
        """Answer the hello of a worker with its model, unless the worker is prestarted. Raises the same exceptions
        as `Worker.hello`.
        """
        await super().hello(peer, payloads_of)
        self._payloads_of = payloads_of
        if not self.parked:
            await self._load()

    async def unpark(self) -> None:
        """Send a prestarted worker its model, now or once the worker's hello has arrived."""
        await super().unpark()
        if self._payloads_of is not None:
            await self._load()

    async def _load(self) -> None:
        assert self._peer is not None  # it has said hello
        assert self._payloads_of is not None
        load = messages.LoadModel(self._spec, self.instance, str(self.lane_path), self._tracing)
        await self._peer.send(load, self._payloads_of(self.instance))

    def last_lines(self) -> str:
        """Return the last lines of the worker's output."""
        return self._child.last_lines()

    def describe_end(self) -> str:
        """Describe how the worker exited, for `status` and for the clients of its last batch."""
        code = self.exited.result()
        how = describe_exit(code)
        if self.kill_reason is not None:
            how += f" by the daemon: {self.kill_reason}"
        elif code == -signal.SIGKILL and linux.oom_kills() > self._oom_kills:
            how += ", probably by the kernel for lack of memory"
        return f"worker {self.name} (pid {self.pid}) {how}"

    def end_record(self) -> messages.WorkerExit:
        """Return the record of the worker's exit. The worker must have exited."""
        code = self.exited.result()
        assert self._done is not None  # it has ended
        return messages.WorkerExit(
            at=time.time(),
            worker=self.name,
            pid=self.pid,
            how=self.describe_end(),
            exit_code=code if code >= 0 else None,
            signal=signal_name(code),
            peak_memory=self._child.peak_memory,
            batches=self._done.answered,
            in_batch=self._done.begun > self._done.answered,
            lines=self._child.recent_lines(),
        )

    @property
    def is_unrecoverable(self) -> bool:
        """Whether the worker exited because its callable raised PyTritonUnrecoverableError."""
        failed = dict(zip(FAILURES, self.counts().failed))
        return self.exited.result() == WORKER_UNRECOVERABLE and failed["unrecoverable"] > 0

    async def end_after_batch(self) -> None:
        """Ask the worker to exit after its batch, and wait without a time limit until it has exited."""
        await self._ask_to_end(math.inf)
        await self.stop(0)

    async def end_hung(self, why: str) -> None:
        """Write a hung worker's stacks to the model's log, then kill it."""
        if self.kill_reason is not None:
            return
        self.kill_reason = why
        self.expect_exit("hang")
        if self.alive:  # not reaped yet, so the pid cannot have been reused
            stacks = self._child.next_line_with(_STACK)
            os.kill(self.pid, signal.SIGQUIT)
            if not process_state(self.pid).startswith("T"):  # a stopped one cannot dump its stacks
                either: list[asyncio.Future[Any]] = [stacks, self.exited]
                await asyncio.wait(
                    either, timeout=_STACK_DUMP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
                )
        await self._child.stop(_HUNG_GRACE_S)

    def kill_now(self, why: str) -> None:
        """Kill the worker and all processes that it started, without a grace period."""
        if self.kill_reason is None and self.alive:
            self.kill_reason = why
            self.expect_exit("limit")
            self._child.kill()

    async def stop(self, grace_s: float) -> None:
        """Stop the process and its lanes: ask it to exit if `grace_s` is positive, then kill it."""
        if grace_s > 0:
            await self._ask_to_end(grace_s)
        await self._child.stop(0)
        self.lane_path.unlink(missing_ok=True)
        Path(socket_path(str(self.lane_path))).unlink(missing_ok=True)

    async def _ask_to_end(self, grace_s: float) -> None:
        """Send SIGTERM and EndWorker, and wait until the worker exits, for at most `grace_s` seconds.

        The message is for a worker whose callable ignores the signal or has replaced our handler. An idle worker that
        reacts to neither is killed early, unless it is waiting for a processor or a disk. A worker that is still loading
        is killed early in any case: it has nothing to clean up.
        """
        if not self.alive:
            return
        os.kill(self.pid, signal.SIGTERM)
        if self._peer is not None and self.ready.done():
            await self._peer.send(messages.EndWorker(self.name))
        clock = asyncio.get_running_loop().time
        now = clock()
        deadline, clean_up_deadline = now + grace_s, now + self._clean_up_s
        unresponsive_at = now + _UNRESPONSIVE_AFTER_S
        while self.alive and now < min(deadline, unresponsive_at, clean_up_deadline):
            await asyncio.wait([self.exited], timeout=min(STATS_POLL_INTERVAL_S, deadline - now))
            now = clock()
            if self.alive:
                reading = self.stats.read()
                if not reading.idle:
                    clean_up_deadline = now + self._clean_up_s
                if (
                    not reading.idle
                    or reading.ending
                    or (self.ready.done() and self._child.is_runnable())
                ):
                    unresponsive_at = now + _UNRESPONSIVE_AFTER_S
        if self.alive and now >= clean_up_deadline:
            _log.warning(
                "idle worker did not exit within grace_period_s, killing it",
                model=self._spec.name,
                worker=self.name,
                worker_pid=self.pid,
            )
        elif self.alive and now >= unresponsive_at:
            _log.warning(
                "idle worker did not react to SIGTERM, killing it; its callable or a library probably blocks the signal",
                model=self._spec.name,
                worker=self.name,
                worker_pid=self.pid,
            )

    async def _wait_for_output(self) -> None:
        await self._child.drained()


def _not_started(spec: messages.ModelSpec, error: OSError) -> RemoteFailure:
    text = f"model {spec.name}: cannot start a worker"
    if error.filename is None:  # out of descriptors, processes or memory
        text += f": {error.strerror}. This is a limit of the daemon or of the machine."
        return RemoteFailure(ErrorKind.UNAVAILABLE, text)
    is_cwd = error.filename == spec.world.cwd
    what, option = ("working directory", "cwd") if is_cwd else ("interpreter", "python")
    text += f", its {what} {error.filename} cannot be used by the daemon: {error.strerror}."
    return RemoteFailure(ErrorKind.LOAD_FAILED, f"{text} Choose another one with {option}=.")


async def _start_child(
    name: str,
    spec: messages.ModelSpec,
    instance: int,
    context: WorkerContext,
    on_line: OnLine,
    stats_fd: int,
) -> Child:
    """Start the process: fork it from a fork server if possible, or start a new interpreter. Raises OSError."""
    world = spec.world
    env = _environment(spec, context)
    # Set per fork: frameworks read it on import, and a fork server has imported none.
    device = _device(spec, instance)
    if context.forks is not None:
        forked = await context.forks.start(
            InterpreterSetup.of(world.python, world.cwd, env),
            name,
            device,
            cwd=world.cwd,
            stats=stats_fd,
            on_line=on_line,
        )
        if forked is not None:
            return forked
    boot = boot_arguments(context.library, context.endpoint, world.python)
    return await Child.start(
        [world.python, *boot, name, str(os.getpid()), str(stats_fd)],
        env={**env, **device},
        cwd=world.cwd,
        on_line=on_line,
        kill_on_death=context.kill_on_death,
        pass_fds=[stats_fd],
    )


def boot_arguments(library: Path, endpoint: str, python: str) -> list[str]:
    """Return the arguments with which the interpreter `python` starts a worker or a fork server."""
    library = library_of(library, python)
    return [str(library / "pytriton" / "worker" / "boot.py"), str(library), endpoint]


def _environment(spec: messages.ModelSpec, context: WorkerContext) -> Mapping[str, str]:
    env = {name: os.environ[name] for name in _DAEMON_DEFAULTS if name in os.environ}
    if context.tracing is not None and not exports_elsewhere(spec.world.env):
        env.update(context.tracing)
    env.update(thread_variables(spec))
    env.update(wait_policy(spec.world.env))
    env.update(spec.world.env)
    shared = str(context.library.parent / "shared")
    return {**with_direct_loopback(env), ENV_SHARED_DIR: shared}


def _device(spec: messages.ModelSpec, instance: int) -> dict[str, str]:
    # Standby workers are numbered after the instances and use the same devices in turn.
    device = spec.devices[instance % len(spec.devices)] if spec.devices else None
    if device is None:
        return {}
    # Number GPUs as nvidia-smi does, which the memory budget relies on. By default, CUDA puts the fastest GPU first.
    order = spec.world.env.get(_DEVICE_ORDER, "PCI_BUS_ID")
    return {"CUDA_VISIBLE_DEVICES": device, _DEVICE_ORDER: order}


# ── Starting workers of both kinds ──


class WorkerStarter(Protocol):
    """Function that starts the worker of one slot of a model, such as `WorkerFactory.start`."""

    def __call__(
        self, spec: messages.ModelSpec, slot: int, registrant: Registrant | None, /
    ) -> Awaitable[Worker]: ...


class WorkerFactory:
    """The daemon's factory of workers. Each worker gets a name that is unique for the lifetime of the daemon."""

    def __init__(
        self,
        config: DaemonConfig,
        rundir: RuntimeDir,
        library: Path,
        kill_on_death: KillOnDeath,
        *,
        on_unrecoverable: Callable[[str], None],
    ) -> None:
        """Create the factory.

        `on_unrecoverable` is called with the model some seconds after a worker has exited with an unrecoverable error.
        """
        self._rundir = rundir
        self._on_unrecoverable = on_unrecoverable
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
        #: Number of unrecoverable exits that have not been reported yet.
        self.unreported = 0

    async def start(
        self, spec: messages.ModelSpec, slot: int, registrant: Registrant | None, /
    ) -> Worker:
        """Start a worker and return it before it has said hello.

        Args:
            spec: The model.
            slot: Position of the worker in the model, see worker.py.
            registrant: The process whose thread runs the worker; None to start a process.

        Raises:
            RemoteFailure: The worker cannot be started.
        """
        self.serial += 1
        name = f"w{self.serial}"
        lane_path = self._rundir.lane_socket(name)
        if registrant is not None:
            return HostedWorker.start(name, spec, slot, registrant=registrant, lane_path=lane_path)
        instance, spec = instance_of(spec, slot), spec_of_slot(spec, slot)
        worker = await WorkerProcess.start(
            name,
            spec,
            instance,
            context=self._context,
            lane_path=lane_path,
            on_line=_log_lines(name, spec.name, instance),
        )
        return self._with_exit_callback(worker, spec.name)

    def adopt(self, state: WorkerState, spec: messages.ModelSpec, slot: int, peer: Peer) -> Worker:
        """Adopt a worker that was started before an upgrade. Raises the same exceptions as `WorkerProcess.adopt`."""
        instance, spec = instance_of(spec, slot), spec_of_slot(spec, slot)
        on_line = _log_lines(state.name, spec.name, instance)
        worker = WorkerProcess.adopt(
            state, spec, instance, context=self._context, on_line=on_line, peer=peer
        )
        return self._with_exit_callback(worker, spec.name)

    def _with_exit_callback(self, worker: WorkerProcess, model: str) -> WorkerProcess:
        """Report an unrecoverable error after the worker's exit, because its own message may have been lost in an
        upgrade.
        """

        def report() -> None:
            self.unreported -= 1
            self._on_unrecoverable(model)

        def ended(_: object) -> None:
            if worker.is_unrecoverable:
                self.unreported += 1
                asyncio.get_running_loop().call_later(LAST_MESSAGE_TIMEOUT_S, report)

        worker.exited.add_done_callback(ended)
        return worker


def _log_lines(worker: str, model: str, instance: int) -> OnLine:
    logger = logs.child_logger(source="worker", model=model, instance=instance, worker=worker)

    def on_line(pid: int, line: bytes) -> None:
        logs.log_child_line(logger.bind(pid=pid), line)

    return on_line


# ── Compute threads of a worker's libraries: the worker's share of the cores, unless the user sets their number ──


#: OpenMP (torch, scikit-learn, XGBoost), OpenBLAS and MKL (numpy, scipy), BLIS, numexpr (pandas), joblib (LightGBM).
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
)
#: The other libraries fall back to this variable, so a user who sets it decides for all of them.
_FOR_ALL = THREAD_VARIABLES[0]


class DaemonCpus(NamedTuple):
    """The CPUs that this process and its children may use: their number, and how many of them a quota allows."""

    allowed: int
    usable: float

    @classmethod
    def read(cls) -> DaemonCpus:
        """Read the affinity and the quota."""
        return cls(len(os.sched_getaffinity(0)), linux.usable_cpus())


def thread_share(spec: messages.ModelSpec, cpus: DaemonCpus | None = None) -> int:
    """Return the number of compute threads for each library in a worker; 0 keeps the library's default.

    Callers that ask for many models pass the `cpus`, so that they are read only once.
    """
    if spec.isolation == "thread" or _FOR_ALL in spec.world.env:
        return 0
    cpus = cpus or DaemonCpus.read()
    allowed = len(spec.limits.cpus) or cpus.allowed
    cores = min(allowed, cpus.usable)
    workers = spec.instances if spec.autoscale is None else max(spec.autoscale.most, 1)
    share = max(1, int(cores // workers))
    return share if share < allowed else 0


def thread_variables(spec: messages.ModelSpec) -> Mapping[str, str]:
    """Return the environment variables that set a worker's number of compute threads. Omit those set by the user."""
    share = thread_share(spec)
    wanted = THREAD_VARIABLES if share else ()
    return {name: str(share) for name in wanted if name not in spec.world.env}


#: How threads of OpenMP wait for each other: OpenMP's own variable, and those of the GNU and LLVM libraries.
_WAIT_POLICY = "OMP_WAIT_POLICY"
_WAIT_VARIABLES = (_WAIT_POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def wait_policy(users: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variable that makes waiting OpenMP threads sleep, unless the `users` variables say how they wait.

    By default they spin, which takes cores from the frontend, the clients and other workers.
    """
    return {} if any(name in users for name in _WAIT_VARIABLES) else {_WAIT_POLICY: "passive"}
