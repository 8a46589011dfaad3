"""A tritonserver without a daemon, which serves Python models of a folder: for models no daemon serves."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import tritonclient.http
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException

from pytriton.dispatcher.ports import free_port
from pytriton.dispatcher.server_runtime import (
    ServerChoice,
    find_or_install_server,
    server_environment,
)
from support.running import eventually

_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class PlainTriton:
    """Where it listens."""

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
    """Serve models, each with its config.pbtxt and its model.py, until the end of the block.

    Or those of a whole repository.
    """
    for name, (config, code) in models.items():
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(config)
        (folder / "models" / name / "1" / "model.py").write_text(code)
    if repository is not None:
        shutil.copytree(repository, folder / "models", dirs_exist_ok=True)
    runtime = find_or_install_server(ServerChoice(), print)
    backends = folder / "backends"
    backends.mkdir()
    (backends / "python").symlink_to(runtime.python_backend)
    environment = server_environment(runtime, os.environ)
    command = [
        str(runtime.binary),
        f"--model-repository={folder / 'models'}",
        f"--backend-directory={backends}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        "--exit-timeout-secs=5",
        *options,
    ]
    regions = f"plain-{os.getpid()}-{next(_NUMBERS)}-"
    command.append(f"--backend-config=python,shm-region-prefix-name={regions}")
    log = folder / "tritonserver.log"
    with ExitStack() as stack:
        stack.callback(_remove_regions, regions)
        running = None
        while running is None:
            http, grpc, metrics = (free_port("127.0.0.1") for _ in range(3))
            ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
            process = stack.enter_context(_process([*command, *ports], environment, folder, log))
            if _ready(process, f"127.0.0.1:{http}", log):
                running = PlainTriton(
                    f"http://127.0.0.1:{http}",
                    f"grpc://127.0.0.1:{grpc}",
                    f"http://127.0.0.1:{metrics}/metrics",
                )
        yield running


@contextmanager
def _process(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _remove_regions(beginning: str) -> None:
    for region in Path("/dev/shm").glob(f"{beginning}*"):  # one that crashed leaves them
        region.unlink()


def _ready(process: subprocess.Popen[bytes], address: str, log: Path) -> bool:
    """Return whether it is ready, as soon as it is; False: somebody else has taken one of its ports meanwhile."""

    def known() -> str | None:
        if process.poll() is not None:
            said = log.read_text(errors="replace")
            assert "already in use" in said, f"tritonserver ended:\n{said}"
            return "taken"
        with tritonclient.http.InferenceServerClient(address) as client:
            try:
                return "ready" if client.is_server_ready() else None
            except (OSError, HTTPConnectionClosed, InferenceServerException):  # not listening yet
                return None

    told = eventually(known, lambda: f"tritonserver is ready:\n{log.read_text()[-4000:]}", 100)
    return bool(told == "ready")
