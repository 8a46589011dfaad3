"""A worker that is a process of the dispatcher's: started, ended by signals, its exit explained."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from pytriton._host.settings.trace_settings import exports_elsewhere
from pytriton._protocol import linux, messages
from pytriton._protocol.calls.call_connection import socket_path
from pytriton._protocol.env_variables import with_direct_loopback
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.exit_codes import WORKER_UNRECOVERABLE
from pytriton._protocol.files.shared_entries import ENV_SHARED_DIR
from pytriton._protocol.lanes.stats_page import FAILURES, Gauge
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.runtime.child import Child, OnLine, describe_exit, signal_name
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.upgrade_snapshot import WorkerState
from pytriton.dispatcher.server.liveness import process_state
from pytriton.dispatcher.workers.process import compute_threads
from pytriton.dispatcher.workers.process.fork_server import Surroundings
from pytriton.dispatcher.workers.process.fork_servers import ForkServers, boot_arguments
from pytriton.dispatcher.workers.process.worker import Worker

_log = structlog.get_logger(__name__)

#: Variables of the daemon's own environment that a worker gets where its registrant sent none.
_DAEMON_DEFAULTS = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "TZ")
#: The line before each thread's stack when a hung worker prints its stacks (faulthandler).
_STACK = b"(most recent call first)"
#: The most time that it gets for that. It has a core at once, unless the machine is overloaded.
_STACKS_S = 10.0
#: The time in which a hung worker may end after SIGTERM; few do.
_HUNG_GRACE_S = 0.5
#: How long an idle worker may take to notice SIGTERM: more than it waits for a core on a machine that is overloaded.
_DEAF_S = 5.0
#: Seconds between two looks at its gauge: a page of memory cannot announce a change.
_LOOK_S = 0.25


@dataclass(frozen=True)
class WorkerPlace:
    """The daemon's resources for a worker: the control endpoint, the folder that holds `pytriton`.

    `kill_on_death` ends what the worker started when this process is killed. `tracing`: tritonserver traces with
    OpenTelemetry, and these variables say where spans go. `forks`: makes workers that need not start an interpreter.
    """

    endpoint: str
    library: Path
    kill_on_death: KillOnDeath
    tracing: Mapping[str, str] | None = None
    forks: ForkServers | None = None
    #: What a worker that has answered its last batch gets to clean up in.
    clean_up_s: float = math.inf


class WorkerProcess(Worker):
    """A worker that is a process of the dispatcher's own."""

    def __init__(
        self,
        name: str,
        child: Child,
        spec: messages.ModelSpec,
        instance: int,
        *,
        lane_path: Path,
        gauge: Gauge,
        tracing: bool = False,
        clean_up_s: float = math.inf,
    ) -> None:
        super().__init__(
            name, child.pid, spec, instance, lane_path=lane_path, gauge=gauge, exited=child.exited
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
        place: WorkerPlace,
        lane_path: Path,
        on_line: OnLine,
    ) -> WorkerProcess:
        """Start the process; it says hello by itself.

        Raises:
            RemoteFailure: the interpreter or the working directory is not there, or the daemon has come to a limit.
        """
        try:
            gauge, gauge_fd = Gauge.create()
            try:
                child = await _child(name, spec, instance, place, on_line, gauge_fd)
            except BaseException:
                gauge.close()
                raise
            finally:
                os.close(gauge_fd)
        except OSError as error:
            raise _not_started(spec, error) from error
        tracing = place.tracing is not None
        return cls(
            name,
            child,
            spec,
            instance,
            lane_path=lane_path,
            gauge=gauge,
            tracing=tracing,
            clean_up_s=place.clean_up_s,
        )

    @classmethod
    def adopt(
        cls,
        state: WorkerState,
        spec: messages.ModelSpec,
        instance: int,
        *,
        place: WorkerPlace,
        on_line: OnLine,
        peer: Peer,
    ) -> WorkerProcess:
        """Go on with a worker that a former version of this process has started, and that serves.

        Raises:
            OSError: it is none of ours, or its page is gone.
        """
        child = Child.adopt(state.child, on_line, place.kill_on_death)
        worker = cls(
            state.name,
            child,
            spec,
            instance,
            lane_path=Path(state.lane_path),
            gauge=Gauge.adopt(state.gauge),
            tracing=place.tracing is not None,
            clean_up_s=place.clean_up_s,
        )
        worker._peer = peer
        worker.started_at, worker.unwilling = state.started_at, state.unwilling
        worker.protocol = state.protocol
        worker.greeted.set_result(None)
        worker.loaded()
        if state.spent is not None:
            worker.is_spent(state.spent)
        return worker

    def hand_over(self) -> WorkerState:
        """Return what the next version of this process goes on with."""
        assert self.gauge.kept is not None  # it lives
        spent = self.spent.result() if self.spent.done() else None
        return WorkerState(
            self.name,
            self._child.hand_over(),
            self.gauge.kept,
            str(self.lane_path),
            self.started_at,
            self.unwilling,
            spent,
            self.protocol,
        )

    async def hello(self, peer: Peer, payloads_of: Callable[[int], Sequence[bytes]]) -> None:
        """Answer a worker's hello with its model; raises as `Worker.hello`."""
        await super().hello(peer, payloads_of)
        self._payloads_of = payloads_of
        if not self.parked:
            await self._load()

    async def unpark(self) -> None:
        """Give it its model, or when it says hello."""
        await super().unpark()
        if self._payloads_of is not None:
            await self._load()

    async def _load(self) -> None:
        assert self._peer is not None  # it has said hello
        assert self._payloads_of is not None
        load = messages.LoadModel(self._spec, self.instance, str(self.lane_path), self._tracing)
        await self._peer.send(load, self._payloads_of(self.instance))

    def last_lines(self) -> str:
        """The worker's last lines as one text."""
        return self._child.last_lines()

    def describe_end(self) -> str:
        """Say how the worker ended: for clients whose batch it had, and for status."""
        code = self.exited.result()
        how = describe_exit(code)
        if self.condemned is not None:
            how += f" by the daemon: {self.condemned}"
        elif code == -signal.SIGKILL and linux.oom_kills() > self._oom_kills:
            how += ", it seems by the kernel for lack of memory"
        return f"worker {self.name} (pid {self.pid}) {how}"

    def end_record(self) -> messages.WorkerEnd:
        """Return what is kept of a worker that has ended."""
        code = self.exited.result()
        assert self._done is not None  # it has ended
        return messages.WorkerEnd(
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
    def gave_up(self) -> bool:
        """Whether it ended because its callable said so, as `Worker.gave_up`."""
        failed = dict(zip(FAILURES, self.counts().failed))
        return self.exited.result() == WORKER_UNRECOVERABLE and failed["unrecoverable"] > 0

    async def end_after_batch(self) -> None:
        """Ask the worker to end, and wait until it has, however long its batch takes."""
        await self._ask_to_end(math.inf)
        await self.stop(0)

    async def end_hung(self, why: str) -> None:
        """End a worker that does not come back from a batch; its stacks go to the model's log first."""
        if self.condemned is not None:
            return
        self.condemned = why
        self.leave("hang")
        if self.alive:  # not reaped yet, so the pid is its own
            stacks = self._child.next_line_with(_STACK)
            os.kill(self.pid, signal.SIGQUIT)
            if not process_state(self.pid).startswith("T"):  # one that is stopped does not print
                either: list[asyncio.Future[Any]] = [stacks, self.exited]
                await asyncio.wait(either, timeout=_STACKS_S, return_when=asyncio.FIRST_COMPLETED)
        await self._child.stop(_HUNG_GRACE_S)

    def end_now(self, why: str) -> None:
        """End the worker and all that it started at once."""
        if self.condemned is None and self.alive:
            self.condemned = why
            self.leave("limit")
            self._child.kill()

    async def stop(self, grace_s: float) -> None:
        """End the process; its lanes end with it."""
        if grace_s > 0:
            await self._ask_to_end(grace_s)
        await self._child.stop(0)
        self.lane_path.unlink(missing_ok=True)
        Path(socket_path(str(self.lane_path))).unlink(missing_ok=True)

    async def _ask_to_end(self, grace_s: float) -> None:
        """Send SIGTERM and EndWorker, and wait for the end, at most `grace_s`.

        The message is for one whose callable ignores the signal, or has put a handler of its own in the place of ours.
        One that is idle and takes no notice of either is not waited for.
        """
        if not self.alive:
            return
        os.kill(self.pid, signal.SIGTERM)
        if self._peer is not None and self.ready.done():
            await self._peer.send(messages.EndWorker(self.name))
        clock = asyncio.get_running_loop().time
        now = clock()
        deadline, deaf_at, clean_at = now + grace_s, now + _DEAF_S, now + self._clean_up_s
        while self.alive and now < min(deadline, deaf_at, clean_at):
            await asyncio.wait([self.exited], timeout=min(_LOOK_S, deadline - now))
            now = clock()
            if self.alive:
                reading = self.gauge.read()
                if reading.ending or not reading.idle:
                    deaf_at = now + _DEAF_S
                if not (reading.ending and reading.idle):
                    clean_at = now + self._clean_up_s
        if self.alive and now >= clean_at:
            _log.warning(
                "a worker that has answered its last batch does not end within grace_period_s, and is killed",
                model=self._spec.name,
                worker=self.name,
                worker_pid=self.pid,
            )
        elif self.alive and now >= deaf_at:
            _log.warning(
                "a worker that is idle takes no notice that it shall end, and is killed: its callable, or a library of "
                "its, keeps it from what it waits for",
                model=self._spec.name,
                worker=self.name,
                worker_pid=self.pid,
            )

    async def _drained(self) -> None:
        await self._child.drained()


def _not_started(spec: messages.ModelSpec, error: OSError) -> RemoteFailure:
    text = f"model {spec.name}: cannot start a worker"
    if error.filename is None:  # of descriptors, processes or memory
        text += f": {error.strerror}. That is a limit of the daemon's, or of the machine."
        return RemoteFailure(ErrorKind.UNAVAILABLE, text)
    place = error.filename == spec.world.cwd
    what, option = ("working directory", "cwd") if place else ("interpreter", "python")
    text += f", its {what} {error.filename} cannot be used by the daemon: {error.strerror}."
    return RemoteFailure(ErrorKind.LOAD_FAILED, f"{text} Give another one with {option}=.")


async def _child(
    name: str,
    spec: messages.ModelSpec,
    instance: int,
    place: WorkerPlace,
    on_line: OnLine,
    gauge_fd: int,
) -> Child:
    """Return the process: a fork where there can be one, else an interpreter that starts; raises OSError."""
    world = spec.world
    env = _environment(spec, place)
    # Frameworks read it when they are loaded, as no fork server has.
    device = _device(spec, instance)
    if place.forks is not None:
        forked = await place.forks.start(
            Surroundings.of(world.python, world.cwd, env),
            name,
            device,
            cwd=world.cwd,
            gauge=gauge_fd,
            on_line=on_line,
        )
        if forked is not None:
            return forked
    boot = boot_arguments(place.library, place.endpoint, world.python)
    return await Child.start(
        [world.python, *boot, name, str(os.getpid()), str(gauge_fd)],
        env={**env, **device},
        cwd=world.cwd,
        on_line=on_line,
        kill_on_death=place.kill_on_death,
        pass_fds=[gauge_fd],
    )


def _environment(spec: messages.ModelSpec, place: WorkerPlace) -> Mapping[str, str]:
    env = {name: os.environ[name] for name in _DAEMON_DEFAULTS if name in os.environ}
    if place.tracing is not None and not exports_elsewhere(spec.world.env):
        env.update(place.tracing)
    env.update(compute_threads.variables_for(spec))
    env.update(spec.world.env)
    shared = str(place.library.parent / "shared")
    return {**with_direct_loopback(env), ENV_SHARED_DIR: shared}


def _device(spec: messages.ModelSpec, instance: int) -> dict[str, str]:
    # Spares come after the instances and go round the same devices.
    device = spec.devices[instance % len(spec.devices)] if spec.devices else None
    return {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
