"""A worker process from its first message to its exit code: hello, load, ready, serve."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import platform
import signal
import sys
import time
from collections.abc import Iterable, Sequence

import msgspec

from pytriton._protocol import linux, messages
from pytriton._protocol.control import ControlClient, identity_of
from pytriton._protocol.exit_codes import WORKER_LOAD_FAILED, WORKER_UNRECOVERABLE
from pytriton.worker import tracing, worker_limits
from pytriton.worker.callables import create_callable, load_object, run_check
from pytriton.worker.calls import WorkerCaller
from pytriton.worker.fault_reports import (
    client_text,
    report,
    report_error,
    report_threads,
    traceback_of,
)
from pytriton.worker.loop_factory import create_loop
from pytriton.worker.memory_modules import establish
from pytriton.worker.model import WorkerModel
from pytriton.worker.request_log import RequestLog
from pytriton.worker.shutdown import EndSignal
from pytriton.worker.user_metrics import export_user_metrics
from pytriton.worker.warmup import warm_up

#: Exit codes of a worker, besides those that the callable passes to sys.exit().
EXIT_OK = 0
EXIT_UNABLE = 5


def run(endpoint: str, worker: str, parent_pid: int, stats_fd: int) -> int:
    """Run the worker named `worker`, whose dispatcher is at `endpoint`; return the exit code.

    SIGQUIT prints the stacks of all threads, even while native code hangs.
    """
    linux.die_with_parent(parent_pid)
    log = RequestLog(stats_fd)
    faulthandler.enable()
    faulthandler.register(signal.SIGQUIT, all_threads=True)
    for stream in (sys.stdout, sys.stderr):  # pipes to the daemon's log, which Python would buffer
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    report_threads()
    with contextlib.closing(ControlClient(endpoint, identity=identity_of(worker))) as control:
        control.send(messages.WorkerHello(worker, os.getpid(), platform.python_version()))
        received = control.receive()
        assert received is not None  # no timeout was set
        # The dispatcher starts the load timeout when it sends this message, however long a prestarted worker waited.
        begun = time.monotonic()
        _, load, payloads = received
        if not isinstance(load, messages.LoadModel):
            return EXIT_OK  # the dispatcher no longer needs this worker
        try:
            model, completion = _load(load, payloads, endpoint, worker, begun, log)
        except BaseException as error:  # a callable may well raise SystemExit while it loads
            report_error(error, "the model could not be loaded")
            control.send(messages.WorkerFailed(worker, _load_error(error), traceback_of(error)))
            control.flush()
            return WORKER_LOAD_FAILED
        user_metrics = export_user_metrics(log.stats)
        loop = create_loop(model, load.spec, log.stats, control, worker, load.lane_path)
        with contextlib.closing(WorkerCaller(worker, model, load.lane_path)):
            try:
                end = EndSignal()  # first: as soon as the worker is ready, it may be stopped
                loop.watch_signals(end)
                control.send(messages.WorkerReady(worker, completion))
                model.watch_readiness(worker, endpoint)
                loop.run(end.fd)
                model.close()
            finally:
                tracing.finish()
                if user_metrics is not None:
                    user_metrics.close()
        control.flush()
        if loop.unable is not None:
            report(f"the worker exits: {loop.unable}")
            return EXIT_UNABLE
        return WORKER_UNRECOVERABLE if loop.unrecoverable else EXIT_OK


def _load(
    load: messages.LoadModel,
    payloads: Sequence[bytes],
    endpoint: str,
    worker: str,
    begun: float,
    log: RequestLog,
) -> tuple[WorkerModel, messages.Completion | None]:
    """Load and warm up the model. Return the model and, if the model's file completes the configuration, the
    completion.
    """
    spec = load.spec
    worker_limits.apply(spec.limits)
    began_ns = time.monotonic_ns()
    _adopt_environment(spec.world)
    python_model, completion = spec.python_model, None
    folder = python_model.folder if python_model is not None else ""
    establish(payloads[0], os.path.join(folder, str(spec.version)) if folder else "")
    if python_model is not None:
        # Imported here, because the workers of other models do not need it.
        from pytriton.worker.python_model.loader import load_python_model

        model: WorkerModel = load_python_model(
            payloads[0], spec, load.instance, log, endpoint=endpoint, worker=worker, begun=begun
        )
    else:
        infer = create_callable(load_object(payloads[0], spec), spec)
        if spec.completed_by_workers:
            # Only a FolderModel (pytriton/formats/model.py) is registered this way.
            completion = infer.completion  # type: ignore[attr-defined]
            spec = msgspec.structs.replace(spec, config=completion.applied_to(spec.config))
        if spec.check:
            run_check(load_object(payloads[1], spec), spec, infer)
        model = WorkerModel(spec, infer, log)
    if load.tracing:
        tracing.create_tracer()
    loaded_ns = time.monotonic_ns()
    warm_up(model, spec)
    log.stats.loaded(loaded_ns - began_ns, time.monotonic_ns() - loaded_ns)
    # All objects loaded so far stay. Unless frozen, every full collection would traverse them (modules, layers,
    # vocabularies: tens of ms) in the middle of a request.
    gc.collect()
    gc.freeze()
    keep_freed_memory()
    return model, completion


def _load_error(error: BaseException) -> str:
    """Return the error text of a failed load, for the registrant. If a module is missing, it also says how to provide
    the module.
    """
    text = client_text(error)
    if isinstance(error, ModuleNotFoundError):
        text += f" (the worker runs {sys.executable}: install it there, or choose another environment with python=)"
    return text


def _adopt_environment(world: messages.WorkerEnvironment) -> None:
    """Adopt the registrant's search path (the folder of pytriton itself stays first) and arguments."""
    if world.sys_path:
        packages = world.env.get("PYTRITON_WORKER_PACKAGES")
        sys.path[1:] = [*world.sys_path, *([packages] if packages else [])]
    importlib.invalidate_caches()
    sys.argv[:] = world.argv
    explain_missing(world.stayed)


