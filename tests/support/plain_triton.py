"""A tritonserver without a daemon, which serves a folder of Python models, for models that no daemon serves."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from support.ports import lasting_port
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
    process, triton, kill_on_death = started
    try:
        yield triton
    finally:
        _end(process, kill_on_death)


def _start(
    folder: Path,
    runtime: ServerRuntime,
    python: PythonBackend,
    backends: Path,
    options: Sequence[str],
) -> tuple[subprocess.Popen[bytes], PlainTriton, KillOnDeath] | None:
    """Return the ready server, and what kills it if this process is killed; None if one of its ports was taken."""
    http, grpc, metrics = (lasting_port() for _ in range(3))
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
    kill_on_death = KillOnDeath(Path("/dev/shm") / regions)
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            env=server_environment(
                runtime, kill_on_death.mark(os.environ), python.environment.root
            ),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    kill_on_death.add(process.pid)
    try:
        _wait_ready(process, f"127.0.0.1:{http}", log)
    except BaseException:
        taken = process.poll() is not None and "already in use" in log.read_text(errors="replace")
        _end(process, kill_on_death)
        if taken:
            return None
        raise
    triton = PlainTriton(
        f"http://127.0.0.1:{http}",
        f"grpc://127.0.0.1:{grpc}",
        f"http://127.0.0.1:{metrics}/metrics",
    )
    return process, triton, kill_on_death


def _end(process: subprocess.Popen[bytes], kill_on_death: KillOnDeath) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    kill_on_death.close()  # also removes the regions that a crash has left behind
    process.wait()


def _wait_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    def ready() -> bool:
        assert process.poll() is None, f"tritonserver ended:\n{log.read_text(errors='replace')}"
        with tritonclient.http.InferenceServerClient(address) as client:
            try:
                return bool(client.is_server_ready())
            except (OSError, HTTPConnectionClosed):  # not ready yet, or it has just exited
                return False

    eventually(ready, lambda: f"tritonserver is ready:\n{log.read_text()[-4000:]}", 200)
