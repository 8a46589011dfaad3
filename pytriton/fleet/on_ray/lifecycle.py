"""Functions that start and stop a fleet on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytriton._protocol.arguments import plain
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.fleet.on_ray import NAMESPACE, check_name, connected
from pytriton.fleet.on_ray.controller import Controller

#: Number of clients and balancers that call concurrently.
_CONCURRENCY = 32
_ANSWER_S = 120.0


def start_fleet(
    fleet: str,
    ray_address: str | None = None,
    *,
    nodes: int | None = None,
    flags: Sequence[str] = (),
    runtime_dir: str | None = None,
) -> int:
    """Start a fleet, or change the settings of a running one. Return the number of surplus nodes.

    The controller and the daemons keep running after this process has exited.

    Args:
        fleet: name of the fleet
        ray_address: address of the cluster; None: this machine's cluster
        nodes: maximum number of nodes; None: all, including nodes added later. Surplus nodes are drained
        flags: options of `pytriton-daemon start` for daemons started from now on
        runtime_dir: parent folder of the daemons' runtime directories on nodes added from now on

    Raises:
        PyTritonBadParameterError: the name or the number of nodes is invalid
        PyTritonDaemonError: there is no such Ray cluster
    """
    check_name(fleet)
    nodes = plain(nodes)
    if nodes is not None and (isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1):
        raise PyTritonBadParameterError(
            f"nodes={nodes!r}: must be a positive integer, or None for all"
        )
    ray = connected(ray_address)
    controller = (
        ray.remote(Controller)
        .options(
            name=f"fleet-{fleet}", namespace=NAMESPACE, lifetime="detached", max_restarts=-1, max_task_retries=-1,
            get_if_exists=True, num_cpus=0, max_concurrency=_CONCURRENCY,
        )
        .remote(fleet)
    )  # fmt: skip
    settings: dict[str, Any] = {"nodes": nodes, "flags": list(flags), "runtime_dir": runtime_dir}
    ray.get(controller.start.remote(settings), timeout=_ANSWER_S)
    if nodes is None:
        return 0
    return max(0, len(ray.get(controller.nodes.remote(), timeout=_ANSWER_S)) - nodes)


def stop_fleet(fleet: str, ray_address: str | None = None) -> None:
    """Stop a fleet. Its daemons answer in-flight requests, then all of its actors are killed.

    Raises:
        PyTritonDaemonError: there is no such fleet
    """
    from pytriton.fleet.on_ray.client import RayFleetClient

    check_name(fleet)
    ray = connected(ray_address)
    RayFleetClient(fleet, ray_address)
    controller = ray.get_actor(f"fleet-{fleet}", NAMESPACE)
    ray.get(controller.stop.remote(), timeout=_ANSWER_S * 2)
    ray.kill(controller, no_restart=True)
