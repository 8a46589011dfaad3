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
from pytriton._protocol.exit_codes import WORKER_UNRECOVERABLE
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.worker import tracing, worker_limits
from pytriton.worker.callables import load_callable, run_check
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
from pytriton.worker.shutdown import EndSignal
from pytriton.worker.user_metrics import watch
from pytriton.worker.warmup import warm_up

#: Exit codes of a worker, in addition to those of a callable's own sys.exit().
EXIT_OK = 0
EXIT_LOAD_FAILED = 3
EXIT_UNABLE = 5


def run(endpoint: str, worker: str, parent_pid: int, stats_fd: int) -> int:
    """Run as the worker named `worker` of the dispatcher at `endpoint`; return the exit code.

    SIGQUIT prints the stacks of all threads, even while native code hangs.
    """
    linux.die_with_parent(parent_pid)
    stats = WorkerStatsPage(stats_fd)
    faulthandler.enable()
    faulthandler.register(signal.SIGQUIT, all_threads=True)
    _flush_lines()
    report_threads()
    with contextlib.closing(ControlClient(endpoint, identity=identity_of(worker))) as control:
        control.send(messages.WorkerHello(worker, os.getpid(), platform.python_version()))
        received = control.receive()
        assert received is not None  # no timeout was set
        # About when the dispatcher's clock starts; a prestarted worker has waited before that.
        begun = time.monotonic()
        _, load, payloads = received
        if not isinstance(load, messages.LoadModel):
            return EXIT_OK  # the dispatcher changed its mind
        try:
            model, took_ns, completion = _load(load, payloads, endpoint, worker, begun)
        except BaseException as error:  # a callable may well raise SystemExit while it loads
            report_error(error, "it could not be loaded")
            control.send(messages.WorkerFailed(worker, _said(error), traceback_of(error)))
            control.flush()
            return EXIT_LOAD_FAILED
        stats.loaded(*took_ns)
        own_metrics = watch(stats.user_metrics)
        loop = create_loop(model, load.spec, stats, control, worker, load.lane_path)
        with contextlib.closing(WorkerCaller(worker, model, load.lane_path)):
            control.send(messages.WorkerReady(worker, completion))
            model.watch_readiness(worker, endpoint)
            try:
                end = EndSignal()
                loop.listen_for(end)
                loop.run(end.fd)
                model.close()
            finally:
                tracing.finish()
                if own_metrics is not None:
                    own_metrics.close()
        control.flush()
        if loop.unable is not None:
            report(f"the worker exits: {loop.unable}")
            return EXIT_UNABLE
        return WORKER_UNRECOVERABLE if loop.unrecoverable else EXIT_OK


def _said(error: BaseException) -> str:
    """Return the registrant's error text of a failed load; for a missing module, also where it was searched."""
    text = client_text(error)
    if isinstance(error, ModuleNotFoundError):
        text += f" (the worker runs {sys.executable}: install it there, or choose another environment with python=)"
    return text


def _load(
    load: messages.LoadModel, payloads: Sequence[bytes], endpoint: str, worker: str, begun: float
) -> tuple[WorkerModel, tuple[int, int], messages.Completion | None]:
    """Return the model, how long it took to load and to warm up, and its configuration's completion."""
    worker_limits.apply(load.spec.limits)
    began_ns = time.monotonic_ns()
    _enter(load.spec.world)
    model, spec, completion = _load_model(load, payloads, endpoint, worker, begun)
    if load.tracing:
        tracing.prepare()
    loaded_ns = time.monotonic_ns()
    warm_up(model, spec)
    took_ns = loaded_ns - began_ns, time.monotonic_ns() - loaded_ns
    # All objects loaded by now stay. Without the freeze, every full collection would traverse them (modules, layers,
    # vocabularies: tens of ms) in the middle of a request.
    gc.collect()
    gc.freeze()
    keep_freed_memory()
    return model, took_ns, completion


def _load_model(
    load: messages.LoadModel, payloads: Sequence[bytes], endpoint: str, worker: str, begun: float
) -> tuple[WorkerModel, messages.ModelSpec, messages.Completion | None]:
    """Return the model, its declaration with what its file adds to it, and that addition."""
    spec = load.spec
    python_model = spec.python_model
    folder = python_model.folder if python_model is not None else ""
    establish(payloads[0], os.path.join(folder, str(spec.version)) if folder else "")
    if python_model is not None:
        # Here, so that other workers do not need it.
        from pytriton.worker.python_model.loader import load_python_model

        made = load_python_model(
            payloads[0], spec, load.instance, endpoint=endpoint, worker=worker, begun=begun
        )
        return made, spec, None
    infer = load_callable(payloads[0], spec)
    completion = None
    if spec.completed_by_workers:
        # The callable is a FolderModel (pytriton/formats/model.py): nothing else is registered so.
        completion = infer.completion  # type: ignore[attr-defined]
        spec = msgspec.structs.replace(spec, config=completion.applied_to(spec.config))
    if spec.check:
        run_check(payloads[1], spec, infer)
    return WorkerModel(spec, infer), spec, completion


def _enter(world: messages.WorkerEnvironment) -> None:
    """Adopt the registrant's environment: imports (the folder with pytriton itself stays first), arguments, variables."""
    if world.sys_path:
        packages = world.env.get("PYTRITON_WORKER_PACKAGES")
        sys.path[1:] = [*world.sys_path, *([packages] if packages else [])]
    importlib.invalidate_caches()
    sys.argv[:] = world.argv
    explain_missing(world.stayed)


def _flush_lines() -> None:
    """Make a callable's prints reach the daemon's log line by line, although they go to a pipe."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]


# ── freed memory ─────────────────────────────────────────────────────────────────────────────────────
#
# glibc returns the free end of its heap to the kernel when that exceeds twice the largest array seen so far. A callable with
# a few temporaries exceeds that in every batch, and then pays a page fault for each 4 KiB of the next: measured for 602 KB in
# and three temporaries, 1.6 ms instead of 0.3 ms a batch; for 6 MB, 15 ms instead of 7.5 ms. So the thresholds are set to the
# maximum that glibc would raise them to by itself (mallopt(3)). The cost is up to 64 MiB of memory held while idle, in workers
# whose batches need that much.

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
#: DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems; larger arrays are mapped separately and released at once.
_MMAP_BYTES = 32 << 20
_TRIM_BYTES = 2 * _MMAP_BYTES
#: If one of these is set, the user has made another choice.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> bool:
    """Make this process keep up to 64 MiB of freed memory; return whether its C library does.

    Call it after everything is loaded, so that memory freed during loading is still returned. Does
    nothing without glibc, or if the environment (including GLIBC_TUNABLES) configures malloc.
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
    """Make the KeyError of `os.environ["X"]` explain why each of these variables is missing."""
    _Environment.stayed = frozenset(stayed)
    os.environ.__class__ = _Environment


# mypy does not allow os.environ's class as a base: it is generic, but only in its stubs.
class _Environment(type(os.environ)):  # type: ignore[misc]
    """os.environ's own class, with better errors."""

    stayed: frozenset[str] = frozenset()

    def __getitem__(self, key: str) -> str:
        try:
            return super().__getitem__(key)  # type: ignore[no-any-return]
        except KeyError:
            raise KeyError(_Missing(key) if key in self.stayed else key) from None


class _Missing(str):
    """The name in a KeyError, which displays nothing but its repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return (
            f"{super().__repr__()} (this environment variable is set where the model was registered, but was not forwarded: "
            "it looks like a secret, or belongs to that session or interpreter. "
            f"register(..., env=[{super().__repr__()}]) sends it, for a repository model, the setting model_env does)"
        )
