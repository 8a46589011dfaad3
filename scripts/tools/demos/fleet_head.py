"""Ray's head away for minutes while clients ask a fleet, and back with its state, or without it.

Three nodes on this machine, the head one of them: Ray's control plane, its raylet, and a daemon. All of it is killed.
After a minute Ray's other nodes end themselves, and `fleet balance` with them; daemons and HAProxy serve on. Then the
head is started again, the other nodes join it, `fleet balance` runs again, as a service manager would have it. Prints
what became of all requests in each phase. Run in a network namespace of its own, as `scripts/tools/fleet-chaos` is:

    PYTHONPATH=tests RUNS_APART=1 unshare --net .venv/fleet/bin/python -m demos.fleet_head --state lost
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from chaos import models
from chaos.ledger import RequestLedger
from chaos.load import Load
from chaos.run import Outcome
from chaos.table import table
from support.ports import lasting_port
from support.ray_nodes import FLAGS, loopback_up, processes_here, until

from pytriton.model_config import ModelConfig

_MODEL, _INSTANCES, _NODES = "batched", 6, 3
_CALM_S = 20.0
_START_S = 300.0
_RAY = ("ray.scripts.scripts",)


class _Rays:
    """Ray's processes: this one is no driver, for Ray would end it with the head."""

    def __init__(self, folder: Path) -> None:
        self.kept = folder / "gcs"
        self.port = 6379  # of a namespace of its own; most others are among those of Ray's workers
        self.address = f"127.0.0.1:{self.port}"
        self._env = {
            **os.environ,
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(self.kept),
            "RAY_ADDRESS": self.address,
        }
        self._folder = folder

    def start(self) -> None:
        """Start the head, and have the other nodes join it."""
        node = ["--num-cpus", "8", "--object-store-memory", str(100 << 20)]
        node += ["--node-ip-address", "127.0.0.1"]
        head = ["--head", "--port", str(self.port), "--include-dashboard", "false"]
        self._run(*_RAY, "start", *head, *node)
        joins = *_RAY, "start", "--address", self.address, *node
        for _ in range(_NODES - 1):
            until(lambda: self._tried(*joins), "a node", _START_S)

    def cli(self, *words: str) -> str:
        """Run `pytriton-daemon fleet`; return what it prints."""
        return self._run("pytriton._cli", "fleet", *words)

    def register(self) -> None:
        """Register the model, with as many instances as it is to have."""
        self._run("demos.fleet_head", "--register", self.address)

    def nodes(self) -> list[dict[str, Any]]:
        """Return the fleet's nodes; none where nobody answers."""
        try:
            found: list[dict[str, Any]] = json.loads(self.cli("nodes", "--json"))
        except (subprocess.CalledProcessError, ValueError):
            return []
        return found

    def balance(self, http_at: str, grpc_at: str) -> subprocess.Popen[bytes]:
        """Start `fleet balance`."""
        where = ["--http", http_at, "--grpc", grpc_at, "--folder", str(self._folder / "balancer")]
        command = [sys.executable, "-W", "ignore", "-m", "pytriton._cli", "fleet", "balance"]
        more = ["--fleet", "default", "--interval", "0.5"]
        with open(self._folder / "balance.log", "ab") as log:
            return subprocess.Popen([*command, *where, *more], stderr=log, env=self._env)

    def kill_head(self) -> int:
        """Kill the control plane, the head's raylet, its daemon, and all that they have started."""
        family = [one for one in processes_here() if _is_of_head(one)]
        raylet = next(one for one in family if "raylet" in one.name())
        (node,) = {one for one in _words(raylet) if one.startswith("--node_id=")} or {""}
        daemons = [one["status"]["pid"] for one in self.nodes() if node.endswith(one["node"])]
        family += [psutil.Process(pid) for pid in daemons]
        family += [child for one in family for child in one.children(recursive=True)]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        return len(daemons)

    def _tried(self, *words: str) -> bool:
        try:
            self._run(*words)
        except subprocess.CalledProcessError:
            return False
        return True

    def _run(self, *words: str) -> str:
        command = [sys.executable, "-W", "ignore", "-m", *words]
        return subprocess.run(
            command, env=self._env, stdout=subprocess.PIPE, text=True, check=True, timeout=_START_S
        ).stdout


