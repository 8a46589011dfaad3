"""Measure how long a real HAProxy takes to start and to reload with the configuration of a large fleet.

Each model is placed on random nodes. A second HAProxy stands for all nodes.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from support.ports import lasting_port

from pytriton.fleet.balancer.configuration import BalancerSettings, Files, render
from pytriton.fleet.balancer.haproxy import HAProxy, find_haproxy
from pytriton.fleet.balancer.layout import Node, NodeEndpoint

_MIB = 1 << 20
_NODES = """
global
    maxconn 4000
defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 5s
frontend nodes
    bind 127.0.0.1:{port}
    http-request return status 200 content-type application/json string "{{}}"
"""


def place(nodes: int, models: int, instances: int, port: int) -> list[Node]:
    """Return nodes that serve the models. All nodes have the same endpoints."""
    chance = random.Random(1)
    placed: list[set[str]] = [set() for _ in range(nodes)]
    for model in range(models):
        for node in chance.sample(range(nodes), min(instances, nodes)):
            placed[node].add(f"model-{model}")
    http, grpc = NodeEndpoint("127.0.0.1", port), NodeEndpoint("127.0.0.1", port + 1)
    return [
        Node(f"node-{number}", http, grpc, frozenset(names)) for number, names in enumerate(placed)
    ]


def measure(nodes: list[Node], node_port: int, folder: Path) -> None:
    """Start HAProxy, remove one model from one node, reload, and print the durations and sizes."""
    settings = BalancerSettings(f"127.0.0.1:{lasting_port()}", f"127.0.0.1:{lasting_port()}")
    backends = HAProxy(folder / "nodes", find_haproxy())
    haproxy = HAProxy(folder / "balancer", find_haproxy())
    try:
        backends.use(Files(_NODES.format(port=node_port), ""))
        begun = time.perf_counter()
        files = render(nodes, settings, str(haproxy.folder))
        rendered = time.perf_counter()
        haproxy.use(files)
        started = time.perf_counter()
        first = next(one for one in nodes if one.models)
        fewer = replace(first, models=frozenset(sorted(first.models)[1:]))
        changed = [fewer if one is first else one for one in nodes]
        haproxy.use(render(changed, settings, str(haproxy.folder)))
        reloaded = time.perf_counter()
    finally:
        haproxy.stop()
        backends.stop()
    sets = re.findall(r"^backend http:set-.*-seq$", files.configuration, re.MULTILINE)
    print(f"{len(sets)} different sets of nodes")
    print(
        f"haproxy.cfg {len(files.configuration) / _MIB:.1f} MiB, rendered in {rendered - begun:.1f} s"
    )
    print(f"start {started - rendered:.1f} s, reload {reloaded - started:.1f} s, checks included")


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(prog="scripts/tools/balancer-bench", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--models", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--instances", type=int, default=2, help="of each model (default: 2)")
    given = parser.parse_args()
    port = lasting_port()
    nodes = place(given.nodes, given.models, given.instances, port)
    with tempfile.TemporaryDirectory(prefix="ptb-") as folder:
        measure(nodes, port, Path(folder))


if __name__ == "__main__":
    main()
