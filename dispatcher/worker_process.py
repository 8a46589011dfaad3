"""One worker as the dispatcher sees it: a child that says hello, loads its model, is ready or failed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytriton.dispatcher.child import Child, OnLine, describe_exit, signal_name
from pytriton.dispatcher.control import Peer
from pytriton.dispatcher.tracing import exports_elsewhere
from pytriton.dispatcher.undertaker import Undertaker
from pytriton.ipc import linux, messages
from pytriton.ipc.errors import ErrorKind, RemoteFailure
from pytriton.ipc.gauge import Gauge, Reading

#: Of the daemon's own environment, what a worker gets when its registrant did not send it.
_DAEMON_DEFAULTS = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "TZ")
#: What a hung worker gets to end in, after SIGTERM; few do.
_HUNG_GRACE_S = 0.5
#: Of its last lines, those that are kept after its end.
_LINES_KEPT = 20


@dataclass(frozen=True)
class WorkerPlace:
    """What a worker needs of its daemon: the control endpoint, the folder that holds `pytriton`, its undertaker.

    `tracing`: tritonserver traces with OpenTelemetry, and these variables say where spans go.
    """

    endpoint: str
    library: Path
    undertaker: Undertaker
    tracing: Mapping[str, str] | None = None


class WorkerProcess:
    """A worker from its start on. `ready` is done when it serves, or fails with why it does not.

    Attributes:
        name: unique in this daemon; names its lane socket.
        greeted: resolves when it has said hello.
        ready: resolves when the callable is loaded; raises RemoteFailure when it cannot be.
        lane_path: where it listens for lanes once ready.
        gauge: what it is doing; closed when it has ended.
        spent: resolves with the reason when it should be replaced though it serves.
        condemned: why the dispatcher ends it; None when it ends, or ended, by itself or on request.
    """

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
    ) -> None:
        self.name = name
        self.child = child
        self.lane_path = lane_path
        self.gauge = gauge
        self.condemned: str | None = None
        self._done: Reading | None = None
        self._oom_kills = linux.oom_kills()
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.spent: asyncio.Future[str] = loop.create_future()
        self._spec = spec
        self._instance = instance
        self._tracing = tracing
        self._peer: Peer | None = None
        child.exited.add_done_callback(self._ended)
        # A pool that is being stopped does not ask any more why a worker failed.
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())

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
            RemoteFailure: the interpreter or the working directory is not there.
        """
        world = spec.world
        boot = place.library / "pytriton" / "worker" / "boot.py"
        gauge, gauge_fd = Gauge.create()
        argv = [
            world.python, str(boot), str(place.library), place.endpoint, name, str(os.getpid()),
            str(gauge_fd),
        ]  # fmt: skip
        try:
            child = await Child.start(
                argv,
                env=_environment(spec, instance, place.tracing),
                cwd=world.cwd,
                on_line=on_line,
                undertaker=place.undertaker,
                pass_fds=[gauge_fd],
            )
        except OSError as error:
            gauge.close()
            what = "working directory" if error.filename == world.cwd else "interpreter"
            raise RemoteFailure(
                ErrorKind.LOAD_FAILED,
                f"model {spec.name}: cannot start a worker, its {what} {error.filename} cannot be used by the "
                f"daemon: {error.strerror}. Give another one with "
                f"{'cwd=' if what == 'working directory' else 'python='}.",
            ) from error
        finally:
            os.close(gauge_fd)
        tracing = place.tracing is not None
        return cls(name, child, spec, instance, lane_path=lane_path, gauge=gauge, tracing=tracing)

    @property
    def alive(self) -> bool:
        return not self.child.exited.done()

    async def hello(self, peer: Peer, payloads_of: Callable[[int], Sequence[bytes]]) -> None:
        """Answer a worker's hello with its model.

        Raises:
            RemoteFailure: somebody has said it before.
        """
        if self.greeted.done():
            raise RemoteFailure(ErrorKind.INVALID, f"worker {self.name} has said hello already")
        self._peer = peer
        self.greeted.set_result(None)
        load = messages.LoadModel(self._spec, self._instance, str(self.lane_path), self._tracing)
        await peer.send(load, payloads_of(self._instance))

    def loaded(self) -> None:
        """The worker says that it serves."""
        if not self.ready.done():
            self.ready.set_result(None)

    def failed(self, message: messages.WorkerFailed) -> None:
        """The worker says that it could not load its callable."""
        if not self.ready.done():
            text = f"model {self._spec.name} could not be loaded: {message.text}"
            failure = RemoteFailure(ErrorKind.LOAD_FAILED, text, message.traceback)
            self.ready.set_exception(failure)

    def is_spent(self, text: str) -> None:
        """The worker says that it should be replaced."""
        if not self.spent.done():
            self.spent.set_result(text)

    async def withdraw_lane(self) -> None:
        """Have the worker send one of its proxies elsewhere."""
        if self._peer is not None:
            await self._peer.send(messages.WithdrawLane())

    def describe_end(self) -> str:
        """Say how the worker ended: for clients whose batch it had, and for status."""
        code = self.child.exited.result()
        how = describe_exit(code)
        if self.condemned is not None:
            how += f" by the daemon: {self.condemned}"
        elif code == -signal.SIGKILL and linux.oom_kills() > self._oom_kills:
            how += ", it seems by the kernel for lack of memory"
        return f"worker {self.name} (pid {self.child.pid}) {how}"

    def end_record(self) -> messages.WorkerEnd:
        """Return what is kept of a worker that has ended."""
        code = self.child.exited.result()
        assert self._done is not None  # it has ended
        return messages.WorkerEnd(
            at=time.time(),
            worker=self.name,
            pid=self.child.pid,
            how=self.describe_end(),
            exit_code=code if code >= 0 else None,
            signal=signal_name(code),
            peak_memory=self.child.peak_memory,
            batches=self._done.answered,
            in_batch=self._done.begun > self._done.answered,
            lines=self.child.recent_lines()[-_LINES_KEPT:],
        )

    async def end_after_batch(self) -> None:
        """Ask the worker to end, and wait until it has, however long its batch takes."""
        if self.alive:
            os.kill(self.child.pid, signal.SIGTERM)
        await asyncio.shield(self.child.exited)
        await self.stop(0)

    async def end_hung(self, why: str) -> None:
        """End a worker that does not come back from a batch; its stacks go to the model's log first."""
        if self.condemned is not None:
            return
        self.condemned = why
        if self.alive:  # not reaped yet, so the pid is its own
            os.kill(self.child.pid, signal.SIGQUIT)
        await self.child.stop(_HUNG_GRACE_S)

    def end_now(self, why: str) -> None:
        """End the worker and all that it started at once."""
        if self.condemned is None and self.alive:
            self.condemned = why
            self.child.signal_group(signal.SIGKILL)

    async def stop(self, grace_s: float) -> None:
        """End the process; its lanes end with it."""
        await self.child.stop(grace_s)
        self.lane_path.unlink(missing_ok=True)

    def _ended(self, exited: asyncio.Future[int]) -> None:
        self._done = self.gauge.read()
        self.gauge.close()
        self.lane_path.unlink(missing_ok=True)
        if not self.ready.done():
            asyncio.get_running_loop().create_task(self._report_early_end())

    async def _report_early_end(self) -> None:
        await self.child.drained()  # its last lines say why
        if not self.ready.done():
            text = f"model {self._spec.name}: {self.describe_end()} before its callable was loaded"
            self.ready.set_exception(
                RemoteFailure(ErrorKind.LOAD_FAILED, text, self.child.last_lines() or None)
            )


def _environment(
    spec: messages.ModelSpec, instance: int, tracing: Mapping[str, str] | None
) -> Mapping[str, str]:
    env = {name: os.environ[name] for name in _DAEMON_DEFAULTS if name in os.environ}
    if tracing is not None and not exports_elsewhere(spec.world.env):
        env.update(tracing)
    env.update(spec.world.env)
    # Spares come after the instances and go round the same devices.
    device = spec.devices[instance % len(spec.devices)] if spec.devices else None
    if device is not None:
        env["CUDA_VISIBLE_DEVICES"] = device
    return env
