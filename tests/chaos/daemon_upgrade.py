"""What an upgrade of the daemon costs its clients, and what a kill in the middle of one loses.

    PYTHONPATH=tests python -m chaos.daemon_upgrade                       20 upgrades under load, 40 kills
    PYTHONPATH=tests python -m chaos.daemon_upgrade --upgrades 3 --kills 5

The loads are those of `chaos.server_replacement`. Of upgrades, nothing may fail, no model is loaded again, and every process
stays. A kill comes at a random moment of an upgrade; the next daemon has to serve all that was registered.
"""

from __future__ import annotations

import argparse
import collections
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from support.models.inference import Inference
from support.real_daemon import RunningDaemon, eventually

from chaos.server_replacement import Clients, Target
from pytriton.exceptions import PyTritonDaemonError
from pytriton.model_config import ModelConfig, Tensor

_X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
_Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
_ONES = np.ones((1, 2), np.float32)
_MODELS = 3


def _processes(daemon: RunningDaemon) -> list[int | None]:
    """Return the pids of the daemon, tritonserver and the workers."""
    status = daemon.client.status()
    workers = [each.pid for one in status.models for each in one.instances]
    return [status.pid, status.server.pid, *workers]


def upgrade(daemon: RunningDaemon, notes: Path, times: int, between_s: float) -> list[str]:
    """Upgrade `times` times under load; return the violations."""
    target = Target(daemon, notes)
    before, took = _processes(daemon), []
    begun = time.monotonic()
    with Clients(daemon) as clients:
        for _ in range(times):
            time.sleep(between_s)
            at = time.monotonic()
            daemon.client.upgrade()
            took.append(time.monotonic() - at)
        time.sleep(between_s)
    print(f"\n{times} upgrades in {time.monotonic() - begun:.0f} s")
    print(
        f"each took {min(took):.2f} to {max(took):.2f} s, {sorted(took)[len(took) // 2]:.2f} s in the middle"
    )
    print("| load | answered | failed | longest, s |\n|---|--:|--:|--:|")
    for name, one in clients.accounts.items():
        print(f"| {name} | {one.right:,} | {len(one.failed):,} | {one.longest_s:.2f} |")
    problems = [
        f"{name}: {text}" for name, one in clients.accounts.items() for *_, text in one.failed
    ]
    if target.loads() != target.loads_at_first:
        problems.append(f"models were loaded again: {target.loads()}")
    if _processes(daemon) != before:
        problems.append(f"other processes: {_processes(daemon)}, at first {before}")
    return problems


def _kill_in_upgrade(daemon: RunningDaemon, after_s: float) -> str:
    """Kill the daemon `after_s` seconds after an upgrade was requested; return the state of the upgrade by the log."""

    def ask() -> None:
        try:
            daemon.client.upgrade()
        except PyTritonDaemonError:
            return  # it was killed

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(after_s)
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait()
    said = daemon.config.rundir.log_file().read_text()
    daemon.stop()  # sees that nothing of it is left
    asking.join(60)
    if "daemon upgraded" in said:
        return "the next version"
    return "between them" if "the next version can take over" in said else "asked only"


def _serves(daemon: RunningDaemon) -> bool:
    return [one.state for one in daemon.client.status().models] == ["ready"] * _MODELS


def kill(times: int, longest_s: float, seed: int) -> list[str]:
    """Kill the daemon at random moments of upgrades; return what was lost."""
    chance = random.Random(seed)
    problems, where = [], collections.Counter[str]()
    with tempfile.TemporaryDirectory(prefix="upgrading-") as folder:
        settings = {"frontend": "native", "state_dir": str(Path(folder) / "state")}
        for number in range(times + 1):
            with RunningDaemon.start(**settings) as daemon:
                if not number:
                    for index in range(_MODELS):
                        _register(daemon, f"m{index}")
                try:
                    eventually(lambda: _serves(daemon), "all models are served again")
                    _check(daemon)
                except AssertionError as error:
                    problems.append(f"after kill {number}: {error}")
                if number < times:
                    where[_kill_in_upgrade(daemon, chance.uniform(0, longest_s))] += 1
    print(f"\n{times} kills: {dict(where)}")
    return problems


def _register(daemon: RunningDaemon, name: str) -> None:
    def double(requests):  # type: ignore[no-untyped-def]
        return [{"y": request["x"] * 2} for request in requests]

    config = ModelConfig(max_batch_size=8)
    daemon.client.register(double, name, _X, _Y, config, progress=False)


def _check(daemon: RunningDaemon) -> None:
    connection = Inference("grpc", daemon.grpc)
    try:
        for index in range(_MODELS):
            assert connection.infer(f"m{index}", {"x": _ONES})["y"].tolist() == [[2, 2]]
    finally:
        connection.close()


def main() -> int:
    """Run what the command line says; return 1 if something failed or was lost."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.daemon_upgrade", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--upgrades", type=int, default=20)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--between", type=float, default=2.0, help="seconds of load before each")
    parser.add_argument("--longest", type=float, default=3.0, help="seconds to a kill, at most")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    problems = []
    if given.upgrades:
        started = RunningDaemon.start(frontend="native")
        with tempfile.TemporaryDirectory(prefix="upgrading-") as notes, started as daemon:
            problems += upgrade(daemon, Path(notes), given.upgrades, given.between)
    if given.kills:
        problems += kill(given.kills, given.longest, given.seed)
    for problem, count in collections.Counter(problems).most_common(20):
        print(f"BROKEN: {count} x {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
