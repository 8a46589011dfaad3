"""The faults of a fleet. Each breaks something once; Ray, HAProxy and the fleet have to recover."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass

import psutil
from support.ray_nodes import kill_node, until

from chaos.fleet.target import INSTANCES, Target


@dataclass(frozen=True)
class Fault:
    """`free`: no request may fail because of it, except as many as it `costs` each time."""

    inject: Callable[[Target, random.Random], None]
    free: bool
    costs: int = 0


def _kill(pid: int) -> None:
    """Kill a process, unless it has exited since its daemon reported it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.kill()
        psutil.wait_procs([process], timeout=10)


def kill_worker(target: Target, chance: random.Random) -> None:
    """Kill any worker; its daemon retries the batch in another one."""
    _kill(chance.choice(target.workers()))


def kill_server(target: Target, chance: random.Random) -> None:
    """Kill a node's tritonserver: requests in it fail, and HAProxy skips the node until it is back."""
    pid = chance.choice([one.server.pid for one in target.statuses().values() if one.server.pid])
    _kill(pid)


def kill_daemon(target: Target, chance: random.Random) -> None:
    """Kill a node's daemon: its workers and tritonserver end with it, and the node's actor starts another one."""
    node, status = chance.choice(sorted(target.statuses().items()))
    _kill(status.pid)
    until(
        lambda: (now := target.statuses().get(node)) is not None and now.pid != status.pid,
        "another daemon",
    )


def _kill_actor(target: Target, chance: random.Random, title: str) -> None:
    victim = chance.choice(target.of_ray(title))
    before = {one.pid for one in target.of_ray(title)}
    _kill(victim.pid)
    until(
        lambda: len(now := {one.pid for one in target.of_ray(title)}) == len(before) and now != before,
        f"another {title}",
    )  # fmt: skip


def kill_node_actor(target: Target, chance: random.Random) -> None:
    """Kill the actor that owns a node's daemon; the daemon stays."""
    _kill_actor(target, chance, "ray::NodeActor")


def kill_holder(target: Target, chance: random.Random) -> None:
    """Kill an actor that reserves an instance's resources: Ray restarts it, here or elsewhere."""
    _kill_actor(target, chance, "ray::ResourceHolder")


def kill_controller(target: Target, chance: random.Random) -> None:
    """Kill the controller, which Ray restarts with its state."""
    _kill_actor(target, chance, "ray::Controller")


def kill_balancer(target: Target, chance: random.Random) -> None:
    """Kill `fleet balance`: HAProxy keeps serving, and the next `fleet balance` finds it."""
    target.end_balancer()


def kill_haproxy(target: Target, chance: random.Random) -> None:
    """Kill HAProxy itself, with all its connections; `fleet balance` restarts it."""
    masters = [
        one
        for one in target.of_ray("/")
        if "haproxy" in one.name() and "haproxy" not in (one.parent() or one).name()
    ]
    for one in [*masters[0].children(), masters[0]]:
        _kill(one.pid)


def kill_one_node(target: Target, chance: random.Random) -> None:
    """Kill a node and everything on it; another one joins."""
    kill_node(target.cluster, target.fleet, chance.choice(target.cluster.list_all_nodes()[1:]))
    target.add_node()


def drain_node(target: Target, chance: random.Random) -> None:
    """Drain a node, which ends; another one joins."""
    leaving = chance.choice(target.cluster.list_all_nodes()[1:])
    target.add_node()
    target.fleet.drain(leaving.node_id)
    kill_node(target.cluster, target.fleet, leaving)


def scale(target: Target, chance: random.Random) -> None:
    """Scale a model up, and back down."""
    name, instances = chance.choice(sorted(INSTANCES.items()))
    target.fleet.scale(name, instances + chance.randrange(1, 4), progress=False)
    target.fleet.scale(name, instances, progress=False)


def replace(target: Target, chance: random.Random) -> None:
    """Replace a model by itself, with new workers on all nodes."""
    name, instances = chance.choice(sorted(INSTANCES.items()))
    target.register(name, instances, replace=True)


def kill_head(target: Target, chance: random.Random) -> None:
    """Kill Ray's control plane (GCS), which is restarted; models are served in the meantime."""
    head = target.cluster.head_node
    head.kill_gcs_server(check_alive=False)
    head.start_gcs_server()


FAULTS: dict[str, Fault] = {
    "kill-worker": Fault(kill_worker, free=True),
    "kill-node-actor": Fault(kill_node_actor, free=True),
    "kill-holder": Fault(kill_holder, free=True),
    "kill-controller": Fault(kill_controller, free=True),
    "kill-balancer": Fault(kill_balancer, free=True),
    "drain-node": Fault(drain_node, free=True),
    "scale": Fault(scale, free=True),
    "replace": Fault(replace, free=True),
    "kill-server": Fault(kill_server, free=False),
    "kill-daemon": Fault(kill_daemon, free=False),
    "kill-haproxy": Fault(kill_haproxy, free=False),
    "kill-node": Fault(kill_one_node, free=False),
    "kill-head": Fault(kill_head, free=True),
}
