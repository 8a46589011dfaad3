"""`scripts/tools/fleet-demo --against ray-serve`: the same model and requests, served by a fleet and by Ray Serve."""

from __future__ import annotations

import contextlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from benchmarks.load import generators
from benchmarks.load.wire import Request
from digits import MODEL_NAME, Array
from support.ports import lasting_port
from support.ray_nodes import processes_here, until

from demos.digits_fleet import INSTANCES, PATH, Load, body_of, classifier, digits_fleet
from pytriton.fleet.on_ray.client import RayFleetClient

#: What Ray calls its throughput settings.
SETTINGS = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
_CLIENTS = (1, 8, 32)
_WARM_S, _MEASURED_S, _REST_S, _CALM_S = 3.0, 10.0, 5.0, 5.0
_CHECKERS = 4
_REPLICA = "ray::ServeReplica"


class Pace(NamedTuple):
    """The answers to a number of clients: requests/s, milliseconds, CPU milliseconds of a request."""

    clients: int
    rate: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    failed: int


class Replaced(NamedTuple):
    """The cost of one replica's end, while clients asked."""

    took_s: float
    asked: int
    failed: int
    slowest_s: float
    causes: list[str]


class Results(NamedTuple):
    """Of one system."""

    name: str
    rest_cpu: float
    paces: list[Pace]
    replaced: Replaced


class Served(ABC):
    """The classifier as one of the systems serves it."""

    def __init__(self, name: str, http_at: str, path: str, images: Array, labels: Array) -> None:
        self.name = name
        self.http_at, self.path = http_at, path
        self.images, self.labels = images, labels

    @abstractmethod
    def replicas(self) -> dict[int, bool]:
        """Return the process id of each replica, and whether requests go to it."""


class _Ours(Served):
    fleet: RayFleetClient

    def replicas(self) -> dict[int, bool]:
        return {
            each.pid: each.state == "ready"
            for model in self.fleet.models()
            for info in model.by_node.values()
            for each in info.instances
            if each.pid is not None
        }


class _RayServe(Served):
    def replicas(self) -> dict[int, bool]:
        from ray import serve

        (deployment,) = serve.status().applications["default"].deployments.values()
        running = deployment.replica_states.get("RUNNING", 0)
        found = []
        for process in processes_here():
            with contextlib.suppress(psutil.Error):
                if " ".join(process.cmdline()).startswith(_REPLICA):
                    found.append(process.pid)
        return dict.fromkeys(found, running == INSTANCES == len(found))


def compare(cluster: Any, folder: Path, say: Callable[[str], None]) -> None:
    """Measure both on a cluster, one after the other, and print tables."""
    results = []
    for begin in (_begin_ours, _begin_ray_serve):
        with begin(cluster, folder, say) as served:
            results.append(_measure(served, folder, say))
    _print(results)


@contextlib.contextmanager
def _begin_ours(cluster: Any, folder: Path, say: Callable[[str], None]) -> Iterator[Served]:
    with digits_fleet(cluster.address, folder, say) as (fleet, http_at, _, images, labels):
        ours = _Ours("a fleet", http_at, PATH, images, labels)
        ours.fleet = fleet
        yield ours


@contextlib.contextmanager
def _begin_ray_serve(cluster: Any, folder: Path, say: Callable[[str], None]) -> Iterator[Served]:
    from ray import serve

    nearest, images, labels = classifier()
    port = lasting_port()
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(_application(nearest), route_prefix="/")
        say(f"Ray Serve has {INSTANCES} replicas")
        yield _RayServe("Ray Serve", f"127.0.0.1:{port}", "/", images, labels)
    finally:
        serve.shutdown()


def _application(nearest: Callable[[Array], Array]) -> Any:
    from ray import serve
    from starlette.requests import Request as Asked
    from starlette.responses import Response

    @serve.deployment(
        num_replicas=INSTANCES, max_ongoing_requests=256, ray_actor_options={"num_cpus": 1}
    )
    class Digits:
        async def __call__(self, request: Asked) -> Any:
            (tensor,) = json.loads(await request.body())["inputs"]
            image = np.asarray(tensor["data"], np.float32).reshape(tensor["shape"])
            label = {"name": "label", "shape": [1, 1], "datatype": "INT64"}
            answer = {"outputs": [{**label, "data": nearest(image).tolist()}]}
            return Response(json.dumps(answer), media_type="application/json")

    deployment: Any = Digits
    # Starlette's types are found by their names, which are local ones here.
    deployment.func_or_class.__call__.__annotations__["request"] = Asked
    return deployment.bind()


