"""A real HAProxy with the configuration of a fleet that is simulated; another HAProxy stands for all of its nodes."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from pytriton.fleet.balancer.configuration import BalancerSettings, Files, render
from pytriton.fleet.balancer.haproxy import HAProxy, find_haproxy
from pytriton.fleet.balancer.layout import Node, update_nodes
from pytriton.fleet.placement_status import NodeStatus

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


class Balanced(NamedTuple):
    """The cost of a configuration for HAProxy."""

    nodes: int
    models: int
    sets: int
    configuration: int
    table: int
    decode_s: float
    render_s: float
    start_s: float
    reload_s: float
    memory: int
    files: int
    up: int


def measure(view: bytes, node_port: int, http_port: int, grpc_port: int) -> Balanced:
    """Run HAProxy with what a balancer was told, and reload it once."""
    begun = time.perf_counter()
    nodes = update_nodes([], msgspec.msgpack.decode(view, type=list[NodeStatus]))
    decoded = time.perf_counter()
    settings = BalancerSettings(f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}")
    with tempfile.TemporaryDirectory(prefix="ptb-") as folder, _all_nodes(Path(folder), node_port):
        haproxy = HAProxy(Path(folder) / "b", find_haproxy())
        before_render = time.perf_counter()
        files = render(nodes, settings, str(haproxy.folder))
        rendered = time.perf_counter()
        try:
            haproxy.use(files)
            started = time.perf_counter()
            haproxy.use(_changed(nodes, settings, str(haproxy.folder)))
            reloaded = time.perf_counter()
            up, memory, open_files = _seen_of(haproxy)
        finally:
            haproxy.stop()
    return Balanced(
        len(nodes), len({model for one in nodes for model in one.models}),
        len(re.findall(r"^backend http:set-.*-seq$", files.configuration, re.MULTILINE)),
        len(files.configuration), len(files.models),
        decoded - begun, rendered - before_render, started - rendered, reloaded - started,
        memory, open_files, up,
    )  # fmt: skip


def _changed(nodes: list[Node], settings: BalancerSettings, folder: str) -> Files:
    """Return the files after one model has gone from one node: the least that makes HAProxy reload."""
    first = next(one for one in nodes if one.models)
    fewer = Node(first.name, first.http, first.grpc, frozenset(sorted(first.models)[1:]))
    return render([fewer if one is first else one for one in nodes], settings, folder)


def _seen_of(haproxy: HAProxy) -> tuple[int, int, int]:
    """Return how many nodes HAProxy finds up, and the memory and open files of its newest worker."""
    deadline = time.monotonic() + 30
    while True:
        states = [
            state for (backend, _), state in haproxy.states().items() if backend == "http:all"
        ]
        if all(one == "UP" for one in states) or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    worker = psutil.Process(haproxy.workers()[0])
    return states.count("UP"), worker.memory_info().rss, worker.num_fds()


@contextlib.contextmanager
def _all_nodes(folder: Path, port: int) -> Iterator[None]:
    nodes = HAProxy(folder / "n", find_haproxy())
    nodes.use(Files(_NODES.format(port=port), ""))
    try:
        yield
    finally:
        nodes.stop()
