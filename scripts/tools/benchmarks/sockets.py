"""Measures sockets: memory and CPU of idle connections, and the speed of unix sockets compared with TCP."""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import process_trees
from benchmarks.deployment import Deployment, DidNotStart
from benchmarks.load import generators
from benchmarks.runner import Recorder, Rows
from benchmarks.systems import System
from benchmarks.workloads import PLAIN

_CONNECTIONS = 9_000  #: of each protocol; below the number of files that client and server may open
_IDLE_S = 5.0
_CLIENTS = (1, 8, 32)
#: What an HTTP/2 client sends first: the connection preface and empty SETTINGS. Source: RFC 9113, section 3.4.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def measure(systems: list[System], quick: bool, recorder: Recorder) -> None:
    """Record the figures of our own systems."""
    for system in systems:
        if system.name.startswith("ours"):
            for figures in (_idle, _unix):
                recorder.rows(system.name, "sockets", partial(figures, system, quick))


def _idle(system: System, quick: bool) -> Rows:
    """Open connections that send one request each. Return their memory and CPU."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = min(1_000 if quick else _CONNECTIONS, most - 1_000)
    rows: Rows = []
    with Deployment(system, PLAIN) as deployment:
        deployment.wait_correct()
        pid = deployment.process.pid
        for protocol in ("http", "grpc"):
            process_trees.wait_calm(pid)
            before = _memory(pid)
            with ExitStack() as stack:
                for _ in range(count):
                    stack.enter_context(_opened(protocol, deployment))
                process_trees.wait_calm(pid)
                each = (_memory(pid) - before) * 1e3 / count
                used = process_trees.use(pid).cpu_s
                time.sleep(_IDLE_S)  # the CPU time of this period is the figure
                busy = (process_trees.use(pid).cpu_s - used) / _IDLE_S * 100
            rows += [
                (f"memory of an idle {protocol} connection, of {count:,}", each, "KB"),
                (f"CPU with {count:,} idle {protocol} connections", busy, "% of a core"),
            ]
    return rows


def _memory(pid: int) -> float:
    return process_trees.memory_mb([one.pid for one in process_trees.tree(pid)])


def _opened(protocol: str, deployment: Deployment) -> socket.socket:
    """Return a connection on which the server has responded once."""
    port = deployment.ports.http if protocol == "http" else deployment.ports.grpc
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    if protocol == "http":
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    else:
        connection.sendall(_HTTP2_PREFACE)
    if not connection.recv(4096):
        raise DidNotStart(f"{protocol}: the server closed the connection at once")
    return connection


def _unix(system: System, quick: bool) -> Rows:
    """Send the same load over TCP and unix sockets in turn, with h2load."""
    if system.frontend == "triton":  # NVIDIA's frontends listen on TCP only
        return []
    with Deployment(system, PLAIN, unix=True) as deployment:
        deployment.wait_correct()
        return [
            row
            for protocol in ("http", "grpc")
            for clients in _CLIENTS
            for row in _both_ways(deployment, protocol, clients, rounds=2 if quick else 5)
        ]


def _both_ways(deployment: Deployment, protocol: str, clients: int, rounds: int) -> Rows:
    request, folder = deployment.request(protocol), deployment.folder
    ways: dict[str, Path | None] = {"TCP": None, "unix": folder / f"{protocol}.sock"}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, path in ways.items():
            load = generators.apply_h2load(request, clients, 2.0, folder, path)
            if load.failed:
                raise generators.GeneratorFailed(f"{load.failed} requests failed over {name}")
            found[name].append(load.requests / load.seconds)
    ratio = median(unix / tcp for unix, tcp in zip(found["unix"], found["TCP"]))
    return [
        (f"{protocol}, {clients} clients, over {name}", median(values), "requests/s")
        for name, values in found.items()
    ] + [(f"{protocol}, {clients} clients: unix socket ÷ TCP", ratio, "")]