def _measure(served: Served, folder: Path, say: Callable[[str], None]) -> Results:
    checking = Load(served.http_at, "", served.images, served.labels, served.path)
    checking.wait_until_served()
    rest = _cpu_s()
    time.sleep(_REST_S)
    rest_cpu = (_cpu_s() - rest) / _REST_S
    paces = [_pace(served, clients, folder) for clients in _CLIENTS]
    say(f"{served.name}: measured with {', '.join(map(str, _CLIENTS))} clients")
    replaced = _replace(served, checking)
    say(f"{served.name}: a replica was killed, and replaced after {replaced.took_s:.1f} s")
    return Results(served.name, rest_cpu, paces, replaced)


def request_for(http_at: str, path: str, image: Array) -> Request:
    """Return the request of all clients; a generator in Python sends it to processes of its own."""
    kind = {"content-type": "application/json"}
    return Request(f"http://{http_at}{path}", body_of(image), _unchecked, kind)


def _unchecked(*_: object) -> None:
    """Take any answer: `_replace` has them checked."""


def _pace(served: Served, clients: int, folder: Path) -> Pace:
    request = request_for(served.http_at, served.path, served.images[0])
    generators.apply(request, clients, _WARM_S, 0, folder)
    before = _cpu_s()
    load = generators.apply(request, clients, _MEASURED_S, 0, folder)
    used = _cpu_s() - before
    rate = load.requests / load.seconds
    return Pace(clients, rate, load.p50_ms, load.p99_ms, 1000 * used / load.requests, load.failed)


def _replace(served: Served, load: Load) -> Replaced:
    """Kill one replica while clients ask, and check, and wait until another one has taken its place."""
    before = served.replicas()
    assert list(before.values()) == [True] * INSTANCES, before
    with load.running(_CHECKERS, grpc=False):
        time.sleep(_CALM_S)
        victim = psutil.Process(next(iter(before)))
        victim.kill()
        killed_at = time.monotonic()

        def is_replaced() -> bool:
            now = served.replicas()
            return victim.pid not in now and len(now) == INSTANCES and all(now.values())

        until(is_replaced, f"{served.name} has {INSTANCES} replicas again")
        took = time.monotonic() - killed_at
        time.sleep(_CALM_S)
    causes = [f"{count} x {cause}" for (_, cause), count in sorted(load.failed.items())]
    return Replaced(
        took, load.asked["calm"], sum(load.failed.values()), load.slowest["calm"], causes
    )


def _cpu_s() -> float:
    """Return the CPU seconds of all processes here but this one, and what it started itself (wrk)."""
    total = 0.0
    for process in processes_here():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _print(results: list[Results]) -> None:
    print(f"\n{MODEL_NAME}, {INSTANCES} instances, over HTTP; {os.cpu_count()} CPUs\n")
    names = ("clients", "requests/s", "p50 ms", "p99 ms", "CPU ms each", "failed")
    print(_row("", *names))
    for one in results:
        for pace in one.paces:
            times = (f"{each:.2f}" for each in (pace.p50_ms, pace.p99_ms, pace.cpu_ms))
            print(_row(one.name, pace.clients, f"{pace.rate:.0f}", *times, pace.failed))
    print("\n" + _row("", "CPU at rest", "new after", "asked", "failed", "slowest"))
    for one in results:
        gone = one.replaced
        slowest = f"{gone.slowest_s:.2f} s"
        took = f"{gone.took_s:.1f} s"
        print(_row(one.name, f"{one.rest_cpu:.2f}", took, gone.asked, gone.failed, slowest))
        for cause in gone.causes:
            print(f"    {one.name}: {cause}")


def _row(name: str, *values: object) -> str:
    return f"{name:<10}" + "".join(f"{value!s:>13}" for value in values)
