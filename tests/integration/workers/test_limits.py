"""Limits: workers that use too much, take too long, or have served long enough are killed or recycled."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.misbehaving_model import FORK, LEAK, PID, MisbehavingModel, Serve
from support.models.inference import Inference
from support.models.tensors import ONES, X, Y
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._protocol import messages
from pytriton._protocol.control import ControlClient
from pytriton._protocol.errors import RemoteFailure
from pytriton.exceptions import RegistrationError
from pytriton.limits import Limits
from pytriton.model_config.triton_config import to_triton_config


def test_a_leaking_worker_is_replaced_between_batches(
    inference: Inference, serve: Serve, tmp_path: Path
) -> None:
    """The soft limit: no request fails, and the new worker is loaded before the old one ends."""
    model = serve(MisbehavingModel(tmp_path), limits=Limits(recycle_above="150MiB"))
    first = model.instances[0].pid
    for _ in range(12):
        inference.infer("model", {"x": ONES * LEAK})
    eventually(lambda: model.instances[0].restarts > 0, "the worker is replaced")
    inference.infer("model", {"x": ONES})
    assert model.instances[0].pid != first
    assert model.instances[0].exits == []


def test_a_worker_whose_gpu_ran_out_of_memory_is_replaced_and_no_other(
    inference: Inference, serve: Serve
) -> None:
    """Its request gets the framework's error. Without a GPU, the exception has the names that torch gives it."""

    def infer(requests: Any) -> Any:
        if requests[0]["x"][0, 0] > 1:
            kind = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
            raise kind("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return [{"y": request["x"]} for request in requests]

    model = serve(infer, instances=2)
    first = {one.pid for one in model.instances}
    with pytest.raises(InferenceServerException, match=r"CUDA out of memory. Tried to allocate"):
        inference.infer("model", {"x": ONES * 2})
    eventually(lambda: sum(one.restarts for one in model.instances) > 0, "a worker is replaced")
    assert inference.infer("model", {"x": ONES})["y"].tolist() == ONES.tolist()
    assert len(first & {one.pid for one in model.instances}) == 1


def test_a_worker_cannot_exceed_its_memory_limit(inference: Inference, serve: Serve) -> None:
    """The allocation fails in the callable; the worker survives."""

    def allocate(requests: Any) -> Any:
        count = int(requests[0]["x"][0, 0])
        return [{"y": request["x"] + np.ones(count << 20, np.uint8)[0]} for request in requests]

    model = serve(allocate, limits=Limits(memory_limit="1GiB"))
    with pytest.raises(InferenceServerException, match=r"MemoryError|Unable to allocate"):
        inference.infer("model", {"x": ONES * 2000})
    assert inference.infer("model", {"x": ONES})["y"].tolist() == (ONES * 2).tolist()
    assert model.instances[0].restarts == 0


def test_a_fork_bomb_is_killed(inference: Inference, serve: Serve, tmp_path: Path) -> None:
    """With all its processes; the client gets the reason."""
    model = serve(MisbehavingModel(tmp_path), limits=Limits(processes=5), on_crash="fail")
    first = model.instances[0].pid
    with pytest.raises(
        InferenceServerException, match=r"\d+ processes, more than the limit of 5 \(limits\)"
    ):
        inference.infer("model", {"x": ONES * FORK}, client_timeout=100)
    model.wait_ready()
    assert first is not None
    eventually(lambda: not _alive_in_group(first), "all of them have ended")


def _alive_in_group(group: int) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["status"])
        if process.info["status"] != "zombie" and _group(process.pid) == group
    ]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_limits_are_set_in_the_worker(inference: Inference, serve: Serve) -> None:
    """Open files, CPUs, niceness, and the score of the OOM killer, which prefers workers."""

    def look(requests: Any) -> Any:
        import resource
        from pathlib import Path as P

        values = [
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            *os.sched_getaffinity(0),
            os.nice(0),
            int(P("/proc/self/oom_score_adj").read_text()),
        ]
        return [{"y": np.array([values], np.float32)} for _ in requests]

    cpu = max(os.sched_getaffinity(0))
    serve(look, limits=Limits(open_files=300, cpus=[cpu], nice=3))
    assert inference.infer("model", {"x": ONES})["y"].tolist() == [[300, cpu, os.nice(0) + 3, 1000]]


def test_the_kernel_kills_workers_before_tritonserver(
    daemon: RunningDaemon, serve: Serve, tmp_path: Path
) -> None:
    """However much memory tritonserver uses: the kernel adds at most 1000 for that (proc(5))."""

    def adjusted(pid: int | None) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    model = serve(MisbehavingModel(tmp_path))
    server = adjusted(daemon.client.status().server.pid)
    assert server == adjusted(daemon.process.pid) == adjusted(os.getpid())
    assert adjusted(model.instances[0].pid) == min(1000, server + 1000)


def test_an_unavailable_cpu_is_refused(daemon: RunningDaemon, tmp_path: Path) -> None:
    with pytest.raises(RegistrationError, match=r"cpus=\[4000\] cannot be used"):
        daemon.client.register(
            MisbehavingModel(tmp_path), "cpu", X, Y, limits=Limits(cpus=[4000]), progress=False
        )


def test_a_worker_is_recycled_after_max_batches(
    daemon: RunningDaemon, inference: Inference, serve: Serve, tmp_path: Path
) -> None:
    """Under load, no request fails."""
    model = serve(MisbehavingModel(tmp_path), max_batches=20, instances=2, on_crash="fail")
    pids = set()

    def ask() -> None:
        pids.add(float(inference.infer("model", {"x": ONES * PID})["y"][0, 0]))

    def replaced() -> bool:
        ask()  # which of the two answers is Triton's choice
        return sum(one.restarts for one in model.instances) >= 2

    for _ in range(150):
        ask()
    eventually(replaced, "workers are replaced")
    assert len(pids) > 1
    assert all(not instance.exits for instance in model.instances)


def test_a_worker_that_loads_too_slowly_is_killed(daemon: RunningDaemon) -> None:
    """The error names the setting."""

    def factory() -> Any:
        print("still loading")
        threading.Event().wait()

    # Long enough for the callable to be unpickled, and to say so.
    with pytest.raises(RegistrationError, match=r"did not load its callable within 25 s") as caught:
        daemon.client.register(
            factory, "slow", X, Y, factory=True, load_timeout_s=25, progress=False
        )
    assert "still loading" in (caught.value.remote_traceback or "")
    assert daemon.client.models() == []


def test_a_worker_that_never_connects_is_killed(tmp_path: Path) -> None:
    """The configured interpreter is not one, so the registration fails after the start timeout."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o700)
    spec = messages.ModelSpec(
        "mute", 1, to_triton_config("mute", X, Y), messages.WorkerEnvironment(str(python), cwd="/")
    )
    with RunningDaemon.start(worker_start_timeout_s=0.5) as daemon:
        control = ControlClient(daemon.config.rundir.control_endpoint)
        with (
            contextlib.closing(control),
            pytest.raises(RemoteFailure, match=r"did not start within 0.5 s"),
        ):
            control.ask(messages.Register(spec), [b""], timeout_s=60)

        def others() -> list[str]:
            names = []
            for child in daemon.children():
                with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
                    names += [child.name()] if child != daemon.server else []
            return names

        eventually(lambda: others() == ["sh"], lambda: f"no worker is left: {others()}")
