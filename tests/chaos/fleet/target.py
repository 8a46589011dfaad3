"""The fleet under test: three nodes on this machine, a load balancer in front of them, and models."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from support.ports import lasting_port
from support.ray_nodes import (
    FLAGS,
    add_node,
    end_balancer,
    processes_here,
    ray_cluster,
    start_balancer,
    until,
)

from chaos import models
from chaos.ledger import RequestLedger
from pytriton._protocol import messages
from pytriton.daemon import connect
from pytriton.exceptions import PyTritonError
from pytriton.fleet.on_ray.client import RayFleetClient
from pytriton.fleet.on_ray.lifecycle import start_fleet, stop_fleet
from pytriton.model_config import ModelConfig

NODES = 3
#: What is served, with so many instances in all.
INSTANCES = {"single": 1, "double": 2, "batched": 6}
_NAME = "chaos"
_RECOVERY_S = 180.0
#: After that, the controller has checked all nodes again.
_KNOWN_S = 2.0


class Target:
    """A running fleet; created by `serving`."""

    def __init__(self, cluster: Any, folder: Path, ledger: RequestLedger) -> None:
        self.cluster = cluster
        self.ledger = ledger
        self._serials = itertools.count()
        self.http, self.grpc = (f"127.0.0.1:{lasting_port()}" for _ in range(2))
        self._folder = folder
        start_fleet(_NAME, cluster.address, flags=FLAGS, runtime_dir=str(folder))
        self.fleet: RayFleetClient = connect(fleet=_NAME, ray_address=cluster.address)
        until(lambda: len(self.statuses()) == NODES, "the daemons run")
        for name, instances in INSTANCES.items():
            self.register(name, instances)
        self.balancer = self._start_balancer()

    def register(self, name: str, instances: int, *, replace: bool = False) -> None:
        """Serve one of the models."""
        self.fleet.register(
            models.callable_of(name), name, models.INPUTS, models.OUTPUTS,
            ModelConfig(max_batch_size=models.MAX_BATCH_SIZE),
            # Another registration each time: the same one again would change nothing.
            max_batches=1_000_000 + next(self._serials),
            instances=instances, replace=replace, progress=False,
        )  # fmt: skip

    def statuses(self) -> dict[str, messages.Status]:
        """Return the status of each node's daemon that answers."""
        return {one.node: one.status for one in self.fleet.nodes() if one.status is not None}

    def workers(self) -> list[int]:
        """Return the process ids of all ready workers."""
        return [
            one.pid
            for status in self.statuses().values()
            for info in status.models
            for one in info.instances
            if one.pid and one.state == "ready"
        ]

    def of_ray(self, title: str) -> list[psutil.Process]:
        """Return Ray's processes of one kind, such as `ray::Controller`."""
        found = []
        for process in processes_here():
            with contextlib.suppress(psutil.Error):
                if " ".join(process.cmdline()).startswith(title):
                    found.append(process)
        return found

    def add_node(self) -> None:
        """Add another node."""
        add_node(self.cluster)

    def end_balancer(self) -> None:
        """Kill `fleet balance`, and restart it, as a service manager would."""
        self.balancer.kill()
        self.balancer.wait()
        self.balancer = self._start_balancer()

    def recovered(self) -> None:
        """Wait until every node has a daemon and every model all its instances, according to the controller.

        Its state may be older than the fault, so the condition has to hold for a while.
        """
        deadline = time.monotonic() + _RECOVERY_S
        since = time.monotonic()
        while time.monotonic() - since < _KNOWN_S:
            story = self._story()
            if story is not None:
                since = time.monotonic()
            if since > deadline:
                raise TimeoutError(f"not recovered after {_RECOVERY_S:g} s: {story}")
            time.sleep(0.2)

    def close(self) -> None:
        """End it."""
        end_balancer(self.balancer)
        stop_fleet(_NAME, self.cluster.address)

    def _start_balancer(self) -> subprocess.Popen[bytes]:
        return start_balancer(
            self.cluster.address, _NAME, self._folder / "balancer", self.http, self.grpc
        )

    def _story(self) -> str | None:
        """Return what is not recovered yet, or None."""
        try:
            statuses = self.statuses()
            there = {one.node_id for one in self.cluster.list_all_nodes()}
            if set(statuses) != there or {one.node for one in self.fleet.nodes()} != there:
                return f"{len(there)} nodes live, {len(statuses)} daemons answer"
            for name, instances in INSTANCES.items():
                done, served, _, error = self.fleet._ask("progress", name)
                if not done or served != instances:
                    return f"{name}: {served} of {instances}; {error}"
            broken = {
                f"{node[:6]} {info.name} {info.state}"
                for node, status in statuses.items()
                for info in status.models
                if info.state != "ready"
            }
            servers = {
                f"{node[:6]} tritonserver {status.server.state}"
                for node, status in statuses.items()
                if status.server.state != "ready"
            }
        except PyTritonError as error:  # the controller is away
            return str(error)
        return ", ".join(sorted(broken | servers)) or None


@contextlib.contextmanager
def serving(folder: Path, ledger: RequestLedger, leaks: list[str]) -> Iterator[Target]:
    """Yield a running fleet; in the end, processes that it has left are added to `leaks`."""
    before = {one.pid for one in processes_here()} | {os.getpid()}
    # Ray's control plane keeps its state, so that one that was killed can be started again.
    os.environ.update(RAY_gcs_storage="rocksdb", RAY_gcs_storage_path=str(folder / "gcs"))
    with ray_cluster(NODES) as cluster:
        target = Target(cluster, folder, ledger)
        try:
            yield target
        finally:
            target.close()
    with contextlib.suppress(TimeoutError):
        until(lambda: not _left(before), "all ends", 30)
    leaks += _left(before)


def _left(before: set[int]) -> list[str]:
    found = []
    for process in processes_here():
        with contextlib.suppress(psutil.Error):
            if process.pid not in before and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:100] or process.name())
    return found
