"""`scripts/tools/fleet-demo`: three nodes on this machine, one killed, one drained, while clients ask through one address."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support.ray_nodes import kill_node, loopback_up, ray_cluster, until

from demos.digits_fleet import INSTANCES, NODES, Load, digits_fleet, placement
from pytriton.fleet.on_ray.client import RayFleetClient

_CALM_S = 5.0


def main() -> None:
    """Play it, and print what happened."""
    options = argparse.ArgumentParser(prog="scripts/tools/fleet-demo", description=__doc__)
    options.add_argument("--clients", type=int, default=4, help="half over HTTP, half over gRPC")
    options.add_argument(
        "--against",
        choices=["ray-serve"],
        help="measure the same model with this one, too, in the same run",
    )
    arguments = options.parse_args()
    begun = time.monotonic()
    loopback_up()
    folder = Path(tempfile.mkdtemp(prefix="ptf-"))
    try:
        if arguments.against:
            from demos.fleet_against import SETTINGS, compare

            os.environ.update(SETTINGS)  # the nodes have them, too
            with ray_cluster(NODES) as cluster:
                compare(cluster, folder, lambda text: _say(begun, text))
        else:
            with ray_cluster(NODES) as cluster:
                _play(cluster, folder, arguments.clients, begun)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _say(begun, "done")


def _play(cluster: Any, folder: Path, clients: int, begun: float) -> None:
    address = cluster.address
    _say(begun, f"a Ray cluster of {NODES} nodes runs at {address}")
    with digits_fleet(address, folder, lambda text: _say(begun, text)) as found:
        fleet, http_at, grpc_at, images, labels = found
        load_ = Load(http_at, grpc_at, images, labels)
        load_.wait_until_served()
        _say(begun, f"asking through http {http_at}, grpc {grpc_at}")
        placements = [("at first", placement(fleet))]
        with load_.running(clients):
            time.sleep(_CALM_S)
            placements.append(_kill(cluster, fleet, load_, begun))
            time.sleep(_CALM_S)
            placements.append(_drain(cluster, fleet, load_, begun))
            time.sleep(_CALM_S)
        _print(placements, load_, clients)


def _kill(
    cluster: Any, fleet: RayFleetClient, load_: Load, begun: float
) -> tuple[str, dict[str, int]]:
    """Kill a node that is not the head: its raylet, its daemon and all that they started, at once."""
    victim = cluster.list_all_nodes()[-1]
    node = victim.node_id
    load_.phase = "killed"
    killed_at = time.monotonic()
    killed = kill_node(cluster, fleet, victim)
    _say(begun, f"SIGKILL to node {node[:6]}: {killed} processes")
    until(
        lambda: _placed(fleet) == INSTANCES and node not in _nodes(fleet), "the instances elsewhere"
    )
    _say(
        begun,
        f"{INSTANCES} instances serve again, {time.monotonic() - killed_at:.0f} s after the kill",
    )
    return f"{node[:6]} was killed", placement(fleet)


def _drain(
    cluster: Any, fleet: RayFleetClient, load_: Load, begun: float
) -> tuple[str, dict[str, int]]:
    leaving = cluster.list_all_nodes()[-1]
    load_.phase = "drained"
    started = time.monotonic()
    fleet.drain(leaving.node_id)
    _say(begun, f"node {leaving.node_id[:6]} is drained, after {time.monotonic() - started:.0f} s")
    return f"{leaving.node_id[:6]} was drained", placement(fleet)


def _print(placements: list[tuple[str, dict[str, int]]], load_: Load, clients: int) -> None:
    nodes = list(placements[0][1])
    print("\ninstances on             " + "  ".join(node[:6] for node in nodes))
    for what, counts in placements:
        print(f"  {what:<22} " + "  ".join(f"{counts.get(node, '-'):>6}" for node in nodes))
    print(f"\n{clients} clients       requests   failed   slowest")
    for phase in ("calm", "killed", "drained"):
        failed = sum(count for (one, _), count in load_.failed.items() if one == phase)
        print(
            f"  {phase:<12} {load_.asked[phase]:>10} {failed:>8} {load_.slowest.get(phase, 0):>8.2f} s"
        )
    for (phase, cause), count in sorted(load_.failed.items()):
        print(f"    {phase}: {count} x {cause}")
    drained = sum(count for (phase, _), count in load_.failed.items() if phase == "drained")
    if drained or sum(load_.failed.values()) > clients:
        sys.exit("more failed than may: a drained node costs nothing, a killed one what was inside")


def _placed(fleet: RayFleetClient) -> int:
    return sum(placement(fleet).values())


def _nodes(fleet: RayFleetClient) -> list[str]:
    return [one.node for one in fleet.nodes()]


def _say(begun: float, text: str) -> None:
    print(f"[{time.monotonic() - begun:5.1f} s] {text}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    main()
