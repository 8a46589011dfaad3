"""Registering, calling and unregistering models repeatedly leaks nothing.

PYTRITON_ROUNDS sets the number of rounds (default 12; docs/concepts/reliability.md has the results of 200).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.models.inference import Array, Inference
from support.real_daemon import RunningDaemon, eventually

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

ROUNDS = int(os.environ.get("PYTRITON_ROUNDS", "12"))
#: Allocators and logs settle within the first rounds.
WARM_UP = 4
#: What noise in the resident set is: per round, and in all.
GROWTH_BYTES = 16 << 20
#: Pools of threads (asyncio's, gRPC's) grow when two tasks happen to meet; a leak would have one more each round.
THREADS_SLACK = ROUNDS // 2


@batch
def _double(x: Array) -> dict[str, Array]:
    return {"y": x * 2}


def _footprint(daemon: RunningDaemon) -> dict[str, object]:
    """Return the counts that must be the same after every round."""
    dispatcher = psutil.Process(daemon.process.pid)
    server = psutil.Process(daemon.client.status().server.pid)
    runtime_dir = Path(daemon.config.runtime_dir)
    return {
        "processes": sorted(_command(child) for child in daemon.children()),
        "dispatcher descriptors": dispatcher.num_fds(),
        "dispatcher threads": dispatcher.num_threads(),
        "server threads": server.num_threads(),
        "server descriptors": server.num_fds(),
        "runtime directory": sorted(
            str(path.relative_to(runtime_dir)) for path in runtime_dir.rglob("*")
            if not str(path.relative_to(runtime_dir)).startswith(("logs/", "backends/"))
        ),
        "/dev/shm": sorted(daemon.regions()),
    }  # fmt: skip


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[:2])
    except psutil.Error:
        return "ending"


def _resident(daemon: RunningDaemon) -> int:
    pids = (daemon.process.pid, daemon.client.status().server.pid)
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


@pytest.mark.slow
@pytest.mark.timeout(400 + 20 * ROUNDS)
def test_repeated_registration_leaks_nothing(fresh_daemon: RunningDaemon) -> None:
    """No round leaves a process, descriptor, thread, socket, file or shared memory behind."""
    connection = Inference("http", fresh_daemon.http)
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    settled: dict[str, object] = {}
    resident = 0
    for number in range(WARM_UP + ROUNDS):
        model = fresh_daemon.client.register(
            _double,
            f"round-{number % 3}",
            inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
            outputs=[Tensor(name="y", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(max_batch_size=4),
            progress=False,
        )
        assert connection.infer(model.name, {"x": x})["y"].tolist() == (x * 2).tolist()
        model.unregister()
        if number == WARM_UP - 1:
            settled = eventually(
                lambda: _settled(fresh_daemon), lambda: f"at rest: {_footprint(fresh_daemon)}"
            )
            resident = _resident(fresh_daemon)
    # Triton's own threads take a moment to end after an unload.
    eventually(
        lambda: not _more(settled, _footprint(fresh_daemon)),
        lambda: f"before: {settled}\nnow: {_footprint(fresh_daemon)}",
    )
    growth = _resident(fresh_daemon) - resident
    print(f"{ROUNDS} rounds: resident memory grew by {growth / 2**20:.1f} MiB; footprint {settled}")
    assert growth < GROWTH_BYTES
    connection.close()


def _settled(daemon: RunningDaemon) -> dict[str, object] | None:
    """Return the footprint once only tritonserver, the init process and a fork server are left below the daemon."""
    footprint = _footprint(daemon)
    processes = footprint["processes"]
    assert isinstance(processes, list)
    return footprint if len(processes) == 3 and "ending" not in processes else None


def _more(before: dict[str, object], now: dict[str, object]) -> dict[str, object]:
    """Return what has increased. Counts may fall, as the threads of an unload end late."""
    return {
        what: value
        for what, value in now.items()
        if (isinstance(value, int) and value > int(str(before[what])) + _slack(what))
        or (not isinstance(value, int) and value != before[what])
    }


def _slack(what: str) -> int:
    return THREADS_SLACK if what.endswith("threads") else 0
