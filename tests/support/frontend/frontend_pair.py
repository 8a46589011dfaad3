"""NVIDIA's executable and the native frontend, each with its own core, serving the same models.

The models are those of backend.c, which return their inputs. `one` batches and has labels, `many` is decoupled, `types`
has an input of each data type, `sequence` requires sequences, `gone` cannot be loaded.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytriton._host.install.cache import cache_dir
from pytriton._host.install.compiled_frontend import library_environment, make_frontend
from pytriton._host.install.proxy_compiler import compiler
from pytriton._host.install.server_runtime import (
    ServerChoice,
    ServerRuntime,
    find_or_install_server,
)
from support.frontend.c_programs import include_flags
from support.ports import lasting_port
from support.real_daemon import eventually

#: Names of data types in a request, and in a model's configuration.
TYPES = {
    "BOOL": "BOOL", "UINT8": "UINT8", "UINT16": "UINT16", "UINT32": "UINT32", "UINT64": "UINT64", "INT8": "INT8",
    "INT16": "INT16", "INT32": "INT32", "INT64": "INT64", "FP16": "FP16", "FP32": "FP32", "FP64": "FP64",
    "BYTES": "STRING", "BF16": "BF16",
}  # fmt: skip
_TENSOR = '{{ name: "{name}" data_type: TYPE_{type} dims: [ -1 ] {more} }}'


@dataclass(frozen=True)
class Frontend:
    """The addresses of one of the two frontends."""

    name: str
    http: str
    grpc: str
    metrics: str


def write_models(folder: Path) -> None:
    """Write the repository."""
    optional = "optional: true"
    labels = 'label_filename: "labels.txt"'
    batching = "max_batch_size: 8"
    pair = [("0", "FP32", "", labels), ("1", "STRING", optional, "")]
    every = [(name, name_of, optional, "") for name, name_of in TYPES.items()]
    _write(folder / "one", batching, pair)
    _write(folder / "many", "model_transaction_policy { decoupled: true }", pair)
    _write(folder / "types", "", every)
    _write(folder / "single", "", pair[:1])
    _write(
        folder / "sequence",
        f"{batching} sequence_batching {{ max_sequence_idle_microseconds: 60000000 }}",
        pair,
    )
    _write(
        folder / "gone",
        'parameters { key: "x" value: { string_value: "y" } } backend: "nobody"',
        pair,
    )


def _write(folder: Path, more: str, tensors: Sequence[tuple[str, str, str, str]]) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "labels.txt").write_text("cat\ndog\nbird\n")
    backend = "" if "backend:" in more else 'backend: "fronttest"'
    inputs = ", ".join(
        _TENSOR.format(name=f"INPUT{name}", type=kind, more=said) for name, kind, said, _ in tensors
    )
    outputs = ", ".join(
        _TENSOR.format(name=f"OUTPUT{name}", type=kind, more=said)
        for name, kind, _, said in tensors
    )
    (folder / "config.pbtxt").write_text(
        f"{backend}\n{more}\ninput [ {inputs} ]\noutput [ {outputs} ]\n"
        "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
    )


def build_backend(folder: Path) -> None:
    """Compile backend.c into a folder of backends."""
    command = compiler()
    assert command is not None, "these tests need a C compiler"
    (folder / "fronttest").mkdir(parents=True)
    target = folder / "fronttest" / "libtriton_fronttest.so"
    source = Path(__file__).with_name("backend.c")
    argv = [command, "-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*argv, *include_flags("backend"), "-o", target, source], check=True)


@contextmanager
def both_frontends(folder: Path, *options: tuple[str, str]) -> Iterator[tuple[Frontend, Frontend]]:
    """Yield NVIDIA's frontend, then the native one, both with these options of tritonserver added.

    "{folder}" in a value stands for the folder of that frontend's models.
    """
    runtime = find_or_install_server(ServerChoice(python_backend=False), print)
    build_backend(folder / "backends")
    usual = [
        ("model-control-mode", "explicit"),
        ("strict-readiness", "false"),
        ("exit-on-error", "false"),
    ]
    usual += [
        ("load-model", name) for name in ("one", "many", "types", "single", "sequence", "gone")
    ]
    usual += [("backend-directory", str(folder / "backends")), ("allow-gpu-metrics", "false")]
    with ExitStack() as stack:
        frontends: list[Frontend] = []
        for start in (_start_nvidia, _start_native):
            models = folder / f"models-{len(frontends)}"
            write_models(models)
            placed = [(name, value.replace("{folder}", str(models))) for name, value in options]
            own = [*usual, ("model-repository", str(models)), *placed]
            frontends.append(stack.enter_context(start(folder, runtime, own)))
        yield frontends[0], frontends[1]


@contextmanager
def _start_nvidia(
    folder: Path, runtime: ServerRuntime, options: Sequence[tuple[str, str]]
) -> Iterator[Frontend]:
    env = {**os.environ, **library_environment(runtime.tree.libraries)}
    log = folder / "nvidia.log"
    found = None
    while found is None:
        http, grpc, metrics = (lasting_port() for _ in range(3))
        argv = [str(runtime.tree.binary), *(f"--{name}={value}" for name, value in options)]
        for name, port in (("http", http), ("grpc", grpc), ("metrics", metrics)):
            argv += [f"--{name}-address=127.0.0.1", f"--{name}-port={port}"]
        try:
            with _running(argv, env, log) as said:
                found = _awaited("nvidia", http, grpc, metrics, said)
                yield found
        except AssertionError:
            if found is not None or "already in use" not in log.read_text(errors="replace"):
                raise


@contextmanager
def _start_native(
    folder: Path, runtime: ServerRuntime, options: Sequence[tuple[str, str]]
) -> Iterator[Frontend]:
    program = make_frontend(runtime.tree, cache_dir(), print)
    with ExitStack() as stack:
        sockets = {
            name: stack.enter_context(socket.socket()) for name in ("http", "grpc", "metrics")
        }
        for listening in sockets.values():
            listening.bind(("127.0.0.1", 0))
            listening.listen()
        settings = {
            "core": str(program.core),
            "libraries": program.libraries,
            "options": [list(option) for option in options],
            "listen": [{"fd": one.fileno(), "protocol": name} for name, one in sockets.items()],
        }
        reading, writing = os.pipe()
        os.write(writing, json.dumps(settings).encode())
        os.close(writing)
        kept = [reading, *(one.fileno() for one in sockets.values())]
        stack.callback(os.close, reading)
        env = {**os.environ, **library_environment(runtime.tree.libraries)}
        argv = [str(program.program), f"--settings={reading}"]
        said = stack.enter_context(_running(argv, env, folder / "native.log", kept))
        ports = [one.getsockname()[1] for one in sockets.values()]
        yield _awaited("native", ports[0], ports[1], ports[2], said)


@contextmanager
def _running(
    argv: Sequence[str], env: dict[str, str], log: Path, kept: Sequence[int] = ()
) -> Iterator[Callable[[], str]]:
    with open(log, "wb") as output:
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=kept
        )

    def said() -> str:
        text = log.read_text(errors="replace")
        assert process.poll() is None, f"{argv[0]} ended with {process.poll()}:\n{text}"
        return text

    try:
        yield said
        said()  # it is alive
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _awaited(name: str, http: int, grpc: int, metrics: int, said: Callable[[], str]) -> Frontend:
    def is_up() -> bool:
        said()
        try:
            with socket.create_connection(("127.0.0.1", http), 5) as connection:
                connection.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
                return connection.recv(100).startswith(b"HTTP/1.1 200")
        except OSError:
            return False

    eventually(is_up, lambda: f"{name} is up:\n{said()[-4000:]}", 60)
    return Frontend(name, f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", f"127.0.0.1:{metrics}")
