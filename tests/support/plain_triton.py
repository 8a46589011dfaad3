"""A tritonserver without a daemon, which serves a folder of Python models, for models that no daemon serves."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tritonclient.http
from geventhttpclient.response import HTTPConnectionClosed

from pytriton._host.install.server_runtime import (
    PythonBackend,
    ServerChoice,
    ServerRuntime,
    find_or_install_server,
    server_environment,
)
from pytriton._host.ports import free_ports
from support.real_daemon import eventually


@dataclass(frozen=True)
class PlainTriton:
    """The addresses of a running tritonserver."""

    http: str
    grpc: str
    metrics: str


@contextmanager
def plain_triton(
    folder: Path,
    models: Mapping[str, tuple[str, str]],
    options: Sequence[str] = (),
    *,
    repository: Path | None = None,
) -> Iterator[PlainTriton]:
    """Serve models, each with its config.pbtxt and model.py, or a whole repository, until the block ends."""
    for name, (config, code) in models.items():
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(config)
        (folder / "models" / name / "1" / "model.py").write_text(code)
    if repository is not None:
        shutil.copytree(repository, folder / "models", dirs_exist_ok=True)
    runtime = find_or_install_server(ServerChoice(python_backend=True), print)
    assert runtime.python is not None
    backends = folder / "backends"
    backends.mkdir()
    (backends / "python").symlink_to(runtime.python.folder)
    started = None
    while started is None:
        started = _start(folder, runtime, runtime.python, backends, options)
    process, triton, regions = started
    try:
        yield triton
    finally:
        _end(process, regions)


def _start(
    folder: Path,
    runtime: ServerRuntime,
    python: PythonBackend,
    backends: Path,
    options: Sequence[str],
) -> tuple[subprocess.Popen[bytes], PlainTriton, str] | None:
    """Return the ready server and the prefix of its regions' names; None if one of its ports was taken."""
    http, grpc, metrics = free_ports("127.0.0.1", 3)
    regions = f"plain-{os.getpid()}-{http}-"
    command = [
        str(runtime.tree.binary),
        f"--model-repository={folder / 'models'}",
        f"--backend-directory={backends}",
        f"--backend-config=python,shm-region-prefix-name={regions}",
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        f"--metrics-port={metrics}",
        "--metrics-address=127.0.0.1",
        "--exit-timeout-secs=5",
        *options,
    ]
    log = folder / "tritonserver.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            env=server_environment(runtime, os.environ, python.environment.root),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        _wait_ready(process, f"127.0.0.1:{http}", log)
    except BaseException:
        taken = process.poll() is not None and "already in use" in log.read_text(errors="replace")
        _end(process, regions)
        if taken:
            return None
        raise
    triton = PlainTriton(
        f"http://127.0.0.1:{http}",
        f"grpc://127.0.0.1:{grpc}",
        f"http://127.0.0.1:{metrics}/metrics",
    )
    return process, triton, regions


def _end(process: subprocess.Popen[bytes], regions: str) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for region in Path("/dev/shm").glob(f"{regions}*"):  # left behind by a crash
        region.unlink(missing_ok=True)


def _wait_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    def ready() -> bool:
        assert process.poll() is None, f"tritonserver ended:\n{log.read_text(errors='replace')}"
        with tritonclient.http.InferenceServerClient(address) as client:
            try:
                return bool(client.is_server_ready())
            except (OSError, HTTPConnectionClosed):  # not ready yet, or it has just exited
                return False

    eventually(ready, lambda: f"tritonserver is ready:\n{log.read_text()[-4000:]}", 200)
