"""A Ray cluster of several nodes on this machine, behind a fleet's balancer."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from pytriton.fleet.on_ray.client import RayFleetClient

#: The resources that Ray assumes of each node: enough for all instances on one.
DECLARED_CPUS = 8
#: Of each node's daemon: they are on one machine.
FLAGS = [
    "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--openai-port", "0",
    "--http-address", "127.0.0.1",
]  # fmt: skip
OF_EACH_NODE = {
    "num_cpus": DECLARED_CPUS,
    "object_store_memory": 100 << 20,
    "node_ip_address": "127.0.0.1",
}
_PATIENCE_S = 120.0
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


@contextlib.contextmanager
def ray_cluster(nodes: int) -> Iterator[Any]:
    """Yield a Ray cluster of this many nodes. Ray listens on every address, so use a separate network namespace."""
    # Its own limits are too short for a busy machine. Ray reads these when it is imported. Ray 2.60 also ends a node whose
    # agents have not started within 15 s, which no setting changes.
    os.environ.setdefault("RAY_DASHBOARD_STARTUP_TIMEOUT_S", "180")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")
    os.environ.setdefault("RAY_agent_register_timeout_ms", "180000")
    os.environ.setdefault("RAY_worker_register_timeout_seconds", "180")
    import ray
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(  # it has no types
        initialize_head=True,
        head_node_args={"include_dashboard": False, "wait": False, **OF_EACH_NODE},
    )
    try:
        cluster.wait_for_nodes(_PATIENCE_S)
        for _ in range(nodes - 1):
            add_node(cluster)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def add_node(cluster: Any) -> None:
    """Add a node."""
    cluster.add_node(wait=False, **OF_EACH_NODE)
    cluster.wait_for_nodes(_PATIENCE_S)


def start_balancer(
    ray_address: str, fleet: str, folder: Path, http_at: str, grpc_at: str
) -> subprocess.Popen[bytes]:
    """Start `pytriton-daemon fleet balance` for a fleet on Ray, with HAProxy's files in `folder`."""
    command = [sys.executable, "-W", "ignore", "-m", "pytriton._cli", "fleet", "balance", "--fleet", fleet]  # fmt: skip
    command += ["--ray-address", ray_address, "--http", http_at, "--grpc", grpc_at]
    return subprocess.Popen([*command, "--interval", "0.5", "--folder", str(folder)])


def end_balancer(process: subprocess.Popen[bytes]) -> None:
    """Stop the balancer and HAProxy."""
    process.send_signal(signal.SIGTERM)
    process.wait()


def kill_node(cluster: Any, fleet: RayFleetClient, victim: Any) -> int:
    """Kill a node other than the head with its daemon and all child processes; return how many were killed."""
    status = next(one.status for one in fleet.nodes() if one.node == victim.node_id)
    family = [] if status is None else [psutil.Process(status.pid)]
    of_ray = [one.process for ones in victim.all_processes.values() for one in ones]
    family += [psutil.Process(one.pid) for one in of_ray]
    family += [child for one in family for child in one.children(recursive=True)]
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    cluster.remove_node(victim, allow_graceful=False)
    return len(family)


def processes_here() -> list[psutil.Process]:
    """Return the other processes of this network namespace; none outside of a separate one (`run_apart`)."""
    if not os.environ.get("RUNS_APART"):
        return []
    own = os.stat("/proc/self/ns/net").st_ino
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if process.pid != os.getpid() and os.stat(f"/proc/{process.pid}/ns/net").st_ino == own:
                found.append(process)
    return found


def until(condition: Callable[[], Any], what: str, patience_s: float = _PATIENCE_S) -> Any:
    """Wait for a true value, and return it.

    Raises:
        TimeoutError: it stayed false; names what was awaited
    """
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {patience_s:g} s: {what}")
        time.sleep(0.2)
    return found


def loopback_up() -> None:
    """Bring up the loopback device of this network namespace if it is down and that is permitted."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        asked = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(channel, _SIOCGIFFLAGS, asked))
        if not flags & _IFF_UP:
            fcntl.ioctl(channel, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