def _play(rays: _Rays, away_s: float, lose: bool, folder: Path) -> Outcome:
    ledger = RequestLedger()
    outcome = Outcome(ledger)
    http_at, grpc_at = (f"127.0.0.1:{lasting_port()}" for _ in range(2))
    rays.start()
    rays.cli("start", "--runtime-dir", str(folder), "--", *FLAGS)
    until(lambda: _served_by(rays.nodes())[0] == _NODES, "the daemons", 300)
    rays.register()
    balancer = rays.balance(http_at, grpc_at)
    load = Load(http_at, grpc_at, ledger, 4, [_MODEL])
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.callback(_end, balancer)
        until(lambda: (folder / "balancer" / "master.sock").exists(), "HAProxy")
        time.sleep(3.0)
        load.start()
        stack.callback(load.stop)
        _say(f"{_served_by(rays.nodes())} (nodes, instances) serve")
        time.sleep(_CALM_S)
        ledger.begin("killed")
        _say(f"the head is killed, with {rays.kill_head()} daemon")
        time.sleep(10.0)
        ledger.begin("away")
        time.sleep(away_s - 10.0)
        ended = balancer.poll()
        _say(f"`fleet balance` {'runs' if ended is None else f'has ended with {ended}'}")
        ledger.begin("back")
        if lose:
            shutil.rmtree(rays.kept)
        rays.start()
        _say("Ray runs again")
        if lose:
            rays.cli("start", "--runtime-dir", str(folder), "--", *FLAGS)
        if ended is not None:
            balancer = rays.balance(http_at, grpc_at)
            stack.callback(_end, balancer)
        if lose:
            until(lambda: _served_by(rays.nodes())[0] == _NODES, "the daemons", 300)
            _say(f"{_served_by(rays.nodes())} (nodes, instances) serve; it is registered again")
            rays.register()
        until(lambda: _served_by(rays.nodes()) == (_NODES, _INSTANCES), "all instances", 300)
        _say("all instances serve")
        ledger.begin("calm again")
        time.sleep(_CALM_S)
        load.stop()
    outcome.seconds = time.monotonic() - begun
    return outcome


def _served_by(nodes: list[dict[str, Any]]) -> tuple[int, int]:
    """Return how many daemons answer, and how many instances serve."""
    there = [one["status"] for one in nodes if one["status"]]
    instances = [each for one in there for model in one["models"] for each in model["instances"]]
    return len(there), sum(each["state"] == "ready" and not each["standby"] for each in instances)


def _register(address: str) -> None:
    from pytriton.daemon import connect

    connect(fleet="default", ray_address=address).register(
        models.callable_of(_MODEL), _MODEL, models.INPUTS, models.OUTPUTS,
        ModelConfig(max_batch_size=models.MAX_BATCH_SIZE), instances=_INSTANCES, replace=True, progress=False,
    )  # fmt: skip


def _is_of_head(process: psutil.Process) -> bool:
    words = _words(process)
    return "gcs_server" in "".join(words[:1]) or "--head" in words


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


@contextlib.contextmanager
def _cleared(rays: _Rays, folder: Path) -> Iterator[None]:
    """End all that was started, whoever has it: Ray may be away, or know nothing of it."""
    before = {one.pid for one in processes_here()}
    try:
        yield
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            rays.cli("stop")
        left = [one for one in processes_here() if one.pid not in before]
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Play it, and print the table; 1 when an answer was wrong or lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--away", type=float, default=170.0, metavar="SECONDS")
    parser.add_argument("--state", choices=["kept", "lost"], default="kept")
    parser.add_argument("--register", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.register:
        _register(given.register)
        return 0
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    loopback_up()
    folder = Path(tempfile.mkdtemp(prefix="ptf-"))
    rays = _Rays(folder)
    with _cleared(rays, folder):
        outcome = _play(rays, given.away, given.state == "lost", folder)
    print(table(outcome))
    return int(any(one.wrong or one.lost for one in outcome.ledger.accounts.values()))


_BEGUN = time.monotonic()


def _say(text: str) -> None:
    print(f"[{time.monotonic() - _BEGUN:5.1f} s] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