# ── freed memory ─────────────────────────────────────────────────────────────────────────────────────
#
# glibc returns the free end of its heap to the kernel once it exceeds twice the size of the largest array freed so far. A
# callable with a few temporaries exceeds that in every batch, and the next batch pays a page fault for each 4 KiB: 1.6 ms
# instead of 0.3 ms for a batch of 602 KB with three temporaries, 15 ms instead of 7.5 ms for 6 MB. So we raise the thresholds
# to the maximum that glibc's own adjustment would reach (mallopt(3)). A worker whose batches need that much then holds up to
# 64 MiB while idle.

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
#: DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems; larger arrays are mapped separately and released at once.
_MMAP_BYTES = 32 << 20
_TRIM_BYTES = 2 * _MMAP_BYTES
#: If one of these is set, the user has configured malloc.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> bool:
    """Make malloc keep up to 64 MiB of freed memory in this process; return whether it does.

    Call this after loading, so that memory freed while loading still returns to the system. Does nothing without glibc,
    or if the environment (including GLIBC_TUNABLES) configures malloc.
    """
    if any(os.environ.get(name) for name in _VARIABLES):
        return False
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


# ── environment variables that were not forwarded from the registrant ────────────────────────────────


def explain_missing(stayed: Iterable[str]) -> None:
    """For each of these variables X, make `os.environ["X"]` raise a KeyError that explains why X is missing."""
    _Environment.stayed = frozenset(stayed)
    os.environ.__class__ = _Environment


# mypy does not allow os.environ's class as a base: it is generic, but only in its stubs.
class _Environment(type(os.environ)):  # type: ignore[misc]
    """Class for os.environ with KeyErrors that explain why variables are missing."""

    stayed: frozenset[str] = frozenset()

    def __getitem__(self, key: str) -> str:
        try:
            return super().__getitem__(key)  # type: ignore[no-any-return]
        except KeyError:
            raise KeyError(_Missing(key) if key in self.stayed else key) from None


class _Missing(str):
    """The name of a missing variable. A KeyError displays only its repr, so the repr contains the explanation."""

    __slots__ = ()

    def __repr__(self) -> str:
        return (
            f"{super().__repr__()} (this environment variable is set where the model was registered, but was not forwarded: "
            "it looks like a secret, or belongs to that session or interpreter. "
            f"register(..., env=[{super().__repr__()}]) forwards it; for a repository model, use the setting model_env)"
        )
